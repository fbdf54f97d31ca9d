"""One server, its small connection pool, and the operations on one connection.

A :class:`Node` is one server; ``cluster`` combines the nodes of a Cluster and has the same calls.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.exceptions import NoScriptError

from streamworker.errors import BackendUnavailable, ConfigurationError
from streamworker.redisio.scripts import Script
from streamworker.redisio.wire.durability import MEMORY, Durability
from streamworker.redisio.wire.failures import no_answer
from streamworker.redisio.wire.info import read_info
from streamworker.redisio.wire.link import Endpoint, Link, answers_of, pack
from streamworker.redisio.wire.redispy import Reply

SURPLUS_S = 30.0
"""A connection that was idle for this long is closed: a worker uses all connections while it starts,
and one or two when it is idle."""

LOADS = 5
"""How often a script is loaded for one call: somebody's SCRIPT FLUSH can come between load and call."""

_ASKING = pack(("ASKING",))
"""Makes a node of a Cluster accept the next command for a key that is moving to it."""


class Node:
    """One server and its connections; calls take the one that was used last.

    There are at most ``connections``; further calls wait for one, within their timeout. If the server
    ``is_one_of_many``, another node may take over.
    """

    map_version = 0

    def __init__(
        self, target: Endpoint, connections: int, call_timeout_ms: float, *, is_one_of_many: bool = False
    ) -> None:
        self.target = target
        self.call_timeout_ms = call_timeout_ms
        self.waits = not is_one_of_many and not target.moves
        """Whether calls wait while the server is unreachable. If another server may take over, they fail
        instead, and their callers repeat them to find that server."""
        self.pause_max_ms = 1_000 if self.waits else 500
        """Maximum backoff before a call is repeated; short where a replica may soon take over. A shorter one
        causes no more attempts to connect to an unreachable server; see ``attempts``."""
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
        self.on_restart: Callable[[], None] | None = None
        """Called when a connection leads to another server than those before. The calls that began before
        then fail, since they may say what was true at that server alone."""
        self._run_id: str | None = None

    def apart(self, connections: int, on_restart: Callable[[], None] | None = None) -> "Node":
        """Return the same server with its own connections."""
        other = Node(self.target, connections, self.call_timeout_ms, is_one_of_many=not self.has_all_keys)
        other._is_owner, other.on_restart = False, on_restart
        return other

    @property
    def address(self) -> str:
        """Host and port, or path; for messages."""
        return self.target.address

    # -- what a Cluster does by its slot map -------------------------------------------------

    def by_slot(self, keys: Sequence[str]) -> list[list[str]]:
        """Return one list: one command may name any keys."""
        return [list(keys)] if keys else []

    def known_address_of(self, _key: str) -> str:
        """Return nothing: there is no slot map."""
        return ""

    async def address_of(self, _key: str) -> str:
        """Return this server's address."""
        return self.address

    async def primaries(self) -> "list[Node]":
        """Return this server."""
        return [self]

    async def uncovered(self) -> None:
        """Return None: there are no slots."""

    async def node_of(self, _key: str) -> "Node":
        """Return this server, which has all keys."""
        return self

    def failed(self, node: "Node") -> None:
        """Do nothing: there is no other node."""

    def noted(self, reply: Reply, node: "Node") -> Reply:
        """Return a reply, with an error translated."""
        (answer,) = answers_of([reply], node.address)
        return answer

    # -- calls -------------------------------------------------------------------------------

    async def exchange(
        self,
        _keys: Sequence[str],
        calls: Sequence[bytes],
        script: Script | None = None,
        durability: Durability = MEMORY,
        near: str = "",  # noqa: ARG002
    ) -> list[Any]:
        """Send packed commands, or calls of a script, in one round trip; raise if an answer is missing."""
        return answers_of(await self.call(calls, self.call_timeout_ms, script, durability), self.address)

    async def call(
        self,
        calls: Sequence[bytes],
        timeout_ms: float,
        script: Script | None = None,
        durability: Durability = MEMORY,
        *,
        asking: bool = False,
    ) -> list[Reply]:
        """Send packed commands in one round trip; return a reply for each, error replies included.

        The calls of a ``script`` are sent without its text: the server knows it since a first worker used
        it. Loading scripts on each connection was a third of what fifty workers sent when they joined at
        once. If the server does not know the script, the node loads it and sends the call again.
        ``asking`` is for a node of a Cluster to which the keys are moving.
        """

        async def exchange(link: Link) -> list[Reply]:
            answers = await _send(link, calls, None, durability, asking=asking)
            for _ in range(LOADS if script else 0):
                missing = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
                if not missing:
                    break
                # No worker has used the script yet, somebody called SCRIPT FLUSH, or it is another server.
                again = await _send(link, [calls[i] for i in missing], script, durability, asking=asking)
                for i, answer in zip(missing, again, strict=True):
                    answers[i] = answer
            return answers

        return await self._with_link(exchange, timeout_ms + durability.longest_ms)

    async def identity(self) -> tuple[int, str]:
        """Return the client id and run id of the connection that the next call will use."""
        client_id, run_id = await self._with_link(_identity, self.call_timeout_ms)
        return client_id, run_id

    async def _with_link(
        self, use: Callable[[Link], Awaitable[list[Reply]]], timeout_ms: float
    ) -> list[Reply]:
        if self._closed:
            raise was_closed()
        link: Link | None = None
        asked, run_id = False, self._run_id
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._free:
                link = self._idle.pop() if self._idle else Link(self.target)
                # If other calls are in progress, do not wait: at a server without room one of their
                # connections becomes free sooner than a new one can be made.
                await link.ready(waits=self.waits and not self._in_use)
                self._in_use += 1
                asked = True
                try:
                    if self.on_restart is not None:
                        await self._check_run(link, run_id)
                    answers = await use(link)
                finally:
                    self._in_use -= 1
                self._idle.append(link)
                oldest = self._idle[0]
                link = self._idle.pop(0) if link.used_s - oldest.used_s > SURPLUS_S else None
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

    async def _check_run(self, link: Link, known: str | None) -> None:
        """Raise if a connection leads to another server than the one that was known when a call began."""
        run_id = (await _identity(link))[1]
        before, self._run_id = self._run_id, run_id
        if before not in (None, run_id) and self.on_restart is not None:
            self.on_restart()
        if known not in (None, run_id):
            raise BackendUnavailable(f"Redis at {self.address} has restarted, or another one has taken over.")

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


