"""What an archive does when Redis, its store or its clock is not what it was."""

import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from streamworker.archive.store import FileStore
from streamworker.core.data.entries import EntryId
from streamworker.errors import BackendRefused
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime.run.modes import archive
from tests.archive.shop import (
    KEYS,
    Order,
    Shop,
    all_archived,
    all_trimmed,
    archive_all,
    ends,
    exact,
    ids_in,
    left,
)
from tests.helpers import wait_for_async
from tests.stage.server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.full("starts workers, and waits for what they archive")]


async def said(raw: Any, words: str, keys: GroupKeys = KEYS) -> None:
    """Wait until the lock of each partition, as ``status`` shows it, says why nothing is archived."""

    def is_so() -> bool:
        return all(
            words in (raw.hget(keys.lock(p), "reason") or b"").decode() for p in range(partitions(raw))
        )

    await wait_for_async(is_so, f"the locks say {words!r}")


def partitions(raw: Any) -> int:
    return int(raw.hget(KEYS.meta, "partitions") or 4)


def numbers_in(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["n"] for row in rows)


async def test_a_redis_that_was_emptied_goes_on_behind_the_archives_end(
    redis_url: str, tmp_path: Path
) -> None:
    """No id comes twice, and a group that is declared then reads all that there ever was."""
    lake = str(tmp_path / "lake")
    with exact(redis_url) as raw:
        shop = Shop(redis_url, lake)
        async with shop.works():
            await shop.send(range(1000))
            await all_trimmed(raw, 4)
            raw.flushall()
            await wait_for_async(lambda: raw.hexists(KEYS.meta, "archive_id"), "Redis is told of the archive")
            await shop.send(range(1000, 1500))
            await all_archived(raw, 4)
        ids = ids_in(lake, 4)
        assert len(ids) == 1500
        assert ids == [each for p in range(4) for each in sorted(ids_in_one(lake, p))]
        later = Shop(redis_url, lake)
        late = later.late()
        async with later.works() as worker:
            await wait_for_async(ends(raw, 4, "late"), "all is read")
            assert numbers_in(await worker.rows(late)) == [*range(1500)]


def ids_in_one(lake: str, partition: int) -> list[EntryId]:
    return list(dict.fromkeys(ids_in(lake, partition + 1)[len(ids_in(lake, partition)) :]))


async def test_who_starts_on_a_redis_that_knows_nothing_of_the_archive_runs_its_processors(
    redis_url: str, tmp_path: Path
) -> None:
    """Nothing is archived before a person has adopted the archive."""
    lake = str(tmp_path / "lake")
    with exact(redis_url) as raw:
        await archive_all(raw, Shop(redis_url, lake), range(100))
        its = raw.hget(KEYS.meta, "archive_id")
        raw.flushall()
        other = start_again(redis_url, lake)
        live = other.late("live")
        async with other.works() as worker:
            await other.send(range(100, 200))
            await said(raw, "Redis knows nothing of it")
            await wait_for_async(lambda: total(raw, "live") >= 100, "the processor goes on")
            assert set(range(100, 200)) <= set(numbers_in(await worker.rows(live)))
            assert left(raw, 4) > 0
            raw.hset(KEYS.meta, "archive_id", its)
            await wait_for_async(ends(raw, 4), "all is archived", 90)
    assert len(set(ids_in(lake, 4))) == 200


def start_again(url: str, lake: str, **options: Any) -> Shop:
    """Forget what this process knows of archives, as a new process does."""
    archive._known.clear()
    return Shop(url, lake, **options)


def total(raw: Any, group: str) -> int:
    keys = GroupKeys("shop", "orders", group)
    return sum(int(raw.hget(keys.lock(p), "rows") or 0) for p in range(4))


async def test_while_the_store_is_away_redis_keeps_all_and_the_status_says_why(
    redis_url: str, tmp_path: Path
) -> None:
    """A file stands where the folder was: nothing is trimmed, and everything is archived afterwards."""
    lake = tmp_path / "lake"
    with exact(redis_url) as raw:
        shop = Shop(redis_url, str(lake))
        live = shop.late("live")
        async with shop.works() as worker:
            await shop.send(range(1000))
            await all_trimmed(raw, 4)
            lake.rename(tmp_path / "elsewhere")
            lake.write_text("no folder")
            await shop.send(range(1000, 2000))
            await said(raw, "did not answer")
            await wait_for_async(ends(raw, 4, "live"), "the processor goes on")
            assert now_waits(raw) == 1000
            lake.unlink()
            (tmp_path / "elsewhere").rename(lake)
            await all_trimmed(raw, 4)
            await said(raw, "")
            assert numbers_in(await worker.rows(live)) == [*range(2000)]
    assert len(set(ids_in(str(lake), 4))) == 2000


def now_waits(raw: Any) -> int:
    """Return how many records Redis has, in entries of many."""
    return sum(int(dict(fields).get(b"n", 1)) for p in range(4) for _, fields in raw.xrange(KEYS.events(p)))


