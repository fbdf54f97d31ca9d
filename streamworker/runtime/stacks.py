"""Where a partition's code stands: stacks of tasks and threads, looked at from another thread.

Nothing here is on the way of a record. A coroutine that waits is followed from its task down to what
it waits for, which a debugger does the same way; a function in a thread is found by the frame that
called it. What is seen may be a moment old. Only lines of code are shown, never values: a record does
not get into a log by this.
"""

import asyncio
import gc
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from streamworker.runtime.invoke import returning_errors

if TYPE_CHECKING:
    from streamworker.runtime.runner import PartitionRunner

FRAMES_MAX = 10
"""Frames of a stack that are shown: the innermost."""
LINKS_MAX = 200
"""Coroutines that wait for each other, in one task; more would be a ring."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Frames from the outermost to the innermost, each with the line at which it stands."""

    frames: tuple[tuple[FrameType, int], ...]

    @property
    def text(self) -> str:
        """The innermost frames, as a traceback shows them."""
        summary = traceback.StackSummary.extract(iter(self.frames[-FRAMES_MAX:]), capture_locals=False)
        return "".join(summary.format()).rstrip()

    def has(self, *codes: CodeType) -> bool:
        """Whether one of these functions is in it."""
        return any(frame.f_code in codes for frame, _ in self.frames)

    def place(self, code: CodeType) -> str:
        """Return where a function stands, for people: ``shop.py:17 in fetch``, if it is in it.

        That is the innermost line of the same file, since this is what its author knows.
        """
        inside: tuple[FrameType, int] | None = None
        for frame, line in self.frames:
            if frame.f_code is code or (inside and frame.f_code.co_filename == code.co_filename):
                inside = (frame, line)
        if inside is None:
            return ""
        file = code.co_filename.replace("\\", "/").split("/")[-1]
        return f"{file}:{inside[1]} in {inside[0].f_code.co_name}"


def task_stacks(loop: asyncio.AbstractEventLoop) -> list[Stack]:
    """Return the stacks of all tasks of an event loop that wait. Call it from any thread."""
    found = (_chain(task.get_coro()) for task in asyncio.all_tasks(loop))
    return [stack for stack in found if stack.frames]


def thread_stack(thread: int) -> Stack:
    """Return what a thread does at this moment."""
    return _calls(sys._current_frames().get(thread))  # noqa: SLF001  (documented, for debuggers)


def handler_threads() -> list[Stack]:
    """Return what the threads do that run a ``def`` function."""
    stacks = (_calls(frame) for frame in sys._current_frames().values())  # noqa: SLF001
    return [stack for stack in stacks if stack.has(returning_errors.__code__)]


def of_runner(stacks: Sequence[Stack], runner: "PartitionRunner") -> list[Stack]:
    """Return those that work for a partition: one of their frames is a method of its runner."""
    return [stack for stack in stacks if any(_is_of(frame, runner) for frame, _ in stack.frames)]


def _is_of(frame: FrameType, runner: "PartitionRunner") -> bool:
    names = frame.f_code.co_varnames
    if not names or names[0] not in ("self", "function"):
        return False
    own = _local(frame, names[0])
    if names[0] == "function":
        own = getattr(own, "__self__", None)
    return own is runner or own is runner.invoker or getattr(own, "runner", None) is runner


def _local(frame: FrameType, name: str) -> Any:
    """Return a variable of a function that another thread may be running.

    Before Python 3.13 a dict is made of them first. Should a garbage collection begin with that, it may let
    the other thread go on and end the function, and the process dies of what is left (seen in 3.11.7).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return frame.f_locals.get(name)
    finally:
        if collects:
            gc.enable()


def _calls(frame: FrameType | None) -> Stack:
    frames = [] if frame is None else list(traceback.walk_stack(frame))
    return Stack(tuple(reversed(frames)))


def _chain(coroutine: Any) -> Stack:
    return Stack(tuple(_links(coroutine)))


def _links(waits: Any) -> Iterator[tuple[FrameType, int]]:
    """Follow a coroutine down to what it waits for; generators and async generators are links too."""
    for _ in range(LINKS_MAX):
        for frame_name, next_name in _LINKS:
            if hasattr(waits, frame_name):
                frame, waits = getattr(waits, frame_name), getattr(waits, next_name)
                break
        else:
            return
        if frame is None:
            return
        yield frame, frame.f_lineno


_LINKS = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))