async def _send(
    link: Link, calls: Sequence[bytes], load: Script | None, durability: Durability, *, asking: bool
) -> list[Reply]:
    """Load a script if one is given, send calls, and wait for their durability, all in one round trip."""
    loads = [pack(("SCRIPT", "LOAD", load.text))] if load else []
    # ASKING applies to the next command only.
    sent = [part for packed in calls for part in (_ASKING, packed)] if asking else calls
    wait = [pack(durability.command)] if durability.command else []
    replies = await link.roundtrip(b"".join((*loads, *sent, *wait)), len(loads) + len(sent) + len(wait))
    waited = replies.pop() if wait else None
    loaded, answers = replies[: len(loads)], replies[len(loads) :]
    if asking:
        answers = answers[1::2]
    if wait:
        answers = durability.judged(answers, waited)
    failed = next((reply for reply in loaded if isinstance(reply, Exception)), None)
    if failed is None:
        return answers
    # The reason why the script could not be loaded says more than NOSCRIPT.
    return [failed if isinstance(answer, NoScriptError) else answer for answer in answers]


async def _identity(link: Link) -> list[Any]:
    """Return the connection's client id and the server's run id; ask once for each connection."""
    if link.client_id is None or link.run_id is None:
        number, info = await link.roundtrip(pack(("CLIENT", "ID")) + pack(("INFO", "server")), 2)
        link.client_id = number if isinstance(number, int) else 0
        link.run_id = read_info(info).run_id if isinstance(info, bytes) else ""
    return [link.client_id, link.run_id]


def was_closed() -> ConfigurationError:
    """Return the error for a call after the connection was closed."""
    return ConfigurationError("This connection to Redis was closed.", remedy="Open another one.")
