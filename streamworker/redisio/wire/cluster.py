"""A Redis Cluster: a connection pool for each primary, and calls that are routed by slot.

Each call goes to the node that has its key. Several calls are split by node and sent concurrently, and
their replies are returned in the order of the calls. Replicas are never read, since they may lag.

A node that has given a slot away replies ``MOVED``. A node that is giving a slot away and no longer has
the key replies ``ASK``. In both cases the node has not run the call, so it is sent to the node that the
reply names. This keeps the order of the calls for one key: earlier calls were answered before. Two
concurrent calls on two connections may overtake each other, as they may with one server: a caller that
needs an order awaits the first call. If a commit reaches a node too late all the same, the script refuses
it, since it compares epoch, owner and checkpoint where the key is.

While a slot moves, some of its keys may be on one node and some on another. A script needs all of its keys
on one node, and gets ``TRYAGAIN`` meanwhile: that counts as no answer, and the caller repeats the call.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from redis.exceptions import AskError, ClusterDownError, MovedError, ReadOnlyError, TryAgainError

from streamworker.errors import BackendError, BackendRefused, BackendUnavailable, ConfigurationError
from streamworker.redisio.scripts import Script
from streamworker.redisio.wire.durability import MEMORY, Durability
from streamworker.redisio.wire.failures import translate
from streamworker.redisio.wire.node import Node, was_closed
from streamworker.redisio.wire.redispy import Reply
from streamworker.redisio.wire.topology import SLOTS, Topology, slot_of

REDIRECTIONS_MAX = 6
"""Maximum redirections of one call; more mean that the nodes disagree."""


class Cluster:
    """The nodes of a Cluster, each with up to ``connections``; it has the calls of a ``Node``."""

    has_all_keys = False
    pause_max_ms = 500

    def __init__(self, topology: Topology, connections: int, call_timeout_ms: float) -> None:
        self._topology = topology
        self._connections = connections
        self.call_timeout_ms = call_timeout_ms
        self._nodes: dict[str, Node] = {}
        self._version = 0
        self._is_owner = True
        self._on_restart: Callable[[], None] | None = None
        self._closed = False
        self._leaving: set[asyncio.Task[None]] = set()
        """Tasks that close connections to nodes that are gone."""

    def apart(self, connections: int, on_restart: Callable[[], None] | None = None) -> "Cluster":
        """Return the same Cluster with its own connections."""
        other = Cluster(self._topology, connections, self.call_timeout_ms)
        other._is_owner, other._on_restart = False, on_restart
        return other

    @property
    def address(self) -> str:
        """The nodes of the URL, for messages."""
        return self._topology.address

    @property
    def map_version(self) -> int:
        """The version of the slot map; it changes when slots have moved."""
        return self._topology.version

    def by_slot(self, keys: Sequence[str]) -> list[list[str]]:
        """Split keys by slot."""
        parts: dict[int, list[str]] = {}
        for key in keys:
            parts.setdefault(slot_of(key), []).append(key)
        return list(parts.values())

    def known_address_of(self, key: str) -> str:
        """Return the address of a key's node by the current slot map, without a call; empty if not known.

        Callers group calls by it, so that calls to one node do not wait for other nodes.
        """
        return self._topology.address_of(slot_of(key)) or ""

    async def address_of(self, key: str) -> str:
        """Return the address of a key's node by the slot map; empty if no node has the key."""
        await self._topology.loaded(self.call_timeout_ms)
        return self.known_address_of(key)

    async def primaries(self) -> list[Node]:
        """Return all nodes that have slots."""
        await self._topology.loaded(self.call_timeout_ms)
        return [self._node(address) for address in self._topology.primaries]

    async def uncovered(self) -> int:
        """Return how many slots no node serves."""
        await self._topology.loaded(self.call_timeout_ms)
        return sum(self._topology.address_of(slot) is None for slot in range(SLOTS))

    async def node_of(self, key: str) -> Node:
        """Return a key's node by the slot map, any node if the key is empty; raise if no node has it."""
        await self._topology.loaded(self.call_timeout_ms)
        address = self._address_of(slot_of(key) if key else None)
        if not address:
            raise _uncovered(self.address)
        return self._node(address)

    async def exchange(
        self,
        keys: Sequence[str],
        calls: Sequence[bytes],
        script: Script | None = None,
        durability: Durability = MEMORY,
        near: str = "",
    ) -> list[Any]:
        """Send packed commands, or calls of a script, to the nodes of their keys; raise if none answers.

        It follows redirections until each call has one. Without any key a call goes to any node.
        """
        slots = _slots(keys, near)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.call_timeout_ms / 1000
        answers: list[Any] = [None] * len(calls)
        unanswered: list[BackendError] = []
        left: list[int] = list(range(len(calls)))
        asking: dict[int, str] = {}
        for _ in range(REDIRECTIONS_MAX):
            left_ms = 1000 * (end_s - loop.time())
            if left_ms <= 0:
                break
            await self._topology.loaded(left_ms)
            parts: dict[tuple[str, bool], list[int]] = {}
            for index in left:
                asked = asking.get(index)
                where = (asked, True) if asked else (self._address_of(slots[index]), False)
                parts.setdefault(where, []).append(index)
            left, asking = [], {}
            sent = [
                self._send(where, [calls[index] for index in indexes], left_ms, script, durability)
                for where, indexes in parts.items()
            ]
            for ((address, _), indexes), replies in zip(parts.items(), await _together(sent), strict=True):
                if isinstance(replies, BackendError):
                    unanswered += [replies] * len(indexes)
                    replies = [replies] * len(indexes)
                for index, reply in zip(indexes, replies, strict=True):
                    sent_on = self._sent_on(reply, address)
                    if sent_on is None or isinstance(sent_on, BackendError):
                        answers[index] = sent_on or self._answer(reply, address)
                        continue
                    left.append(index)
                    if isinstance(reply, AskError) and not isinstance(reply, MovedError):
                        asking[index] = sent_on
            if not left:
                break
            left.sort()
        for index in left:  # Too many redirections, or the timeout expired.
            answers[index] = BackendUnavailable(
                f"The nodes of {self.address} sent a call from one to the other until its time was over.",
                remedy="It was not done. They agree in a moment, as a rule; see CLUSTER NODES on each.",
            )
        # Raise one error for all calls, unless some may have been executed and others were not.
        is_known = {not isinstance(error, BackendUnavailable) for error in unanswered}
        if len(unanswered) == len(calls) and len(is_known) == 1:
            raise unanswered[0]
        return answers

    def failed(self, node: Node) -> None:
        """Note that a node did not answer."""
        self._topology.failed(node.address)

    def noted(self, reply: Reply, node: Node) -> Reply:
        """Return a reply; if it came from the wrong node, return the error for the caller instead."""
        sent_on = self._sent_on(reply, node.address)
        if sent_on is None and not isinstance(reply, TryAgainError):
            return self._answer(reply, node.address)
        self._topology.look_soon()
        return sent_on if isinstance(sent_on, BackendError) else _elsewhere(node.address)

    async def aclose(self) -> None:
        """Close all connections, those in use after their calls end; later calls raise."""
        self._closed = True
        if self._is_owner:
            await self._topology.aclose()
        for node in list(self._nodes.values()):  # While closing awaits, a call that ends may drop a node.
            await node.aclose()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    # -- how ---------------------------------------------------------------------------------

    async def _send(
        self,
        where: tuple[str, bool],
        calls: Sequence[bytes],
        timeout_ms: float,
        script: Script | None,
        durability: Durability,
    ) -> list[Reply] | BackendError:
        """Send calls to one node; return its replies, or the error if it did not answer."""
        address, asking = where
        try:
            if not address:
                return _uncovered(self.address)
            return await self._node(address).call(calls, timeout_ms, script, durability, asking=asking)
        except BackendError as error:
            self._topology.failed(address)
            return error

    def _sent_on(self, reply: Reply, address: str) -> str | BackendRefused | None:
        """Return the node that a reply redirects to, if any; or the error if that node is not allowed."""
        if not isinstance(reply, AskError):  # MovedError is a subclass.
            return None
        target = self._topology.target(address)
        try:
            if isinstance(reply, MovedError):
                self._topology.moved(reply.slot_id, reply.host, reply.port, target)
            return self._topology.named(reply.host, reply.port, target)
        except ConfigurationError as error:
            # No setting has changed: the nodes now name an address that is not allowed.
            return BackendRefused(error.message, remedy=error.remedy)

    def _answer(self, reply: Reply, address: str) -> Any:
        if not isinstance(reply, Exception) or isinstance(reply, BackendError):
            return reply
        if isinstance(reply, ClusterDownError | ReadOnlyError):
            self._topology.look_soon()
        return _elsewhere(address) if isinstance(reply, ReadOnlyError) else translate(reply, address)

    def _address_of(self, slot: int | None) -> str:
        """Return the address of the node that has a slot; empty if no node has it."""
        if slot is None:
            return self._topology.primaries[0]
        found = self._topology.address_of(slot)
        if found is None:
            self._topology.look_soon()
        return found or ""

    def _node(self, address: str) -> Node:
        """Return the connections to a node; drop those to nodes that have left the Cluster."""
        if self._closed:
            raise was_closed()
        if self._version != self._topology.version:
            self._version = self._topology.version
            for gone in self._nodes.keys() - set(self._topology.primaries):
                # A call in progress continues, and its connection is closed after it.
                task = asyncio.get_running_loop().create_task(self._nodes.pop(gone).close_idle())
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        node = self._nodes.get(address)
        if node is None:
            target = self._topology.target(address)
            node = Node(target, self._connections, self.call_timeout_ms, is_one_of_many=True)
            node.on_restart = self._on_restart
            self._nodes[address] = node
        return node


