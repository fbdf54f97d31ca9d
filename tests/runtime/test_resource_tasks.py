"""What a resource holds open, or leaves entered, concerns its own task; an early end is told by its name."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from streamworker import App, DeadLetter
from streamworker.errors import ProcessingError
from streamworker.runtime import resources
from streamworker.runtime.worker import Worker
from streamworker.testing import local_worker
from tests.helpers import PATIENCE_S, wait_for_async

pytestmark = pytest.mark.anyio

DEADLINE_S = 0.05


class Item(msgspec.Struct):
    number: int


class Link:
    """What a resource makes."""


REGION: ContextVar[str] = ContextVar("region", default="none")
closed: list[str] = []


@pytest.fixture(autouse=True)
async def closing_fails() -> AsyncIterator[None]:
    """Python closes a generator in another task, later, where its scope cannot be left: that is no news."""
    closed.clear()
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: None)
    yield
    loop.set_exception_handler(before)


async def _fails() -> None:
    await asyncio.sleep(DEADLINE_S)
    raise ConnectionError("nobody there")


async def _pages() -> AsyncIterator[int]:
    with anyio.move_on_after(DEADLINE_S):
        for page in range(9):
            yield page


async def task_group() -> AsyncIterator[Link]:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        yield Link()
        group.cancel_scope.cancel()
    closed.append("task_group")


async def own_task_group() -> AsyncIterator[Link]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(asyncio.sleep(3600))
        yield Link()
        task.cancel()
    closed.append("own_task_group")


async def timeout() -> AsyncIterator[Link]:
    with anyio.fail_after(3600):
        async with asyncio.timeout(3600):
            yield Link()
    closed.append("timeout")


async def variable() -> AsyncIterator[Link]:
    token = REGION.set("north")
    yield Link()
    REGION.reset(token)
    closed.append("variable")


HOLDS = [task_group, own_task_group, timeout, variable]


async def leaves_a_scope() -> AsyncIterator[Link]:
    async for _page in _pages():
        break
    yield Link()


async def leaves_a_timeout() -> AsyncIterator[Link]:
    await asyncio.timeout(DEADLINE_S).__aenter__()
    yield Link()


async def a_task_fails() -> AsyncIterator[Link]:
    async with anyio.create_task_group() as group:
        group.start_soon(_fails)
        yield Link()


async def a_task_of_asyncio_fails() -> AsyncIterator[Link]:
    async with asyncio.TaskGroup() as group:
        group.create_task(_fails())
        yield Link()


async def its_time_is_over() -> AsyncIterator[Link]:
    async with asyncio.timeout(DEADLINE_S):
        yield Link()


async def moves_on() -> AsyncIterator[Link]:
    with anyio.move_on_after(DEADLINE_S):
        yield Link()


ENDS = {
    leaves_a_scope: "what it has entered has cancelled its task",
    leaves_a_timeout: "what it has entered has cancelled its task",
    a_task_fails: "ConnectionError: nobody there (test_resource_tasks.py:",
    a_task_of_asyncio_fails: "ConnectionError: nobody there (test_resource_tasks.py:",
    its_time_is_over: "TimeoutError",
    moves_on: "its generator has returned",
}


def _app(make: Callable[[], AsyncIterator[Link]], each: Any, **settings: Any) -> tuple[App, Any, list[int]]:
    """Return an app whose function uses such a resource through another one, its stream, and what it sees."""
    app = App("shop", **settings)
    items = app.stream("items", Item, partitions=1)
    seen: list[int] = []
    app.resource(each=each)(make)

    @app.resource(each=each)
    async def session(link: Link) -> AsyncIterator[str]:
        yield REGION.get()
        closed.append("session")

    @app.processor(items, name="handle", errors=DeadLetter())
    async def handle(item: Item, session: str) -> None:
        assert REGION.get() == session
        await asyncio.sleep(DEADLINE_S / 5)
        seen.append(item.number)

    return app, items, seen


@pytest.mark.parametrize("each", ["worker", "partition"])
@pytest.mark.parametrize("make", HOLDS)
async def test_a_resource_may_hold_open_what_it_likes_around_its_yield(
    make: Callable[[], AsyncIterator[Link]], each: str
) -> None:
    """It is closed after what needs it, and by the task that has made it."""
    app, items, seen = _app(make, each)
    with capture_logs() as logs:
        async with local_worker(app) as worker:
            await items.send_many([Item(number) for number in range(3)])
            await worker.until_drained()
    assert seen == [0, 1, 2]
    assert closed == ["session", make.__name__]
    assert not [log for log in logs if log["event"] == "resource_not_closed"]


@pytest.mark.parametrize("make", ENDS)
async def test_a_resource_of_a_worker_that_ends_ends_the_worker_with_its_name(
    make: Callable[[], AsyncIterator[Link]],
) -> None:
    """What needs it is closed; no record is accused."""
    app, items, _ = _app(make, "worker")

    async def run() -> None:
        async with local_worker(app) as worker:
            await items.send_many([Item(number) for number in range(100)])
            with anyio.fail_after(PATIENCE_S):
                await worker.until_drained()

    with pytest.raises(ProcessingError) as raised:
        await run()
    assert str(raised.value).startswith(f"Resource '{make.__name__}' has ended: {ENDS[make]}")
    assert closed == ["session"]


@pytest.mark.parametrize("make", ENDS)
async def test_a_resource_of_a_partition_that_ends_is_made_anew(
    make: Callable[[], AsyncIterator[Link]],
) -> None:
    """As often as it ends, also if nothing was committed; records are handled, and none is accused."""
    app, items, seen = _app(make, "partition")
    with capture_logs() as logs:
        async with local_worker(app) as worker:
            ended: list[str] = []

            def has_ended() -> bool:
                ended[:] = [log["error"] for log in logs if log["event"] == "resource_ended"]
                return len(ended) >= 2

            await wait_for_async(has_ended, "the resource has ended twice")
            await items.send_many([Item(number) for number in range(3)])
            await worker.until_drained()
            assert await worker.dead_letters("handle") == []
    assert set(seen) == {0, 1, 2}
    assert ended[0].startswith(f"Resource '{make.__name__}' has ended: {ENDS[make]}")


@pytest.mark.parametrize("each", ["worker", "partition"])
async def test_a_resource_that_takes_too_long_to_close_is_cancelled(
    each: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it holds a task group open, whose tasks do not end."""
    monkeypatch.setattr(resources, "CLOSE_S", DEADLINE_S)

    async def slow() -> AsyncIterator[Link]:
        async with anyio.create_task_group() as group:
            yield Link()
            group.start_soon(anyio.sleep_forever)

    app, items, seen = _app(slow, each)
    with capture_logs() as logs:
        async with local_worker(app) as worker:
            await items.send(Item(1))
            await worker.until_drained()
    assert seen == [1]
    [said] = [log for log in logs if log["event"] == "resource_not_closed"]
    assert (said["resource"], said["error"]) == ("slow", "it takes too long")


