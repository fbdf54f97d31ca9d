"""One gate for all attempts of a process to connect to an address.

A worker has a dozen connections in two threads, and each comes back by itself: together they would knock
at a server that is away twenty times a second. So they share what they find out. While the last attempt
succeeded and no connection was lost since, everybody may connect, some at a time. Otherwise one attempt is
made at a time, and after one that failed a pause. Whoever comes meanwhile has no attempt of their own:
those that wait are told how the next one ends, the others get the error of the last.

A refusal to let somebody in is an answer: the server is there, and who asks is told at once, as always.
"""

import asyncio
import contextlib
import math
import os
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Hashable

from streamworker.errors import BackendError, BackendUnavailable
from streamworker.redisio.failures import has_no_room

FIRST_PAUSE_S = (0.2, 0.3)
"""After the first attempt that failed; a server that is restarted may be back by then."""
PAUSE_S = (0.5, 0.75)
"""After each later one: at most two attempts a second. Work is to go on two seconds after a server is back,
so it must not be much longer."""
FULL_PAUSE_S = (1.4, 2.0)
"""Where the server has no room: it answers each attempt, and who is in needs its time."""
HUNG_S = 0.5
"""An attempt that was given up after so long counts as one that failed: its caller's time was over."""
TURN_S = 2.5
"""Whose turn it is loses it after so long."""
BLOCKED_S = 0.25
"""And to another event loop after so long without a sign of its own: a handler may have blocked it, and
heartbeats, which have theirs, must not wait for it. It is short beside a worker's session."""


class _Turn:
    """Who may make an attempt, while the gate is not open."""

    def __init__(self, now_s: float) -> None:
        self.since_s = now_s
        self._loop = asyncio.get_running_loop()
        self._asked_s: float | None = None
        """Since when its event loop owes a sign."""

    @property
    def is_ours(self) -> bool:
        """Whether it is that of the event loop that asks."""
        return self._loop is asyncio.get_running_loop()

    def is_blocked(self, now_s: float) -> bool:
        """Whether its event loop gives no sign; it is asked for one."""
        if (asked_s := self._asked_s) is not None:  # Once: the other thread may answer in between.
            return now_s - asked_s >= BLOCKED_S
        self._asked_s = now_s
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:  # It has ended.
            return True
        return False

    def _answer(self) -> None:
        self._asked_s = None


class Gate:
    """The attempts of this process to connect to one address.

    Parameters
    ----------
    rng
        For jitter, so that many workers do not come back in step.

    Examples
    --------
    >>> async def refused() -> None:
    ...     raise BackendUnavailable("Redis at db1:6379 cannot be reached: Connection refused.")
    >>> async def knock(gate: Gate) -> str:
    ...     try:
    ...         await gate.through(refused, waits=False)
    ...     except BackendUnavailable as error:
    ...         return f"{error} ({gate.attempts} so far)"
    >>> gate = Gate()
    >>> asyncio.run(knock(gate)) == asyncio.run(knock(gate))
    True
    >>> gate.attempts
    1
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self.attempts = 0
        """How many were made."""
        self.forget()

    def forget(self) -> None:
        """Know nothing, as at first."""
        self._lock = threading.Lock()
        self._open = True
        """Whether everybody may connect: nothing is known against it."""
        self._error: BackendUnavailable | None = None
        """Of the last attempt, if it failed."""
        self._in_vain = 0
        """Attempts since one succeeded."""
        self._not_before_s = 0.0
        self._held: _Turn | None = None
        """The turn of somebody, while the gate is not open."""
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()

    def doubt(self) -> None:
        """Take in that a connection was lost: the next attempt shows whether others make sense."""
        with self._lock:
            self._open = False

    @property
    def error(self) -> BackendUnavailable | None:
        """The error of the last attempt, if it failed; a new one each time, for somebody to raise."""
        found = self._error
        return None if found is None else BackendUnavailable(found.message, remedy=found.remedy)

    async def through(self, attempt: Callable[[], Awaitable[None]], *, waits: bool) -> None:
        """Make an attempt when there may be one.

        Parameters
        ----------
        attempt
            Connects; raises ``BackendUnavailable`` if it could not.
        waits
            Whether to wait for the turn, or for how the attempt of somebody else ends. Otherwise the last
            error is raised at once where there is one and the turn is not free.

        Raises
        ------
        BackendError
            As the attempt did, this one or the last.
        """
        turn = await self._turn(waits=waits)
        began_s = time.monotonic()
        try:
            await attempt()
        except BackendUnavailable as error:
            self._failed(error, turn)
            raise
        except BackendError:
            self._succeeded(turn)  # It answered.
            raise
        except BaseException:
            self._given_up(time.monotonic() - began_s, turn)
            raise
        self._succeeded(turn)

    async def _turn(self, *, waits: bool) -> _Turn | None:
        """Return when an attempt may be made: with our turn, or None if there are no turns."""
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
        """Return when the turn is free as far as is known, and when to look again."""
        held = self._held
        if held is None:
            return self._not_before_s, math.inf
        if held.is_ours:
            return max(self._not_before_s, held.since_s + TURN_S), math.inf
        free_s = now_s if held.is_blocked(now_s) else held.since_s + TURN_S
        return max(self._not_before_s, free_s), now_s + BLOCKED_S

    # -- how attempts end --------------------------------------------------------------------

    def _succeeded(self, turn: _Turn | None) -> None:
        with self._lock:
            self._open, self._error, self._in_vain = True, None, 0
            self._ended(turn)

    def _failed(self, error: BackendUnavailable, turn: _Turn | None) -> None:
        with self._lock:
            # Of some at a time the first counts; of one that lost its turn nothing, where another was let in.
            if (turn is None) == self._open:
                self._open, self._error = False, error
                self._pause()
            self._ended(turn)

    def _given_up(self, lasted_s: float, turn: _Turn | None) -> None:
        with self._lock:
            if lasted_s > HUNG_S and (turn is None) == self._open:
                self._open = False
                self._pause()
            self._ended(turn)

    def _pause(self) -> None:
        self._in_vain += 1
        pause_s = PAUSE_S if self._in_vain > 1 else FIRST_PAUSE_S
        if self._error is not None and has_no_room(self._error):
            pause_s = FULL_PAUSE_S
        self._not_before_s = time.monotonic() + self._rng.uniform(*pause_s)

    def _ended(self, turn: _Turn | None) -> None:
        if turn is not None and turn is self._held:
            self._held = None
        for loop, news in self._waiting:
            with contextlib.suppress(RuntimeError):  # Its loop may have ended.
                loop.call_soon_threadsafe(_tell, news)


def _tell(news: "asyncio.Future[None]") -> None:
    if not news.done():
        news.set_result(None)


class _Gates:
    """The gates of this process that anybody uses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_way: weakref.WeakValueDictionary[Hashable, Gate] = weakref.WeakValueDictionary()

    def of(self, way: Hashable) -> Gate:
        with self._lock:
            gate = self._by_way.get(way)
            if gate is None:
                gate = self._by_way[way] = Gate()
            return gate

    def forked(self) -> None:
        # Whoever had a turn, or a lock, has it in the parent.
        self._lock = threading.Lock()
        for gate in list(self._by_way.values()):
            gate.forget()


_gates = _Gates()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_gates.forked)


def gate_of(way: Hashable) -> Gate:
    """Return the gate of this process for an address and a way of getting in there.

    The way belongs to it, since what is wrong with one user's, or one authority's, is not with another's.
    """
    return _gates.of(way)
