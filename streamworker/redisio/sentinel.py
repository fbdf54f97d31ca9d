"""Redis behind sentinels: where the primary is, found anew for each connection.

Each new connection goes to the primary that the sentinels name, and is not used before that server
has said itself that it is one: a sentinel may know of a failover too late, and a replica takes no writes.

When Sentinel makes a primary a replica, it closes all connections to it, and ours find the new one. That
takes eight seconds, though, in which the old one answers: after a planned failover, and when a primary
that nobody could reach comes back. What is written there is lost. So each target listens to one of the
sentinels. When they take the primary for down, or name another one, it closes all connections that lead
there, calls under way included: their callers are told that nobody knows, and ask the new one.
"""

import asyncio
import contextlib
import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from streamworker.errors import BackendError, BackendRefused, BackendUnavailable, ConfigurationError
from streamworker.redisio.attempts import Gate
from streamworker.redisio.failures import look_at_error, no_answer
from streamworker.redisio.link import CONNECT_TIMEOUT_S, Target, hang_up, pack, pack_all, write
from streamworker.redisio.primaries import (
    ASK_ROLE,
    CHANNELS,
    REMEMBERED_S,
    SENTINEL_TIMEOUT_S,
    Answer,
    Place,
    SentinelView,
    is_about,
    is_primary,
    newest,
    not_primary,
    of_sentinel,
    questions,
    read_answer,
    read_view,
    taken_for_down,
)
from streamworker.urls import SENTINEL, host_and_port, kind_of, read_sentinels, refuse_plaintext

FRESH_S = 0.5
"""How long an answer serves the connections that are made one after another: a worker makes some at its
start and at a failover. After a connection that failed, the sentinels are asked again at once."""
LAST_S = 2.0
"""How long at most the first of them is waited for: the others may be gone, or the machine is busy."""
QUIET_S = 10.0
"""After so long without a word from the sentinel that we listen to, it is asked whether it is there, and
all of them whether we have missed anything: it may be cut off from the others, and know nothing."""
LISTEN_WITHIN_S = 1.0
"""Up to so much later than the first connection a target begins to listen, at random, so that those of a
failover do not come to the sentinels all at once, and a short command never does."""

Judge = Callable[[str], None]
"""Raises for the URL of a server that must not be connected to."""


