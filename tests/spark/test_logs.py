"""Reading the logs, without Spark: in bounded chunks, with few rights, on after an outage."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from streamworker.core.data.entries import EntryId
from streamworker.core.data.readers import read_position
from streamworker.dev.server import EmbeddedServer
from streamworker.errors import BackendUnavailable, DataLoss
from streamworker.spark.source import connection, logs, schema
from streamworker.spark.source import datasource as source
from streamworker.spark.source.datasource import LogStreamReader
from streamworker.spark.source.logs import AckedLogs, LogEntry
from streamworker.spark.source.offsets import Position, Slice
from streamworker.spark.source.options import SourceOptions
from streamworker.spark.source.schema import BATCH_ROWS, Conformer, arrow_target, spark_schema, together
from tests.spark.acked import NOTHING, ORDER, AckedLog, orders
from tests.spark.reading import Query
from tests.stage.server import Server

OPTIONS = SourceOptions(app="shop", stream="orders", processor="price", reader="r", retry_timeout_ms=200)


def whole(reader: AckedLogs, partition: int = 0) -> Slice:
    tail = reader.tails()[partition]
    return Slice(partition, tail.log, 0, tail.rows)


def values(entries: Iterator[LogEntry]) -> list[int]:
    return [n for entry in entries for n in entry.batch["n"].to_pylist()]


def test_planning_fetches_no_payload(acked: AckedLog) -> None:
    """Positions come from the locks; a log may hold gigabytes."""
    reader = AckedLogs(OPTIONS)
    acked.fill(0, [50_000] * 3)
    reader.tails()
    before = int(acked.redis.info("stats")["total_net_output_bytes"])
    assert reader.tails()[0].rows == 150_000
    assert int(acked.redis.info("stats")["total_net_output_bytes"]) - before < 10_000


def test_a_micro_batch_takes_few_round_trips(acked: AckedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """One to plan it, one to say where it begins, and one for each part of a task that is read."""
    calls: list[object] = []
    real = connection.Connection.call

    def counted(self: connection.Connection, function: Callable[[Any], Any], **given: Any) -> Any:
        calls.append(function)
        return real(self, function, **given)

    monkeypatch.setattr(connection.Connection, "call", counted)
    acked.fill(0, [3])
    acked.fill(1, [3])
    reader = LogStreamReader(OPTIONS, spark_schema(ORDER, OPTIONS))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    found: list[int] = []
    for task in reader.partitions(reader.initialOffset(), end):
        found += [n for batch in reader.read(task) for n in batch["n"].to_pylist()]
    assert sorted(found) == acked.numbers()
    acked.fill(0, [3])
    acked.fill(1, [3])
    calls.clear()
    until = reader.latestOffset(end, ReadAllAvailable())
    tasks = reader.partitions(end, until)
    assert len(calls) == 2
    calls.clear()
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 6
    assert (len(calls), len(tasks)) == (1, 1)


def test_a_reader_tells_how_long_its_last_micro_batch_took(
    acked: AckedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one plan to the next; a plan without rows, such as that of an idle query, says nothing."""
    now_s = 100.0
    monkeypatch.setattr(source, "time", SimpleNamespace(sleep=time.sleep, monotonic=lambda: now_s))
    acked.fill(0, [3])
    options = replace(OPTIONS, idle_wait_ms=0)
    reader, logs_ = LogStreamReader(options, spark_schema(ORDER, options)), AckedLogs(options)

    def told() -> int:
        return read_position(logs_._read_hash(logs_._keys.readers, "r") or b"").batch_ms

    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    now_s += 4.5
    assert (reader.latestOffset(end, ReadAllAvailable()), told()) == (end, 4_500)
    now_s += 60
    assert (reader.latestOffset(end, ReadAllAvailable()), told()) == (end, 4_500)


