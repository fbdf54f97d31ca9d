"""A record that an operator sets aside is a dead letter in every mode; all others are handled."""

from itertools import cycle
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from streamworker import Skip
from streamworker.context import Context
from streamworker.core.data.entries import EntryId
from streamworker.core.data.placement import Placement
from streamworker.errors import CoordinationError
from streamworker.redisio.data import streams
from streamworker.redisio.data.columns import unpacked
from streamworker.redisio.data.dead import list_dead
from streamworker.redisio.group import locks
from streamworker.redisio.group.requests import make_request
from tests.runtime.test_columnar import columns, send, taking
from tests.runtime.workbench import MODES, OVERLAPPING, Bench, Order, Priced, bench, start

pytestmark = pytest.mark.anyio


async def put(desk: Bench, record: EntryId) -> bool:
    """Order that a record is set aside; return whether there was anything to order."""
    given = await make_request(desk.backend, desk.keys, [0], "put", who="ann", why="a test", record=record)
    return given[0].is_new


async def standing(desk: Bench) -> list[EntryId]:
    """The records that are to be set aside."""
    lock = await locks.read_lock(desk.backend, desk.keys, 0)
    assert lock is not None
    return list(lock.aside)


@pytest.mark.parametrize(("mode", "single"), [*zip([*MODES, OVERLAPPING], cycle([True, False]))])
async def test_a_record_is_set_aside_without_a_call(redis_url: str, mode: str, single: bool) -> None:
    """Alone in its entry, or one of many; also where the policy would skip it. The commit ends the order."""
    seen: list[int] = []

    def each(order: Order, _: Context) -> Priced:
        seen.append(order.number)
        return Priced(order.number, 1.0)

    async with bench(redis_url, stream={"single_entries": single}) as desk:
        await desk.send(range(40))
        await streams.register(desk.backend, desk.keys, Placement(1), "0")
        ids = await desk.ids()
        assert await put(desk, EntryId.parse(ids[25]))
        assert await standing(desk) == [EntryId.parse(ids[25])]
        await start(desk, mode, each, errors=Skip())
        await desk.until_committed(40)
        assert seen == [*range(25), *range(26, 40)]
        (letter,) = await list_dead(desk.backend, desk.keys, [0])
        assert (str(letter.entry_id), letter.attempts, letter.by) == (ids[25], 0, "w1")
        assert "Set aside by ann: a test" in letter.error
        assert await standing(desk) == []
        assert not await put(desk, EntryId.parse(ids[25]))


@pytest.mark.parametrize("kind", [pa.RecordBatch, pl.DataFrame, list[Order], Order])
async def test_a_row_of_an_entry_of_columns_is_set_aside_alone(redis_url: str, kind: Any) -> None:
    """Its dead letter holds that row; the other rows of the entry are handled in order."""
    async with columns(redis_url) as desk:
        await send(desk, 30)
        await streams.register(desk.backend, desk.keys, Placement(1), "0")
        last = EntryId.parse((await desk.ids())[1])
        row = last._replace(seq=last.seq - 4)
        found = await streams.record_at(desk.backend, desk.keys, 0, row)
        assert found is not None and found.id == row
        await put(desk, row)
        seen: list[int] = []
        await desk.start(desk.spec(taking(kind, seen)))
        await desk.until_committed(30)
        assert seen == [*range(15), *range(16, 30)]
        (letter,) = await list_dead(desk.backend, desk.keys, [0])
        assert letter.entry_id == row
        assert unpacked(letter.fields).to_pylist() == [{"number": 15, "customer": "ann"}]


async def test_orders_to_set_aside_have_a_limit_and_the_last_reason_counts(redis_url: str) -> None:
    async with bench(redis_url, run=False) as desk:
        await desk.send(range(101))
        await streams.register(desk.backend, desk.keys, Placement(1), "0")
        ids = [EntryId.parse(each) for each in await desk.ids()]
        for record in (*ids[:100], ids[0]):
            assert await put(desk, record)
        with pytest.raises(CoordinationError, match="100 records"):
            await put(desk, ids[100])
        lock = await locks.read_lock(desk.backend, desk.keys, 0)
        assert lock is not None and len(lock.aside) == 100
        assert set(lock.aside.values()) == {"by ann: a test"}
