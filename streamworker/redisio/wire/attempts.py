"""One gate for all attempts of a process to connect to an address.

A worker has a dozen connections in two threads, and each reconnects on its own: together they would try an
unreachable server twenty times a second. So they share their results. While the last attempt succeeded and
no connection was lost since, all callers may connect, several at a time. Otherwise the gate allows one
attempt at a time, with a pause after each failure. Other callers make no attempt of their own meanwhile:
those that wait get the result of the next attempt, and the others get the error of the last one.

A refused login is an answer: the server is reachable, and the caller gets the refusal at once.
"""

import asyncio
import contextlib
import math
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Hashable

from streamworker.errors import BackendError, BackendUnavailable
from streamworker.redisio.wire.failures import has_no_room

FIRST_PAUSE_S = (0.2, 0.3)
"""Pause after the first failed attempt; a server that restarts may be back by then."""
PAUSE_S = (0.5, 0.75)
"""Pause after each later failure: at most two attempts a second. Work must continue two seconds after a
server is back, so the pause must not be much longer."""
FULL_PAUSE_S = (1.4, 2.0)
"""Pause if the server is at its client limit: it answers each attempt, which takes time from its clients."""
HUNG_S = 0.5
"""An attempt that was cancelled after this time counts as failed: its caller's timeout expired."""
TURN_S = 2.5
"""A caller loses its turn after this time."""
BLOCKED_S = 0.25
"""A caller loses its turn to another event loop after its own loop gave no sign for this time. A handler
may have blocked that loop, and heartbeats, which run in another loop, must not wait for it. The time is
short compared with a worker's session timeout."""


class _Turn:
    """The right to make an attempt while the gate is not open."""

    def __init__(self, now_s: float) -> None:
        self.since_s = now_s
        self.loop = asyncio.get_running_loop()
        self._asked_s: float | None = None
        """Since when its event loop has not answered."""

    def is_blocked(self, now_s: float) -> bool:
        """Whether its event loop does not answer; asks it for a sign."""
        if (asked_s := self._asked_s) is not None:  # Read it once: the other thread may answer in between.
            return now_s - asked_s >= BLOCKED_S
        self._asked_s = now_s
        try:
            self.loop.call_soon_threadsafe(self._answer)
        except RuntimeError:  # The loop has ended.
            return True
        return False

    def _answer(self) -> None:
        self._asked_s = None