@pytest.mark.parametrize("ends_by", ["stop", "cancel"])
async def test_a_resource_that_is_being_made_keeps_no_worker_from_its_end(
    ends_by: str, redis_url: str
) -> None:
    """It is cancelled; a worker that is told to stop then has nothing to drain."""
    steps: list[object] = []
    hanging = anyio.Event()

    async def hangs() -> AsyncIterator[Link]:
        try:
            hanging.set()
            await anyio.sleep_forever()
            yield Link()
        finally:
            steps.append("closed")

    app, _, _ = _app(hangs, "worker", redis_url=redis_url, durability="memory")
    worker = Worker(app)

    async def run() -> None:
        steps.append(await worker.run())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await hanging.wait()
        if ends_by == "cancel":
            tasks.cancel_scope.cancel()
        else:
            worker.stop()
    assert steps == (["closed", True] if ends_by == "stop" else ["closed"])


async def test_whatever_a_resource_raises_while_it_is_made_is_told_with_its_name() -> None:
    """A SystemExit in a task would end the event loop."""

    async def exits() -> AsyncIterator[Link]:
        if not closed:
            sys.exit(3)
        yield Link()

    async def run() -> None:
        async with local_worker(_app(exits, "worker")[0]):
            pass

    with pytest.raises(ProcessingError, match=r"Resource 'exits' could not be made: .* SystemExit: 3"):
        await run()
