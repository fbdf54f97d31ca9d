"""One server, its small connection pool, and the operations on one connection.

A :class:`Node` is one server; ``cluster`` combines the nodes of a Cluster and has the same calls.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from redis.exceptions import ResponseError

from streamworker.errors import ConfigurationError
from streamworker.redisio.scripts import Script
from streamworker.redisio.wire.durability import MEMORY, Durability
from streamworker.redisio.wire.failures import no_answer
from streamworker.redisio.wire.link import Argument, Link, Target, answers_of, pack, pack_all
from streamworker.redisio.wire.redispy import Reply

SURPLUS_S = 30.0
"""A connection that was idle for this long is closed: a worker uses all connections while it starts,
and one or two when it is idle."""

LOADS = 5
"""How often a script is loaded for one call: somebody's SCRIPT FLUSH can come between load and call."""

ScriptCall = tuple[Sequence[str], Sequence[Argument]]
"""Keys and arguments of one call of a script."""
PackedScript = tuple[str, str, bytes]
"""SHA and text of a script, and its packed EVALSHA command."""

ASKING = pack(("ASKING",))
"""Makes a node of a Cluster accept the next command for a key that is moving to it."""


class Server(Protocol):
    """What a backend needs: one server, or the nodes of a Cluster.

    Errors among the replies are :class:`BackendError`. One server raises if any answer is missing. A
    Cluster returns :class:`BackendUnavailable` for each missing answer, and raises if all are missing.
    """

    @property
    def address(self) -> str:
        """The address, for messages."""

    @property
    def has_all_keys(self) -> bool:
        """Whether one node has all keys, so that one read may name any of them."""

    @property
    def map_version(self) -> int:
        """The version of the slot map; it changes when keys have moved."""

    @property
    def pause_max_ms(self) -> int:
        """Maximum backoff before a call is repeated."""

    def by_slot(self, keys: Sequence[str]) -> list[list[str]]:
        """Split keys into lists that one command may name."""

    def known_place_of(self, key: str) -> str:
        """Return the address of a key's node by the current slot map; empty if not known."""

    async def place_of(self, key: str, timeout_ms: float) -> str:
        """Return the address of a key's node; empty if no node has the key."""

    async def primaries(self, timeout_ms: float) -> "list[Node]":
        """Return all nodes that have keys."""

    async def uncovered(self, timeout_ms: float) -> int | None:
        """Return how many slots no node serves; None without slots."""

    def look_again(self) -> None:
        """Refresh the slot map in the background."""

    async def commands(
        self, commands: Sequence[Sequence[Argument]], timeout_ms: float, near: str = ""
    ) -> list[Any]:
        """Run some commands in as few round trips as possible; ``near`` is a key for those without one."""

    async def scripts(
        self, script: Script, calls: Sequence[ScriptCall], timeout_ms: float, durability: Durability
    ) -> list[Any]:
        """Run a script several times."""

    async def node_of(self, key: str, timeout_ms: float) -> "Node":
        """Return the node that has a key."""

    async def identity(self, key: str, timeout_ms: float) -> tuple[int, str]:
        """Return the client id and run id of the connection that the next call for a key will use."""

    def apart(self, connections: int) -> "Server":
        """Return the same server with its own connections."""

    def failed(self, node: "Node") -> None:
        """Note that a node did not answer another caller."""

    def noted(self, reply: Any, node: "Node") -> Any:
        """Return a reply to another caller, after noting what it says about the nodes of keys."""

    async def aclose(self) -> None:
        """Close all connections."""


