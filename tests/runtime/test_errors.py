"""What becomes of records whose handling fails: each has its policy alone, in every mode, whatever is raised.

One table: the modes by the kinds of failures, once for each policy. A record that an operator or the function
sets aside is in test_set_aside, and what there is between two attempts in test_retries.
"""

import asyncio
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
import msgspec
import pyarrow as pa
import pytest
import redis
from structlog.testing import capture_logs

from streamworker import App, Context, DeadLetter, DecodeError, Halt, Policy, Records, Retry, Skip
from streamworker.core.data.entries import EntryId
from streamworker.core.policies import Errors
from streamworker.core.snapshot import PartitionView
from streamworker.errors import BackendUnavailable
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.runtime.run import committer
from streamworker.runtime.run.failures import describe_error, traceback_of
from streamworker.testing import LocalWorker, Snapshot, local_worker
from tests.helpers import is_halted, wait_for_async
from tests.raw import opened, records_in
from tests.runtime.workbench import Order, Priced, bench, handling

pytestmark = pytest.mark.anyio

EVENTS = StreamKeys("shop", "items").events(0)


# -- what is raised ------------------------------------------------------------------------------


class Fatal(BaseException):
    """No Exception, and of nobody's library."""


class Mute(Exception):
    """One that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class MuteForGood(Exception):
    """The same with what is no Exception."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Closed(Exception):
    """One that has an answer to no question."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class _Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__"):
            raise KeyError(name)
        return type.__getattribute__(cls, name)


class Nameless(Exception, metaclass=_Nameless):
    """One whose class does not tell its name to whoever asks."""


def _deep(frames: int) -> None:
    if frames:
        _deeper(frames - 1)
    raise ValueError("deep")


def _deeper(frames: int) -> None:
    _deep(frames)  # By turns: Python shows a line once that is repeated.


def _cancelled_within() -> None:
    async def inner() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    runner = asyncio.new_event_loop()
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(None)  # For the modes in which this is on the worker's own loop.
    try:
        runner.run_until_complete(inner())
    finally:
        asyncio._set_running_loop(before)
        runner.close()


def _raising(error: Callable[[], BaseException]) -> Callable[[], None]:
    def throw() -> None:
        raise error()

    return throw


class Passing(Exception):
    """One that the third call does not meet."""


class Lasting(Exception):
    """One that each call meets."""


PASSING, LASTING, NONE = "passes", "lasts", "no record"
BAD = b"{"
"""An entry that holds no record."""

KINDS: dict[str, tuple[Callable[[], None], str]] = {
    "CancelledError": (_raising(asyncio.CancelledError), "CancelledError"),
    "a loop of its own was cancelled": (_cancelled_within, "CancelledError"),
    "SystemExit": (lambda: sys.exit(3), "SystemExit: 3"),
    "SystemExit, all well": (lambda: sys.exit(0), "SystemExit: 0"),
    "KeyboardInterrupt": (_raising(KeyboardInterrupt), "KeyboardInterrupt"),
    "GeneratorExit": (_raising(GeneratorExit), "GeneratorExit"),
    "StopIteration": (_raising(StopIteration), "StopIteration"),
    "StopAsyncIteration": (_raising(StopAsyncIteration), "StopAsyncIteration"),
    "a BaseException": (_raising(lambda: Fatal("bad")), "Fatal: bad"),
    "a group": (
        _raising(lambda: BaseExceptionGroup("both", [SystemExit(0), asyncio.CancelledError()])),
        "BaseExceptionGroup: both (2 sub-exceptions)",
    ),
    "str() raises": (_raising(Mute), "Mute"),
    "str() raises SystemExit": (_raising(MuteForGood), "MuteForGood"),
    "its attributes raise": (_raising(lambda: Closed("shut")), "shut"),
    "its name raises": (_raising(lambda: Nameless("anon")), "anon"),
    "two lines of name": (_raising(lambda: type("Two\nLines", (Exception,), {})("x")), "Two Lines: x"),
    "hundreds of frames": (lambda: _deep(200), "deep"),
    "half of a surrogate pair": (_raising(lambda: ValueError("caf\ud83d")), r"caf\ud83d"),
    LASTING: (_raising(lambda: Lasting("for good")), "Lasting: for good"),
}


# -- where it is raised ----------------------------------------------------------------------------


class Item(msgspec.Struct):
    number: int
    kind: str = ""


class Fragile(Item):
    """The same, with code of its own that runs when it is decoded."""

    def __post_init__(self) -> None:
        throw(self)


@dataclass
class Row:
    """What is forwarded, with code of its own that runs when it becomes a row."""

    number: int
    kind: str = ""

    def __getattribute__(self, name: str) -> Any:
        if name == "number":
            throw(self)
        return object.__getattribute__(self, name)


def throw(item: Any) -> None:
    if item.kind in KINDS:
        KINDS[item.kind][0]()


def key_of(item: Item) -> int:
    """Return the key, or raise what the item asks for."""
    throw(item)
    return item.number


def thrown(item: Item) -> Item:
    """Raise what the item asks for, or return it; spoil what was given, so that no other call may get it."""
    given = Item(item.number, item.kind)
    item.number = -1
    throw(given)
    return given


def again(item: Item) -> Item:
    return Item(item.number)


def as_row(item: Item) -> Row:
    return Row(item.number, item.kind)


def in_way(way: str, act: Callable[[Any], Any], takes: type[Item], gives: type) -> Callable[..., Any]:
    """Return a function that does this with each of its records, and forwards what it returns."""
    calls = Counter[int]()

    def do(item: Any) -> Any:
        number = item.number
        done = act(item)
        calls[number] += item.kind == PASSING
        if 0 < calls[number] < 3:
            raise Passing("not yet")
        return done

    def do_all(items: list[Any]) -> list[Any]:
        try:
            return [do(item) for item in items]
        finally:
            items.clear()

    async def record(given: Any) -> Any:
        await asyncio.sleep(0)
        return do(given)

    def forward(item: Any, ctx: Context) -> None:
        ctx.forward(gives(item.number, item.kind))  # A call that fails takes back what it has forwarded.
        do(item)

    async def context(given: Any, ctx: Context) -> None:
        forward(given, ctx)

    def thread(given: Any) -> Any:
        return do(given)

    async def batch(given: Any) -> Any:
        return do_all(given)

    def batch_in_thread(given: Any) -> Any:
        return do_all(given)

    async def stream(given: Any, ctx: Context) -> None:
        async for item in given:
            forward(item, ctx)

    async def parts(given: Any, ctx: Context) -> None:
        async for part in given.take(5):
            for item in part:
                forward(item, ctx)

    async def columns(given: Any) -> Any:
        do_all([Item(**row) for row in given.to_pylist()])
        return given

    def columns_in_thread(given: Any) -> Any:
        do_all([Item(**row) for row in given.to_pylist()])
        return given

    functions: dict[str, tuple[Callable[..., Any], Any, Any]] = {
        "record": (record, takes, gives),
        "context": (context, takes, None),
        "thread": (thread, takes, gives),
        "batch": (batch, list[takes], list[gives]),  # type: ignore[valid-type]
        "batch in thread": (batch_in_thread, list[takes], list[gives]),  # type: ignore[valid-type]
        "stream": (stream, Records[takes], None),  # type: ignore[valid-type]
        "parts": (parts, Records[takes], None),  # type: ignore[valid-type]
        "columns": (columns, pa.RecordBatch, pa.RecordBatch),
        "columns in thread": (columns_in_thread, pa.RecordBatch, pa.RecordBatch),
    }
    function, given, returned = functions[way]
    function.__annotations__ |= {"given": given, "return": returned}
    return function


@dataclass(frozen=True)
class Mode:
    """How its function is made, and the options of its processor and its stream."""

    make: Callable[[], Callable[..., Any]]
    options: dict[str, Any] = field(default_factory=dict)
    stream: dict[str, Any] = field(default_factory=dict)
    record: type = Item
    fails: bool = True
    """Whether the function fails, and not what makes its record, its key or its row."""


def _mode(
    way: str,
    act: Callable[[Any], Any] = thrown,
    takes: type[Item] = Item,
    gives: type = Item,
    stream: dict[str, Any] | None = None,
    **options: Any,
) -> Mode:
    if way in ("context", "stream", "parts"):
        options |= {"output": gives, "forward": True}
    make = partial(in_way, way, act, takes, gives)
    return Mode(make, options, stream or {}, takes, act is thrown and takes is Item)


ARROW = {"codec": "arrow"}
MODES = {
    "record": _mode("record"),
    "record-def": _mode("thread"),
    "record-context": _mode("context"),
    "record-timeout": _mode("record", timeout=30),
    "record-def-timeout": _mode("thread", timeout=30),
    "batch": _mode("batch"),
    "batch-def": _mode("batch in thread"),
    "batch-timeout": _mode("batch", timeout=30),
    "stream": _mode("stream"),
    "stream-parts": _mode("parts"),
    "concurrent": _mode("record", concurrency=3),
    "concurrent-def": _mode("thread", concurrency=3),
    "columns": _mode("columns"),
    "columns-def": _mode("columns in thread"),
    "arrow-columns": _mode("columns", stream=ARROW),
    "arrow-record": _mode("record", stream=ARROW),
    "arrow-def": _mode("thread", stream=ARROW),
    "arrow-decoded": _mode("batch", again, Fragile, stream=ARROW),
    "key-function": _mode("record", again, stream={"key": key_of}, concurrency=3),
    "decoded": _mode("record", again, Fragile),
    "decoded-batch": _mode("batch", again, Fragile),
    "decoded-stream": _mode("stream", again, Fragile),
    "decoded-concurrent": _mode("record", again, Fragile, concurrency=3),
    "decoded-columns": _mode("columns", takes=Fragile),
    "rows": _mode("record", as_row, gives=Row),
    "rows-batch": _mode("batch", as_row, gives=Row),
    "rows-stream": _mode("stream", as_row, gives=Row),
    "rows-concurrent": _mode("record", as_row, gives=Row, concurrency=3),
}


@asynccontextmanager
async def working(
    url: str,
    processors: Mapping[str, tuple[Mode, Errors]],
    entries: Sequence[Item | bytes],
    changed: Mapping[str, Any] | None = None,
) -> AsyncIterator[tuple[LocalWorker, list[str]]]:
    """Run a worker of these processors over entries that are there; gives it and their ids."""
    app = App("shop", redis_url=url)
    app.settings = replace(app.settings, **(changed or {}))
    first, _ = next(iter(processors.values()))
    stream = app.stream("items", first.record, partitions=1, **first.stream)
    for name, (mode, errors) in processors.items():
        app.processor(stream, name=name, errors=errors, **mode.options)(mode.make())
    with opened(url) as raw:
        async with app:
            for entry in entries:
                if first.stream.get("codec") != "arrow" or isinstance(entry, bytes):
                    raw.xadd(EVENTS, {"v": entry if isinstance(entry, bytes) else msgspec.json.encode(entry)})
                else:
                    await stream.send_table(pa.table({"number": [entry.number], "kind": [entry.kind]}))
        ids = [entry_id.decode() for entry_id, _ in records_in(raw, EVENTS)]
    async with local_worker(app, url=app.settings.redis_url) as worker:
        yield worker, ids


async def numbers(worker: LocalWorker, processor: str) -> list[int]:
    return [row["number"] for row in await worker.rows(processor)]


def finally_(last: Policy) -> Errors:
    """Return policies of which this is the last for each error."""
    lasting = Retry(attempts=3, backoff=0.001, then=last)
    return {Exception: last, DecodeError: last, Passing: Retry(backoff=0.001), Lasting: lasting}


@pytest.mark.parametrize("mode", MODES)
async def test_each_record_that_fails_has_its_policy_and_all_others_are_handled(
    mode: str, redis_url: str
) -> None:
    """Whatever its code raises, by the same worker and in order; wherever it stands, and alone too.

    A dead letter says what was raised. Each attempt gets the record as it was sent.
    """
    made = MODES[mode]
    kinds = [NONE, *(kind for raised in (*KINDS, PASSING) for kind in ("", raised)), NONE, NONE, "", NONE]
    entries = [BAD if kind == NONE else Item(number, kind) for number, kind in enumerate(kinds)]
    policies = {"letters": (made, finally_(DeadLetter())), "skips": (made, finally_(Skip()))}
    told = {NONE: "", **{kind: text for kind, (_, text) in KINDS.items()}}
    with capture_logs() as logs, opened(redis_url) as raw:
        async with working(redis_url, policies, entries) as (worker, ids):
            await worker.until_drained()
            ids.append(raw.xadd(EVENTS, {"v": BAD}).decode())
            await worker.until_drained()
            letters = {str(letter.entry_id): letter for letter in await worker.dead_letters("letters")}
            assert await worker.dead_letters("skips") == []
            good = [number for number, kind in enumerate(kinds) if kind not in told]
            assert await numbers(worker, "letters") == await numbers(worker, "skips") == good
            now = await worker.snapshot()
    bad = {entry_id: kind for entry_id, kind in zip(ids, [*kinds, NONE], strict=True) if kind in told}
    assert letters.keys() == bad.keys()
    assert {log["entry"] for log in logs if log["event"] == "record_skipped"} == bad.keys()
    for entry_id, kind in bad.items():
        letter = letters[entry_id]
        assert told[kind] in letter.error and len(letter.error) < 1_500
        assert letter.attempts == {NONE: 0, LASTING: 3}.get(kind, 1) or not made.fails
    assert {group.partitions[0].state for group in now.processors.values()} == {"running"}
    assert not [log for log in logs if log["event"] in ("runner_failed", "commit_refused")]


@pytest.mark.parametrize("codec", ["json", "arrow"])
async def test_a_partition_halts_at_what_fails_and_goes_on_when_that_is_deleted(
    codec: str, redis_url: str
) -> None:
    """What comes before it is done; status, log and lock name its id. The same worker goes on.

    Each mode has a group of its own, which all halt at the same entry.
    """
    kinds = [NONE, "", LASTING, "", NONE, LASTING, "", NONE]
    entries = [BAD if kind == NONE else Item(number, kind) for number, kind in enumerate(kinds)]
    errors = {DecodeError: Halt(), Lasting: Retry(attempts=2, backoff=0.001)}
    told = {NONE: ": DecodeError: ", LASTING: " after 2 attempts: Lasting: for good (test_errors.py:"}
    modes = {
        name: (mode, errors)
        for name, mode in MODES.items()
        if mode.fails and mode.stream.get("codec", "json") == codec
    }
    locks = {name: GroupKeys("shop", "items", name).lock(0) for name in modes}
    with opened(redis_url) as raw, capture_logs() as logs:

        def epochs() -> list[bytes]:
            return [raw.hget(lock, "epoch") for lock in locks.values()]

        async with working(redis_url, modes, entries, {"trim_interval_ms": 20}) as (worker, ids):
            good, first = list[int](), list[bytes]()
            for number, kind in enumerate(kinds):
                if not kind:
                    good.append(number)
                    continue
                said = f"entry {ids[number]} failed{told[kind]}"
                now = await worker.until(partial(_all, partial(_is_halted_by, said)))
                for name, group in now.processors.items():
                    reason = group.partitions[0].reason
                    state, said_in_lock, checkpoint = raw.hmget(locks[name], "state", "reason", "checkpoint")
                    assert (state, said_in_lock) == (b"halted", reason.encode())
                    assert EntryId.parse(checkpoint) < EntryId.parse(ids[number])
                    assert reason in [log["reason"] for log in logs if log["event"] == "partition_halted"]
                    assert (name, await numbers(worker, name)) == (name, good)
                first = first or epochs()
                assert raw.xdel(EVENTS, ids[number]) == 1
            await worker.until(partial(_all, lambda view: (view.lag, view.reason) == (0, "")))
            assert epochs() == first, "none began anew"
    halts = [log for log in logs if log["event"] == "partition_halted"]
    assert len(halts) == len(modes) * (len(kinds) - len(good))
    assert not [log for log in logs if log["event"] in ("runner_failed", "commit_refused")]


def _all(is_so: Callable[[PartitionView], bool], now: Snapshot) -> bool:
    return all(is_so(group.partitions[0]) for group in now.processors.values())


def _is_halted_by(reason: str, view: PartitionView) -> bool:
    return is_halted(view) and view.reason.startswith(reason)


async def test_a_halted_partition_stays_as_it_is_while_nobody_answers_for_its_entry(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer is no news, and an error of the look ends nothing."""
    asked = 0

    async def unanswered(*_: object) -> list[Any]:
        nonlocal asked
        asked += 1
        raise BackendUnavailable("no answer")

    monkeypatch.setattr(committer, "range_entries", unanswered)
    processors, changed = {"handle": (MODES["record"], Halt())}, {"trim_interval_ms": 20}
    with capture_logs() as logs:
        async with working(redis_url, processors, [Item(1, "SystemExit")], changed) as (worker, _):
            await wait_for_async(lambda: asked >= 3, "it asked several times")
            assert (await worker.snapshot()).processors["handle"].partitions[0].state == "halted"
    assert sum(log["event"] == "partition_halted" for log in logs) == 1


