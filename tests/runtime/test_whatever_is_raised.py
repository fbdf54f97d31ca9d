"""Whatever a user's code raises is an error of its record, under its policy: it ends no worker.

Each mode is a worker of its own, which meets a record of each kind among others.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import redis
from structlog.testing import capture_logs

from streamworker import App, Context, DeadLetter, DecodeError, Halt, Policy, Records, Skip
from streamworker.core.snapshot import PartitionView
from streamworker.errors import BackendUnavailable
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.runtime.run import committer
from streamworker.runtime.run.failures import describe_error, traceback_of
from streamworker.testing import LocalWorker, local_worker
from tests.helpers import is_halted, until_shown, wait_for_async
from tests.raw import opened, records_in

pytestmark = pytest.mark.anyio

EVENTS, KEYS = StreamKeys("shop", "items").events(0), GroupKeys("shop", "items", "handle")
COUNT, POISON = 9, 4
"""Records, and which of them is the one."""


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
    if item.kind:
        KINDS[item.kind][0]()


def throw_any(batch: pa.RecordBatch) -> None:
    for kind in batch.column("kind").to_pylist():
        throw(Item(0, kind))


def key_of(item: Item) -> int:
    """Return the key, or raise what the item asks for."""
    throw(item)
    return item.number


def thrown(item: Item) -> Item:
    """Raise what the item asks for, or return it."""
    throw(item)
    return item


def again(item: Item) -> Item:
    return Item(item.number)


def as_row(item: Item) -> Row:
    return Row(item.number, item.kind)


def in_way(way: str, act: Callable[[Any], Any], takes: type[Item], gives: type) -> Callable[..., Any]:
    """Return a function that does this with each of its records, and forwards what it returns."""

    async def record(given: Any) -> Any:
        await asyncio.sleep(0)
        return act(given)

    async def context(given: Any, ctx: Context) -> None:
        ctx.forward(given)
        act(given)

    def thread(given: Any) -> Any:
        return act(given)

    async def batch(given: Any) -> Any:
        return [act(item) for item in given]

    def batch_in_thread(given: Any) -> Any:
        return [act(item) for item in given]

    async def stream(given: Any, ctx: Context) -> None:
        async for item in given:
            ctx.forward(act(item))

    async def parts(given: Any, ctx: Context) -> None:
        async for part in given.take(5):
            for item in part:
                ctx.forward(act(item))

    functions: dict[str, tuple[Callable[..., Any], Any, Any]] = {
        "record": (record, takes, gives),
        "context": (context, takes, None),
        "thread": (thread, takes, gives),
        "batch": (batch, list[takes], list[gives]),  # type: ignore[valid-type]
        "batch in thread": (batch_in_thread, list[takes], list[gives]),  # type: ignore[valid-type]
        "stream": (stream, Records[takes], None),  # type: ignore[valid-type]
        "parts": (parts, Records[takes], None),  # type: ignore[valid-type]
    }
    function, given, returned = functions[way]
    function.__annotations__ |= {"given": given, "return": returned}
    return function


async def _columns(items: pa.RecordBatch) -> pa.RecordBatch:
    throw_any(items)
    return items


def _columns_in_thread(items: pa.RecordBatch) -> pa.RecordBatch:
    throw_any(items)
    return items


@dataclass(frozen=True)
class Mode:
    """A function, and the options of its processor and its stream."""

    function: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    stream: dict[str, Any] = field(default_factory=dict)
    record: type = Item


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
    return Mode(in_way(way, act, takes, gives), options, stream or {}, takes)


ARROW = {"codec": "arrow"}
MODES = {
    "record": _mode("record"),
    "record, def": _mode("thread"),
    "record, context": _mode("context"),
    "record, timeout": _mode("record", timeout=30),
    "record, def, timeout": _mode("thread", timeout=30),
    "batch": _mode("batch"),
    "batch, def": _mode("batch in thread"),
    "batch, timeout": _mode("batch", timeout=30),
    "stream": _mode("stream"),
    "stream, parts": _mode("parts"),
    "concurrent": _mode("record", concurrency=3),
    "concurrent, def": _mode("thread", concurrency=3),
    "columns": Mode(_columns),
    "columns, def": Mode(_columns_in_thread),
    "arrow, columns": Mode(_columns, stream=ARROW),
    "arrow, record": _mode("record", stream=ARROW),
    "arrow, def": _mode("thread", stream=ARROW),
    "arrow, decoded": _mode("batch", again, Fragile, stream=ARROW),
    "key function": _mode("record", again, stream={"key": key_of}, concurrency=3),
    "decoded": _mode("record", again, Fragile),
    "decoded, batch": _mode("batch", again, Fragile),
    "decoded, stream": _mode("stream", again, Fragile),
    "decoded, concurrent": _mode("record", again, Fragile, concurrency=3),
    "decoded, columns": Mode(_columns, record=Fragile),
    "rows": _mode("record", as_row, gives=Row),
    "rows, batch": _mode("batch", as_row, gives=Row),
    "rows, stream": _mode("stream", as_row, gives=Row),
    "rows, concurrent": _mode("record", as_row, gives=Row, concurrency=3),
}


@asynccontextmanager
async def working(
    url: str,
    mode: Mode,
    entries: Sequence[Item | bytes],
    changed: Mapping[str, Any] | None = None,
    **given: Any,
) -> AsyncIterator[tuple[LocalWorker, list[str]]]:
    """Run a worker over entries that are there, with other settings; gives it and their ids."""
    app = App("shop", redis_url=url)
    app.settings = replace(app.settings, **(changed or {}))
    stream = app.stream("items", mode.record, partitions=1, **mode.stream)
    options = {"errors": DeadLetter(), **mode.options, **given}
    app.processor(stream, name="handle", **options)(mode.function)
    with opened(url) as raw:
        async with app:
            for entry in entries:
                if mode.stream.get("codec") != "arrow" or isinstance(entry, bytes):
                    raw.xadd(EVENTS, {"v": entry if isinstance(entry, bytes) else msgspec.json.encode(entry)})
                else:
                    await stream.send_table(pa.table({"number": [entry.number], "kind": [entry.kind]}))
        ids = [entry_id.decode() for entry_id, _ in records_in(raw, EVENTS)]
    async with local_worker(app, url=app.settings.redis_url) as worker:
        yield worker, ids


@pytest.mark.parametrize("mode", MODES)
async def test_whatever_the_code_of_a_record_raises_is_an_error_of_that_record(
    mode: str, redis_url: str
) -> None:
    """Each of them is a dead letter that says what was raised; all others are handled, by the same worker."""
    kinds = ["", *(kind for raised in KINDS for kind in (raised, ""))]
    items = [Item(number, kind) for number, kind in enumerate(kinds)]
    async with working(redis_url, MODES[mode], items) as (worker, ids):
        await worker.until_drained()
        letters = {str(letter.entry_id): letter.error for letter in await worker.dead_letters("handle")}
        bad = {entry_id: kind for entry_id, kind in zip(ids, kinds, strict=True) if kind}
        assert letters.keys() == bad.keys()
        for entry_id, kind in bad.items():
            assert KINDS[kind][1] in letters[entry_id] and len(letters[entry_id]) < 1_500
        handled = [found["number"] for found in await worker.rows("handle")]
        assert handled == [number for number, kind in enumerate(kinds) if not kind]
        assert (await worker.snapshot()).processors["handle"].partitions[0].state == "running"


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
    items = [Item(number, "x" if number == POISON else "") for number in range(COUNT)]
    async with working(redis_url, Mode(_cancels_itself, options), items) as (worker, ids):
        await worker.until_drained()
        [letter] = await worker.dead_letters("handle")
        assert str(letter.entry_id) == ids[POISON]
        assert "the function raised CancelledError" in letter.error


async def test_a_cancel_that_reaches_the_runner_ends_nothing_else(redis_url: str) -> None:
    """The function asks for it and returns, so it comes at a line of ours: the partition starts anew."""

    async def leaves_it(item: Item) -> Item:
        task = asyncio.current_task()
        assert task is not None
        if item.kind:
            task.cancel()
        return item

    with capture_logs() as logs:
        async with working(redis_url, Mode(leaves_it), [Item(1, "x"), Item(2)]) as (worker, _):
            await worker.until_drained()
    assert "leaves_it in test_whatever_is_raised.py" in next(
        log["reason"] for log in logs if log["event"] == "runner_cancelled"
    )


# -- entries that are none -------------------------------------------------------------------------


BAD = b"{"
WAYS = {
    name: MODES[name]
    for name in (
        "record",
        "record, def",
        "batch",
        "batch, def",
        "stream",
        "stream, parts",
        "concurrent",
        "columns",
        "arrow, columns",
        "arrow, record",
        "arrow, def",
    )
}
AMONG_OTHERS, ALONE = [0, 3, 4, 6], [0]
"""Which entries are no records: the first, two in the middle and the last of seven, or the only one."""


@pytest.mark.parametrize(("policy", "bad", "count"), [(DeadLetter(), AMONG_OTHERS, 7), (Skip(), ALONE, 1)])
@pytest.mark.parametrize("way", WAYS)
async def test_an_entry_that_is_no_record_leaves_alone_wherever_it_stands(
    way: str, policy: Policy, bad: list[int], count: int, redis_url: str
) -> None:
    """All records around it are done."""
    entries: list[Item | bytes] = [BAD if number in bad else Item(number) for number in range(count)]
    with capture_logs() as logs:
        async with working(redis_url, WAYS[way], entries, errors={DecodeError: policy}) as (worker, ids):
            await worker.until_drained()
            dead = [(str(letter.entry_id), letter.attempts) for letter in await worker.dead_letters("handle")]
            assert dead == ([(ids[number], 0) for number in bad] if isinstance(policy, DeadLetter) else [])
            good = [number for number in range(count) if number not in bad]
            assert [found["number"] for found in await worker.rows("handle")] == good
    assert not [log for log in logs if log["event"] in ("runner_failed", "commit_refused")]


# -- what was deleted ------------------------------------------------------------------------------


def _is_halted_by(reason: str, view: PartitionView) -> bool:
    return is_halted(view) and view.reason.startswith(reason)


@pytest.mark.parametrize(
    ("way", "is_record"),
    [*((way, False) for way in WAYS), *((way, True) for way in ("record", "stream, parts", "columns"))],
)
async def test_a_partition_halts_at_an_entry_and_goes_on_when_that_is_deleted(
    way: str, is_record: bool, redis_url: str
) -> None:
    """What comes before it is done; status, log and lock name its id. The same worker goes on."""
    bad = [2] if is_record else AMONG_OTHERS
    poison = [Item(number, "SystemExit") if is_record else BAD for number in range(7)]
    entries: list[Item | bytes] = [poison[number] if number in bad else Item(number) for number in range(7)]
    errors, changed = {DecodeError: Halt(), Exception: Halt()}, {"trim_interval_ms": 20}
    with opened(redis_url) as raw, capture_logs() as logs:
        async with working(redis_url, WAYS[way], entries, changed, errors=errors) as (worker, ids):
            epochs = set()
            for number in bad:
                said = f"entry {ids[number]} failed: "
                view = await until_shown(worker, partial(_is_halted_by, said))
                assert is_record or view.reason.startswith(f"{said}DecodeError: ")
                assert raw.hmget(KEYS.lock(0), "state", "reason") == [b"halted", view.reason.encode()]
                assert [log["reason"] for log in logs if log["event"] == "partition_halted"][
                    -1
                ] == view.reason
                handled = [found["number"] for found in await worker.rows("handle")]
                assert handled == [good for good in range(number) if good not in bad]
                epochs.add(raw.hget(KEYS.lock(0), "epoch"))
                assert raw.xdel(EVENTS, ids[number]) == 1
            await until_shown(worker, lambda view: (view.lag, view.reason) == (0, ""))
            handled = [found["number"] for found in await worker.rows("handle")]
            assert handled == [number for number in range(7) if number not in bad]
            assert epochs == {raw.hget(KEYS.lock(0), "epoch")}, "it did not begin anew"
    assert sum(log["event"] == "partition_halted" for log in logs) == len(bad)
    assert not [log for log in logs if log["event"] in ("runner_failed", "commit_refused")]


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
    entries = [Item(1, "SystemExit")]
    async with working(redis_url, MODES["record"], entries, {"trim_interval_ms": 20}, errors=Halt()) as (
        worker,
        _,
    ):
        await wait_for_async(lambda: asked >= 3, "it asked several times")
        assert (await worker.snapshot()).processors["handle"].partitions[0].state == "halted"


# -- what is said of an error ------------------------------------------------------------------------


def test_what_is_logged_of_an_error_is_short_whatever_it_is() -> None:
    """The innermost frames of a recursion, and the beginning of a text."""
    with pytest.raises(ValueError, match="deep") as deep:
        _deep(300)
    assert 30 < traceback_of(deep.value).count("test_whatever_is_raised.py") <= 40
    assert describe_error(deep.value).startswith("ValueError: deep (test_whatever_is_raised.py:")
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
        assert "(test_whatever_is_raised.py:" in describe_error(raised.value)