class Node:
    """One server and its connections; calls take the one that was used last.

    Parameters
    ----------
    target
        The server.
    connections
        Maximum concurrent connections; further calls wait for one, within their timeout.
    is_one_of_many
        Whether there are other nodes, one of which may take over.
    """

    def __init__(self, target: Target, connections: int, *, is_one_of_many: bool = False) -> None:
        self.target = target
        self.waits = not is_one_of_many and not target.moves
        """Whether calls wait while the server is unreachable. If another server may take over, they fail
        instead, and their callers repeat them to find that server."""
        self.has_all_keys = not is_one_of_many
        """Whether one command may name any keys."""
        self._in_use = 0
        """Number of connections with a call in progress."""
        self._idle: list[Link] = []
        self._free = asyncio.Semaphore(connections)
        self._closed = False
        self._is_owner = True
        """Whether closing this node also closes its target."""
        self._keeps = True
        """Whether connections are kept for the next call."""

    @property
    def address(self) -> str:
        """Host and port, or path; for messages."""
        return self.target.address

    @property
    def map_version(self) -> int:
        """Always 0: one server has all keys."""
        return 0

    @property
    def pause_max_ms(self) -> int:
        """Maximum backoff before a call is repeated; short where another server may soon take over."""
        return 1_000 if self.waits else 500

    def by_slot(self, keys: Sequence[str]) -> list[list[str]]:
        """Return one list: one command may name any keys."""
        return [list(keys)] if keys else []

    def known_place_of(self, key: str) -> str:
        """Return nothing: there is no slot map."""
        del key
        return ""

    async def place_of(self, key: str, timeout_ms: float) -> str:
        """Return this server's address."""
        del key, timeout_ms
        return self.address

    async def primaries(self, timeout_ms: float) -> "list[Node]":
        """Return this server."""
        del timeout_ms
        return [self]

    async def uncovered(self, timeout_ms: float) -> None:
        """Return None: there are no slots."""
        del timeout_ms

    def look_again(self) -> None:
        """Do nothing: there is no slot map."""

    async def commands(
        self, commands: Sequence[Sequence[Argument]], timeout_ms: float, near: str = ""
    ) -> list[Reply]:
        """Run some commands in one round trip; errors among the replies are :class:`BackendError`.

        Raises
        ------
        BackendError
            If an answer is missing.
        """
        del near
        replies = await self.call(pack_all(commands), len(commands), timeout_ms)
        return answers_of(replies, self.target.address)

    async def scripts(
        self,
        script: Script,
        calls: Sequence[ScriptCall],
        timeout_ms: float,
        durability: Durability = MEMORY,
    ) -> list[Reply]:
        """Run a script several times in one round trip; errors among the replies are :class:`BackendError`.

        The reply to a call that is less durable than ``durability`` requires is an ``Undurable``.

        Raises
        ------
        BackendError
            If an answer is missing.
        """
        replies = await self.call_scripts(packed_calls(script, calls), timeout_ms, durability)
        return answers_of(replies, self.target.address)

    async def node_of(self, key: str, timeout_ms: float) -> "Node":
        """Return the node that has a key: this one has all keys."""
        del key, timeout_ms
        return self

    def apart(self, connections: int) -> "Node":
        """Return the same server with its own connections."""
        other = Node(self.target, connections, is_one_of_many=not self.has_all_keys)
        other._is_owner = False
        return other

    def failed(self, node: "Node") -> None:
        """Do nothing: there is no other node."""

    def noted(self, reply: Reply, node: "Node") -> Reply:
        """Return the reply to another caller unchanged: there is no slot map."""
        del node
        return reply

    async def call(self, packed: bytes, replies: int, timeout_ms: float) -> list[Reply]:
        """Make one round trip; see :meth:`Link.roundtrip`.

        Raises
        ------
        BackendError
            Without an answer in time, or without a connection.
        """
        return await self._with_link(_Roundtrip(packed, replies), timeout_ms)

    async def call_scripts(
        self,
        calls: Sequence[PackedScript],
        timeout_ms: float,
        durability: Durability = MEMORY,
        *,
        asking: bool = False,
    ) -> list[Reply]:
        """Run scripts in one round trip; each has its SHA, its text and its packed EVALSHA.

        The server knows each script since a first worker used it: loading scripts on each connection
        was a third of what fifty workers sent when they joined at once. If a server does not
        know a script, the node loads its text and sends the call again. ``asking`` is for a node of a
        Cluster to which the keys are moving.
        """
        use = _ScriptCalls(calls, durability, asking=asking)
        return await self._with_link(use, timeout_ms + durability.longest_ms)

    async def identity(self, key: str, timeout_ms: float) -> tuple[int, str]:
        """Return the client id and run id of the connection that the next call will use.

        This holds if calls run one after another. Each connection asks the server once; the values are 0
        and '' if this user may not ask.
        """
        del key
        client_id, run_id = await self._with_link(_Identity(), timeout_ms)
        return client_id, run_id

    async def _with_link(self, use: "_Use", timeout_ms: float) -> list[Reply]:
        if self._closed:
            raise was_closed()
        link: Link | None = None
        asked = False
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._free:
                link = self._idle.pop() if self._idle else Link(self.target)
                # If other calls are in progress, do not wait: at a server without room one of their
                # connections becomes free sooner than a new one can be made.
                await link.ready(waits=self.waits and not self._in_use)
                self._in_use += 1
                asked = True
                try:
                    answers = await use.on(link)
                finally:
                    self._in_use -= 1
                self._idle.append(link)
                link = self._surplus()
        except TimeoutError:
            # A call that got no connection has sent nothing, and its error says why.
            why = None if asked else self.target.unreachable
            raise why or no_answer(self.address, timeout_ms) from None
        finally:
            if link is not None:
                await link.close()
        if not self._keeps:
            await self.close_idle()
        return answers

    def _surplus(self) -> Link | None:
        """Remove the longest idle connection if its idle time exceeds ``SURPLUS_S``; keep the last used."""
        newest, oldest = self._idle[-1], self._idle[0]
        return self._idle.pop(0) if newest.used_s - oldest.used_s > SURPLUS_S else None

    async def close_idle(self) -> None:
        """Close the connections that are not in use, and keep none from now on."""
        self._keeps = False
        while self._idle:
            await self._idle.pop().close()

    async def aclose(self) -> None:
        """Close all connections; one in use is closed when its call ends."""
        self._closed = True
        await self.close_idle()
        if self._is_owner:
            await self.target.aclose()