# -- cancels ---------------------------------------------------------------------------------------


async def _cancels_itself(item: Item) -> Item:
    if item.kind:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
    return item


@pytest.mark.parametrize("options", [{}, {"concurrency": 3}, {"timeout": 30}])
async def test_a_function_that_cancels_its_own_task_fails_and_the_worker_still_leaves(
    options: dict[str, Any], redis_url: str
) -> None:
    """The count of cancels that it leaves would have a cancel of ours end more than it should."""
    items = [Item(number, "x" if number == 4 else "") for number in range(9)]
    handle = {"handle": (Mode(lambda: _cancels_itself, options), DeadLetter())}
    async with working(redis_url, handle, items) as (worker, ids):
        await worker.until_drained()
        [letter] = await worker.dead_letters("handle")
        assert str(letter.entry_id) == ids[4]
        assert "the function raised CancelledError" in letter.error


async def test_a_cancel_that_reaches_the_runner_ends_nothing_else(redis_url: str) -> None:
    """The function asks for it and returns, so it comes at a line of ours: the partition starts anew."""

    async def leaves_it(item: Item) -> Item:
        task = asyncio.current_task()
        assert task is not None
        if item.kind:
            task.cancel()
        return item

    handle = {"handle": (Mode(lambda: leaves_it), DeadLetter())}
    with capture_logs() as logs:
        async with working(redis_url, handle, [Item(1, "x"), Item(2)]) as (worker, _):
            await worker.until_drained()
    assert "leaves_it in test_errors.py" in next(
        log["reason"] for log in logs if log["event"] == "runner_cancelled"
    )


