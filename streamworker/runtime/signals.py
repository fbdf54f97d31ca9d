"""Two small things to wait for, beside anyio's Event: a Signal and a Gate."""

import anyio


class Signal:
    """Wakes everybody who waits at this moment; remembers nothing.

    All waiters look at a condition, wait, and look again. Between the look and the wait there
    is no ``await``, so no wake-up is missed on one event loop.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def fire(self) -> None:
        """Wake all who wait now."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Wait for the next ``fire()``."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


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
