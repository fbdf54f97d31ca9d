"""An acked log is archived once and in order, whoever archives it and whatever ends in between."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.archive.logs import Commit, commits_in, row_at, table_of
from streamworker.core.data.archives import IDENTITY
from streamworker.core.data.entries import EntryId
from streamworker.errors import ArchiveUnavailable
from streamworker.runtime.archive import logs
from tests.archive.acked import Archivers, instead_of
from tests.spark.acked import AckedLog, orders
from tests.stage.moto import moto_server, variables


@pytest.fixture
def log(redis_url: str) -> Iterator[AckedLog]:
    with AckedLog(redis_url, partitions=2) as found:
        yield found


@pytest.fixture
def desk(log: AckedLog, tmp_path: Path) -> Archivers:
    return Archivers(log, str(tmp_path / "lake"))


def due() -> None:
    """Wait until what was committed is older than ``every``."""
    time.sleep(0.11)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty place in an S3 of moto, which the environment names to the store."""
    with moto_server() as url:
        for name, value in variables(url).items():
            monkeypatch.setenv(name, value)
        yield f"s3://lake/price-{uuid.uuid4().hex}"


class Killed(BaseException):
    """The worker ends here."""


def test_rows_are_archived_as_sparks_source_shows_them(log: AckedLog, desk: Archivers) -> None:
    log.fill(0, [3, 2])
    log.fill(1, [4])
    before_ms = time.time() * 1000
    due()
    assert desk.all(desk.new()) == ""
    (segment,) = desk.chain(0).segments()
    table = pq.read_table(Path(desk.store.url) / segment.name, partitioning=None)
    assert table.schema.names == [
        "n",
        "user",
        "amount",
        *["_partition", "_offset", "_acked_at", "_entry_id", "_epoch"],
    ]
    assert table.select(["n", "user", "amount"]).to_pylist() == log.written[0]
    assert table["_offset"].to_pylist() == [1, 2, 3, 4, 5]
    assert table["_partition"].to_pylist() == [0] * 5
    assert table["_entry_id"].to_pylist() == ["3-0"] * 3 + ["5-0"] * 2
    assert all(abs(at.timestamp() * 1000 - before_ms) < 60_000 for at in table["_acked_at"].to_pylist())
    assert pq.ParquetFile(Path(desk.store.url) / segment.name).num_row_groups == 1
    assert desk.position.rows == {0: 5, 1: 4}
    assert desk.position.logs == {0: log.identity(0), 1: log.identity(1)}
    assert [row for each in desk.commits(1) for row in each.rows.to_pylist()] == log.written[1]


def test_a_segment_is_written_when_a_row_is_old_or_enough_wait(log: AckedLog, tmp_path: Path) -> None:
    desk = Archivers(log, str(tmp_path / "lake"), every="1 hour", size="1 KB")
    archiver = desk.new()
    log.fill(0, [3])
    desk.all(archiver)
    assert desk.chain(0).segments() == [], "three rows are neither old nor 1 KB"
    log.fill(0, [*[50] * 20, 1])
    desk.all(archiver)
    assert len(desk.chain(0).segments()) > 10, "some 1 KB each"
    rows = len(desk.numbers(0))
    assert 900 <= rows < 1004
    assert desk.numbers(0) == [row["n"] for row in log.written[0]][:rows]


def test_a_log_is_archived_before_it_is_full_of_small_commits(log: AckedLog, tmp_path: Path) -> None:
    """At ``acked_entries_max`` commits would wait for ``every``."""
    desk = Archivers(log, str(tmp_path / "lake"), every="1 hour", entries_max=10)
    archiver = desk.new()
    log.fill(0, [1] * 9)
    desk.all(archiver)
    assert desk.chain(0).segments() == []
    log.fill(0, [1] * 3)
    desk.all(archiver)
    assert desk.numbers(0) == log.numbers(0)


def test_nothing_younger_than_after_is_archived(log: AckedLog, tmp_path: Path) -> None:
    desk = Archivers(log, str(tmp_path / "lake"), after="1 hour")
    log.fill(0, [3])
    due()
    assert desk.all(desk.new()) == ""
    assert desk.chain(0).segments() == []
    assert desk.position.rows == {}


def test_a_worker_killed_between_put_and_position_leaves_no_gap_and_no_double(
    log: AckedLog, desk: Archivers
) -> None:
    """The next owner finds the segment, compares it with the log, and goes on behind it."""

    async def killed(*_: Any) -> None:
        raise Killed

    log.fill(0, [3, 4])
    due()
    with instead_of("_change", killed), pytest.raises(Killed):
        desk.once(desk.new())
    assert desk.position.rows == {}
    log.fill(0, [5])
    due()
    assert desk.all(desk.new()) == ""
    assert desk.numbers(0) == log.numbers(0)
    assert desk.position.rows == {0: 12}
    log.fill(0, [2])
    due()
    with instead_of("_change", killed), pytest.raises(Killed):
        desk.once(desk.new())
    assert desk.position.rows == {0: 12}
    assert desk.all(desk.new()) == ""
    assert desk.numbers(0) == log.numbers(0)
    assert desk.position.rows == {0: 14}


