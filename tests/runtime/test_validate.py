"""A sender is told that a field has another type than declared: Python does not check it, consumers do."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pytest

from streamworker import App, RecordError
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Struct(msgspec.Struct):
    n: int
    at: datetime | None = None


@dataclass
class Data:
    n: int


class Typed(TypedDict):
    n: int


class Named(NamedTuple):
    n: int


@attrs.define
class Attrs:
    n: int


KINDS: list[Any] = [Struct, Data, Typed, Named, Attrs]


@pytest.mark.parametrize("codec", ["json", "msgpack", "fields"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_field_of_another_type_is_refused_by_each_send(
    kind: Any, codec: Literal["json", "msgpack", "fields"]
) -> None:
    """The error names type and field; of many records those before it are sent, on both paths."""
    app = App("shop")
    items = app.stream("items", kind, partitions=1, codec=codec)
    app.processor(items, name="take")(_take)
    async with local_worker(app):
        with pytest.raises(RecordError, match=rf"This is no {kind.__name__}: .*\bn\b"):
            await items.send(kind(n="x"))
        for many in (list, iter):
            with pytest.raises(RecordError, match=f"This is no {kind.__name__}"):
                await items.send_many(many([kind(n=1), kind(n=2), kind(n="x"), kind(n=3)]))
        assert await items.send_many([kind(n=n) for n in range(5)]) == 5


async def _take(item):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Take anything."""


async def test_a_value_that_the_codec_writes_and_reads_as_its_type_is_fine() -> None:
    """Such as a time: what a consumer can read is no error of the sender."""
    app = App("shop")
    items = app.stream("items", Struct, partitions=1)
    app.processor(items, name="take")(_take)
    async with local_worker(app) as worker:
        await items.send(Struct(1, datetime(2026, 1, 1, tzinfo=UTC)))
        await worker.until_drained()
        assert await worker.dead_letters("take") == []


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