# -- kinds of failure --------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_call_that_takes_too_long_has_failed(
    redis_url: str, is_async: bool, concurrency: int
) -> None:
    """It fails alone, and its reason says why; calls beside it go on, and are committed up to it."""
    hold = threading.Event()

    async def price(order: Order) -> None:
        if order.number == 5:
            await asyncio.sleep(60)

    def price_in_thread(order: Order) -> None:
        if order.number == 5:
            hold.wait(20)

    async with bench(redis_url) as desk:
        await desk.send(range(10), keys=10)
        function = price if is_async else price_in_thread
        running = await desk.start(desk.spec(function, concurrency=concurrency, timeout=1))
        await running.halts()
        hold.set()
        assert "TimeoutError: the call took longer than 1 s" in running.halted[0]
        assert await desk.committed() == 5


async def test_a_timeout_does_not_count_how_long_other_partitions_keep_the_threads(redis_url: str) -> None:
    """Five of them have one thread, and each call is within its time."""

    def price(_: Order) -> None:
        time.sleep(0.4)

    async with bench(redis_url, partitions=5, handler_threads=1) as desk:
        for partition in range(5):
            await desk.add_raw(b'{"number":1}', partition)
        spec = desk.spec(price, timeout=1.5)
        runners = [await desk.start(spec, partition) for partition in range(5)]
        for partition, running in enumerate(runners):
            await wait_for_async(
                lambda running=running: running.halted or running.runner.commits.records_done,  # type: ignore[misc]
                f"partition {partition} is done or halts",
            )
        assert [running.halted for running in runners] == [[]] * 5


