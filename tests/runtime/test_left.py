"""A call that leaves something entered in its task has failed, and ends nothing else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from streamworker import App, Context, DeadLetter, Records
from streamworker.declaring.stream import Stream
from streamworker.testing import LocalWorker, local_worker
from tests.helpers import is_halted, until_shown, wait_for_async

pytestmark = pytest.mark.anyio


class Item(msgspec.Struct):
    number: int


BAD = 2
"""The number of the record whose call leaves something."""
DEADLINE_S = 0.05


async def _pages() -> AsyncIterator[int]:
    with anyio.move_on_after(DEADLINE_S):
        for page in range(9):
            yield page


@pytest.fixture(autouse=True)
async def closing_fails() -> AsyncIterator[None]:
    """Python closes a generator in another task, later, where its scope cannot be left: that is no news."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: None)
    yield
    loop.set_exception_handler(before)


async def by_break(_: contextlib.AsyncExitStack) -> None:
    """Leave a generator with a timeout by break."""
    async for _page in _pages():
        break


async def by_nested_breaks(_: contextlib.AsyncExitStack) -> None:
    """Leave two of them, one in the other, and go on until the deadline."""
    async for _page in _pages():
        async for _inner in _pages():
            break
        await anyio.lowlevel.checkpoint()
        break


async def by_waiting(_: contextlib.AsyncExitStack) -> None:
    """Be cancelled by the deadline of what it has left."""
    async for _page in _pages():
        break
    await anyio.sleep_forever()


async def by_keeping(stack: contextlib.AsyncExitStack) -> None:
    """Open a session with tasks of its own, and keep it."""
    group = await stack.enter_async_context(anyio.create_task_group())
    group.start_soon(anyio.sleep_forever)


async def by_raising(stack: contextlib.AsyncExitStack) -> None:
    """Raise with a session open."""
    await by_keeping(stack)
    raise ValueError("no page")


WAYS = {way.__name__: way for way in (by_break, by_nested_breaks, by_waiting, by_keeping, by_raising)}


def _function(mode: str, act: Callable[[int], Awaitable[None]]) -> tuple[Callable[..., Any], dict[str, Any]]:
    async def record(item: Item) -> None:
        await act(item.number)

    async def context(item: Item, ctx: Context) -> None:
        await act(item.number)

    async def batch(items: list[Item]) -> None:
        for item in items:
            await act(item.number)

    async def columns(items: pa.RecordBatch) -> None:
        for number in items.column("number").to_pylist():
            await act(number)

    chosen: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "record": (record, {}),
        "timeout": (record, {"timeout": 30}),
        "context": (context, {}),
        "concurrent": (record, {"concurrency": 3}),
        "batch": (batch, {}),
        "columns": (columns, {}),
    }
    return chosen[mode]


