"""A result is what was returned; a change is kept, or refused by the name of what was changed."""

import datetime as dt
import decimal
import enum
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

from streamworker import App, Context, RecordError
from streamworker.errors import ProcessingError
from streamworker.records.types import copier, kept
from streamworker.runtime.run.state import PartitionState
from streamworker.testing import fake_context, local_worker
from tests.changes import WAYS, Order, Total, Way, declare, in_state, in_table

pytestmark = pytest.mark.anyio
AMOUNTS = (1, 2, 3)
RUNNING = [(1, [1]), (3, [1, 2]), (6, [1, 2, 3])]


@pytest.mark.parametrize("how", ["returned", "forwarded", "sent"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_row_has_the_values_of_the_moment_at_which_it_was_handed_over(way: Way, how: str) -> None:
    """One object of a running total is changed by each call, in its fields and in the list that it holds."""
    if how == "forwarded" and way == "concurrency=":
        how = "returned"
    app = App("shop")
    sums = app.stream("sums", Total, key="customer", partitions=1, retention="1 hour")
    running = Total("ann")

    def add(order: Order, ctx: Context) -> Total | None:
        running.total += order.amount
        running.seen.append(order.amount)
        if how == "returned":
            return running
        ctx.forward(running) if how == "forwarded" else ctx.send(sums, running)
        return None

    options = {} if how == "sent" else {"into": sums, "output": Total, "forward": True}
    processor = declare(app, way, add, Total if how == "returned" else None, **options)
    async with local_worker(app) as worker:
        await app.registry.streams["orders"].send_many([Order("ann", amount) for amount in AMOUNTS])
        await worker.until_drained()
        assert not await worker.dead_letters(processor)
        assert [(each.total, each.seen) for each in await worker.sent(sums)] == RUNNING
        if how != "sent":
            assert [(row["total"], row["seen"]) for row in await worker.rows(processor)] == RUNNING


@pytest.mark.parametrize("way", [way for way in WAYS if in_state(way) == "kept"])
async def test_a_list_in_the_state_that_is_changed_in_place_is_written(way: Way) -> None:
    """As in a dict of Python's, also one that setdefault has put there."""
    app, seen = App("shop"), list[Any]()

    def note(order: Order, ctx: Context) -> None:
        ctx.state.setdefault("d", {}).setdefault("amounts", []).append(order.amount)
        seen.append(list(ctx.state["d"]["amounts"]))

    declare(app, way, note, None)
    async with local_worker(app) as worker:
        for amount in AMOUNTS:
            await app.registry.streams["orders"].send(Order("ann", amount))
            await worker.until_drained()
        assert not await worker.dead_letters("it")
    assert seen == [[1], [1, 2], [1, 2, 3]]


@pytest.mark.parametrize("way", [way for way in WAYS if in_table(way) == "fails"])
async def test_a_tables_value_that_is_changed_and_not_set_fails_the_call(way: Way) -> None:
    """After it was read or set; the error names table and key. What is set, deleted or unchanged does not."""
    app = App("shop")
    totals = app.table("totals", Total)

    async def change(order: Order) -> None:
        value = await totals.get("ann") or Total("ann")
        if order.amount == 1:
            totals.set("ann", value)
        elif order.amount == 2:
            value.total = 5
        elif order.amount == 3:
            totals.set("ann", value)
            value.seen.append(1)
        elif order.amount == 4:
            value.total += 1
            totals.set("ann", Total("ann", value.total))
        else:
            value.total += 1
            totals.delete("ann")

    declare(app, way, lambda order, _: change(order), None, tables=[totals])
    async with local_worker(app) as worker:
        for amount in (1, 2, 3, 4):
            await app.registry.streams["orders"].send(Order("ann", amount))
        await worker.until_drained()
        letters = await worker.dead_letters("it")
        assert len(letters) == 2
        assert all("'ann' in table 'totals' was changed after it was" in each.error for each in letters)
        assert await totals.get("ann") == Total("ann", 1)
        await app.registry.streams["orders"].send(Order("ann", 5))
        await worker.until_drained()
        assert len(await worker.dead_letters("it")) == 2


class Colour(enum.StrEnum):
    """A text by its base class."""

    RED = "red"


class Point(NamedTuple):
    x: int
    parts: list[int]


@dataclass
class Data:
    x: int
    parts: list[int]


class Typed(TypedDict):
    x: int
    parts: list[int]


STRANGE: list[Any] = [
    *(decimal.Decimal("1.10"), dt.date(2026, 1, 1), dt.datetime(2026, 1, 1), dt.time(1), dt.timedelta(1)),  # noqa: DTZ001
    *(uuid.UUID(int=1), {1}, (1, 2), bytearray(b"a"), Colour.RED, OrderedDict(), Total("ann"), Data(1, [])),
    *(Point(1, []), 2**70, "\ud800", object()),
]


@pytest.mark.parametrize("strange", STRANGE, ids=lambda value: type(value).__name__)
def test_the_state_refuses_what_it_could_not_give_back(strange: Any) -> None:
    """At the assignment, inside of lists and dicts, and where it came in by a change in place."""
    view = PartitionState({}).view()
    for value in (strange, [1, strange], {"a": {"b": strange}}):
        with pytest.raises(RecordError, match=r"ctx.state\['k'\] cannot hold"):
            view["k"] = value
    view["k"] = [1]
    view["k"].append(strange)
    with pytest.raises(RecordError, match=r"ctx.state\['k'\] cannot hold"):
        view.settled()


def test_the_state_gives_back_what_it_takes() -> None:
    """In its type, and without a write where nothing was changed."""
    state = PartitionState({})
    value = {
        "a": [None, True, 1, 1.5, float("inf"), "x", b"y", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
        "b": {"c": {}, "d": [[]]},
    }
    view = state.view()
    view["k"] = value
    state.keep(view.settled())
    again = state.view()
    assert again["k"] == value
    assert again["k"] is again["k"]
    assert again.settled() == {}
    del again["k"]
    assert again.settled() == {"k": None}


@pytest.mark.parametrize(
    "row",
    [Total("a", 1, [1]), Data(1, [1]), Point(1, [1]), Typed(x=1, parts=[1])],
    ids=lambda row: type(row).__name__,
)
def test_a_copy_of_a_row_does_not_change_with_it(row: Any) -> None:
    """Neither do the lists that it holds."""
    copy = kept(row)
    assert copy == row
    assert type(copy) is type(row)
    parts: Any = row["parts"] if isinstance(row, dict) else getattr(row, "parts", getattr(row, "seen", None))
    parts.append(2)
    assert copy != row


def test_a_list_that_a_row_inherits_is_copied_though_a_type_is_not_known_yet() -> None:
    """Names under TYPE_CHECKING are not there when the program runs."""

    @dataclass
    class Base:
        parts: list[int]
        later: "Unknown | None"  # type: ignore[name-defined]  # noqa: F821

    @dataclass
    class Sub(Base):
        x: int

    row = Sub([1], None, 1)
    copy = kept(row)
    row.parts.append(2)
    assert copy == Sub([1], None, 1)


def test_what_never_changes_is_not_copied() -> None:
    """Numbers, texts, and frozen records of these."""

    class Frozen(msgspec.Struct, frozen=True):
        x: int
        at: dt.datetime | None

    assert [copier(kind) for kind in (int, str, Colour, Frozen)] == [None] * 4


async def test_a_context_made_by_hand_treats_changes_alike() -> None:
    """So that a test without a worker finds the mistake, too."""
    app = App("shop", redis_url="redis://localhost:1/0")
    totals = app.table("totals", Total)

    async def forget(order: Order) -> None:
        value = await totals.get("ann")
        assert value is not None
        value.total += order.amount

    it = declare(app, "async def", lambda order, _: forget(order), None, tables=[totals])
    with fake_context(it) as ctx:
        ctx.put(totals, {"ann": Total("ann")})
        await it(Order("ann", 0), ctx)
    ctx = fake_context(it)
    ctx.__enter__()
    ctx.put(totals, {"ann": Total("ann")})
    await it(Order("ann", 1), ctx)
    with pytest.raises(ProcessingError, match="'ann' in table 'totals'"):
        ctx.__exit__(None, None, None)
