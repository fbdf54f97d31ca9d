"""A sender is told that a field has another type than declared: Python does not check it, consumers do."""

import dataclasses
import re
from contextlib import nullcontext
from datetime import datetime
from itertools import product
from typing import Any, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pytest

from streamworker import App, ConfigurationError, Halt, RecordError, Retry
from streamworker.testing import Snapshot, local_worker
from tests.records.cells import AT_IMPORT, BY_SEND, CELLS, KEPT, NAIVE, NOON, outcome

pytestmark = pytest.mark.anyio


class Struct(msgspec.Struct):
    n: int
    at: datetime | None = None


Typed = TypedDict("Typed", {"n": int})  # noqa: UP013
KINDS: list[Any] = [
    Struct,
    dataclasses.make_dataclass("Data", [("n", int)]),
    Typed,
    NamedTuple("Named", [("n", int)]),
    attrs.make_class("Attrs", {"n": attrs.field(type=int)}),
]


async def test_a_field_of_another_type_is_refused_by_each_send(redis_url: str) -> None:
    """The error names type and field; of many records those before it are sent, on both paths."""
    app = App("shop", redis_url=redis_url)
    codecs: list[Literal["json", "msgpack", "fields"]] = ["json", "msgpack", "fields"]
    for kind, codec in product(KINDS, codecs):
        name = f"{kind.__name__}-{codec}"
        app.stream(name, kind, partitions=1, codec=codec)
    async with app:
        for kind, codec in product(KINDS, codecs):
            items = app.registry.streams[f"{kind.__name__}-{codec}"]
            with pytest.raises(RecordError, match=rf"This is no {kind.__name__}: .*\bn\b"):
                await items.send(kind(n="x"))
            for many in (list, iter):
                with pytest.raises(RecordError, match=f"This is no {kind.__name__}"):
                    await items.send_many(many([kind(n=1), kind(n=2), kind(n="x"), kind(n=3)]))
            assert await items.send_many([kind(n=n) for n in range(5)]) == 5


