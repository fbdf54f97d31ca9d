"""Groups that were declared late read from the archive what Redis has trimmed."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from streamworker import Context
from streamworker.archive.chain import BATCH_BYTES, Chain
from streamworker.archive.store import FileStore, Store, store_at
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.errors import ArchiveConflict
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime.read.buffer import PartitionBuffer
from streamworker.runtime.run.modes.archive import ArchiveMode
from streamworker.testing import Snapshot
from tests.archive.shop import KEYS, Shop, all_archived, all_trimmed, archive_all, ends, exact
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio


async def test_each_segment_is_fetched_once_however_many_partitions_are_read(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more partitions than may have a segment open, none waits for ever, and none opens one twice."""
    lake, partitions, records = str(tmp_path / "lake"), 20, 200_000
    early = Shop(redis_url, lake, partitions)
    with exact(redis_url) as raw:
        async with early.works():
            await early.send(range(records), 400)
            await all_trimmed(raw, partitions)
    fetched = Counter[str]()
    get = FileStore.get

    def counted(self: Any, name: str) -> Any:
        if (found := get(self, name)) is not None and name.startswith("partition="):
            fetched[name] += 1
        return found

    monkeypatch.setattr(FileStore, "get", counted)
    shop, seen = Shop(redis_url, lake, partitions), list[int]()

    @shop.app.processor(shop.orders, batch=500, name="late")
    async def late(batch: list[Any]) -> None:
        seen.extend(order.n for order in batch)

    async with shop.works() as worker:
        await worker.until_drained()
    assert sorted(seen) == [*range(records)]
    assert set(fetched.values()) == {1}


def reasons(now: Snapshot) -> str:
    return " ".join(view.reason for view in now.processors["late"].partitions)


@pytest.mark.parametrize("which", [1, 2], ids=["in the middle", "at the end"])
async def test_a_segment_that_is_gone_stops_its_readers_and_makes_no_gap(
    redis_url: str, tmp_path: Path, which: int
) -> None:
    """They say what is missing, and go on once it is back."""
    lake, at = str(tmp_path / "lake"), tmp_path / "lake/partition=0"
    with exact(redis_url) as raw:
        for n in range(3):
            await archive_all(raw, Shop(redis_url, lake, 1), range(100 * n, 100 * n + 100))
        segment = sorted(at.iterdir())[which]
        segment.rename(tmp_path / "gone")
        shop = Shop(redis_url, lake, 1)
        late = shop.late()
        async with shop.works() as worker:
            shown = await worker.until(lambda now: "archive" in reasons(now))
            said = "the archive has no" if which == 1 else "the archive has nothing after"
            assert f"{said}" in reasons(shown)
            rows = await worker.rows(late)
            assert [row["n"] for row in rows] == [*range(100 * which)]
            (tmp_path / "gone").rename(segment)
            await wait_for_async(ends(raw, 1, "late"), "the rest is read", 90)
            assert [row["n"] for row in await worker.rows(late)] == [*range(300)]


