"""Entries of many rows at a server: the ids of rows, whatever the clock and other programs do, and counts."""

import random
import time
from itertools import pairwise
from typing import Any, cast

import pyarrow as pa
import pytest

from streamworker.core.data.channel import AppendReply
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.records.rows import NumberedRows, first_id, ids_of_rows
from streamworker.redisio.data import streams
from streamworker.redisio.data.columns import Packer
from streamworker.redisio.data.streams import Append, append_many
from tests.contract.support import STREAM, Group, Raw

pytestmark = pytest.mark.anyio

KEY, COUNTS = STREAM.events(0), STREAM.counts(0)
SCHEMA = pa.schema({"n": pa.int64()})


class Sender:
    """Sends entries of so many rows each, in one append."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._seq = 0

    async def __call__(self, *rows: int, limit: int = 0) -> AppendReply:
        self._seq += 1
        packer = Packer(SCHEMA)
        batches = [pa.record_batch({"n": pa.array(range(count), pa.int64())}) for count in rows]
        entries = [(packer.fields(batch, "none"), None) for batch in batches]
        append = Append(0, "columns", self._seq, limit, entries, self._seq - 1, "arrow")
        (reply,) = await append_many(self._group.backend, STREAM, [append])
        return reply


@pytest.fixture
async def send(group: Group) -> Sender:
    await streams.provision(group.backend, STREAM, 1, "arrow")
    return Sender(group)


async def spans(group: Group) -> list[tuple[EntryId, EntryId]]:
    """Return the ids of the first and the last row of each entry."""
    found = await streams.range_entries(group.backend, KEY, ZERO, None, 10_000)
    return [(first_id(entry), entry.id) for entry in found]


async def test_rows_of_one_append_have_consecutive_ids(group: Group, send: Sender) -> None:
    """Also if an entry in between has one row; the reply names the last."""
    reply = await send(5, 1, 3)
    found = await streams.range_entries(group.backend, KEY, ZERO, None, 10)
    ids = [each for entry in found for each in ids_of_rows(entry)]
    assert reply.last_id == ids[-1] == found[-1].id
    assert ids == [EntryId(ids[0].ms, ids[0].seq + n) for n in range(9)]
    assert [isinstance(entry.origin, NumberedRows) for entry in found] == [True, False, True]


async def test_a_single_row_gets_an_id_of_redis(group: Group, send: Sender, raw: Raw) -> None:
    """As a record does; nothing is counted beside the stream."""
    await send(1)
    assert not raw.exists(COUNTS)
    await send(1, 4)
    (_, single), (first, last) = (await spans(group))[1:]
    assert (first.ms, first.seq, last.seq) == (single.ms, single.seq + 1, single.seq + 4)


@pytest.mark.parametrize("ahead_ms", [0, 1, 7, 60_000, 3_600_000])
async def test_ids_go_on_above_the_last_one_when_the_clock_has_gone_back(
    group: Group, send: Sender, raw: Raw, ahead_ms: int
) -> None:
    """Whoever wrote the last one; the jump is at most twice as far as the clock is behind."""
    now_ms = int(time.time() * 1000)
    raw.xadd(KEY, {"v": "x"}, id=f"{now_ms + ahead_ms}-999999999999999")
    for _ in range(3):
        await send(1000)
    (_, foreign), *ours = await spans(group)
    assert all(before[1] < after[0] for before, after in pairwise([(foreign, foreign), *ours]))
    assert ours[-1][1].ms <= now_ms + 2 * ahead_ms + 60_000


async def test_no_two_rows_have_one_id_whoever_writes_beside(group: Group, send: Sender, raw: Raw) -> None:
    """Other programs, single rows, and ids that were given before a failover to a clock that is behind."""
    rng = random.Random(5)
    for _ in range(150):
        match rng.randrange(4):
            case 0:
                raw.xadd(KEY, {"v": "x"})
            case 1:
                await send(1)
            case 2:
                chosen = EntryId.parse(cast(bytes | None, raw.hget(COUNTS, "chosen")) or b"1-1")
                raw.hset(COUNTS, "chosen", f"{chosen.ms + rng.choice((0, 0, 1, 3))}-{chosen.seq}")
            case _:
                await send(*(rng.choice((1, 2, 900)) for _ in range(rng.randint(1, 4))))
    found = await spans(group)
    assert len(found) > 100
    assert all(before[1] < after[0] for before, after in pairwise(found))


async def test_an_entry_that_was_copied_has_one_id(group: Group, send: Sender, raw: Raw) -> None:
    """The ids of its rows could be those of others."""
    await send(10)
    ((_, fields),) = cast(list[Any], raw.xrange(KEY))
    raw.xadd(KEY, fields)
    first, copy = await spans(group)
    assert first[0] < first[1] < copy[0] == copy[1]