def _slots(keys: Sequence[str], near: str = "") -> list[int | None]:
    """Return the slot of each key; for an empty key the slot before it, or that of ``near`` or the first key.

    >>> _slots(["", "{a}", "", "{b}", ""]) == [slot_of(f"{{{tag}}}") for tag in "aaabb"]
    True
    >>> _slots(["", ""])
    [None, None]
    """
    slot = next((slot_of(key) for key in (near, *keys) if key), None)
    slots: list[int | None] = []
    for key in keys:
        slot = slot_of(key) if key else slot
        slots.append(slot)
    return slots


async def _together(
    sent: Sequence[Coroutine[Any, Any, list[Reply] | BackendError]],
) -> list[list[Reply] | BackendError]:
    """Await coroutines concurrently; a single one gets no task, since most calls use one node.

    All have ended when this raises: an error that is no answer leaves no call behind.
    """
    if len(sent) == 1:
        return [await sent[0]]
    found = await asyncio.gather(*sent, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException) and not isinstance(each, BackendError):
            raise each
    return found  # type: ignore[return-value]


def _elsewhere(address: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"Redis at {address} does not have this part of the Cluster any more, or not yet.",
        remedy="It was not done. The next try goes to the node that has it.",
    )


def _uncovered(address: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"In {address} nobody has the slot of this key.",
        remedy="It was not done. A failover ends that by itself; see CLUSTER INFO.",
    )
