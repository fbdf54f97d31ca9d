"""One server, the few connections to it that a program shares, and what is done on one of them.

A :class:`Node` is one server; what a Cluster's nodes are together is in ``cluster``, and offers the
same calls.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from redis.exceptions import ResponseError

from streamworker.errors import ConfigurationError
from streamworker.redisio.durability import MEMORY, Durability
from streamworker.redisio.failures import no_answer
from streamworker.redisio.link import Argument, Link, Reply, Target, answers_of, pack, pack_all
from streamworker.redisio.scripts import Script

SURPLUS_S = 30.0
"""A connection that was not needed for this long is closed: a worker's start uses all that it may
have, and a worker at rest one or two."""

ScriptCall = tuple[Sequence[str], Sequence[Argument]]
"""Keys and arguments of one run of a script."""
PackedScript = tuple[str, str, bytes]
"""SHA and text of a script, and an EVALSHA of it as it is sent."""

ASKING = pack(("ASKING",))
"""Lets the next command pass at a node of a Cluster that is about to get its key."""


class Server(Protocol):
    """What a backend needs: one server, or the nodes of a Cluster.

    The errors among replies are ours. One server raises where any answer is missing; a Cluster has
    :class:`BackendUnavailable` in the places of those that are missing, and raises where all are.
    """

    @property
    def address(self) -> str:
        """For messages."""

    @property
    def map_version(self) -> int:
        """Another one whenever it is known that keys are somewhere else."""

    async def commands(self, commands: Sequence[Sequence[Argument]], timeout_ms: float) -> list[Any]:
        """Run some commands, as few round trips as it takes."""

    async def scripts(
        self, script: Script, calls: Sequence[ScriptCall], timeout_ms: float, durability: Durability
    ) -> list[Any]:
        """Run a script several times."""

    async def node_of(self, key: str, timeout_ms: float) -> "Node":
        """Return the node that has a key."""

    async def identity(self, key: str, timeout_ms: float) -> tuple[int, str]:
        """Return client id and run id of the connection that the next call about a key will use."""

    def apart(self, connections: int) -> "Server":
        """Return the same with connections of its own."""

    def failed(self, node: "Node") -> None:
        """Take in that a node gave no answer to somebody else."""

    def noted(self, reply: Any, node: "Node") -> Any:
        """Return a reply that somebody else got; what it says of where keys are was taken in."""

    async def aclose(self) -> None:
        """Close all connections."""


class Node:
    """One server and the connections to it, the last one used first.

    Parameters
    ----------
    target
        The server.
    connections
        The most connections at a time; further calls wait for one, within their deadline.
    is_one_of_many
        Whether there are others beside it, one of which may take its place.
    """

    def __init__(self, target: Target, connections: int, *, is_one_of_many: bool = False) -> None:
        self.target = target
        self.waits = not is_one_of_many and not target.moves
        """Whether calls wait while it cannot be reached. Where another may take its place they are made
        again, to find out which."""
        self._in_use = 0
        """Connections by which calls are under way."""
        self._idle: list[Link] = []
        self._free = asyncio.Semaphore(connections)
        self._closed = False
        self._is_owner = True
        """Whether what runs beside the connections of its target ends with it."""
        self._keeps = True
        """Whether connections are kept for the next call."""

    @property
    def address(self) -> str:
        """Host and port, or path; for messages."""
        return self.target.address

    @property
    def map_version(self) -> int:
        """One server has all keys."""
        return 0

    async def commands(self, commands: Sequence[Sequence[Argument]], timeout_ms: float) -> list[Reply]:
        """Run some commands in one round trip; the errors among the replies are ours.

        Raises
        ------
        BackendError
            If any answer is missing.
        """
        use = _Roundtrip(pack_all(commands), len(commands))
        return answers_of(await self._with_link(use, timeout_ms), self.target.address)

    async def scripts(
        self,
        script: Script,
        calls: Sequence[ScriptCall],
        timeout_ms: float,
        durability: Durability = MEMORY,
    ) -> list[Reply]:
        """Run a script several times in one round trip; the errors among the replies are ours.

        A call that was done and is not as safe as ``durability`` asks is answered with ``Undurable``.

        Raises
        ------
        BackendError
            If any answer is missing.
        """
        use = _ScriptCalls(packed_calls(script, calls), durability, asking=False)
        replies = await self._with_link(use, timeout_ms + durability.longest_ms)
        return answers_of(replies, self.target.address)

    async def node_of(self, key: str, timeout_ms: float) -> "Node":
        """Return the node that has a key: this one has all of them."""
        del key, timeout_ms
        return self

    def apart(self, connections: int) -> "Node":
        """Return the same server with connections of its own."""
        other = Node(self.target, connections)
        other._is_owner = False
        return other

    def failed(self, node: "Node") -> None:
        """Take in that a node gave no answer: there is no other."""

    def noted(self, reply: Reply, node: "Node") -> Reply:
        """Return a reply that somebody else got from a node: it says nothing about others."""
        del node
        return reply

    async def call(self, packed: bytes, replies: int, timeout_ms: float) -> list[Reply]:
        """Make one round trip; see :meth:`Link.roundtrip`.

        Raises
        ------
        BackendError
            If there was no answer in time, or no connection.
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
        """Run scripts in one round trip: of each, its SHA, its text and its packed EVALSHA.

        The server has each script since the first worker used it: loading them on each connection
        was a third of what fifty workers sent that joined at once. What a server does not know is
        sent again with its text. ``asking`` is for a node of a Cluster that is about to get the keys.
        """
        use = _ScriptCalls(calls, durability, asking=asking)
        return await self._with_link(use, timeout_ms + durability.longest_ms)

    async def identity(self, key: str, timeout_ms: float) -> tuple[int, str]:
        """Return client id and run id of the connection that the next call will use.

        That holds where calls come one after another. Both are asked for once a connection;
        0 and '' where the server does not tell.
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
                # Another call's connection is free sooner than one can be made where there is no room.
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
            # One that had no connection yet has asked for nothing, and knows why it had none.
            why = None if asked else self.target.unreachable
            raise why or no_answer(self.address, timeout_ms) from None
        finally:
            if link is not None:
                await link.close()
        if not self._keeps:
            await self.close_idle()
        return answers

    def _surplus(self) -> Link | None:
        """Take out the connection that was idle for longest, if that is long; the last used stays."""
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
    """Scripts, each with one reply; and behind them, on their connection, the wait for them to be safe."""

    def __init__(self, calls: Sequence[PackedScript], durability: Durability, *, asking: bool) -> None:
        self._calls = calls
        self._durability = durability
        self._asking = asking

    async def on(self, link: Link) -> list[Reply]:
        calls = self._calls
        answers = await self._send(link, {}, calls)
        missing = [i for i, answer in enumerate(answers) if _is_noscript(answer)]
        if missing:
            # The first worker ever, SCRIPT FLUSH, or another server behind the same address.
            again = [calls[i] for i in missing]
            texts = {sha: text for sha, text, _ in again}
            for i, answer in zip(missing, await self._send(link, texts, again), strict=True):
                answers[i] = answer
        return answers

    async def _send(self, link: Link, load: dict[str, str], calls: Sequence[PackedScript]) -> list[Reply]:
        parts = [pack(("SCRIPT", "LOAD", text)) for text in load.values()]
        parts += [packed for _, _, packed in calls]
        if self._asking:  # It is good for the next command alone.
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
        # Why it could not be loaded says more than that it is not there.
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
    """Return the error for a call after the end."""
    return ConfigurationError("This connection to Redis was closed.", remedy="Open another one.")


def packed_calls(script: Script, calls: Sequence[ScriptCall]) -> list[PackedScript]:
    """Return the runs of a script as they are sent."""
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