def test_a_new_reader_loses_nothing_to_a_worker_that_has_not_heard_of_it(
    acked: AckedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker asks for the readers every two seconds, and trims by what it was told then meanwhile."""
    waited: list[float] = []

    def while_a_worker_trims(seconds: float) -> None:
        time.sleep(seconds / 2)
        acked.trim(0, 30)
        time.sleep(seconds / 2)
        waited.append(seconds)

    clock = SimpleNamespace(sleep=while_a_worker_trims, monotonic=time.monotonic)
    monkeypatch.setattr(source, "time", clock)
    monkeypatch.setattr(source, "READER_KNOWN_S", 0.02)
    acked.fill(0, [1] * 40)
    acked.trim(0, 20)
    ahead = AckedLogs(replace(OPTIONS, reader="ahead"))
    ahead.register(ahead.tails(), 1, retry=False)
    reader = LogStreamReader(OPTIONS, spark_schema(ORDER, OPTIONS))
    begin = reader.initialOffset()
    assert waited == [0.02], "it did not wait until all workers have heard of it"
    end = reader.latestOffset(begin, ReadAllAvailable())
    read = [batch for task in reader.partitions(begin, end) for batch in reader.read(task)]
    assert sum(batch.num_rows for batch in read) == len(acked.entries(0)) == 10


def test_a_tail_names_its_log_and_its_last_entry(acked: AckedLog) -> None:
    """A partition without a log is at row 0 of none."""
    acked.fill(0, [3])
    tails = AckedLogs(OPTIONS).tails()
    epoch = int(acked.redis.hget(acked.keys.lock(0), "epoch"))
    assert tails[0] == Position(3, acked.identity(0), "3-0", epoch)
    acked.append(0, NOTHING)
    assert AckedLogs(OPTIONS).tails()[0].last == "3-0", "commits without rows add no entry"
    acked.redis.hdel(acked.keys.lock(0), "tail")
    assert AckedLogs(OPTIONS).tails()[0] == Position(3, acked.identity(0), "4-0"), "as of an earlier release"
    assert tails[1].rows == 0


def test_a_log_is_read_in_chunks_of_bounded_size(acked: AckedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one call for each small entry nor one for all large ones."""
    asked: list[int] = []
    real = AckedLogs._ranges

    def watched(self: AckedLogs, ranges: Sequence[tuple[int, int, int]]) -> object:
        asked.extend(count for _, _, count in ranges)
        return real(self, ranges)

    monkeypatch.setattr(AckedLogs, "_ranges", watched)
    reader = AckedLogs(OPTIONS)
    acked.fill(0, [1] * 1000)
    assert values(reader.read(whole(reader))) == acked.numbers(0)
    assert len(asked) < 8
    asked.clear()
    monkeypatch.setattr(logs, "FIRST_MOST", 4)
    acked.fill(1, [40_000] * 6)
    assert values(reader.read(whole(reader, 1))) == acked.numbers(1)
    size = len(acked.entries(1)[0][1][b"batch"])
    assert max(asked[1:]) * size <= 2 * logs.CHUNK_BYTES


def test_small_slices_are_asked_for_together(acked: AckedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as the mean of entries is known; slices that are larger than a chunk are asked for alone."""
    asked: list[list[int]] = []
    real = AckedLogs._ranges

    def watched(self: AckedLogs, ranges: Sequence[tuple[int, int, int]]) -> object:
        asked.append([p for p, _, _ in ranges])
        return real(self, ranges)

    monkeypatch.setattr(AckedLogs, "_ranges", watched)
    acked.fill(0, [1] * 3)
    acked.fill(1, [1] * 3)
    reader = AckedLogs(OPTIONS)
    both, numbers = [whole(reader), whole(reader, 1)], acked.numbers(0) + acked.numbers(1)
    for chunk_bytes, expected in (
        (logs.CHUNK_BYTES, [[0], [1]]),
        (logs.CHUNK_BYTES, [[0, 1]]),
        (10, [[0]] * 3 + [[1]] * 3),
    ):
        monkeypatch.setattr(logs, "CHUNK_BYTES", chunk_bytes)
        asked.clear()
        assert values(reader.read(*both)) == numbers
        assert asked == expected


def test_a_slice_is_read_with_one_call_once_the_mean_of_entries_is_known(
    acked: AckedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its entries have one row or many, and where it begins or ends within one."""
    calls: list[object] = []
    real = AckedLogs._ranges

    def watched(self: AckedLogs, ranges: Sequence[tuple[int, int, int]]) -> object:
        calls.append(ranges)
        return real(self, ranges)

    monkeypatch.setattr(AckedLogs, "_ranges", watched)
    acked.fill(0, [1] * 20)
    acked.fill(1, [10] * 20)
    for p, start, end in ((0, 5, 17), (1, 50, 100), (1, 55, 66), (1, 58, 59)):
        reader = AckedLogs(OPTIONS)
        rows = Slice(p, acked.identity(p), start, end)
        list(reader.read(whole(reader, p)))
        calls.clear()
        assert values(reader.read(rows)) == acked.numbers(p)[start:end]
        assert len(calls) == 1, (p, start, end)


def test_any_range_of_rows_is_read_exactly(acked: AckedLog) -> None:
    """Beginning and ending inside entries, or at their edges; each entry says which of its rows are read."""
    acked.fill(0, [3, 1, 4])
    reader = AckedLogs(OPTIONS)
    log = acked.identity(0)
    for start in range(8):
        for end in range(start + 1, 9):
            assert values(reader.read(Slice(0, log, start, end))) == list(range(start, end))
    found = list(reader.read(Slice(0, log, 1, 5)))
    assert [(entry.start, entry.end, entry.last) for entry in found] == [
        (1, 3, "3-0"), (3, 4, "4-0"), (4, 5, "8-0"),
    ]  # fmt: skip


Entries = list[tuple[bytes, dict[bytes, bytes]]]


def numbered(acked: AckedLog, entries: Entries) -> None:
    """Put entries in the log's place, with the ids that they would have in this order."""
    acked.redis.delete(acked.keys.acked(0))
    total = 0
    for _, fields in entries:
        total += int(fields[b"rows"])
        acked.redis.xadd(acked.keys.acked(0), fields, id=f"{total}-0")


@pytest.mark.parametrize(
    ("order", "pair"),
    [
        ([0, 2, 1, 3], (6, 8)),
        ([0, 1, 1, 3], (4, 6)),
        ([0, 0, 2, 3], (2, 4)),
        ([1, 0, 2, 3], (2, 4)),
        ([0, 1, 3, 2], (6, 10)),
    ],
)
def test_entries_that_were_swapped_or_repeated_are_named(
    acked: AckedLog, order: list[int], pair: tuple[int, int]
) -> None:
    """In one slice, at the edges of slices, and inside entries; both of them are named, and the log."""
    acked.fill(0, [2, 2, 4, 2])
    tail = AckedLogs(OPTIONS).tails()[0]
    numbered(acked, [acked.entries(0)[at] for at in order])
    ends = [EntryId.parse(entry_id).ms for entry_id, _ in acked.entries(0)]
    named = rf"Entry {pair[1]}-0 of the acked log .*acked:price does not follow entry {pair[0]}-0: "
    reader = AckedLogs(OPTIONS)
    for cuts in ([], ends[:-1], list(range(1, tail.rows))):
        parts = [Slice(0, tail.log, start, end) for start, end in pairwise([0, *cuts, tail.rows])]
        with pytest.raises(DataLoss, match=named):
            list(chain.from_iterable(map(reader.read, parts)))


def test_an_entry_of_another_program_is_named_and_not_read(acked: AckedLog) -> None:
    acked.fill(0, [3])
    acked.redis.xadd(acked.keys.acked(0), {"foo": "bar"}, id="5-0")
    acked.fill(0, [4])
    with pytest.raises(DataLoss, match=r"Entry 5-0 .* has no field 'prev' .*The log is sw:.*acked:price"):
        values(AckedLogs(OPTIONS).read(whole(AckedLogs(OPTIONS))))
    anyway = AckedLogs(replace(OPTIONS, fail_on_data_loss=False))
    assert values(anyway.read(whole(anyway))) == acked.numbers(0)


def test_a_log_that_grew_again_at_the_same_rows_is_noticed_by_its_epoch(acked: AckedLog) -> None:
    """As after a failover that lost an entry, which another owner committed again from the same source."""
    acked.fill(0, [4, 4])
    read = AckedLogs(OPTIONS).tails()[0]
    first, (_, again) = acked.entries(0)
    epoch = str(int(again[b"epoch"]) + 1).encode()
    numbered(acked, [first, (b"", {**again, b"epoch": epoch})])
    acked.redis.hset(acked.keys.lock(0), "epoch", epoch)
    acked.fill(0, [1])
    with pytest.raises(DataLoss, match=r"rolled back and has grown again: row 8 "):
        list(AckedLogs(OPTIONS).read(Slice(0, read.log, 8, 9, read.last, read.epoch)))


@pytest.mark.parametrize("epoch", ["x", "3", "-1", "1e9"])
def test_a_lower_epoch_that_another_program_wrote_does_not_end_a_query(acked: AckedLog, epoch: str) -> None:
    """The next owner begins at the clock, so that epochs do not fall along the log."""
    acked.fill(0, [2])
    acked.redis.hset(acked.keys.lock(0), mapping={"epoch": epoch, "owner": ""})
    acked.fill(0, [2])
    assert values(AckedLogs(OPTIONS).read(whole(AckedLogs(OPTIONS)))) == acked.numbers(0)


def test_reading_goes_on_after_an_outage_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    with EmbeddedServer(data_dir=str(tmp_path), appendonly=True) as server:
        monkeypatch.setenv("STREAMWORKER_CONNECTION_DEFAULT", server.url)
        with AckedLog(server.url, partitions=1) as log:
            log.fill(0, [2] * 20)
            reader = AckedLogs(SourceOptions(app="shop", stream="orders", processor="price"))
            entries = reader.read(whole(reader))
            found = [next(entries), next(entries)]
            server.kill()
            # What the first chunk brought is there; the next one has to wait for the server.
            found += [next(entries) for _ in range(logs.FIRST_COUNT - 2)]
            server.start()
            found += list(entries)
            assert values(iter(found)) == log.numbers()


def test_a_server_that_hangs_is_given_up_after_the_timeout(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is open and silent is no reason to wait for ever."""
    monkeypatch.setenv("STREAMWORKER_CONNECTION_DEFAULT", own_server.url)
    monkeypatch.setitem(connection._POLICY, "socket_timeout", 1.0)
    with AckedLog(own_server.url, partitions=1) as log:
        log.fill(0, [1])
        reader = AckedLogs(OPTIONS)
        reader.tails()
        with own_server.paused(), pytest.raises(BackendUnavailable, match="no answer"):
            reader.tails()
        assert reader.tails()[0].rows == 1


def log_of(*batches: pa.RecordBatch) -> list[LogEntry]:
    ends = accumulate(batch.num_rows for batch in batches)
    return [
        LogEntry(i % 2, end, batch, f"{i}-0", i, 1_000 * i)
        for i, (batch, end) in enumerate(zip(batches, ends, strict=True))
    ]


def test_small_entries_are_joined_and_large_ones_left_alone() -> None:
    large, other = orders(0, BATCH_ROWS), pa.record_batch({"n": [1]})
    entries = log_of(orders(0, 4), orders(4, 0), orders(4, 7), other, large, orders(11, 1))
    groups = list(together(entries))
    assert groups == [[entries[0], entries[2]], [entries[3]], [entries[4]], [entries[5]]]
    conformer = Conformer(large.schema, replace(OPTIONS, drop_other_columns=True))
    joined = [conformer.conform(group) for group in groups]
    assert joined[0]["n"].to_pylist() == list(range(11))
    assert joined[2]["n"].buffers()[1].address == large["n"].buffers()[1].address


def test_joined_entries_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "BATCH_BYTES", 2 * orders(0, 100).nbytes)
    groups = together(log_of(*(orders(n, 100) for n in range(5))))
    assert [len(group) for group in groups] == [2, 2, 1]


def test_each_row_of_joined_entries_has_the_metadata_of_its_entry() -> None:
    entries = log_of(orders(0, 2), orders(2, 1), orders(3, 3))
    options = replace(OPTIONS, include_metadata=True)
    target = arrow_target(spark_schema(ORDER, options))
    alone = [Conformer(target, options).conform([entry]) for entry in entries]
    joined = Conformer(target, options).conform(entries)
    assert joined.to_pylist() == [row for batch in alone for row in batch.to_pylist()]
    assert joined["_offset"].to_pylist() == [1, 2, 3, 4, 5, 6]
    assert joined["_partition"].to_pylist() == [0, 0, 1, 0, 0, 0]


def test_a_query_goes_on_from_its_checkpoint_when_its_stream_has_grown(acked: AckedLog) -> None:
    """The rows of a new partition come in a batch that begins after its parents' last ones."""
    acked.fill(0, [3])
    query = Query(acked.options(reader="r"))
    assert len(query.batch()) == 3
    acked.grow(3)
    placement = acked.placement
    acked.fill(0, [5])
    children = [p for p in placement.active if placement.parents_of(p) == (0,)]
    for p in (children[0], placement.active[-1]):
        acked.fill(p, [2])
    assert len(query.batch()) == 5, "no parent is done"
    assert not query.batch()
    acked.finish()
    assert len(query.batch()) == 4
    again = Query(acked.options(), query.position)
    assert not again.batch()
    assert len(Query(acked.options()).run()) == 12