class _Roundtrip:
    """Commands, each with one reply."""

    def __init__(self, packed: bytes, replies: int) -> None:
        self._packed = packed
        self._replies = replies

    async def on(self, link: Link) -> list[Reply]:
        return await link.roundtrip(self._packed, self._replies)


class _ScriptCalls:
    """Scripts, each with one reply, followed on the same connection by the durability wait."""

    def __init__(self, calls: Sequence[PackedScript], durability: Durability, *, asking: bool) -> None:
        self._calls = calls
        self._durability = durability
        self._asking = asking

    async def on(self, link: Link) -> list[Reply]:
        calls = self._calls
        answers = await self._send(link, {}, calls)
        for _ in range(LOADS):
            missing = [i for i, answer in enumerate(answers) if _is_noscript(answer)]
            if not missing:
                break
            # No worker has used the script yet, somebody called SCRIPT FLUSH, or it is another server.
            again = [calls[i] for i in missing]
            texts = {sha: text for sha, text, _ in again}
            for i, answer in zip(missing, await self._send(link, texts, again), strict=True):
                answers[i] = answer
        return answers

    async def _send(self, link: Link, load: dict[str, str], calls: Sequence[PackedScript]) -> list[Reply]:
        parts = [pack(("SCRIPT", "LOAD", text)) for text in load.values()]
        parts += [packed for _, _, packed in calls]
        if self._asking:  # ASKING applies to the next command only.
            parts[len(load) :] = [part for packed in parts[len(load) :] for part in (ASKING, packed)]
        wait = self._durability.command
        if wait:
            parts.append(pack(wait))
        answers = await link.roundtrip(b"".join(parts), len(parts))
        waited = answers.pop() if wait else None
        if self._asking:
            answers[len(load) :] = answers[len(load) + 1 :: 2]
        if wait:
            answers[len(load) :] = self._durability.judged(answers[len(load) :], waited)
        failed = next((answer for answer in answers[: len(load)] if isinstance(answer, Exception)), None)
        if failed is None:
            return answers[len(load) :]
        # The reason why the script could not be loaded says more than NOSCRIPT.
        return [failed if _is_noscript(answer) else answer for answer in answers[len(load) :]]


class _Identity:
    """The connection's client id and the server's run id."""

    async def on(self, link: Link) -> list[Reply]:
        if link.client_id is None or link.run_id is None:
            number, info = await link.roundtrip(pack(("CLIENT", "ID")) + pack(("INFO", "server")), 2)
            link.client_id = number if isinstance(number, int) else 0
            link.run_id = _run_id(info)
        return [link.client_id, link.run_id]


_Use = _Roundtrip | _ScriptCalls | _Identity


def was_closed() -> ConfigurationError:
    """Return the error for a call after the connection was closed."""
    return ConfigurationError("This connection to Redis was closed.", remedy="Open another one.")


def packed_calls(script: Script, calls: Sequence[ScriptCall]) -> list[PackedScript]:
    """Return the packed calls of a script."""
    sha, text = script.sha, script.text
    return [(sha, text, pack(("EVALSHA", sha, len(keys), *keys, *args))) for keys, args in calls]


def _is_noscript(answer: Reply) -> bool:
    return isinstance(answer, ResponseError) and getattr(answer, "status_code", None) == "NOSCRIPT"


def _run_id(info: Reply) -> str:
    if not isinstance(info, bytes):
        return ""
    for line in info.split(b"\r\n"):
        if line.startswith(b"run_id:"):
            return line[7:].decode()
    return ""