def test_a_zombies_put_is_the_next_link_or_is_refused(log: AckedLog, desk: Archivers) -> None:
    """It stopped before its put, and another owner archived more meanwhile; it goes on behind that."""
    zombie, owner = desk.new(), desk.new()
    log.fill(0, [3])
    due()
    put = logs._put

    def late(*args: Any) -> int:
        with instead_of("_put", put):
            log_more()
        return put(*args)

    def log_more() -> None:
        with AckedLog(log._url, partitions=2) as other:
            other.written = log.written
            other.fill(0, [4])
            due()
            again = Archivers(other, desk.store.url)
            assert again.all(again.new()) == ""

    with instead_of("_put", late):
        assert desk.once(zombie, 0) == ""
    assert desk.numbers(0) == log.numbers(0)
    assert len(desk.chain(0).segments()) == 1
    assert desk.position.rows == {0: 7}
    log.fill(0, [2])
    due()
    assert desk.once(zombie, 0) == desk.once(owner, 0) == ""
    assert desk.numbers(0) == log.numbers(0)
    assert desk.position.rows == {0: 9}


def test_owners_that_archive_at_the_same_time_make_one_chain(log: AckedLog, desk: Archivers) -> None:
    archivers = [desk.new() for _ in range(4)]

    async def all_at_once() -> None:
        await asyncio.gather(*(each.archive_once({0: None, 1: None}) for each in archivers))

    for count in (3, 5, 1, 7):
        log.fill(0, [count, 2])
        log.fill(1, [count])
        due()
        desk.run(all_at_once())
        assert [each._failing for each in archivers] == [{}] * 4
    assert desk.numbers(0) == log.numbers(0)
    assert desk.numbers(1) == log.numbers(1)