@pytest.mark.parametrize(
    ("returned", "said"),
    [(Priced(1, 1.0), "returned a Priced for a batch"), ([1], "forwarded a int"), ("text", "returned a str")],
)
async def test_a_return_value_of_another_type_is_a_clear_error(
    redis_url: str, returned: object, said: str
) -> None:
    """The reason says what was returned and what should have been. No record is at fault, so none is a dead
    letter: the partition waits for the next deploy.
    """

    async def price(batch: list[Order]) -> list[Priced]:
        return returned  # type: ignore[return-value]

    async with handling(redis_url, price, [1], errors=None) as (desk, running):
        await wait_for_async(lambda: bool(running.states), "it says why it tries again")
        assert said in running.states[0] and "Priced" in running.states[0]
        assert not running.halted and await desk.dead() == []


async def test_a_stream_processor_that_asks_for_nothing_halts(redis_url: str) -> None:
    """Returning without asking for a record would spin for ever; it is a failure instead."""

    async def price(records: Records[Order]) -> None: ...

    async with bench(redis_url) as desk:
        running = await desk.start(desk.spec(price, errors=Retry(attempts=2, then=Skip())))
        assert "without asking for a record" in await running.halts()


async def test_nothing_can_be_forwarded_or_stored_after_the_call(redis_url: str) -> None:
    """A context that outlives its call refuses, instead of losing what it is given."""
    kept: list[Context] = []

    async def price(order: Order, ctx: Context) -> Priced:
        kept.append(ctx)
        return Priced(1, 1.0)

    async with handling(redis_url, price, [1]) as (desk, _):
        await desk.until_committed(1)
        with pytest.raises(Exception, match="after its call was over"):
            kept[0].forward(Priced(2, 1.0))
        with pytest.raises(Exception, match="after the call was over"):
            kept[0].state["a"] = 1


