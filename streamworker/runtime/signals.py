"""Two small things to wait for: a Signal and a Gate."""

import asyncio


class Signal:
    """Wakes everybody who waits at this moment; remembers nothing.

    All waiters look at a condition, wait, and look again. Between the look and the wait there
    is no ``await``, so no wake-up is missed on one event loop.

    A thousand partitions wait by it several times a second each, so it is a bare future for each
    waiter: anyio's Event and cancel scope take ten times as long.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def fire(self) -> None:
        """Wake all who wait now."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                _wake(waiter)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the next ``fire()``, or until the time is over."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        timer = None if timeout_s is None else loop.call_later(max(0.0, timeout_s), _wake, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:  # The time was over, or the wait was cancelled.
                self._waiters.remove(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():  # A wait that was cancelled is, before its task has run.
        waiter.set_result(None)


class Gate:
    """An open or closed door in front of new batches.

    A worker closes it while its heartbeats do not get through: others may think it dead then,
    so work that it starts now would probably be refused at its commit.
    """

    __slots__ = ("_changed", "_open")

    def __init__(self, *, is_open: bool = True) -> None:
        self._open = is_open
        self._changed = Signal()

    @property
    def is_open(self) -> bool:
        """Whether batches may start."""
        return self._open

    def open(self) -> None:
        """Let batches start."""
        self._open = True
        self._changed.fire()

    def close(self) -> None:
        """Let no batch start; those in hand go on."""
        self._open = False

    async def wait(self) -> None:
        """Return when the gate is open."""
        while not self._open:
            await self._changed.wait()
