"""Where the tasks of partitions wait, read in the event loop's own thread.

It follows the chain from a task down to what the innermost coroutine waits for, as a debugger does. All other
tasks wait while this runs, so nothing that it reads changes meanwhile. It notes functions and lines, never
values, so no record gets into a log.
"""

import asyncio
import traceback
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

FRAMES_MAX = 10
"""How many frames of a stack are shown, the innermost ones."""
LINKS_MAX = 200
"""Maximum chain of coroutines in one task that wait for each other; a longer one would be a cycle."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Functions from the outermost to the innermost, each with the line that it executes."""

    frames: tuple[tuple[CodeType, int], ...]

    @property
    def text(self) -> str:
        """The innermost frames, as a traceback shows them."""
        shown = [
            traceback.FrameSummary(code.co_filename, line, code.co_name)
            for code, line in self.frames[-FRAMES_MAX:]
        ]
        return "".join(traceback.StackSummary.from_list(shown).format()).rstrip()

    def line_of(self, code: CodeType) -> str:
        """Return the line that a function executes, as ``shop.py:17 in fetch``; empty if it is not here.

        This is the innermost line of the function's own file, because its author knows that file.
        """
        inside: tuple[CodeType, int] | None = None
        for found, line in self.frames:
            if found is code or (inside and found.co_filename == code.co_filename):
                inside = (found, line)
        if inside is None:
            return ""
        file = code.co_filename.replace("\\", "/").split("/")[-1]
        return f"{file}:{inside[1]} in {inside[0].co_name}"


async def stacks_of(names: Collection[str]) -> dict[str, list[Stack]]:
    """Return the stacks of this event loop's tasks that have one of these names, by name."""
    found: dict[str, list[Stack]] = {}
    for task in asyncio.all_tasks():
        if (name := task.get_name()) in names:
            found.setdefault(name, []).append(Stack(tuple(_links(task.get_coro()))))
    return found


def _links(waits: Any) -> Iterator[tuple[CodeType, int]]:
    """Follow a coroutine to what it waits for, also through generators."""
    for _ in range(LINKS_MAX):
        names = next((names for names in _LINKS if hasattr(waits, names[0])), None)
        if names is None or (frame := getattr(waits, names[0])) is None:
            return
        yield frame.f_code, frame.f_lineno
        waits = getattr(waits, names[1])


_LINKS = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"))