# -- groups of errors ---------------------------------------------------------------------------


class Gone(Exception):
    """What the mapping names."""


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_an_error_of_a_task_in_a_call_has_its_own_policy_and_is_named(concurrency: int) -> None:
    """Raised by the task or named by the mapping; not the group that the task group makes of it."""
    app = App("shop")
    orders = app.stream("orders", Order, partitions=1)
    raised = {1: Gone("order 1 is gone"), 2: Skip("not ours"), 3: DeadLetter("unpaid"), 4: ValueError("once")}

    @app.processor(orders, errors={Gone: DeadLetter()}, concurrency=concurrency)
    async def price(order: Order) -> None:
        async def fetch() -> None:
            if error := raised.pop(order.number, None):
                raise error

        async with anyio.create_task_group() as tasks, asyncio.TaskGroup() as inner:
            inner.create_task(fetch())
            tasks.start_soon(anyio.sleep, 0)

    with capture_logs() as logs:
        async with local_worker(app) as worker:
            await orders.send_many([Order(number) for number in range(6)])
            await worker.until_drained()
            letters = [letter.error for letter in await worker.dead_letters(price)]
    assert [letter.partition(" (")[0] for letter in letters] == [
        "Gone: order 1 is gone",
        "DeadLetter: unpaid",
    ]
    [skipped] = [log for log in logs if log["event"] == "record_skipped"]
    assert skipped["error"].startswith("Skip: not ours (test_errors.py:")
    retried = [
        log["error"] for log in logs if log["event"] == "handler_failed" and "ValueError" in log["error"]
    ]
    assert len(retried) == 1 and retried[0].startswith("ValueError: once (test_errors.py:")


