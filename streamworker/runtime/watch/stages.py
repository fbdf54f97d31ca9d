"""The two stages of a worker's shutdown after SIGTERM or SIGINT: graceful, then forced.

On the first signal the worker drains and leaves. A second signal, or a deadline after the first, ends the
process at once with ``FORCED``. Nothing may block this forced end: neither an event loop that a handler
blocks, nor a log that nobody reads, where a writer waits while it holds the log's lock. So a separate
thread waits for the signals and watches the deadline. It starts before any signal arrives: a signal
handler interrupts the main thread anywhere, and can neither log nor start a thread safely.

The one gap is Python's own: it runs the signal handler in the main thread. If that thread is in a system
call that blocks, and the signal came just before the call, or another thread got it, as may happen after
SIGSTOP, the handler runs when the call returns. Only SIGKILL ends the process before.
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
from streamworker.runtime.run.threads import running_calls

log = get_logger("streamworker.worker")

FORCED = 5
"""Exit code of a worker that did not end in time, or that received a second signal."""

UNTOLD = 6
"""Exit code of a worker that ended without a signal; a user's code can cause this."""

LOG_S = 0.5
"""How long the thread waits for the log to take one line."""


class TwoStages:
    """While entered, turns the first signal into a graceful end, and the second into a forced one.

    Enter it in the main thread, in the worker's event loop. ``stop`` starts the graceful end there; the
    forced end comes ``timeout_ms`` after the first signal.
    """

    def __init__(self, stop: Callable[[], None], *, name: str, timeout_ms: int) -> None:
        self._stop = stop
        self._name = name
        self._timeout_s = timeout_ms / 1000
        self._told: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        """Signals that arrived; None when the worker has ended."""
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
        self._told.put(number)  # Only this is safe here: SimpleQueue.put is reentrant.

    def _watch(self) -> None:
        number = self._told.get()
        if number is None:
            return
        with contextlib.suppress(RuntimeError):  # The loop, and so the worker, has just ended.
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
    """End the process with ``code`` if a thread still runs a call, because Python waits for each thread.

    A ``def`` function that took longer than its timeout cannot be interrupted, and may sleep for an hour
    after its worker has left. A thread without a call ends by itself.
    """
    if not (left := running_calls()):
        return
    log.warning("threads_left_behind", calls=[call.text for call in left])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
