"""An event loop in a thread of its own, for programs that have none.

All apps of a process share it. It starts with the first call and ends with the process. A process that is
forked has no such thread: it starts one of its own, and opens connections of its own there.
"""

import asyncio
import atexit
import os
import selectors
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from streamworker.errors import ConfigurationError

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

T = TypeVar("T")

Close = Callable[[], Coroutine[Any, Any, None]]
"""Sends what is under way and closes connections, on the loop that opened them."""


class _ForkableSelector(selectors.DefaultSelector):
    """A selector that a forked child does not change: epoll and kqueue know it by the parent's description.

    When the child collects the parent's connections, asyncio would take them out of the parent's selector,
    and the parent would not hear of their answers.
    """

    is_inherited = False

    def get_map(self) -> "Mapping[FileDescriptorLike, selectors.SelectorKey]":
        return {} if self.is_inherited else super().get_map()


class BackgroundLoop:
    """Runs coroutines of other threads, which wait for their results.

    >>> async def answer() -> int:
    ...     return 42
    >>> async def close() -> None:
    ...     print("closed")
    >>> loop = BackgroundLoop()
    >>> loop.run(answer(), close)
    42
    >>> loop.end()
    closed
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._selector: _ForkableSelector | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closes: set[Close] = set()

    def forked(self) -> None:
        """Forget the thread and the loop, which only the parent process has."""
        if self._selector is not None:
            self._selector.is_inherited = True
        self._reset()

    def run(self, work: Coroutine[Any, Any, T], close: Close) -> T:
        """Run a coroutine on the loop, and return its result or raise its error.

        ``close`` is called before the loop ends, once however often it is given.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise ConfigurationError(
                "A call of `.sync` was made from code that another one runs, such as a key function.",
                remedy="Make it before or after that call.",
            )
        with self._lock:
            loop = self._started()
            self._closes.add(close)
        return _result(work, loop)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._selector = _ForkableSelector()
            self._loop = asyncio.SelectorEventLoop(self._selector)
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="streamworker-sync", daemon=True
            )
            self._thread.start()
        return self._loop

    def close(self, close: Close) -> None:
        """Call ``close`` on the loop, if it was given to ``run``."""
        with self._lock:
            loop, is_used = self._loop, close in self._closes
            self._closes.discard(close)
        if loop is not None and is_used:
            _result(close(), loop)

    def end(self) -> None:
        """Close what was opened, and end the thread; a later call starts another."""
        for close in tuple(self._closes):
            self.close(close)
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def _result(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # Ctrl-C ends the wait, and so must the work end.
        raise


BACKGROUND = BackgroundLoop()
atexit.register(BACKGROUND.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BACKGROUND.forked)