async def test_a_segment_that_is_damaged_stops_its_readers_and_ends_no_worker(
    redis_url: str, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    with exact(redis_url) as raw:
        await archive_all(raw, Shop(redis_url, lake, 2), range(1000))
        (segment,) = (tmp_path / "lake/partition=0").iterdir()
        whole = segment.read_bytes()
        columns = pq.read_metadata(segment).row_group(0)
        its = next(c for c in map(columns.column, range(9)) if c.path_in_schema == "_payload")
        middle = its.data_page_offset + its.total_compressed_size // 2
        segment.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        shop = Shop(redis_url, lake, 2)
        late = shop.late()
        async with shop.works() as worker:
            await worker.until(lambda now: segment.name in reasons(now))
            await wait_for_async(lambda: ends_at(raw, 1), "the other partition is read")
            segment.write_bytes(whole)
            await wait_for_async(ends(raw, 2, "late"), "the rest is read", 90)
            assert sorted(row["n"] for row in await worker.rows(late)) == [*range(1000)]


def ends_at(raw: Any, partition: int) -> bool:
    keys = GroupKeys("shop", "orders", "late")
    end = raw.xinfo_stream(keys.events(partition))["last-generated-id"]
    return bool(raw.hget(keys.lock(partition), "checkpoint") == end)


async def test_a_reader_of_the_archive_turns_to_redis_at_the_archivers_checkpoint(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put may be ahead of it for long, and only up to there a commit of archived records is taken."""

    async def halted(_: Any) -> Any:
        raise ArchiveConflict("Two histories share ids.", remedy="Look.")

    lake = str(tmp_path / "lake")
    with exact(redis_url) as raw:
        shop = Shop(redis_url, lake, 1, retention="1 hour")
        async with shop.works():
            await shop.send(range(100))
            await all_archived(raw, 1)
            known, end = raw.hgetall(KEYS.lock(0)), raw.xinfo_stream(KEYS.events(0))["last-generated-id"]
            await shop.send(range(100, 1500))
            await all_archived(raw, 1)
        raw.hset(KEYS.lock(0), mapping={name: known[name] for name in (b"checkpoint", b"entries")})
        at = EntryId.parse(end)
        raw.xtrim(KEYS.events(0), minid=str(EntryId(at.ms, at.seq + 1)), approximate=False)
        monkeypatch.setattr(ArchiveMode, "_caught_up", halted)
        later, seen = Shop(redis_url, lake, 1, retention="1 hour"), list[int]()

        @later.app.processor(later.orders, batch=1000, name="late")
        async def late(batch: list[Any]) -> None:
            seen.extend(order.n for order in batch)

        async with later.works():
            await wait_for_async(ends(raw, 1, "late"), "all is read")
    assert seen == [*range(1500)]


FULL = pytest.mark.full("another protocol")


@pytest.mark.parametrize(
    "protocol", ["membership", pytest.param("claim", marks=FULL), pytest.param("lease", marks=FULL)]
)
async def test_a_late_group_goes_on_from_the_archive_into_redis_in_each_protocol(
    redis_url: str, tmp_path: Path, protocol: str
) -> None:
    """While more comes, is archived and trimmed; it handles each record once, and in order."""
    lake, app = str(tmp_path / "lake"), {"coordination": protocol}
    with exact(redis_url) as raw:
        await archive_all(raw, Shop(redis_url, lake, app=app), range(2000))
        shop = Shop(redis_url, lake, app=app)
        late = shop.late()
        async with shop.works() as worker:
            for n in range(2000, 4000, 100):
                await shop.send(range(n, n + 100))
            await wait_for_async(ends(raw, 4, "late"), "all is read")
            rows = await worker.rows(late)
    assert sorted(row["n"] for row in rows) == [*range(4000)]
    for p in range(4):
        numbers = [row["n"] for row in rows if row["partition"] == p]
        assert numbers == sorted(numbers)


class Letter(msgspec.Struct):
    customer: str
    n: int
    text: str


async def test_large_records_are_read_a_few_at_a_time(redis_url: str, tmp_path: Path) -> None:
    """However many are in a segment, and although they are easy to compress."""
    lake, text = str(tmp_path / "lake"), "x" * 100_000
    shop = Shop(redis_url, lake, 1, record=Letter)
    with exact(redis_url) as raw:
        async with shop.works():
            await shop.orders.send_many([Letter("ann", n, text) for n in range(300)])
            await all_archived(raw, 1)
    parts = [*Chain(store_at(lake), 0).read(ZERO)]
    assert sum(part.table.num_rows for part in parts) == 300
    assert max(part.table.nbytes for part in parts) <= 2 * BATCH_BYTES


async def test_a_group_that_stands_in_redis_turns_back_to_the_archive_that_has_passed_it(
    redis_url: str, tmp_path: Path
) -> None:
    """It had read a few records when all others were archived and trimmed, and more came behind them."""
    shop = Shop(redis_url, str(tmp_path / "lake"), 2, single_entries=True, app={"fetch_count": 10})
    goes_on, seen = asyncio.Event(), list[tuple[int, int]]()

    @shop.app.processor(shop.orders, name="late")
    async def late(order: Any, ctx: Context) -> None:
        if len(seen) >= 10:
            await goes_on.wait()
        seen.append((ctx.partition, order.n))

    with exact(redis_url) as raw:
        async with shop.works():
            for n in range(0, 1000, 100):
                await shop.send(range(n, n + 100))
            await all_archived(raw, 2)
            await wait_for_async(lambda: raw.xlen(KEYS.events(0)) == raw.xlen(KEYS.events(1)) == 0, "trimmed")
            assert len(seen) == 10
            goes_on.set()
            await shop.send(range(1000, 1100))
            await wait_for_async(ends(raw, 2, "late"), "all is read")
    assert sorted(n for _, n in seen) == [*range(1100)]
    for p in range(2):
        numbers = [n for partition, n in seen if partition == p]
        assert numbers == sorted(numbers)


async def test_what_is_read_of_many_partitions_fits_the_budget(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, partitions, limit, most = str(tmp_path / "lake"), 8, 8 * 1024 * 1024, 0
    with exact(redis_url) as raw:
        early = Shop(redis_url, lake, partitions, record=Letter)
        async with early.works():
            for n in range(0, 6_400, 400):
                await early.orders.send_many([Letter(f"c{n}", n, "x" * 3_000) for n in range(n, n + 400)])
            await all_trimmed(raw, partitions)
    charge = PartitionBuffer._charge

    def charged(self: PartitionBuffer, cost: int) -> None:
        nonlocal most
        charge(self, cost)
        most = max(most, self._budget.used)

    monkeypatch.setattr(PartitionBuffer, "_charge", charged)
    app = {"prefetch_bytes": limit, "entry_bytes_max": 1024 * 1024}
    shop, seen = Shop(redis_url, lake, partitions, record=Letter, app=app), list[int]()

    @shop.app.processor(shop.orders, batch=100, name="late")
    async def late(batch: list[Any]) -> None:
        await asyncio.sleep(0 if seen else 1)
        seen.extend(letter.n for letter in batch)

    async with shop.works() as worker:
        await worker.until_drained()
    assert sorted(seen) == [*range(6_400)]
    assert limit / 2 < most <= 1.25 * limit


async def test_no_list_is_needed_where_a_segment_begins(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = str(tmp_path / "lake")
    with exact(redis_url) as raw:
        for n in range(3):
            await archive_all(raw, Shop(redis_url, lake, 1), range(100 * n, 100 * n + 100))
    chain = Chain(store_at(lake), 0)
    begin = [each.after for each in chain.segments()]
    assert len(begin) > 2
    monkeypatch.delattr(Store, "names")
    assert [next(chain.read(after)).footer.after for after in begin] == begin