class SentinelTarget(Target):
    """The primary that sentinels know by a name.

    Parameters
    ----------
    url
        ``redis+sentinel://`` or ``rediss+sentinel://``.
    name
        Shown in ``CLIENT LIST``.
    judge
        Called with the URL of each server that the sentinels name, before it is connected to.
    rng
        Which sentinel is listened to, and when.

    Raises
    ------
    ConfigurationError
        As :class:`Target`.
    """

    def __init__(
        self, url: str, name: str, *, judge: Judge = lambda _: None, rng: random.Random | None = None
    ) -> None:
        self._sentinels = read_sentinels(url)
        self._made: weakref.WeakSet[AbstractConnection] = weakref.WeakSet()
        self._let_in: weakref.WeakSet[AbstractConnection] = weakref.WeakSet()
        """Those that came to a primary when they connected last."""
        super().__init__(self._sentinels.server_url(*self._sentinels.hosts[0]), name)
        self._service = self._sentinels.service
        self._asked = [Target(one, f"{name}:sentinel") for one in self._sentinels.urls]
        self._judge = judge
        self._rng = rng or random.Random()
        self._place: Place | None = None
        self._epoch = 0
        """Of the answer that named it: an older one is that of a sentinel that has not heard yet. Unless
        that server says that it is no primary, or all sentinels say so, or nobody got in there for long."""
        self._failing_since_s: float | None = None
        """Since when attempts to get in there have failed, if they do and nobody is in."""
        self._fresh_until_s = 0.0
        self._finding: asyncio.Task[Place] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._closed = False
        self.address = f"the primary {self._service!r} of the sentinels {self._sentinels.addresses}"

    def connection(self) -> AbstractConnection:
        """Return a new connection; where to is found when it connects."""
        made = super().connection()
        self._made.add(made)
        return made

    async def connect(self, connection: AbstractConnection, *, waits: bool = True) -> None:
        """Connect to the primary.

        Parameters
        ----------
        waits
            As for :meth:`Gate.through`.

        Raises
        ------
        BackendError
            If no sentinel answers, none knows the service, or what they name is no primary.
        """
        place = await self._primary()
        try:
            self._judge(self._sentinels.server_url(*place))
        except ConfigurationError as error:
            # It is no setting that changed, but what the sentinels say.
            raise BackendRefused(error.message, remedy=error.remedy) from None
        connection.host, connection.port = place  # type: ignore[attr-defined]
        self._gate = self.gate(connection)
        self._let_in.discard(connection)
        try:
            await self._through(self._gate, connection, waits=waits)
            is_one = await self._is_primary(connection)
            if not is_one or place != self._place:
                self._epoch = self._epoch if is_one else 0
                raise not_primary(place, self._service)
        except BaseException:
            # Whoever comes next asks again.
            self._fresh_until_s = 0.0
            self._failing_since_s = self._failing_since_s or asyncio.get_running_loop().time()
            await hang_up(connection)
            raise
        self._failing_since_s = None
        self._let_in.add(connection)
        if self._listener is None and not self._closed:
            self._listener = asyncio.get_running_loop().create_task(self._listen())

    async def _is_primary(self, connection: AbstractConnection) -> bool:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await write(connection, pack(ASK_ROLE))
                return is_primary(await connection.read_response())
        except TimeoutError:
            raise no_answer(self.address, CONNECT_TIMEOUT_S * 1_000) from None
        except (RedisError, OSError) as error:
            raise self.refusal(error) from None

    def gate(self, connection: AbstractConnection) -> Gate:
        """Return the gate to the server that a connection leads to."""
        host, port = _place_of(connection)
        return self._gate_at(f"{host}:{port}")

    def leads_here(self, connection: AbstractConnection) -> bool:
        """Whether a connection leads to what is the primary as far as we know."""
        return _place_of(connection) == self._place

    @property
    def moves(self) -> bool:
        """Whether a refusal for being a replica is cured by connecting anew."""
        return True

    async def aclose(self) -> None:
        """End what runs beside the connections."""
        self._closed = True
        tasks = [task for task in (self._listener, self._finding) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- finding -----------------------------------------------------------------------------

    async def _primary(self) -> Place:
        """Return where the primary is; connections that are made at the same time ask once."""
        loop = asyncio.get_running_loop()
        if self._place is not None and loop.time() < self._fresh_until_s:
            return self._place
        if self._finding is None or self._finding.done():
            self._finding = loop.create_task(self._find(everybody=False))
            self._finding.add_done_callback(look_at_error)
        # A caller whose deadline passes leaves the answer to the next one.
        finding = self._finding
        await asyncio.wait((finding,))
        if finding.cancelled():
            raise BackendUnavailable(
                f"The connection to the primary {self._service!r} was closed while the sentinels were asked.",
                remedy="Open another one.",
            )
        return finding.result()

    async def _find(self, *, everybody: bool) -> Place:
        """Ask the sentinels, until more than half or all of them have answered."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        asks = [loop.create_task(self._ask(sentinel)) for sentinel in self._shuffled()]
        waiting = set(asks)
        said: list[Answer | BackendError | None] = []
        try:
            while waiting:
                answers = sum(isinstance(one, Answer) for one in said)
                if not everybody and 2 * answers > len(asks):
                    break
                limit_s = SENTINEL_TIMEOUT_S if answers else LAST_S
                done, waiting = await asyncio.wait(
                    waiting,
                    timeout=max(0.0, began_s + limit_s - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:
                    break
                said += [ask.result() for ask in done]
        finally:
            for task in asks:
                task.cancel()
            await asyncio.gather(*asks, return_exceptions=True)
        answer = newest(said, self._sentinels)
        if any(one.is_connected and self.leads_here(one) for one in self._let_in):
            # An attempt may fail for its caller's sake, too, whose time was over.
            self._failing_since_s = None
        if self._failing_since_s is None or answer.epoch >= self._epoch:
            return await self._settle(answer)
        if loop.time() - self._failing_since_s > REMEMBERED_S:
            return await self._settle(answer, is_sure=True)
        if not everybody:
            return await self._find(everybody=True)
        return await self._settle(answer, is_sure=sum(isinstance(one, Answer) for one in said) == len(asks))

    async def _settle(self, answer: Answer, *, is_sure: bool = False) -> Place:
        """Take the place of an answer for that of the primary, and close what leads elsewhere."""
        if self._place is not None and answer.epoch < self._epoch and not is_sure:
            return self._place
        self._epoch = answer.epoch
        if answer.is_down:
            # It may come back before it is replaced, and what it is told then is lost afterwards.
            self._fresh_until_s = 0.0
            await self._close_what(lambda _: True)
            raise taken_for_down(answer.place, self._service)
        self._fresh_until_s = asyncio.get_running_loop().time() + FRESH_S
        if answer.place != self._place:
            self._place, self._failing_since_s = answer.place, None
            self.address = f"{host_and_port(*answer.place)} (primary {self._service!r})"
            await self._close_what(lambda connection: not self.leads_here(connection))
        return answer.place

    async def _close_what(self, leads_elsewhere: Callable[[AbstractConnection], bool]) -> None:
        for connection in list(self._made):
            if connection.is_connected and leads_elsewhere(connection):
                await hang_up(connection)

    async def views(self) -> list[SentinelView]:
        """Return what each sentinel knows."""

        async def view(sentinel: Target) -> SentinelView:
            try:
                async with asyncio.timeout(LAST_S):
                    replies = await self._replies(sentinel)
            except TimeoutError:
                replies = no_answer(sentinel.address, 1_000 * LAST_S)
            if isinstance(replies, BackendError):
                return SentinelView(sentinel.address, of_sentinel(replies, sentinel.address))
            return read_view(replies, sentinel.address)

        return list(await asyncio.gather(*map(view, self._asked)))

    async def _ask(self, sentinel: Target) -> Answer | BackendError | None:
        replies = await self._replies(sentinel)
        if isinstance(replies, BackendError):
            return of_sentinel(replies, sentinel.address)
        return read_answer(replies, sentinel.address)

    async def _replies(self, sentinel: Target) -> list[Any] | BackendError:
        connection = sentinel.connection()
        replies: list[Any] = []
        commands = questions(self._service)
        try:
            await sentinel.connect(connection, waits=False)
            await write(connection, pack_all(commands))
            for _ in commands:
                try:
                    replies.append(await connection.read_response())
                except ResponseError as error:
                    replies.append(error)
        except BackendError as error:
            return error
        except (RedisError, OSError) as error:
            return sentinel.refusal(error)
        finally:
            await hang_up(connection)
        return replies

    def _shuffled(self) -> Sequence[Target]:
        return self._rng.sample(self._asked, len(self._asked))

    # -- listening ---------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Listen to one sentinel after another, for as long as the target is open."""
        while True:
            for sentinel in self._shuffled():
                await asyncio.sleep(LISTEN_WITHIN_S * self._rng.random())
                with contextlib.suppress(RedisError, OSError, BackendError):
                    await self._listen_to(sentinel)

    async def _listen_to(self, sentinel: Target) -> None:
        connection = sentinel.connection()
        try:
            async with asyncio.timeout(LAST_S):
                await sentinel.connect(connection, waits=False)
                await write(connection, pack(("SUBSCRIBE", *CHANNELS)))
                for _ in CHANNELS:
                    await connection.read_response()
            await self._look()  # It may have happened before we listened.
            asked = False
            while True:
                try:
                    async with asyncio.timeout(LAST_S if asked else QUIET_S):
                        message = await connection.read_response(disconnect_on_error=False)
                except TimeoutError:
                    if asked:
                        return
                    await write(connection, pack(("PING",)))
                    asked = True
                    await self._look()
                else:
                    asked = False
                    if is_about(message, self._service):
                        await self._look()
        finally:
            await hang_up(connection)

    async def _look(self) -> None:
        # Most of them may not have heard yet of what one has said.
        try:
            await self._find(everybody=True)
        except BackendError:
            return


def _place_of(connection: AbstractConnection) -> Place:
    return connection.host, connection.port  # type: ignore[attr-defined]


def target_for(url: str, name: str, *, allow_plaintext: bool) -> Target:
    """Return where a URL of one server, or of the sentinels of one, leads.

    Raises
    ------
    ConfigurationError
        If the URL cannot be read.
    """
    if kind_of(url) != SENTINEL:
        return Target(url, name)
    service = read_sentinels(url).service

    def judge(server_url: str) -> None:
        # Sentinels on this machine may name a server on another one.
        refuse_plaintext(server_url, f"What the sentinels name as {service!r}")

    return SentinelTarget(url, name, judge=(lambda _: None) if allow_plaintext else judge)
