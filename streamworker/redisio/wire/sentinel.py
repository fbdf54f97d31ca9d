"""Redis with Sentinel: each new connection asks the sentinels for the primary.

A new connection goes to the primary that the sentinels name, and is used only after that server has
confirmed that it is a primary: a sentinel may learn of a failover late, and a replica accepts no writes.

When Sentinel makes a primary a replica, it closes all connections to it, and ours find the new primary.
Until then the old primary answers for eight seconds, after a planned failover and when an unreachable
primary comes back. Writes to it in that time are lost. So each target listens to one of the sentinels. When
the sentinels consider the primary down or name another one, the target closes all connections to the old
one, with calls in progress: their callers get an unknown outcome, and repeat the calls at the new primary.
"""

import asyncio
import contextlib
import random
import weakref
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from streamworker.errors import BackendError, BackendRefused, BackendUnavailable, ConfigurationError
from streamworker.redisio.wire import primaries
from streamworker.redisio.wire.attempts import ConnectAttempts
from streamworker.redisio.wire.failures import look_at_error, no_answer
from streamworker.redisio.wire.link import Endpoint, ask, pack
from streamworker.redisio.wire.primaries import REMEMBERED_S, Answer, HostPort, SentinelView
from streamworker.redisio.wire.redispy import CONNECT_TIMEOUT_S, Socket
from streamworker.urls import SENTINEL, host_and_port, kind_of, read_sentinels, refuse_plaintext

FRESH_S = 0.5
"""How long new connections reuse an answer: a worker makes several connections at its start and at a
failover. After a failed connection the target asks the sentinels again at once."""
LAST_S = 2.0
"""Maximum wait for the first sentinel's answer: the others may be gone, or the machine is busy."""
QUIET_S = 10.0
"""After this time without a message from the sentinel that it listens to, the target sends that sentinel a
PING and asks all sentinels for the primary: the first may be cut off from the others, and miss a failover."""
LISTEN_WITHIN_S = 1.0
"""Maximum random delay from the first connection until a target listens. So the targets do not all connect
to the sentinels at once after a failover, and a short command does not listen at all."""


