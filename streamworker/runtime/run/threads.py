"""The calls of ``def`` functions that run in threads of this process; each thread registers its own.

A thread cannot be interrupted, and another thread cannot safely look at what it executes. So each thread
says what it does, and the watchdog reads that.
"""

import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio.from_thread

from streamworker.context import OwnedPartition
from streamworker.core.data.entries import Entry
from streamworker.errors import InternalError
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.run.commits import span

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class ThreadCall:
    """What one thread does."""

    function: Callable[..., Any]
    owned: OwnedPartition
    entries: Sequence[Entry]
    """The entries of the call, or those that it handles one after the other."""
    since_ms: int

    @property
    def text(self) -> str:
        """The call in words, for the log."""
        whose = f"processor {self.owned.processor}, partition {self.owned.partition}, {span(self.entries)}"
        return f"{name_of(self.function)}: {whose}, for {monotonic_ms() - self.since_ms} ms"


_running: dict[int, ThreadCall] = {}
"""By thread."""


def running_calls() -> list[ThreadCall]:
    """Return the calls that run in threads, also those whose partition has abandoned them."""
    return list(_running.copy().values())


@contextmanager
def registered(
    function: Callable[..., Any], owned: OwnedPartition, entries: Sequence[Entry]
) -> Iterator[None]:
    """Register a call as that of this thread."""
    thread = threading.get_ident()
    _running[thread] = ThreadCall(function, owned, entries, monotonic_ms())
    try:
        yield
    finally:
        del _running[thread]


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name and file, as ``fetch in shop.py``."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return type(function).__name__
    file = code.co_filename.replace("\\", "/").split("/")[-1]
    return f"{code.co_name} in {file}"


def settled(result: Any) -> Any:
    """Return the result of a ``def`` function; wait in its thread for an awaitable, which the loop runs."""
    if not hasattr(type(result), "__await__"):
        return result

    async def wait() -> Any:
        return await result

    return anyio.from_thread.run(wait)


def in_one_step(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for nothing; a worker thread has no loop to wait with."""
    try:
        call.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise InternalError("A call in a thread has waited for the event loop.")
