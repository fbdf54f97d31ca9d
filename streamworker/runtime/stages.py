"""The two stages in which a worker ends: SIGTERM or SIGINT asks it to, and then makes it.

The first signal drains and leaves. A second one, or a deadline after the first, ends the process
at once with ``FORCED``. Nothing may be in the way of that end: not an event loop that a handler
blocks, and not a log that nobody reads, where a writer waits with the log's lock in its hand. So a
thread of its own waits for the signals and watches the deadline, and it is there before they come:
a signal handler interrupts the main thread anywhere, and can neither log nor start a thread safely.
"""

import asyncio
import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from streamworker.log import get_logger

log = get_logger("streamworker.worker")

FORCED = 5
"""Exit code of a worker that did not end in time, or was told twice."""

LOG_S = 0.5
"""How long a line of the log is waited for."""


class TwoStages:
    """Turns signals into a graceful end, then into a hard one, as long as it is entered.

    Enter it in the main thread, in the worker's event loop.

    Parameters
    ----------
    stop
        Begins the graceful end; called in the event loop.
    name
        The worker's, for the log.
    timeout_ms
        From the first signal to the hard end.
    """

    def __init__(self, stop: Callable[[], None], *, name: str, timeout_ms: int) -> None:
        self._stop = stop
        self._name = name
        self._timeout_s = timeout_ms / 1000
        self._told: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        """Signals; None when the worker has ended by itself."""
        self._before: dict[int, object] = {}

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._watch, name="streamworker-end", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._received)

    def __exit__(self, *_: object) -> None:
        self._told.put(None)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _received(self, number: int, _frame: FrameType | None) -> None:
        self._told.put(number)  # The one thing that is safe here: it may interrupt itself.

    def _watch(self) -> None:
        number = self._told.get()
        if number is None:
            return
        with contextlib.suppress(RuntimeError):  # The loop ended at this moment, and so did the worker.
            self._loop.call_soon_threadsafe(self._stop)
        deadline_s = time.monotonic() + self._timeout_s
        self._say(log.info, "worker_stopping", signal=signal.Signals(number).name)
        try:
            again = self._told.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            self._end("shutdown_timeout")
        else:
            if again is not None:
                self._end("told_twice")

    def _end(self, reason: str) -> None:
        self._say(log.error, "worker_forced_to_end", worker=self._name, reason=reason)
        os._exit(FORCED)

    @staticmethod
    def _say(method: Callable[..., object], event: str, **fields: str) -> None:
        words = threading.Thread(target=method, args=(event,), kwargs=fields, daemon=True)
        words.start()
        words.join(LOG_S)


def end_despite_threads(code: int) -> None:
    """End the process with ``code`` if a thread would keep it, as Python waits for each of them.

    A ``def`` function that took longer than its timeout cannot be interrupted. Its thread was left
    behind, and may sleep for an hour after its worker has left.
    """
    mine = threading.current_thread()
    left = [each.name for each in threading.enumerate() if each is not mine and not each.daemon]
    if not left:
        return
    log.warning("threads_left_behind", threads=left)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
