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
"""Whose turn it is loses it after so long: a handler may have blocked its event loop, and heartbeats, which
have their own, must not wait for it."""


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
        self._turn_since_s: float | None = None
        """Since when somebody has the turn, while the gate is not open. It tells turns apart, too."""
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

    async def _turn(self, *, waits: bool) -> float | None:
        """Return when an attempt may be made: since when we have the turn, None if there are none."""
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
                free_s = max(self._not_before_s, (self._turn_since_s or -TURN_S) + TURN_S)
                if free_s <= now_s:
                    self._turn_since_s = now_s
                    self.attempts += 1
                    return now_s
                if self._error is not None and not waits:
                    break
                news = loop.create_future()
                self._waiting.add((loop, news))
            try:
                await asyncio.wait((news,), timeout=free_s - now_s)
            finally:
                with self._lock:
                    self._waiting.discard((loop, news))
        error = self.error
        assert error is not None
        raise error

    # -- how attempts end --------------------------------------------------------------------

    def _succeeded(self, turn: float | None) -> None:
        with self._lock:
            self._open, self._error, self._in_vain = True, None, 0
            self._ended(turn)

    def _failed(self, error: BackendUnavailable, turn: float | None) -> None:
        with self._lock:
            # Of some at a time the first counts; of one that lost its turn nothing, where another was let in.
            if (turn is None) == self._open:
                self._open, self._error = False, error
                self._pause()
            self._ended(turn)

    def _given_up(self, lasted_s: float, turn: float | None) -> None:
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

    def _ended(self, turn: float | None) -> None:
        if turn is not None and turn == self._turn_since_s:
            self._turn_since_s = None
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