async def _take(item):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Take anything."""


async def test_without_the_check_the_entry_is_a_dead_letter_of_its_consumer() -> None:
    """For those to whom a few tenths of a microsecond matter."""
    app, wrong = App("shop"), Struct(n="x")  # type: ignore[arg-type]
    items = app.stream("items", Struct, partitions=1, validate=False)
    app.processor(items, name="take")(_take)
    async with local_worker(app) as worker:
        await items.send(wrong)
        await items.send_many([wrong])
        await worker.until_drained()
        assert len(await worker.dead_letters("take")) == 2


# -- each codec and type -----------------------------------------------------------------------------

AS_JSON = pytest.mark.full("goes the way that json shows; tests/records tries each codec by itself")


@pytest.mark.parametrize(
    "codec",
    [
        "json",
        "arrow",
        pytest.param("msgpack", marks=AS_JSON),
        pytest.param("fields", marks=AS_JSON),
    ],
)
async def test_what_is_sent_is_what_consumers_and_logs_get_or_is_refused_before(
    redis_url: str, codec: Literal["json", "msgpack", "fields", "arrow"]
) -> None:
    """The table of docs/types.md: a record is handled as it was sent, and in the log; or nobody gets it."""
    app, got = App("shop", redis_url=redis_url), dict[str, list[Any]]()
    said = {name: outcome(*cell, codec) for name, cell in CELLS.items()}
    for at, (name, (kind, _)) in enumerate(CELLS.items()):
        with pytest.raises(ConfigurationError) if said[name] == AT_IMPORT else nullcontext():
            stream = app.stream(f"s{at}", kind, partitions=1, codec=codec)

            async def take(batch: list[Any], name: str = name) -> None:
                got.setdefault(name, []).extend(batch)

            app.processor(stream, name=f"s{at}", forward=said[name] == KEPT)(take)
    async with local_worker(app, url=redis_url) as worker:
        for at, (name, (_, record)) in enumerate(CELLS.items()):
            if said[name] != AT_IMPORT:
                stream = app.registry.streams[f"s{at}"]
                sends: Any = (
                    (stream.send, record),
                    (stream.send_many, [record]),
                    (stream.send_many, [record] * 3),
                )
                for send, given in sends:
                    with pytest.raises(RecordError) if said[name] == BY_SEND else nullcontext():
                        await send(given)
        await worker.until_drained()
        for at, (name, (_, record)) in enumerate(CELLS.items()):
            if said[name] == AT_IMPORT:
                continue
            expected = [] if said[name] == BY_SEND else [record] * 5
            assert (name, await worker.dead_letters(f"s{at}")) == (name, [])
            assert (name, *map(as_text, got.get(name, []))) == (name, *map(as_text, expected))
            if said[name] == KEPT:
                rows = app.registry.streams[f"s{at}"].spec.record.to_arrow(expected).to_pylist()
                assert (name, repr(await worker.rows(f"s{at}"))) == (name, repr(rows))


def as_text(record: Any) -> str:
    """Return a record as text: NaN is not equal to itself, and each codec has its own class for UTC."""
    text = repr(getattr(record, "model_dump", lambda: record)())
    return re.sub(r"tzinfo=(TzInfo|zoneinfo)[^)]*\)", "tzinfo=datetime.timezone.utc", text).replace(
        "0" * 16 + "')", "')"
    )


class Note(msgspec.Struct):
    """A record whose rows may have no place in a log."""

    n: int
    at: datetime


POLICIES: dict[str, tuple[Any, bool]] = {
    "none": (None, False),
    "retry": (Retry(), False),
    "another": ({ValueError: Halt()}, False),
    "halt": (Halt(), True),
    "its": ({RecordError: Halt()}, True),
    "ends": (Retry(attempts=2), True),
}
"""Policies, and whether they halt the partition at a row that fits no log."""


@pytest.mark.parametrize("mode", ["record", "batch"])
async def test_a_row_that_fits_no_log_is_a_dead_letter_and_is_not_tried_for_ever(mode: str) -> None:
    """As an entry that holds no record: it cannot heal. The records beside it are committed in order.

    Who wants to stop at each error stops at this one, too.
    """
    app, calls = App("shop"), list[int]()
    notes = app.stream("notes", Note, partitions=1)

    async def one(note: Note) -> Note:
        calls.append(note.n)
        return Note(note.n, NAIVE if note.n == 3 else note.at)

    async def many(batch: list[Note]) -> list[Note]:
        return [await one(note) for note in batch]

    for name, (errors, _) in POLICIES.items():
        app.processor(notes, name=name, errors=errors)(one if mode == "record" else many)

    def all_is_done(now: Snapshot) -> bool:
        return all(
            group.partitions[0].state == "halted" if POLICIES[name][1] else group.lag == 0
            for name, group in now.processors.items()
        )

    async with local_worker(app) as worker:
        await notes.send_many([Note(n, NOON) for n in range(6)])
        await worker.until(all_is_done)
        for name, (_, halts) in POLICIES.items():
            rows = [row["n"] for row in await worker.rows(name)]
            assert (name, rows) == (name, [0, 1, 2] if halts else [0, 1, 2, 4, 5])
            letters = [letter.error for letter in await worker.dead_letters(name)]
            assert (name, len(letters)) == (name, 0 if halts else 1)
            assert all("a datetime needs a time zone" in error for error in letters)
    assert calls.count(3) < 10 * len(POLICIES)


@pytest.mark.parametrize("inside", [False, True])
def test_fields_that_differ_by_case_only_are_refused_where_spark_would_read_them(inside: bool) -> None:
    """Spark takes the columns of such a table for one; a stream that nobody forwards may have them."""
    clash: Any = msgspec.defstruct("Clash", [("Name", str), ("name", str)])
    kind = msgspec.defstruct("Outer", [("clash", list[clash])]) if inside else clash
    app = App("shop")
    items = app.stream("items", kind, partitions=1)
    app.processor(items, name="take", forward=False)(_take)
    with pytest.raises(ConfigurationError, match=r"'Name' and 'name', which differ in case only.*Rename"):
        app.processor(items, name="copy", forward=True)(_take)
    with pytest.raises(ConfigurationError, match="'Name' and 'name'"):
        app.stream("columns", kind, codec="arrow")