async def test_a_timer_whose_task_raises_skip_is_skipped() -> None:
    """As if the function had raised it."""
    app = App("shop")

    @app.timer(every="1 second")
    async def tidy() -> None:
        async def fetch() -> None:
            raise Skip("nothing to do")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fetch())

    with capture_logs() as logs:
        async with local_worker(app):
            await wait_for_async(
                lambda: any(log["event"] == "timer_skipped" for log in logs), "it is skipped"
            )
    assert not [log for log in logs if log["event"] == "timer_failed"]


# -- what is said of an error ------------------------------------------------------------------------


def test_what_is_logged_of_an_error_is_short_whatever_it_is() -> None:
    """The innermost frames of a recursion, and the beginning of a text."""
    with pytest.raises(ValueError, match="deep") as deep:
        _deep(300)
    assert 30 < traceback_of(deep.value).count("test_errors.py") <= 40
    assert describe_error(deep.value).startswith("ValueError: deep (test_errors.py:")
    assert len(describe_error(ValueError("x" * 1_000_000))) == 1_000
    assert traceback_of(Nameless("anon")) == describe_error(Nameless("anon")) == "Nameless: anon"
    assert describe_error(MuteForGood()) == "MuteForGood: str() of it raises an error, too"
    assert describe_error(ValueError("two\nlines")) == "ValueError: two lines"
    with pytest.raises(ValueError, match="x") as named:
        exec(compile("raise ValueError('x')", "caf\ud83d\x1b[2J.py", "exec"))
    assert describe_error(named.value).endswith(r"(caf\ud83d\u001b[2J.py:1)")


def test_the_line_of_an_error_is_that_of_the_users_code() -> None:
    """Not one of Python's library or of an installed package that it calls."""
    for call in (lambda: json.loads("{"), lambda: redis.Redis.from_url("no URL")):
        with pytest.raises(ValueError, match=r".") as raised:
            call()
        assert "(test_errors.py:" in describe_error(raised.value)
