"""What a partition waits for is told without a look at what other threads execute."""

import ast
import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import streamworker
from streamworker.runtime.watch.stacks import stacks_of

pytestmark = pytest.mark.anyio


async def test_the_stack_of_a_task_goes_down_to_what_it_waits_for() -> None:
    """Through coroutines and generators; tasks of other names are left out."""
    go_on = asyncio.Event()

    class Waits:
        def __await__(self) -> Generator[Any, None, bool]:
            return (yield from go_on.wait().__await__())

    async def fetch() -> None:
        await Waits()

    async def take() -> None:
        await fetch()

    tasks = [asyncio.create_task(take(), name=name) for name in ("one", "one", "other")]
    await asyncio.sleep(0)
    found = await stacks_of({"one", "absent"})
    assert [len(stacks) for stacks in found.values()] == [2] and set(found) == {"one"}
    stack = found["one"][0]
    assert stack.line_of(take.__code__) and "yield from go_on.wait()" in stack.text
    assert stack.line_of(take.__code__).startswith("test_stacks.py:")
    assert stack.line_of(take.__code__).endswith(" in __await__")
    go_on.set()
    await asyncio.gather(*tasks)


def test_no_code_reads_frames_of_other_threads_or_their_variables() -> None:
    """A worker ended with SIGSEGV by such a look."""
    forbidden = {"_current_frames", "f_locals"}
    root = Path(streamworker.__file__).parent
    found = {
        (path.name, node.attr)
        for path in (root / "runtime").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in forbidden
    }
    assert found == set()
