"""A partition that has something to do and does not get on is named, with what it waits for."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from structlog.testing import capture_logs

from streamworker import App, Context, Halt, Records, Retry
from streamworker.core.data.readers import ReaderPosition
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.testing import LocalWorker, local_worker
from tests.helpers import wait_for_async
from tests.raw import opened, records_in
from tests.runtime.workbench import Order
from tests.stage.server import Server

pytestmark = pytest.mark.anyio

STALLED_AFTER_MS = 250
TO_BE_ASKED = {"max_processing_time_ms": 6 * STALLED_AFTER_MS}
"""Where the stack is looked at: it is not there if the event loop takes a quarter of that to answer."""


@dataclass
class Scene:
    """A worker with one partition, and what it logs."""

    worker: LocalWorker
    logs: list[Any]

    def told(self, event: str = "partitions_stalled") -> list[Any]:
        return [line for line in self.logs if line["event"] == event]

    async def stalled(self) -> Any:
        """Wait until it names the partition."""
        (line,) = await wait_for_async(self.told, "the stall is told")
        assert (line["log_level"], line["processor"], line["partitions"]) == ("warning", "take", [0])
        assert STALLED_AFTER_MS <= line["stalled_ms"] < 10_000
        return line

    async def reason(self) -> str:
        return (await self.worker.snapshot()).processors["take"].partitions[0].reason

    async def shown(self, text: str) -> None:
        """Wait until `status` shows a reason that ends so; or none."""

        async def shows() -> bool:
            reason = await self.reason()
            return text in reason if text else not reason

        await wait_for_async(shows, f"status shows {text!r}")


@asynccontextmanager
async def scene(
    redis_url: str,
    function: Callable[..., Any],
    count: int = 1,
    settings: dict[str, Any] | None = None,
    **how: Any,
) -> AsyncIterator[Scene]:
    """Run a worker whose processor `take` has some records."""
    given: dict[str, Any] = {"max_processing_time_ms": STALLED_AFTER_MS, **(settings or {})}
    app = App("shop", redis_url=redis_url, **given)
    items = app.stream("items", Order, partitions=1)
    app.processor(items, name="take", **how)(function)
    with capture_logs() as logs:
        async with local_worker(app, url=redis_url) as worker:
            await items.send_many(Order(number) for number in range(count))
            yield Scene(worker, logs)


async def test_a_coroutine_that_waits_is_named_with_its_stack_and_again_when_it_goes_on(
    redis_url: str,
) -> None:
    """Once for each stall, in the log and in `status`; the stack ends where it waits."""
    go_on = asyncio.Event()

    async def inner() -> None:
        await go_on.wait()

    async def take(item: Order) -> None:
        await inner()

    async with scene(redis_url, take, settings=TO_BE_ASKED) as seen:
        line = await seen.stalled()
        assert line["waits_for"].startswith("its function (test_watchdog.py:")
        assert line["waits_for"].endswith("in inner)")
        assert "await go_on.wait()" in line["stack"]
        await seen.shown("waits for its function (test_watchdog.py:")
        await asyncio.sleep(2 * STALLED_AFTER_MS / 1000)
        assert len(seen.told()) == 1
        go_on.set()
        (over,) = await wait_for_async(lambda: seen.told("partitions_go_on"), "the end is told")
        assert over["partitions"] == [0]
        assert over["stalled_ms"] >= line["stalled_ms"]
        await seen.shown("")


@pytest.mark.parametrize("fails", [True, False])
async def test_a_timer_that_fails_hides_neither_a_record_that_is_tried_again_nor_a_stall(
    redis_url: str, fails: bool
) -> None:
    """Timers wait meanwhile, so it is not what holds the partition up."""
    app = App("shop", redis_url=redis_url, max_processing_time_ms=STALLED_AFTER_MS)
    items = app.stream("items", Order, partitions=1)
    go_on = asyncio.Event()

    @app.processor(items)
    async def take(item: Order) -> None:
        if fails:
            raise ConnectionError("away")
        await go_on.wait()

    @take.timer(every="0.1 seconds")
    async def tick(ctx: Context) -> None:
        raise ValueError("no")

    with capture_logs() as logs:
        async with local_worker(app, url=redis_url) as worker:
            seen = Scene(worker, logs)
            await seen.shown("timer tick fails")
            await items.send(Order(1))
            await seen.shown("ConnectionError: away" if fails else "waits for its function")
            (view,) = (await worker.snapshot()).processors["take"].partitions
            assert view.state == ("retrying" if fails else "running")
            assert (await seen.stalled())["waits_for"].startswith(
                "its next attempt" if fails else "its function"
            )
            go_on.set()


@pytest.mark.parametrize("mode", ["batch", "stream", "overlapping"])
async def test_the_stack_is_found_in_every_mode(redis_url: str, mode: str) -> None:
    """Also of calls that overlap: those that stand at the same line are shown once."""
    go_on = asyncio.Event()

    async def batch(items: list[Order]) -> None:
        await go_on.wait()

    async def stream(items: Records[Order]) -> None:
        async for _ in items:
            await go_on.wait()

    async def overlapping(item: Order) -> None:
        await go_on.wait()

    modes: dict[str, Callable[..., Any]] = {"batch": batch, "stream": stream, "overlapping": overlapping}
    how: dict[str, Any] = {"concurrency": 3, "ordered_by": "none"} if mode == "overlapping" else {}
    async with scene(redis_url, modes[mode], 5, settings=TO_BE_ASKED, **how) as seen:
        line = await seen.stalled()
        go_on.set()
        assert f"in {mode})" in line["waits_for"]
        assert line["stack"].count("await go_on.wait()") == 1
        assert line["stack"].startswith("3 calls:") == (mode == "overlapping")
        # A batch is named by its first and its last entry; else there is one entry in hand.
        assert (" to " in line["entry"]) == (mode == "batch")
        with opened(redis_url) as raw:
            (first, _), *_ = records_in(raw, StreamKeys("shop", "items").events(0))
        assert line["entry"].startswith(first.decode()), "the call that has run for longest"
        assert line["busy_ms"] > 0


async def test_a_call_that_waits_for_a_free_thread_is_told_from_one_that_runs(redis_url: str) -> None:
    """More threads are what helps, not a look at the function, which is named with its entry."""
    go_on = threading.Event()

    # Long enough for both calls to be there first: what a partition waits for is told once.
    app = App("shop", redis_url=redis_url, max_processing_time_ms=8 * STALLED_AFTER_MS, handler_threads=1)
    items = app.stream("items", Order, key="number", partitions=2)

    @app.processor(items)
    def take(item: Order) -> None:
        go_on.wait(20)

    with capture_logs() as logs:
        async with local_worker(app, url=redis_url) as worker:
            await items.send_many(Order(number) for number in range(20))
            seen = Scene(worker, logs)
            await wait_for_async(lambda: len(seen.told()) == 2, "both are told")
            go_on.set()
    waits, runs = sorted(seen.told(), key=lambda line: str(line["waits_for"]))
    assert waits["waits_for"].startswith("a free thread:")
    assert runs["waits_for"] == "its function (take in test_watchdog.py), in a thread"
    assert runs["entry"] and runs["busy_ms"] > 0 and "stack" not in runs, "nobody looks at its frames"


async def test_a_function_that_keeps_the_event_loop_is_named_while_it_does(redis_url: str) -> None:
    """The event loop cannot tell that itself; `status` shows it meanwhile, too."""

    async def take(item: Order) -> None:
        time.sleep(2.5)

    async with scene(redis_url, take) as seen:
        line = await seen.stalled()
        assert line["waits_for"] == "its function (take in test_watchdog.py), which keeps the event loop"
        assert line["entry"] and line["busy_ms"] > 0
        (blocked,) = await wait_for_async(lambda: seen.told("event_loop_blocked"), "the event loop is named")
        assert blocked["blocked_ms"] >= STALLED_AFTER_MS and blocked["task"].startswith("shop:take:0:")


async def test_a_full_acked_log_is_what_is_waited_for(redis_url: str) -> None:
    """Not the function, which has long returned."""

    async def take(batch: list[Order]) -> list[Order]:
        return batch

    with opened(redis_url) as raw:
        keys = GroupKeys("shop", "items", "take")
        raw.hset(keys.readers, "query", ReaderPosition({0: 0}, {0: "a log"}, 1).text())
    async with scene(redis_url, take, 5, settings={"acked_entries_max": 1}, batch=1) as seen:
        line = await seen.stalled()
        assert line["waits_for"].startswith("acked log full (1 entries that a reader has not read)")
        assert "stack" not in line
        await seen.shown("acked log full")


async def test_a_server_that_does_not_answer_is_what_is_waited_for(own_server: Server) -> None:
    """It cannot be shown in `status` then; the log has it, and that it is over."""

    async def take(item: Order) -> None:
        own_server.pause()

    async with scene(own_server.url, take, settings={"call_timeout_ms": 1_000}) as seen:
        try:
            line = await seen.stalled()
        finally:
            own_server.resume()
        assert line["waits_for"].startswith(("Redis: the answer to a commit", "commit not confirmed"))
        await wait_for_async(lambda: seen.told("partitions_go_on"), "the end is told")


async def test_a_halted_partition_is_named_and_its_reason_stays(redis_url: str) -> None:
    """It was an error in the log once; here it is one of those that do not get on."""

    async def take(item: Order) -> None:
        raise ValueError("no such customer")

    async with scene(redis_url, take, errors=Halt()) as seen:
        line = await seen.stalled()
        assert "it is halted" in line["waits_for"]
        assert "no such customer" in line["waits_for"]
        await seen.shown("no such customer")
        snapshot = (await seen.worker.snapshot()).processors["take"]
        assert snapshot.partitions[0].state == "halted"


async def test_a_record_between_two_attempts_is_named_as_that(redis_url: str) -> None:
    """A long pause is no stuck function."""

    async def take(item: Order) -> None:
        raise ValueError("not yet")

    how: dict[str, Any] = {"errors": Retry(backoff=5)}
    async with scene(redis_url, take, **how) as seen:
        assert (await seen.stalled())["waits_for"] == "its next attempt, after a failed one"


async def test_entries_that_nobody_reads_are_noticed(redis_url: str) -> None:
    """The partition looks idle from inside, so Redis is asked."""

    async def take(item: Order) -> None:
        return

    async with scene(redis_url, take) as seen:
        await seen.worker.until_drained()
        fetcher = seen.worker._worker._groups[0].partitions.fetcher
        fetcher._watch.left_out.add(0)  # a fault that nobody has thought of
        fetcher.candidates.drop(0)
        app = seen.worker._worker._app
        assert isinstance(app, App)
        items = app.registry.streams["items"]
        await items.send(Order(1))  # the read that is under way brings this one
        await seen.worker.until_drained()
        await items.send(Order(2))
        assert "its reads do not bring them" in (await seen.stalled())["waits_for"]


async def test_a_batch_that_gathers_and_a_partition_without_entries_are_no_stalls(redis_url: str) -> None:
    """They do what they were told to do."""
    taken: list[int] = []

    async def take(batch: list[Order]) -> None:
        taken.append(len(batch))

    async with scene(
        redis_url, take, 3, settings={"max_processing_time_ms": 1_500}, batch=100, within=2.5
    ) as seen:
        await seen.worker.until_drained()
        assert seen.told() == []
        assert taken == [3]
