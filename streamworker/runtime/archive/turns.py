"""What the archivers of a worker share: its memory for one segment, and threads for what blocks."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

T = TypeVar("T")

_turn: anyio.lowlevel.RunVar[anyio.Lock] = anyio.lowlevel.RunVar("archiver's turn")


def turn() -> anyio.Lock:
    """Return what lets one segment of this process be in memory at a time."""
    if (found := _turn.get(None)) is None:
        found = anyio.Lock()
        _turn.set(found)
    return found


async def in_thread(call: Callable[..., T], *args: Any) -> T:
    """Make a call that blocks; a worker that stops does not wait for it."""
    return await anyio.to_thread.run_sync(partial(call, *args), abandon_on_cancel=True)
