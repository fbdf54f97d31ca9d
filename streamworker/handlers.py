"""Handlers of signals, which a process that is forked from this one does not keep.

A handler here tells a thread or an event loop to act. A forked process inherits the handler, but neither the
thread nor the loop, so it would ignore SIGTERM for ever. It gets Python's default handlers instead.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_handled: set[int] = set()
_shielding: set[int] = set()
"""The threads whose children ignore SIGTERM."""


def handle(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> dict[int, Any]:
    """Let a function handle signals in this process alone; return what handled each before."""
    before = {number: signal.signal(number, handler) for number in numbers}
    _handled.update(before)
    return before


@contextmanager
def shielded_children() -> Iterator[None]:
    """Let the processes that this thread forks meanwhile, and their children, ignore SIGTERM.

    Ignoring it in this process until they are started would lose a signal that comes meanwhile.
    """
    thread = threading.get_ident()
    _shielding.add(thread)
    try:
        yield
    finally:
        _shielding.discard(thread)


def _forked() -> None:
    for number in _handled:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, default)
    if threading.get_ident() in _shielding:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


os.register_at_fork(after_in_child=_forked)
