"""The connection to Redis: calls with a deadline, scripts, one blocked read at a time.

Nothing is retried here: a call that got no answer raises :class:`BackendUnavailable`, and whoever
knows that it may be done twice does it again, for instance with :func:`retrying`.

A backend speaks to one server or to the nodes of a Cluster, by the same calls. What it needs of either
is a :class:`Server`; nothing outside of this package knows which it is, but for a few that ask
:attr:`Backend.is_cluster`, since a Cluster reads and waits slot by slot.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from streamworker.errors import BackendError, BackendRefused, BackendUnavailable, ConfigurationError
from streamworker.redisio.cluster import Cluster, key_of
from streamworker.redisio.durability import MEMORY, Durability
from streamworker.redisio.failures import is_wrong_type, no_answer
from streamworker.redisio.info import ServerInfo, read_info
from streamworker.redisio.link import Argument, Link, answer_of, pack
from streamworker.redisio.node import Node, ScriptCall, Server
from streamworker.redisio.scripts import Script
from streamworker.redisio.sentinel import target_for
from streamworker.redisio.topology import slot_of
from streamworker.urls import CLUSTER, kind_of, refuse_plaintext

__all__ = ["Backend", "BlockingConnection", "ScriptCall", "retrying"]

T = TypeVar("T")

CONNECTIONS = 8
"""Most connections of one backend. Calls are short, so that a few serve a whole worker."""

BLOCK_MARGIN_MS = 1_000
"""A blocked read that has not ended this long after its time has lost its server."""

UNBLOCK_PAUSE_S = 0.005


class Backend:
    """Redis, from one event loop. Make it with :meth:`open`; it connects when it is used.

    Examples
    --------
    >>> async def ping() -> bytes:
    ...     async with Backend.open("redis://localhost:6379/0", name="example") as backend:
    ...         return await backend.execute("PING")
    """

    def __init__(self, server: Server, call_timeout_ms: float) -> None:
        self._server = server
        self._call_timeout_ms = call_timeout_ms

    @classmethod
    def open(
        cls,
        url: str,
        *,
        name: str,
        call_timeout_ms: float = 2_500,
        connections: int = CONNECTIONS,
        allow_plaintext: bool = False,
    ) -> Self:
        """Make a backend; connects to nothing.

        Parameters
        ----------
        url
            ``redis://``, ``rediss://`` or ``unix://``; with ``+cluster`` behind ``redis`` or ``rediss``
            and some nodes' addresses, a Cluster; with ``+sentinel``, that of sentinels. Never shown.
        name
            Shown in ``CLIENT LIST``.
        call_timeout_ms
            Deadline of each call, with everything in it: waiting for a connection, connecting,
            sending, the answer.
        connections
            The most connections at a time, to each node. Those of :meth:`blocking` are not among them.
        allow_plaintext
            Whether ``redis://`` may leave this machine.

        Raises
        ------
        ConfigurationError
            If the URL cannot be read, or would send plain text to another machine.
        """
        if not allow_plaintext:
            refuse_plaintext(url, "The URL of Redis")
        if kind_of(url) == CLUSTER:
            return cls(Cluster.open(url, name, connections), call_timeout_ms)
        target = target_for(url, name, allow_plaintext=allow_plaintext)
        return cls(Node(target, connections), call_timeout_ms)

    @property
    def address(self) -> str:
        """Host and port, or path of the socket; never a user or password."""
        return self._server.address

    @property
    def is_cluster(self) -> bool:
        """Whether it speaks to a Cluster: one command may then name keys of one slot only."""
        return isinstance(self._server, Cluster)

    def by_slot(self, keys: Sequence[str]) -> list[list[str]]:
        """Return keys in parts that one command may name; all in one part but on a Cluster."""
        if not self.is_cluster:
            return [list(keys)] if keys else []
        parts: dict[int, list[str]] = {}
        for key in keys:
            parts.setdefault(slot_of(key), []).append(key)
        return list(parts.values())

    async def primaries(self) -> "list[Backend]":
        """Return a backend for each server that holds keys; they are closed with this one.

        Raises
        ------
        BackendUnavailable
            If no node tells which there are.
        """
        if not isinstance(self._server, Cluster):
            return [self]
        nodes = await self._server.primaries(self._call_timeout_ms)
        return [Backend(node, self._call_timeout_ms) for node in nodes]

    def look_again(self) -> None:
        """Ask in the background which servers hold keys: one that was thought to be a primary is none."""
        if isinstance(self._server, Cluster):
            self._server.look_again()

    async def uncovered(self) -> int:
        """Return how many slots of a Cluster nobody has; 0 for one server, which has everything.

        Raises
        ------
        BackendUnavailable
            If no node tells.
        """
        return await self._server.uncovered(self._call_timeout_ms) if isinstance(self._server, Cluster) else 0

    def apart(self, connections: int) -> "Backend":
        """Return a backend of the same server or Cluster, with connections of its own; close it first.

        It shares what is known of where a Cluster's slots are. For reads that no other call is to wait for.
        """
        return Backend(self._server.apart(connections), self._call_timeout_ms)

    @property
    def map_version(self) -> int:
        """Another one whenever it is known that keys of a Cluster are somewhere else."""
        return self._server.map_version

    @property
    def pause_max_ms(self) -> int:
        """How long to wait at most before a call is made again: a replica that may take over does soon.

        One server that cannot be reached is not knocked at more often for it; see ``attempts``.
        """
        follows = isinstance(self._server, Node) and self._server.target.moves
        return 500 if self.is_cluster or follows else 1_000

    def known_place_of(self, key: str) -> str:
        """Return where a key is, without asking: empty for one server, and as long as it is not known.

        For what keeps what goes to one node apart from what goes to others, so as not to wait for them.
        """
        return self._server.known_place_of(key) if isinstance(self._server, Cluster) else ""

    async def place_of(self, key: str) -> str:
        """Return the address of the node that has a key, by what is known; empty if nobody has it.

        Raises
        ------
        BackendError
            If no node of a Cluster tells.
        """
        if not isinstance(self._server, Cluster):
            return self.address
        return await self._server.place_of(key, self._call_timeout_ms)

    async def execute(self, *args: Argument, timeout_ms: float | None = None, near: str = "") -> Any:
        """Run one command.

        Parameters
        ----------
        near
            For a command that names no key: the key whose node is asked. One server is asked anyway.

        Raises
        ------
        BackendError
            ``BackendUnavailable`` if there was no answer: it may or may not have been done.
        """
        server, timeout_ms = self._server, timeout_ms or self._call_timeout_ms
        if near and self.is_cluster:
            node = await server.node_of(near, timeout_ms)
            try:
                answers = await node.commands([args], timeout_ms)
            except BackendUnavailable:
                server.failed(node)
                raise
        else:
            answers = await server.commands([args], timeout_ms)
        (answer,) = _named([args], answers)
        if isinstance(answer, BackendError):
            raise answer
        return answer

    async def pipeline(
        self, commands: Sequence[Sequence[Argument]], *, timeout_ms: float | None = None
    ) -> list[Any]:
        """Run some commands in one round trip, each for itself; on a Cluster in one to each node.

        There a command that names no key goes where the one before it goes, the first ones where the
        first that names one goes.

        Returns
        -------
        list
            A reply for each command; the error for one that was refused, and on a Cluster
            :class:`BackendUnavailable` for one whose node gave no answer.

        Raises
        ------
        BackendUnavailable
            If any answer is missing; on a Cluster if all are.
        """
        if not commands:
            return []
        return _named(commands, await self._server.commands(commands, timeout_ms or self._call_timeout_ms))

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Argument],
        timeout_ms: float | None = None,
    ) -> Any:
        """Run a script.

        Raises
        ------
        BackendError
            As :meth:`execute`.
        """
        (reply,) = await self.run_many(script, [(keys, args)], timeout_ms)
        if isinstance(reply, BackendError):
            raise reply
        return reply

    async def run_many(
        self,
        script: Script,
        calls: Sequence[ScriptCall],
        timeout_ms: float | None = None,
        *,
        durability: Durability = MEMORY,
    ) -> list[Any]:
        """Run a script several times in one round trip, each for itself, in this order.

        On a Cluster there is one round trip to each node, and the order is that of each slot.

        Returns
        -------
        list
            A reply for each call; the error for one that was refused; the reply in an ``Undurable``
            for one that is not as safe as ``durability`` asks; on a Cluster :class:`BackendUnavailable`
            for one whose node gave no answer.

        Raises
        ------
        BackendUnavailable
            If any answer is missing; on a Cluster if all are.
        """
        if not calls:
            return []
        return await self._server.scripts(script, calls, timeout_ms or self._call_timeout_ms, durability)

    def blocking(self, key: str = "") -> "BlockingConnection":
        """Return a connection of its own for a read that waits at the server that has a key."""
        return BlockingConnection(self._server, key, self._call_timeout_ms)

    async def identity(self, near: str = "") -> tuple[int, str]:
        """Return this connection's client id and the server's run id, by which peers find it.

        Meant for a backend with one connection, or with one call at a time. Asked of the server
        once a connection; ``0`` and ``""`` where it does not tell. On a Cluster it is about the
        connection to the node that has the key ``near``.
        """
        return await self._server.identity(near, self._call_timeout_ms)

    async def info(self, near: str = "") -> ServerInfo:
        """Return what the server says about itself.

        Raises
        ------
        BackendRefused
            If this user may not ask.
        """
        return read_info(await self.execute("INFO", near=near))

    async def time_ms(self, near: str = "") -> int:
        """Return the server's clock in ms, the one that all compared times come from.

        The nodes of a Cluster have a clock each: what is compared is compared at the node of ``near``.
        """
        seconds, micros = await self.execute("TIME", near=near)
        return int(seconds) * 1000 + int(micros) // 1000

    async def aclose(self) -> None:
        """Close the connections; calls after this raise."""
        await self._server.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class BlockingConnection:
    """A connection for reads that wait at the server; for one task at a time.

    It comes back by itself: after an error the next call connects anew.
    """

    def __init__(self, server: Server, key: str, call_timeout_ms: float) -> None:
        self._server = server
        self._key = key
        self._call_timeout_ms = call_timeout_ms
        self._roundtrip_ms = 0.0
        """How long one took when it was connected: a read on a slow network may take so much longer."""
        self._node: Node | None = None
        self._link: Link | None = None
        self._under_way = 0
        """Which call is under way; 0 for none."""
        self._calls = 0
        self._cut = 0
        """The last call that was ended by closing its connection."""

    async def execute(self, *args: Argument, block_ms: int) -> Any:
        """Run one command that may block at the server for ``block_ms``.

        Returns
        -------
        Any
            The reply; None when nothing came, or when :meth:`unblock` ended it.

        Raises
        ------
        BackendUnavailable
            If there was no answer a second after the server should have given one, a round trip more
            where that takes long, and if the keys are at another node by now: the next call finds it.
            Connecting has its own time.
        """
        node, link = self._node, self._link
        if node is None or link is None or node is not self._server:  # On a Cluster it may be another by now.
            node, link = await self._find(self._call_timeout_ms)
        self._calls += 1
        deadline_ms = self._call_timeout_ms
        try:
            await link.ready(waits=node.waits)
            if link.client_id is None:
                async with asyncio.timeout(deadline_ms / 1000):
                    began_s = asyncio.get_running_loop().time()
                    (number,) = await link.roundtrip(pack(("CLIENT", "ID")), 1)
                    self._roundtrip_ms = 1_000 * (asyncio.get_running_loop().time() - began_s)
                link.client_id = number if isinstance(number, int) else 0
            deadline_ms = block_ms + BLOCK_MARGIN_MS + self._roundtrip_ms
            async with asyncio.timeout(deadline_ms / 1000):
                self._under_way = self._calls
                (reply,) = await link.roundtrip(pack(args), 1)
        except TimeoutError:
            await link.close()
            self._server.failed(node)
            raise no_answer(node.address, deadline_ms) from None
        except BackendUnavailable:
            if self._cut == self._calls:
                return None
            self._server.failed(node)
            raise
        finally:
            self._under_way = 0
        try:
            return answer_of(self._server.noted(reply, node), node.address)
        except BackendUnavailable:
            # UNBLOCKED: the server became a replica; whatever has the address now is to be found.
            await link.close()
            raise

    async def _find(self, timeout_ms: float) -> tuple[Node, Link]:
        """Return the node that has the key, and our connection to it."""
        node = await self._server.node_of(self._key, timeout_ms)
        if self._link is None or node is not self._node:
            await self.aclose()
            self._node, self._link = node, Link(node.target)
        return node, self._link

    async def unblock(self) -> None:
        """Wake the call that is under way, if there is one: it returns None at once.

        Does nothing if no call blocks; the next one is not affected.

        Raises
        ------
        BackendError
            If Redis gave no answer. The call under way finds out for itself.
        """
        woken = self._under_way
        while woken and self._under_way == woken:
            try:
                # It may overtake the read on its way to the server, and then wakes nobody.
                if await self._unblock_at_server():
                    return
            except BackendRefused:
                # Not allowed to this user. Cutting the connection costs a new one, but wakes too.
                self._cut = woken
                await self.aclose()
                return
            await asyncio.sleep(UNBLOCK_PAUSE_S)

    async def _unblock_at_server(self) -> bool:
        assert self._node is not None
        assert self._link is not None
        if not self._link.client_id:
            raise BackendRefused("This user may not ask for CLIENT ID.")
        words = ("CLIENT", "UNBLOCK", self._link.client_id)
        (reply,) = await self._node.commands([words], self._call_timeout_ms)
        if isinstance(reply, BackendError):
            raise reply
        return bool(reply)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._link is not None:
            await self._link.close()


async def retrying(
    call: Callable[[], Awaitable[T]],
    *,
    rng: random.Random,
    tries: int = 5,
    pause_ms: float = 50,
    pause_max_ms: float = 1_000,
) -> T:
    """Make a call again while it gets no answer. Only for calls that may be done twice.

    Reads may; so may register, acquire, release, mark, commit, trim, and an append with its
    number. Pauses double, and each is shortened at random by up to a half, so that many workers
    do not come back in step.

    Raises
    ------
    BackendUnavailable
        The last one, when all tries got no answer.
    BackendRefused
        At once.
    """
    for left in reversed(range(tries)):
        try:
            return await call()
        except BackendUnavailable:
            if not left:
                raise
        await asyncio.sleep(pause_ms * (1 - rng.random() / 2) / 1000)
        pause_ms = min(2 * pause_ms, pause_max_ms)
    raise ConfigurationError(f"retrying() was asked for {tries} tries.", remedy="Ask for one at least.")


def _named(commands: Sequence[Sequence[Argument]], answers: Sequence[Any]) -> list[Any]:
    """Return the answers; where a key holds another type, which the server does not name, we do."""
    return [
        BackendRefused(f"{answer.message.rstrip('.')}: {key_of(command)}.", remedy=answer.remedy)
        if is_wrong_type(answer)
        else answer
        for command, answer in zip(commands, answers, strict=True)
    ]