async def test_an_archive_that_was_emptied_is_neither_begun_anew_nor_trimmed_for(
    redis_url: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with exact(redis_url) as raw:
        await archive_all(raw, Shop(redis_url, str(lake)), range(1000))
        shutil.rmtree(lake)
        lake.mkdir()
        again = start_again(redis_url, str(lake))
        async with again.works():
            await again.send(range(1000, 1100))
            await said(raw, "is empty, and held records before")
            assert now_waits(raw) == 100
    assert not [*lake.glob("partition=*")]


async def test_another_apps_archive_is_refused_and_its_chain_left_alone(
    redis_url: str, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    with exact(redis_url) as raw:
        await archive_all(raw, Shop(redis_url, lake), range(100))
        before = ids_in(lake, 4)
        staging = start_again(redis_url, lake, name="staging")
        async with staging.works():
            await said(
                raw,
                "is the archive of stream 'orders' of app 'shop'",
                GroupKeys("staging", "orders", "archive"),
            )
    assert ids_in(lake, 4) == before


async def test_a_store_that_ignores_conditions_is_refused(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(self: Any, name: str, body: bytes) -> bool:
        self._written(body).replace(self._place(name))
        return True

    with exact(redis_url) as raw:
        shop = start_again(redis_url, str(tmp_path / "lake"))
        monkeypatch.setattr(FileStore, "put_new", careless)
        async with shop.works():
            await shop.send(range(100))
            await said(raw, "ignores conditions")
            assert now_waits(raw) == 100
    assert ids_in(str(tmp_path / "lake"), 4) == []


@pytest.mark.parametrize("what", ["other contents", "an id of the archive's that it does not have"])
async def test_ids_that_were_given_twice_halt_the_partition_and_nothing_is_trimmed(
    redis_url: str, tmp_path: Path, what: str
) -> None:
    """Redis went back, and gave lost ids again, since its clock is behind: the reason names the id."""
    lake = str(tmp_path / "lake")
    with exact(redis_url) as raw:
        shop = Shop(redis_url, lake, 1)
        async with shop.works():
            await shop.send(range(100))
            await all_archived(raw, 1)
            known, state = raw.hgetall(KEYS.lock(0)), raw.dump(KEYS.events(0))
            await shop.send(range(100, 200))
            await all_archived(raw, 1)
        ids = ids_in(lake, 1)
        raw.hset(KEYS.lock(0), mapping={name: known[name] for name in (b"checkpoint", b"entries")})
        raw.restore(KEYS.events(0), 0, state, replace=True)
        at = ids[150] if what == "other contents" else EntryId(ids[150].ms, max(0, ids[150].seq - 10**6))
        clash = raw.xadd(KEYS.events(0), {"v": b'{"customer":"x","n":-1}'}, id=at_least(raw, at, ids[199]))
        shop = Shop(redis_url, lake, 1)
        async with shop.works():
            await said(raw, clash.decode())
            assert raw.hget(KEYS.lock(0), "state") == b"halted"
            assert raw.xrange(KEYS.events(0), clash, clash)
    assert ids_in(lake, 1) == ids


def at_least(raw: Any, at: EntryId, most: EntryId) -> str:
    last = EntryId.parse(raw.xinfo_stream(KEYS.events(0))["last-generated-id"])
    its = max(at, EntryId(last.ms, last.seq + 1))
    assert its <= most
    return str(its)


async def test_a_redis_that_is_full_is_emptied_once_the_store_is_back(
    own_server: Server, tmp_path: Path
) -> None:
    """It refuses senders meanwhile, and loses nothing that it has confirmed."""
    lake = tmp_path / "lake"
    with exact(own_server.url) as raw:
        shop = Shop(own_server.url, str(lake))
        async with shop.works():
            await shop.send(range(100))
            await all_trimmed(raw, 4)
            lake.rename(tmp_path / "elsewhere")
            lake.write_text("no folder")
            raw.config_set("maxmemory", raw.info("memory")["used_memory"] + 1_000_000)
            sent = 100

            async def fill() -> None:
                nonlocal sent
                while True:
                    long = [Order(uuid.uuid4().hex * 20, n) for n in range(sent, sent + 100)]
                    await shop.orders.send_many(long)
                    sent += 100

            with pytest.raises(BackendRefused):
                await fill()
            await said(raw, "did not answer")
            lake.unlink()
            (tmp_path / "elsewhere").rename(lake)
            await all_trimmed(raw, 4)
            await shop.send(range(sent, sent + 100))
            await all_trimmed(raw, 4)
    assert sent > 1000
    assert sent + 100 <= len(set(ids_in(str(lake), 4))) < sent + 200, "the last call was done in part"


async def test_what_only_the_archive_still_has_after_redis_went_back_is_told_and_read(
    redis_url: str, tmp_path: Path
) -> None:
    """The archive goes on behind it, and its records come once and in order."""
    lake = str(tmp_path / "lake")
    with exact(redis_url) as raw:
        shop = Shop(redis_url, lake, 1)
        async with shop.works():
            await shop.send(range(100))
            await all_archived(raw, 1)
            known, state = raw.hgetall(KEYS.lock(0)), raw.dump(KEYS.events(0))
            counts = raw.hgetall(KEYS.counts(0))
            await shop.send(range(100, 200))
            await all_archived(raw, 1)
        raw.hset(KEYS.lock(0), mapping={name: known[name] for name in (b"checkpoint", b"entries")})
        raw.restore(KEYS.events(0), 0, state, replace=True)
        raw.delete(KEYS.counts(0))
        raw.hset(KEYS.counts(0), mapping=counts)
        shop = Shop(redis_url, lake, 1)
        late = shop.late()
        with capture_logs() as lines:
            async with shop.works() as worker:
                await wait_for_async(lambda: find(lines, "archive_passed"), "the archive goes on")
                await shop.send(range(200, 300))
                await wait_for_async(ends(raw, 1, "late"), "all is read")
                assert [row["n"] for row in await worker.rows(late)] == [*range(300)]
                assert (await worker.snapshot()).processors["late"].lag == 0
                await all_archived(raw, 1)
        (passed,) = find(lines, "archive_passed")
        assert passed["only_archived"] == 100
    ids = ids_in(lake, 1)
    assert ids == sorted(set(ids))
    assert len(ids) == 300


def find(lines: list[Any], event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]
