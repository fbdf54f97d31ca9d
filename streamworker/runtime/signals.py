"""Two synchronization primitives: Signal and Gate."""

import asyncio


class Signal:
    """Wakes all tasks that wait at this moment; stores nothing for later waits.

    A waiter checks a condition, waits, and checks again. There is no ``await`` between check and wait, so
    no wake-up is missed on one event loop.

    A thousand partitions each wait several times a second, so each waiter is a plain future: anyio's Event
    and cancel scope take ten times as long.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def fire(self) -> None:
        """Wake all tasks that wait now."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                _wake(waiter)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the next ``fire()``, or until the timeout."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        timer = None if timeout_s is None else loop.call_later(max(0.0, timeout_s), _wake, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:  # The wait timed out or was cancelled.
                self._waiters.remove(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():  # A cancelled future is done before its task has run.
        waiter.set_result(None)


class Gate:
    """Allows or stops new batches.

    A worker closes the gate while its heartbeats do not get through: its peers may take it for dead then,
    so the commit of a batch that it starts would probably be refused.
    """

    __slots__ = ("is_open", "opened")

    def __init__(self) -> None:
        self.is_open = True
        self.opened = Signal()
        """Fires when the gate opens, and when a partition drains, which waits for it no longer."""

    def open(self) -> None:
        """Let batches start."""
        self.is_open = True
        self.opened.fire()

    def close(self) -> None:
        """Let no batch start; running batches continue."""
        self.is_open = False