def test_owners_lost_answers_and_kills_make_one_chain_in_s3(
    log: AckedLog, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Archivers(log, bucket)
    archivers = [desk.new() for _ in range(3)]
    put, lost = logs._put, [0]

    def may_lose(*args: Any) -> int:
        size = put(*args)
        lost[0] += 1
        if lost[0] % 3 == 0:
            raise ArchiveUnavailable("The answer was lost.")
        return size

    async def all_at_once() -> None:
        await asyncio.gather(*(each.archive_once({0: None, 1: None}) for each in archivers))

    monkeypatch.setattr(logs, "_put", may_lose)
    for count in (3, 5, 1, 7, 2, 2):
        log.fill(0, [count, 2])
        log.fill(1, [count])
        due()
        desk.run(all_at_once())
        for each in archivers:
            each._pauses.clear()
        archivers[count % 3] = desk.new()  # One is killed, and another worker comes.
    monkeypatch.setattr(logs, "_put", put)
    due()
    assert [desk.all(each) for each in archivers] == [""] * 3
    assert lost[0] > 3
    for p in (0, 1):
        rows = [row for each in desk.commits(p) for row in each.rows.to_pylist()]
        assert rows == log.written[p]
        assert desk.position.rows[p] == len(rows)


def test_rows_that_were_trimmed_before_are_archived_from_the_first_that_is_left(
    log: AckedLog, desk: Archivers
) -> None:
    log.fill(0, [3, 4, 5])
    log.trim(0, 3)
    due()
    assert desk.all(desk.new()) == ""
    (segment,) = desk.chain(0).segments()
    assert segment.after == EntryId(3, 0)
    assert [each.end for each in desk.commits(0, 3)] == [7, 12]
    assert desk.commits(0, 0) == [], "what no segment has is no row of it"


def test_rows_that_are_in_neither_halt_the_partition(log: AckedLog, desk: Archivers) -> None:
    log.fill(0, [3])
    log.fill(1, [2])
    due()
    archiver = desk.new()
    desk.all(archiver)
    log.fill(0, [4, 5])
    log.fill(1, [2])
    log.trim(0, 7)
    due()
    assert "Rows 4 to 7 of the acked log of partition 0 are neither in Redis" in desk.once(archiver)
    assert desk.position.rows == {0: 3, 1: 4}, "the other partition goes on"
    assert desk.position.failed.startswith("partition 0: Rows 4 to 7")
    assert desk.position.failed_ms > 0


def test_a_log_that_began_anew_is_refused(log: AckedLog, desk: Archivers) -> None:
    log.fill(0, [3])
    due()
    archiver = desk.new()
    desk.all(archiver)
    log.redis.delete(log.keys.lock(0), log.keys.acked(0))
    log.register()
    log.written[0] = []
    log.fill(0, [5])
    due()
    assert "it was deleted or lost, and began anew" in desk.once(archiver)
    assert "it was deleted or lost, and began anew" in desk.once(desk.new())
    assert desk.position.logs[0] != log.identity(0), "so nothing of the new log is trimmed"


def test_a_log_that_was_rolled_back_and_has_grown_again_is_refused(log: AckedLog, desk: Archivers) -> None:
    """Whoever looks, before or after it has grown; trimming waits at the rows that both had."""
    log.fill(0, [3, 4])
    due()
    archiver = desk.new()
    desk.all(archiver)
    kept = log.entries(0)[:1]
    log.rewrite(0, kept)
    assert "was rolled back to row 3" in desk.once(archiver)
    assert desk.position.rows == {0: 3}
    log.redis.hset(log.keys.lock(0), "epoch", "1")
    log.fill(0, [2, 2, 2])
    due()
    for one in (archiver, desk.new()):
        assert "has other rows up to 7 of partition 0" in desk.once(one)
    assert desk.position.rows == {0: 3}


def test_an_owner_that_did_not_see_the_rollback_notices_by_the_commit_before(
    log: AckedLog, desk: Archivers
) -> None:
    log.fill(0, [3, 4])
    due()
    archiver = desk.new()
    desk.all(archiver)
    log.rewrite(0, log.entries(0)[:1])
    log.redis.hset(log.keys.lock(0), "epoch", "1")
    log.written[0] = log.written[0][:3]
    log.append(0, orders(90, 4))
    log.append(0, orders(94, 4))
    due()
    assert "has other rows up to 7 of partition 0" in desk.once(archiver)


def test_segments_that_are_gone_halt_the_archive(log: AckedLog, desk: Archivers) -> None:
    log.fill(0, [3])
    due()
    desk.all(desk.new())
    desk.store.delete([each.name for each in desk.chain(0).segments()])
    assert "of partition 0 is empty, and had rows up to 3" in desk.once(desk.new())
    desk.store.delete([IDENTITY])
    assert "is empty, and held records before" in desk.once(desk.new())


def test_a_store_that_is_away_stays_with_the_position_until_it_is_back(
    log: AckedLog, desk: Archivers
) -> None:
    def away(*_: Any) -> int:
        raise ArchiveUnavailable("The store did not answer.")

    log.fill(0, [3])
    due()
    archiver = desk.new()
    with instead_of("_put", away):
        assert "did not answer" in desk.once(archiver)
        since_ms = desk.position.failed_ms
        assert desk.position.failed == "partition 0: The store did not answer."
        assert "did not answer" in desk.once(archiver)
    assert since_ms == desk.position.failed_ms > 0
    assert desk.once(archiver) == ""
    assert (desk.position.failed, desk.position.failed_ms) == ("", 0)
    assert desk.numbers(0) == log.numbers(0)


def test_whatever_a_partition_fails_of_ends_neither_the_others_nor_the_worker(
    log: AckedLog, desk: Archivers
) -> None:
    put = logs._put

    def damaged(chain: Any, *args: Any) -> int:
        if chain.partition == 0:
            raise OSError("Corrupted page")
        return put(chain, *args)

    log.fill(0, [3])
    log.fill(1, [4])
    due()
    archiver = desk.new()
    with instead_of("_put", damaged):
        assert desk.once(archiver) == "OSError: Corrupted page"
    assert desk.position.failed == "partition 0: OSError: Corrupted page"
    assert desk.position.rows == {1: 4}
    assert desk.once(archiver) == ""
    assert desk.numbers(0) == log.numbers(0)


def test_columns_that_come_later_are_null_before(log: AckedLog, desk: Archivers) -> None:
    log.append(0, pa.record_batch({"n": [1, 2]}))
    log.append(0, pa.record_batch({"n": [3], "note": ["late"]}))
    due()
    desk.all(desk.new())
    rows = [row for each in desk.commits(0) for row in each.rows.to_pylist()]
    assert rows == [{"n": 1, "note": None}, {"n": 2, "note": None}, {"n": 3, "note": "late"}]


def test_the_row_of_a_time_is_found_by_the_footers(log: AckedLog, desk: Archivers) -> None:
    archiver = desk.new()
    times = []
    for _ in range(5):
        log.fill(0, [2, 3])
        due()
        desk.all(archiver)
        times += [each.at_ms for each in desk.commits(0)[-2:]]
    chain = desk.chain(0)
    assert len(chain.segments()) == 5
    assert row_at(chain, 0) == 0
    assert row_at(chain, times[-1] + 1) is None
    for index, at_ms in enumerate(times):
        found = row_at(chain, at_ms)
        assert found == sum((2, 3)[i % 2] for i in range(times.index(at_ms))), index


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2)), min_size=1), st.data())
def test_commits_come_back_as_they_went_into_a_segment(
    sizes: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    commits, end, at_ms = list[Commit](), data.draw(st.integers(0, 5)), 0
    begins = end
    for count, epoch, later in sizes:
        end, at_ms = end + count, at_ms + later
        rows = pa.record_batch({"n": pa.array(range(end - count, end), pa.int64())})
        commits.append(Commit(end, rows, f"{end}-0", epoch, at_ms))
    table = table_of(1, commits)
    assert [*commits_in(table)] == commits
    after, until = sorted((data.draw(st.integers(begins, end)), data.draw(st.integers(begins, end))))
    part = [row for each in commits_in(table, after, until) for row in each.rows["n"].to_pylist()]
    assert part == [*range(after, until)]
