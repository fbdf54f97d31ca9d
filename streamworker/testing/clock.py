"""A virtual clock for tests: minutes pass in milliseconds.

It is the time of the event loop, the worker, its heartbeats and the server in memory.
It stands still while anything runs: a task, a thread, or a call that waits for a socket. When nothing can
run, it jumps to the time at which the next task is due.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import anyio.to_thread

from streamworker.errors import ConfigurationError
from streamworker.runtime.clock import CLOCK
from streamworker.runtime.run.invoke import shared_limiter

LOOK_S = 0.01
"""How long, in real time, those who wait for a condition let others run before they look again."""
SOCKET_S = 0.2
"""How long, in real time, a call that may wait for a socket holds the clock before each jump."""


@dataclass(slots=True, eq=False)
class _Look:
    """Somebody who waits for a condition."""

    future: "asyncio.Future[bool]"
    jumps: int
    """It has looked after so many jumps; -1 if it has not looked yet."""
    at_s: float
    """When it looks in any case, in real time."""


class JumpingClock:
    """The time of one event loop and of what runs in it, while its block lasts."""

    def __init__(self, threads: int) -> None:
        self._loop: Any = asyncio.get_running_loop()
        if CLOCK.is_virtual or not hasattr(self._loop, "_selector"):
            raise ConfigurationError(
                'clock="virtual" is used twice, or with an event loop that is not asyncio\'s.',
                remedy="Use one event loop, and uvloop in no test with a virtual clock.",
            )
        self._selector: Any = self._loop._selector  # noqa: SLF001 - there is no other way to it
        self._select = self._selector.select
        self._files = len(self._selector.get_map())
        self._limiters = (anyio.to_thread.current_default_thread_limiter(), shared_limiter(threads))
        self._in_executor = 0
        self._looks: list[_Look] = []
        self.has_call: list[Callable[[], bool]] = []
        """Each tells whether a function of some worker is being called."""
        self.jumps = 0
        self.now_ns = int(self._loop.time() * 1e9)
        self._epoch_s = time.time() - self.now_ns / 1e9

    def __enter__(self) -> Self:
        self._loop.time = lambda: self.now_ns / 1e9
        self._loop.run_in_executor = self._run_in_executor
        self._selector.select = self._next
        CLOCK.now_ns = lambda: self.now_ns
        CLOCK.wall_s = lambda: self._epoch_s + self.now_ns / 1e9
        CLOCK.is_virtual = True
        return self

    def __exit__(self, *_: object) -> None:
        CLOCK.now_ns, CLOCK.wall_s, CLOCK.is_virtual = time.monotonic_ns, time.time, False
        del self._selector.select, self._loop.run_in_executor
        # What is scheduled stays due after the same time.
        ahead_s = self.now_ns / 1e9 - time.monotonic()
        self._loop.time = lambda: time.monotonic() + ahead_s

    async def look(self, after: int, within_s: float = LOOK_S) -> int:
        """Wait until only a jump goes on, and more than ``after`` were made; or for some real time.

        Return how many were made, or ``after`` if the time was over first.
        """
        look = _Look(self._loop.create_future(), after, time.monotonic() + within_s)
        self._looks.append(look)
        try:
            return self.jumps if await look.future else after
        finally:
            if look in self._looks:
                self._looks.remove(look)

    # -- what the event loop calls between two rounds --------------------------------------------

    def _next(self, timeout: float | None = None) -> list[Any]:
        """Return what sockets there are to handle; if there are none and nothing runs, jump."""
        events: list[Any] = self._select(0)
        is_looked = self._answer(time.monotonic(), idle=False)
        if events or is_looked or (timeout is not None and timeout <= 0):
            return events
        if self._in_executor or any(each.borrowed_tokens for each in self._limiters):
            return list(self._select(LOOK_S))
        if self._answer(0, idle=True):
            return events
        if len(self._selector.get_map()) > self._files and any(has() for has in self.has_call):
            events = self._select(SOCKET_S)
        if not events and timeout is None:
            return list(self._select(LOOK_S if self._looks else None))
        if not events and timeout is not None:
            self.now_ns += int(timeout * 1e9) + 1
            self.jumps += 1
        return events

    def _answer(self, now_s: float, *, idle: bool) -> bool:
        """Let those look who may; return whether somebody does."""
        due = [look for look in self._looks if (look.jumps < self.jumps if idle else look.at_s <= now_s)]
        for look in due:
            self._looks.remove(look)
            if not look.future.done():
                look.future.set_result(idle)
        return bool(due)

    def _run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> Any:
        future = type(self._loop).run_in_executor(self._loop, executor, function, *args)
        self._in_executor += 1
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: object) -> None:
        self._in_executor -= 1