MODES = ["record", "timeout", "context", "concurrent", "batch", "columns"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
async def test_a_call_that_leaves_a_scope_entered_is_an_error_of_its_record(mode: str, way: str) -> None:
    """It becomes a dead letter that names the function; later deadlines cancel nothing."""
    app, stack = App("shop"), contextlib.AsyncExitStack()
    items = app.stream("items", Item, partitions=1)
    handled = []

    async def act(number: int) -> None:
        if number == BAD:
            await WAYS[way](stack)
        handled.append(number)

    function, options = _function(mode, act)
    app.processor(items, name="handle", errors=DeadLetter(), **options)(function)
    async with local_worker(app) as worker:
        await items.send_many([Item(number) for number in range(5)])
        await worker.until_drained()
        [letter] = await worker.dead_letters("handle")
        said = f"{function.__name__} in test_left.py left a cancel scope or a task group of anyio entered."
        assert said in letter.error
        await asyncio.sleep(2 * DEADLINE_S)
        await items.send(Item(9))
        await worker.until_drained()
        assert {0, 1, 3, 4, 9} <= set(handled)
        assert (await worker.snapshot()).processors["handle"].partitions[0].state == "running"


async def test_a_function_with_records_is_called_again_after_it_left_a_scope() -> None:
    """Its records are acked as it asks for the next one; what it leaves is found where it returns."""
    app, stack = App("shop"), contextlib.AsyncExitStack()
    items = app.stream("items", Item, partitions=1)
    seen = []

    @app.processor(items, forward=False)
    async def handle(given: Records[Item]) -> None:
        async for item in given:
            seen.append(item.number)
            if item.number == BAD and seen.count(BAD) == 1:
                await by_keeping(stack)
                return

    with capture_logs() as logs:
        async with local_worker(app) as worker:
            await items.send_many([Item(number) for number in range(5)])
            await worker.until_drained()
    assert seen == [0, 1, 2, 2, 3, 4]
    [failed] = [log for log in logs if log["event"] == "handler_failed"]
    assert "handle in test_left.py left a cancel scope" in failed["error"]


async def test_a_timer_that_leaves_a_scope_fails_and_its_partition_goes_on() -> None:
    """Of a processor or of the app alike."""
    app = App("shop")
    items = app.stream("items", Item, partitions=1)
    calls = {"app": 0, "processor": 0}

    @app.processor(items)
    async def handle(item: Item) -> None: ...

    @handle.timer(every="1 second")
    async def tidy() -> None:
        calls["processor"] += 1
        await by_break(contextlib.AsyncExitStack())

    @app.timer(every="1 second")
    async def report() -> None:
        calls["app"] += 1
        await by_break(contextlib.AsyncExitStack())

    with capture_logs() as logs:
        async with local_worker(app) as worker:
            await wait_for_async(lambda: min(calls.values()) >= 2, "each was called twice")
            await items.send(Item(1))
            await worker.until_drained()
    said = {
        log["error"].split(" in test_left.py left a cancel scope")[0]
        for log in logs
        if log["event"] == "timer_failed"
    }
    assert said == {"ProcessingError: tidy", "ProcessingError: report"}


async def _timeout(stack: contextlib.AsyncExitStack) -> Callable[[], None]:
    kept = await stack.enter_async_context(asyncio.timeout(None))
    return lambda: kept.reschedule(asyncio.get_running_loop().time())


async def _group(stack: contextlib.AsyncExitStack) -> Callable[[], None]:
    group, fails = await stack.enter_async_context(asyncio.TaskGroup()), asyncio.Event()

    async def child() -> None:
        await fails.wait()
        raise ValueError("no connection")

    group.create_task(child())
    return fails.set


def _cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def _cancel(_: contextlib.AsyncExitStack) -> Callable[[], None]:
    task = asyncio.current_task()
    assert task is not None

    def fire() -> None:
        asyncio.get_running_loop().call_soon(task.cancel)

    return fire


KEPT = {"timeout": _timeout, "group": _group, "cancel": _cancel}
"""Ways to keep something that cancels the task when the function that is returned is called."""


async def _handles_five(items: Stream[Item], worker: LocalWorker) -> None:
    await items.send_many([Item(number) for number in range(5)])
    await worker.until_drained()
    assert await worker.dead_letters("handle") == []
    assert [row["number"] for row in await worker.rows("handle")] == [0, 1, 2, 3, 4]


def _each(mode: str, act: Callable[[int], Awaitable[None]]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return a function that has one record in each call, and changes it."""

    async def record(item: Item) -> Item:
        number, item.number = item.number, -1
        await act(number)
        return Item(number)

    async def context(item: Item, ctx: Context) -> Item | None:
        number, item.number = item.number, -1
        ctx.forward(Item(number))
        assert ctx.attempt == 1
        await act(number)
        return None

    async def batch(items: list[Item]) -> list[Item]:
        return [await record(item) for item in items]

    async def columns(items: pa.RecordBatch) -> pa.RecordBatch:
        await act(items.column("number")[0].as_py())
        return items

    async def stream(items: Records[Item], ctx: Context) -> Item | None:
        async for item in items:
            number, item.number = item.number, -1
            ctx.forward(Item(number))
            await act(number)
        return None

    chosen: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "record": (record, {}),
        "timeout": (record, {"timeout": 30}),
        "context": (context, {}),
        "concurrent": (record, {"concurrency": 3}),
        "batch": (batch, {"batch": 1}),
        "columns": (columns, {"batch": 1}),
        "stream": (stream, {}),
    }
    return chosen[mode]


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("mode", [*MODES, "stream"])
async def test_a_record_is_not_charged_for_what_an_earlier_call_has_left(mode: str, kept: str) -> None:
    """Its call is made again, with the record as it was sent, and nothing else of the first one stays."""
    app, stack = App("shop"), contextlib.AsyncExitStack()
    items = app.stream("items", Item, partitions=1, key=lambda _: "one")
    seen: list[int] = []
    fire: list[Callable[[], None]] = []

    async def act(number: int) -> None:
        seen.append(number)
        if number == BAD - 1:
            fire.append(await KEPT[kept](stack))
        if number == BAD and seen.count(BAD) == 1:
            fire[0]()
            await anyio.sleep_forever()

    function, options = _each(mode, act)
    app.processor(items, name="handle", errors=DeadLetter(), **options)(function)
    with capture_logs() as logs:
        async with local_worker(app) as worker:
            await _handles_five(items, worker)
    assert seen == [0, 1, 2, 2, 3, 4]
    [told] = [log for log in logs if log["event"] == "call_cancelled"]
    assert f"{function.__name__} in test_left.py has cancelled its own task, or it" in told["reason"]
    assert not [log for log in logs if log["event"] in {"handler_failed", "runner_cancelled"}]


@pytest.mark.parametrize("mode", [*MODES, "stream"])
async def test_a_function_that_cancels_itself_fails_at_the_second_time(mode: str) -> None:
    app = App("shop")
    items = app.stream("items", Item, partitions=1, key=lambda _: "one")
    seen: list[int] = []

    async def act(number: int) -> None:
        seen.append(number)
        if number == BAD:
            _cancel_own_task()
            await anyio.sleep_forever()

    function, options = _each(mode, act)
    app.processor(items, name="handle", errors=DeadLetter(), **options)(function)
    async with local_worker(app) as worker:
        await items.send_many([Item(number) for number in range(5)])
        await worker.until_drained()
        [letter] = await worker.dead_letters("handle")
    assert (seen, letter.attempts) == ([0, 1, 2, 2, 3, 4], 1)
    assert "the function raised CancelledError" in letter.error


@pytest.mark.parametrize("mode", [*MODES, "stream"])
async def test_a_function_that_cancels_its_task_and_returns_ends_no_worker(mode: str) -> None:
    """The cancel comes at a line of ours: the partition starts anew, also where the call had its own task."""
    app = App("shop")
    items = app.stream("items", Item, partitions=1, key=lambda item: str(item.number))
    seen: list[int] = []

    async def act(number: int) -> None:
        seen.append(number)
        if number == BAD and seen.count(BAD) == 1:
            _cancel_own_task()

    function, options = _each(mode, act)
    app.processor(items, name="handle", errors=DeadLetter(), **options)(function)
    with capture_logs() as logs:
        async with local_worker(app) as worker:
            await _handles_five(items, worker)
            assert (await worker.snapshot()).processors["handle"].partitions[0].state == "running"
    assert [log["halts"] for log in logs if log["event"] == "runner_cancelled"] == [False]


async def test_a_cancel_that_comes_between_two_calls_lets_the_partition_start_anew() -> None:
    """All records are handled, and no other partition or worker notices."""
    app, stack = App("shop"), contextlib.AsyncExitStack()
    items = app.stream("items", Item, partitions=1)
    made: list[int] = []
    seen: set[int] = set()

    @app.resource(each="partition")
    async def life() -> AsyncIterator[int]:
        made.append(len(made))
        yield len(made)

    @app.processor(items, errors=DeadLetter())
    async def handle(item: Item, life: int) -> None:
        seen.add(item.number)
        if item.number == BAD and life == 1:
            await stack.enter_async_context(asyncio.timeout(DEADLINE_S))

    with capture_logs() as logs:
        async with local_worker(app) as worker:
            await items.send_many([Item(number) for number in range(5)])
            await wait_for_async(lambda: len(made) == 2, "the partition has started anew")
            await items.send(Item(9))
            await worker.until_drained()
            [view] = (await worker.snapshot()).processors["handle"].partitions
            assert view.state == "running"
            assert await worker.dead_letters("handle") == []
    assert seen == {0, 1, 2, 3, 4, 9}
    [cancelled] = [log for log in logs if log["event"] == "runner_cancelled"]
    assert "handle in test_left.py has cancelled its own task, or it or middleware" in cancelled["reason"]


async def test_a_partition_that_is_cancelled_before_it_commits_anything_halts_and_says_why() -> None:
    """To start it once more would not help; an operator sees what is wrong."""
    app = App("shop")
    items = app.stream("items", Item, partitions=1)

    @app.processor(items)
    async def handle(item: Item) -> None:
        _cancel_own_task()
        raise ValueError("no page")

    async with local_worker(app) as worker:
        await items.send(Item(1))
        view = await until_shown(worker, is_halted)
        assert "handle in test_left.py has cancelled its own task, or it or middleware" in view.reason
