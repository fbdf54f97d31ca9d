"""The two stages of a worker's shutdown after SIGTERM or SIGINT: graceful, then forced.

On the first signal the worker drains and leaves. A second signal, or a deadline after the first, ends the
process at once with ``FORCED``. The deadline holds until the process has ended: after the worker has left,
Python waits for threads and child processes that the user's code has started, and this may take for ever.
A worker that ends without a signal starts the deadline, too.

Nothing may block this forced end: neither an event loop that a handler blocks, nor a log that nobody reads,
where a writer waits while it holds the log's lock. So a separate thread waits for the signals and watches
the deadline. It starts before any signal arrives: a signal handler interrupts the main thread anywhere, and
can neither log nor start a thread safely.

A library that a function loads may install handlers of its own in the middle of the work, as Ray does.
SIGTERM would then pass the worker by, and its partitions would wait for its death. So the worker looks once a
second whose the handlers are, takes them back, and says so.

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

from streamworker.core.text import storable
from streamworker.handlers import handle
from streamworker.log import get_logger
from streamworker.runtime.run.threads import running_calls

log = get_logger("streamworker.worker")

FORCED = 5
"""Exit code of a worker that did not end in time, or that received a second signal."""

UNTOLD = 6
"""Exit code of a worker that ended without a signal; a user's code can cause this."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 1.0
"""Interval of looks whether the handlers are still the worker's."""

LOG_S = 0.5
"""How long the thread waits for the log to take one line."""


class TwoStages:
    """Turns the first signal into a graceful end, and the second into a forced one.

    Enter it in the main thread, in the worker's event loop. ``stop`` starts the graceful end there. The
    process has to end after the block: ``timeout_ms`` after the first signal, or after the block if no signal
    came, this ends it by force.
    """

    def __init__(self, stop: Callable[[], None], *, name: str, timeout_ms: int) -> None:
        self._stop = stop
        self._name = name
        self._timeout_s = timeout_ms / 1000
        self._told: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        """Signals that arrived; None when the worker has ended."""
        self._has_left = False
        self._handler = self._received  # One object, so that `_look` knows it again.

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._watch, name="streamworker-end", daemon=True).start()
        handle(SIGNALS, self._handler)
        self._loop.call_later(LOOK_S, self._look)

    def __exit__(self, *_: object) -> None:
        self._has_left = True
        self._told.put(None)

    def _look(self) -> None:
        """Take back the signals whose handlers other code of this process has replaced."""
        if self._has_left:
            return
        for number in SIGNALS:
            if (found := signal.getsignal(number)) is not self._handler:
                handle((number,), self._handler)
                handler = storable(found, repr)
                remedy = "End what it ended in a resource: the worker closes resources when it has drained."
                log.warning("signal_taken_back", signal=number.name, handler=handler, remedy=remedy)
        self._loop.call_later(LOOK_S, self._look)

    def _received(self, number: int, _frame: FrameType | None) -> None:
        self._told.put(number)  # Only this is safe here: SimpleQueue.put is reentrant.

    def _watch(self) -> None:
        number = self._told.get()
        deadline_s = time.monotonic() + self._timeout_s
        if number is not None:
            with contextlib.suppress(RuntimeError):  # The loop, and so the worker, has just ended.
                self._loop.call_soon_threadsafe(self._stop)
            self._say(log.info, "worker_stopping", signal=signal.Signals(number).name)
        signals = int(number is not None)
        try:
            while signals < 2:
                again = self._told.get(timeout=max(0.0, deadline_s - time.monotonic()))
                signals += again is not None
        except queue.Empty:
            self._end("shutdown_timeout")
        else:
            self._end("told_twice")

    def _end(self, reason: str) -> None:
        try:
            held_by = [] if self._has_left else [self._loop_holds()]
            held_by += [call.text for call in running_calls()]
            # Python waits at its end for these threads, and for the processes of ``multiprocessing``.
            names = [thread.name for thread in threading.enumerate() if not thread.daemon]
            held_by += [f"thread {name}" for name in names if name != "MainThread"]
            module = sys.modules.get("multiprocessing")
            children = [] if module is None else module.active_children()
            held_by += [f"process {child.pid} ({child.name})" for child in children]
            self._say(log.error, "worker_forced_to_end", worker=self._name, reason=reason, held_by=held_by)
            for child in children:
                child.terminate()
        finally:
            os._exit(FORCED)

    def _loop_holds(self) -> str:
        runs = threading.Event()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(runs.set)
        return "its tasks, such as a call to Redis" if runs.wait(LOG_S) else "its event loop, which hangs"

    @staticmethod
    def _say(method: Callable[..., object], event: str, **fields: object) -> None:
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