class ConnectAttempts:
    """The attempts of this process to connect to one address.

    Jitter from ``rng`` keeps many workers from reconnecting at the same time.

    >>> async def refused() -> None:
    ...     raise BackendUnavailable("Redis at db1:6379 cannot be reached: Connection refused.")
    >>> async def knock(gate: ConnectAttempts) -> str:
    ...     try:
    ...         await gate.through(refused, waits=False)
    ...     except BackendUnavailable as error:
    ...         return f"{error} ({gate.attempts} so far)"
    >>> gate = ConnectAttempts()
    >>> asyncio.run(knock(gate)) == asyncio.run(knock(gate))
    True
    >>> gate.attempts
    1
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self.attempts = 0
        self._lock = threading.Lock()
        self._open = True
        """Whether all callers may connect: no failure is known."""
        self._error: BackendUnavailable | None = None
        self._in_vain = 0
        """Failed attempts since the last success."""
        self._not_before_s = 0.0
        self._held: _Turn | None = None
        """The current turn, while the gate is not open."""
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()

    def doubt(self) -> None:
        """Note that a connection was lost: the gate then allows one attempt at a time."""
        with self._lock:
            self._open = False

    @property
    def error(self) -> BackendUnavailable | None:
        """The error of the last attempt, if it failed; a new exception each time, ready to be raised."""
        found = self._error
        return None if found is None else BackendUnavailable(found.message, remedy=found.remedy)

    async def through(self, attempt: Callable[[], Awaitable[None]], *, waits: bool) -> None:
        """Make an attempt when the gate allows it; raise its error, or that of the last attempt.

        ``attempt`` raises ``BackendUnavailable`` if it cannot connect. If it ``waits``, it waits for a turn,
        or for the result of another caller's attempt. Otherwise the last error is raised at once if there
        is one and the turn is not free.
        """
        turn = await self._turn(waits=waits)
        began_s = time.monotonic()
        try:
            await attempt()
        except BackendUnavailable as error:
            self._failed(turn, error)
            raise
        except BackendError:
            self._succeeded(turn)  # The server answered.
            raise
        except BaseException:
            self._failed(turn, lasted_s=time.monotonic() - began_s)
            raise
        self._succeeded(turn)

    async def _turn(self, *, waits: bool) -> _Turn | None:
        """Wait until an attempt is allowed; return the caller's turn, or None while the gate is open."""
        loop = asyncio.get_running_loop()
        came_in_vain = self._in_vain
        while True:
            with self._lock:
                now_s = time.monotonic()
                if self._open:
                    self.attempts += 1
                    return None
                if self._error is not None and self._in_vain > came_in_vain:
                    break
                free_s, look_s = self._free_s(now_s)
                if free_s <= now_s:
                    self._held = _Turn(now_s)
                    self.attempts += 1
                    return self._held
                if self._error is not None and not waits:
                    break
                news = loop.create_future()
                self._waiting.add((loop, news))
            try:
                await asyncio.wait((news,), timeout=min(free_s, look_s) - now_s)
            finally:
                with self._lock:
                    self._waiting.discard((loop, news))
        error = self.error
        assert error is not None
        raise error

    def _free_s(self, now_s: float) -> tuple[float, float]:
        """Return when the turn will be free, as far as is known, and when to check again."""
        held = self._held
        if held is None:
            return self._not_before_s, math.inf
        if held.loop is asyncio.get_running_loop():
            return max(self._not_before_s, held.since_s + TURN_S), math.inf
        free_s = now_s if held.is_blocked(now_s) else held.since_s + TURN_S
        return max(self._not_before_s, free_s), now_s + BLOCKED_S

    # -- how attempts end --------------------------------------------------------------------

    def _succeeded(self, turn: _Turn | None) -> None:
        with self._lock:
            self._open, self._error, self._in_vain = True, None, 0
            self._ended(turn)

    def _failed(
        self, turn: _Turn | None, error: BackendUnavailable | None = None, lasted_s: float = math.inf
    ) -> None:
        with self._lock:
            # Of several concurrent failures the first counts. The failure of a caller that lost its turn
            # does not count if another attempt has succeeded since.
            if lasted_s > HUNG_S and (turn is None) == self._open:
                self._open, self._error = False, error or self._error
                self._in_vain += 1
                pause_s = PAUSE_S if self._in_vain > 1 else FIRST_PAUSE_S
                if self._error is not None and has_no_room(self._error):
                    pause_s = FULL_PAUSE_S
                self._not_before_s = time.monotonic() + self._rng.uniform(*pause_s)
            self._ended(turn)

    def _ended(self, turn: _Turn | None) -> None:
        if turn is not None and turn is self._held:
            self._held = None
        for loop, news in self._waiting:
            with contextlib.suppress(RuntimeError):  # The loop may have ended.
                loop.call_soon_threadsafe(_tell, news)


def _tell(news: "asyncio.Future[None]") -> None:
    if not news.done():
        news.set_result(None)


_gates: dict[Hashable, ConnectAttempts] = {}
"""By process: turns and locks of gates belong to threads, which a forked process does not have. They are
kept, and are as few as the servers that a process ever connects to."""


def gate_of(way: Hashable) -> ConnectAttempts:
    """Return the gate of this process for an address and a login.

    Each login has its own gate, since the failure of one user or certificate authority says nothing about
    another.
    """
    return _gates.setdefault((os.getpid(), way), ConnectAttempts())