class SentinelTarget(Endpoint):
    """The primary that sentinels know by a service name.

    Sentinels on this machine may name a server on another one, so :meth:`connect` checks ``allow_plaintext``.
    """

    moves = True

    def __init__(self, url: str, name: str, *, allow_plaintext: bool = True) -> None:
        self._sentinels = read_sentinels(url)
        self._made: weakref.WeakSet[Socket] = weakref.WeakSet()
        self._let_in: weakref.WeakSet[Socket] = weakref.WeakSet()
        """Sockets that reached a primary when they last connected."""
        super().__init__(self._sentinels.server_url(*self._sentinels.hosts[0]), name)
        self._service = self._sentinels.service
        self._asked = [Endpoint(one, f"{name}:sentinel") for one in self._sentinels.urls]
        self._allow_plaintext = allow_plaintext
        self._rng = random.Random()
        self._known: HostPort | None = None
        self._epoch = 0
        """Epoch of the answer that named the primary. An older answer comes from a sentinel that is late. It
        counts only if the server denies being a primary, if all sentinels have answered, or if attempts to
        connect have failed for ``REMEMBERED_S``."""
        self._failing_since_s: float | None = None
        """Since when attempts to connect have failed, if they fail and no connection is open."""
        self._fresh_until_s = 0.0
        self._finding: asyncio.Task[HostPort] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._closed = False
        self.address = f"the primary {self._service!r} of the sentinels {self._sentinels.addresses}"

    def socket(self) -> Socket:
        """Return a new socket, which :meth:`connect` takes to the primary."""
        made = super().socket()
        self._made.add(made)
        return made

    async def connect(self, socket: Socket, *, waits: bool = True) -> None:
        """Connect to the primary that the sentinels name; raise if it is none."""
        primary = await self._primary()
        try:
            if not self._allow_plaintext:
                url = self._sentinels.server_url(*primary)
                refuse_plaintext(url, f"What the sentinels name as {self._service!r}")
        except ConfigurationError as error:
            # No setting has changed: the sentinels now name a server that is not allowed.
            raise BackendRefused(error.message, remedy=error.remedy) from None
        socket.host_port = primary
        self._gate = self.gate(socket)
        self._let_in.discard(socket)
        try:
            await super().connect(socket, waits=waits)
            is_one = await self._is_primary(socket)
            if not is_one or primary != self._known:
                self._epoch = self._epoch if is_one else 0
                raise primaries.not_primary(primary, self._service)
        except BaseException:
            # The next connection asks the sentinels again.
            self._fresh_until_s = 0.0
            self._failing_since_s = self._failing_since_s or asyncio.get_running_loop().time()
            await socket.hang_up()
            raise
        self._failing_since_s = None
        self._let_in.add(socket)
        if self._listener is None and not self._closed:
            self._listener = asyncio.get_running_loop().create_task(self._listen())

    async def _is_primary(self, socket: Socket) -> bool:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await socket.write(pack(primaries.ASK_ROLE))
                return primaries.is_primary(await socket.reply())
        except TimeoutError:
            raise no_answer(self.address, CONNECT_TIMEOUT_S * 1_000) from None
        except (RedisError, OSError) as error:
            raise self.refusal(error) from None

    def gate(self, socket: Socket) -> ConnectAttempts:
        """Return the gate of the server to which a socket leads."""
        host, port = socket.host_port
        return self._gate_at(f"{host}:{port}")

    def leads_here(self, socket: Socket) -> bool:
        """Whether a socket leads to the known primary."""
        return socket.host_port == self._known

    async def aclose(self) -> None:
        """Stop listening to and asking the sentinels."""
        self._closed = True
        tasks = [task for task in (self._listener, self._finding) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- finding -----------------------------------------------------------------------------

    async def _primary(self) -> HostPort:
        """Return the primary's host and port; concurrent connections share one lookup."""
        loop = asyncio.get_running_loop()
        if self._known is not None and loop.time() < self._fresh_until_s:
            return self._known
        if self._finding is None or self._finding.done():
            self._finding = loop.create_task(self._find(everybody=False))
            self._finding.add_done_callback(look_at_error)
        # If a caller times out, the lookup continues for the next caller.
        finding = self._finding
        await asyncio.wait((finding,))
        if finding.cancelled():
            raise BackendUnavailable(
                f"The connection to the primary {self._service!r} was closed while the sentinels were asked.",
                remedy="Open another one.",
            )
        return finding.result()

    async def _find(self, *, everybody: bool) -> HostPort:
        """Ask the sentinels, until more than half or all of them have answered.

        While attempts to connect fail, half of them are not enough if they name an older primary.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if any(one.is_open and self.leads_here(one) for one in self._let_in):
            # An attempt may also fail because its caller timed out.
            self._failing_since_s = None
        asks = [loop.create_task(self._ask(sentinel)) for sentinel in self._shuffled()]
        waiting = set(asks)
        said: list[Answer | BackendError | None] = []
        try:
            while waiting:
                epochs = [one.epoch for one in said if isinstance(one, Answer)]
                is_news = self._failing_since_s is None or max(epochs, default=-1) >= self._epoch
                if not everybody and 2 * len(epochs) > len(asks) and is_news:
                    break
                limit_s = primaries.SENTINEL_TIMEOUT_S if epochs else LAST_S
                done, waiting = await asyncio.wait(
                    waiting,
                    timeout=max(0.0, began_s + limit_s - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:
                    break
                said += [asked.result().answer for asked in done]
        finally:
            for task in asks:
                task.cancel()
            await asyncio.gather(*asks, return_exceptions=True)
        answer = primaries.newest(said, self._sentinels)
        is_sure = self._failing_since_s is not None and (
            loop.time() - self._failing_since_s > REMEMBERED_S
            or sum(isinstance(one, Answer) for one in said) == len(asks)
        )
        return await self._settle(answer, is_sure=is_sure)

    async def _settle(self, answer: Answer, *, is_sure: bool) -> HostPort:
        """Set the primary from an answer, and close connections to other servers."""
        if self._known is not None and answer.epoch < self._epoch and not is_sure:
            return self._known
        self._epoch = answer.epoch
        if answer.is_down:
            # The primary may come back before it is replaced; writes to it would then be lost.
            self._fresh_until_s = 0.0
            await self._close_what(leads_here=True)
            raise primaries.taken_for_down(answer.primary, self._service)
        self._fresh_until_s = asyncio.get_running_loop().time() + FRESH_S
        if answer.primary != self._known:
            self._known, self._failing_since_s = answer.primary, None
            self.address = f"{host_and_port(*answer.primary)} (primary {self._service!r})"
            await self._close_what(leads_here=False)
        return answer.primary

    async def _close_what(self, *, leads_here: bool) -> None:
        """Close connections to other servers; with ``leads_here`` also those to the known primary."""
        for socket in list(self._made):
            if socket.is_open and (leads_here or not self.leads_here(socket)):
                await socket.hang_up()

    async def views(self) -> list[SentinelView]:
        """Return the state of each sentinel."""

        async def view(sentinel: Endpoint) -> SentinelView:
            try:
                async with asyncio.timeout(LAST_S):
                    return await self._ask(sentinel)
            except TimeoutError:
                late = no_answer(sentinel.address, 1_000 * LAST_S)
                return SentinelView(sentinel.address, primaries.of_sentinel(late, sentinel.address))

        return list(await asyncio.gather(*map(view, self._asked)))

    async def _ask(self, sentinel: Endpoint) -> SentinelView:
        try:
            replies = await ask(sentinel, primaries.questions(self._service))
            return primaries.read_view(replies, sentinel.address)
        except BackendError as error:
            return SentinelView(sentinel.address, primaries.of_sentinel(error, sentinel.address))

    def _shuffled(self) -> Sequence[Endpoint]:
        return self._rng.sample(self._asked, len(self._asked))

    # -- listening ---------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            for sentinel in self._shuffled():
                await asyncio.sleep(LISTEN_WITHIN_S * self._rng.random())
                with contextlib.suppress(RedisError, OSError, BackendError):
                    await self._listen_to(sentinel)

    async def _listen_to(self, sentinel: Endpoint) -> None:
        socket = sentinel.socket()
        try:
            async with asyncio.timeout(LAST_S):
                await sentinel.connect(socket, waits=False)
                await socket.write(pack(("SUBSCRIBE", *primaries.CHANNELS)))
                for _ in primaries.CHANNELS:
                    await socket.reply()
            await self._look()  # A failover may have happened before the subscription.
            asked = False
            while True:
                try:
                    async with asyncio.timeout(LAST_S if asked else QUIET_S):
                        message = await socket.reply()
                except TimeoutError:
                    if asked:
                        return
                    await socket.write(pack(("PING",)))
                    asked = True
                    await self._look()
                else:
                    asked = False
                    if primaries.is_about(message, self._service):
                        await self._look()
        finally:
            await socket.hang_up()

    async def _look(self) -> None:
        # Ask all sentinels: most may not know yet what one has published.
        with contextlib.suppress(BackendError):
            await self._find(everybody=True)


OTHER_TARGETS: dict[str, Callable[[str, str], Endpoint]] = {}
"""What makes a target of a URL and a name, by the URL's scheme; ``streamworker.testing`` adds ``memory``."""


def target_for(url: str, name: str, *, allow_plaintext: bool) -> Endpoint:
    """Return the target of a URL that names one server, or the sentinels of one."""
    if kind_of(url) != SENTINEL:
        return OTHER_TARGETS.get(url.partition("://")[0], Endpoint)(url, name)
    return SentinelTarget(url, name, allow_plaintext=allow_plaintext)
