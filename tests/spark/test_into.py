"""The sink into a stream, called as Spark calls it: each row once and in order, whatever dies."""

import datetime as dt
import random
import shutil
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from streamworker import App
from streamworker.declaring.stream import Stream
from streamworker.errors import ConfigurationError, DataLoss, RecordError, StreamFull
from streamworker.redisio.data.streams import append_by
from streamworker.redisio.keys import StreamKeys
from streamworker.spark.into import encoding, publishing, staging
from streamworker.spark.source.places import place_at
from tests.raw import opened
from tests.spark.into import Staged, events_of, got, numbers, sink_of, table_of
from tests.stage.moto import moto_server, variables

ROWS = 100
"""Of one batch."""


class Died(BaseException):
    """As SIGKILL: nothing after it runs."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a batch take several round trips, so that it can end between two."""
    monkeypatch.setattr(encoding, "CHUNK_ROWS", 7)
    monkeypatch.setattr(publishing, "CALLS", 3)
    monkeypatch.setattr(publishing, "WINDOW_ROWS", 30)
    monkeypatch.setattr(publishing, "WAIT_S", 0.2)


def batch(number: int, rows: int = ROWS) -> Any:
    return Staged(table_of(range(number * ROWS, number * ROWS + rows)))


def in_order(url: str, stream: Stream[Any]) -> bool:
    """Return whether each key's rows are in the order of their batches."""
    last: dict[str, int] = {}
    for each in got(url, stream):
        of = each.record.n // ROWS
        if last.get(each.record.k, -1) > of:
            return False
        last[each.record.k] = of
    return True


def dying(patch: pytest.MonkeyPatch, where: str, after: int) -> None:
    """Let the driver die at the n-th time that it comes to a place."""
    left = [after]

    def come() -> None:
        left[0] -= 1
        if not left[0]:
            raise Died

    if where == "published":

        async def told(*args: Any) -> Any:
            replies = await append_by(*args)
            come()
            return replies

        patch.setattr(publishing, "append_by", told)
        return
    step, _, when = where.partition(" ")
    call = getattr(staging.Stages, step)

    def hooked(self: staging.Stages, *args: Any) -> Any:
        if when == "before":
            come()
        found = call(self, *args)
        if when == "after":
            come()
        return found

    patch.setattr(staging.Stages, step, hooked)


PLACES = ("stage after", "decide before", "decide after", "published", "mark before", "mark after")


@pytest.mark.parametrize(
    ("codec", "key"),
    [
        pytest.param("json", "k", id="keyed"),
        pytest.param("arrow", None, id="columns without keys"),
        *(
            pytest.param(codec, key, id=f"{codec} {key}", marks=pytest.mark.full("the same for other codecs"))
            for codec, key in (("json", None), ("arrow", "k"), ("msgpack", "k"), ("fields", None))
        ),
    ],
)
def test_each_row_is_sent_once_though_the_driver_dies_at_each_place(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, key: str | None
) -> None:
    """Each attempt computes its rows in another order, and Spark repeats the last batch after each."""
    stream, rng, deaths = events_of(redis_url, codec=codec, key=key), random.Random(codec), 0
    for number in range(len(PLACES)):
        for place in rng.sample(PLACES, len(PLACES)):
            with monkeypatch.context() as patch:
                dying(patch, place, rng.randint(1, 5) if place == "published" else 1)
                try:
                    sink_of(stream, tmp_path)(batch(number), number)
                except Died:
                    deaths += 1
        sink_of(stream, tmp_path)(batch(number), number)
    assert numbers(redis_url, stream) == [*range(len(PLACES) * ROWS)]
    assert in_order(redis_url, stream) or key is None
    assert deaths > len(PLACES)


@pytest.mark.full("starts an S3")
def test_each_row_is_sent_once_with_a_checkpoint_in_a_bucket(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with one on a disk: nothing is renamed. Spark itself would write there by hadoop-aws."""
    stream, deaths = events_of(redis_url), 0
    with moto_server() as url:
        for name, value in variables(url).items():
            monkeypatch.setenv(name, value)
        for number, place in enumerate(PLACES * 4):
            with monkeypatch.context() as patch:
                dying(patch, place, 1 + number // 6 if place == "published" else 1)
                try:
                    sink_of(stream, "s3a://lake/checkpoint")(batch(number), number)
                except Died:
                    deaths += 1
            sink_of(stream, "s3a://lake/checkpoint")(batch(number), number)
        sink_of(stream, "s3a://lake/checkpoint").begin(batch(0))
        monkeypatch.setattr(staging, "KEPT_MS", 0)
        sink_of(stream, "s3a://lake/checkpoint")(batch(24), 24)
        left = place_at("s3a://lake/checkpoint").names()
    assert numbers(redis_url, stream) == [*range(25 * ROWS)]
    assert in_order(redis_url, stream)
    assert deaths == 24
    assert {name.split("/")[-1][:6] for name in left if "/batches/" in name} == {"000024"}
    assert len({name.split("/")[3] for name in left if "/rows/" in name}) == 1


def test_the_rows_of_a_batch_are_those_that_were_decided_first(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers at once, one of them thought dead: they stage other rows, and send the same ones."""
    stream, both = events_of(redis_url), threading.Barrier(2, timeout=60)
    write = Staged.parquet

    def together(self: Staged, path: str) -> None:
        write(self, path)
        both.wait()

    monkeypatch.setattr(Staged, "parquet", together)
    for number in range(5):
        drivers = [
            threading.Thread(target=sink_of(stream, tmp_path), args=(batch(number), number)) for _ in "ab"
        ]
        for each in drivers:
            each.start()
        for each in drivers:
            each.join()
    assert numbers(redis_url, stream) == [*range(5 * ROWS)]
    assert in_order(redis_url, stream)
    assert len(list((tmp_path / "into" / "events").glob("rows/*"))) <= 6, "only the last attempts stay"


def test_a_driver_that_wakes_when_its_batch_is_forgotten_sends_nothing(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stages its rows when another driver has published it and others, and removed their decisions."""
    monkeypatch.setattr(staging, "KEPT_MS", 0)
    stream, late = events_of(redis_url), batch(1)
    stage = late.parquet

    def sleep_and_stage(path: str) -> None:
        for number in (1, 2, 3):
            sink_of(stream, tmp_path)(batch(number), number)
        stage(path)

    monkeypatch.setattr(late, "parquet", sleep_and_stage)
    sink_of(stream, tmp_path)(batch(0), 0)
    sink_of(stream, tmp_path)(late, 1)
    assert numbers(redis_url, stream) == [*range(4 * ROWS)]
    sink_of(stream, tmp_path)(batch(4), 4)
    assert numbers(redis_url, stream) == [*range(5 * ROWS)]


def test_a_batch_that_spark_repeats_computes_and_sends_nothing(redis_url: str, tmp_path: Path) -> None:
    stream = events_of(redis_url)
    sink_of(stream, tmp_path)(batch(0), 0)
    again = batch(0)
    sink_of(stream, tmp_path)(again, 0)
    assert again.written == 0
    assert numbers(redis_url, stream) == [*range(ROWS)]


def test_batches_without_rows_leave_nothing_behind(redis_url: str, tmp_path: Path) -> None:
    stream = events_of(redis_url)
    for number, rows in enumerate((0, ROWS, 0, 0)):
        sink_of(stream, tmp_path)(Staged(table_of(range(rows))), number)
    assert numbers(redis_url, stream) == [*range(ROWS)]
    assert [each.name[:6] for each in (tmp_path / "into" / "events" / "rows").iterdir()] == ["000001"]


def test_what_was_decided_goes_after_a_minute(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = events_of(redis_url)
    for number in range(3):
        sink_of(stream, tmp_path)(batch(number), number)
    folder = tmp_path / "into" / "events"
    assert len([*folder.glob("rows/*")]) == len([*folder.glob("batches/*.json")]) == 3
    monkeypatch.setattr(staging, "KEPT_MS", 0)
    sink_of(stream, tmp_path)(batch(3), 3)
    assert sorted(each.name for each in folder.glob("batches/*")) == ["000003.done", "000003.json"]
    assert len([*folder.glob("rows/*")]) == 1
    sink_of(stream, tmp_path).begin(batch(4))


# -- the target ------------------------------------------------------------------------------------


def test_a_full_target_waits_and_the_next_driver_sends_the_rest(redis_url: str, tmp_path: Path) -> None:
    stream = events_of(redis_url, partition_records_max=15)
    for _ in "ab":
        with pytest.raises(StreamFull, match=r"Partition . of stream 'events' is at its limit of 15"):
            sink_of(stream, tmp_path)(batch(0), 0)
    found = got(redis_url, stream)
    assert 0 < len(found) < ROWS
    roomy = events_of(redis_url, partition_records_max=1_000)
    sink_of(roomy, tmp_path)(batch(0), 0)
    assert numbers(redis_url, stream) == [*range(ROWS)]


@pytest.mark.parametrize("key", ["k", None], ids=["keyed", "keyless"])
def test_a_batch_goes_on_in_the_partitions_that_follow_when_its_stream_grows_twice(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """In the middle of it, with a driver that dies in between; its sealed partitions stay where they are."""
    stream = events_of(redis_url, key=key)
    sink_of(stream, tmp_path)(batch(0), 0)
    for trips, counts in ((1, "4+3"), (3, "4+3+6")):
        with monkeypatch.context() as patch:
            dying(patch, "published", trips)
            with pytest.raises(Died):
                sink_of(stream, tmp_path)(batch(1), 1)
        seal(redis_url, stream, counts)
    sink_of(events_of(redis_url, key=key), tmp_path)(batch(1), 1)
    sink_of(events_of(redis_url, key=key), tmp_path)(batch(2), 2)
    found = got(redis_url, stream)
    assert sorted(each.record.n for each in found) == [*range(3 * ROWS)]
    assert {each.partition for each in found} >= {*range(9)}
    assert in_order(redis_url, stream) or key is None


def seal(url: str, stream: Stream[Any], counts: str) -> None:
    """Let a stream grow as ``streamworker partitions`` does."""
    keys = StreamKeys(stream.spec.app, stream.name)
    *old, _ = map(int, counts.split("+"))
    with opened(url) as redis:
        for p in range(sum(old)):
            redis.hset(keys.counts(p), "sealed", "1")
        redis.hset(keys.meta, "partitions", counts)


def test_what_a_failover_takes_back_is_sent_again_before_what_follows(redis_url: str, tmp_path: Path) -> None:
    """Between the mark and the next batch, and between publishing and the mark; two partitions, not alike."""
    stream = events_of(redis_url)
    saved = sent_and_saved(redis_url, stream, tmp_path)
    put_back(redis_url, saved[0], partitions=[1])
    put_back(redis_url, saved[1], partitions=[2])
    sink_of(stream, tmp_path)(batch(3), 3)
    assert numbers(redis_url, stream) == [*range(4 * ROWS)]
    assert in_order(redis_url, stream)


def test_a_batch_that_a_failover_takes_back_before_its_mark_is_sent_again(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = events_of(redis_url)
    sink_of(stream, tmp_path)(batch(0), 0)
    saved = dumped(redis_url, stream)
    with monkeypatch.context() as patch:
        dying(patch, "mark before", 1)
        with pytest.raises(Died):
            sink_of(stream, tmp_path)(batch(1), 1)
    put_back(redis_url, saved, partitions=[0, 3])
    sink_of(stream, tmp_path)(batch(1), 1)
    assert numbers(redis_url, stream) == [*range(2 * ROWS)]


Saved = dict[bytes, bytes]


def dumped(url: str, stream: Stream[Any]) -> Saved:
    with opened(url) as redis:
        names = redis.keys(f"sw:{{{stream.spec.app}.{stream.name}.*")
        return {name: redis.dump(name) for name in names}


def sent_and_saved(url: str, stream: Stream[Any], checkpoint: Path) -> list[Saved]:
    """Send three batches; return what the server has after each."""
    saved = []
    for number in range(3):
        sink_of(stream, checkpoint)(batch(number), number)
        saved.append(dumped(url, stream))
    return saved


def put_back(url: str, saved: Saved, partitions: list[int]) -> None:
    """Put some partitions back as they were, as a failover does of which the last seconds are lost."""
    with opened(url) as redis:
        for p in partitions:
            for name, value in saved.items():
                if f".{p}}}".encode() in name:
                    redis.restore(name, 0, value, replace=True)


def test_a_target_that_lost_more_than_is_kept_is_a_data_loss_with_both_points(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "KEPT_MS", 0)
    stream = events_of(redis_url)
    sink_of(stream, tmp_path)(batch(0), 0)
    saved = dumped(redis_url, stream)
    for number in (1, 2):
        sink_of(stream, tmp_path)(batch(number), number)
    put_back(redis_url, saved, partitions=[1])
    says = (
        r"Partition 1 of stream 'events' stands at 0-\w{17,}, and batch 3 .* begins at 2-\w{17,}.*lost more"
    )
    with pytest.raises(DataLoss, match=says):
        sink_of(stream, tmp_path)(batch(3), 3)
    with pytest.raises(ConfigurationError, match=says):
        sink_of(stream, tmp_path).begin(batch(3))
    assert ROWS < len(got(redis_url, stream)) < 3 * ROWS


def test_a_stream_that_was_deleted_is_a_data_loss(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "KEPT_MS", 0)
    stream = events_of(redis_url)
    for number in range(2):
        sink_of(stream, tmp_path)(batch(number), number)
    with opened(redis_url) as redis:
        redis.flushall()
    with pytest.raises(DataLoss, match=r"stands at 0-, and batch 2 .*The stream was deleted"):
        sink_of(stream, tmp_path)(batch(2), 2)
    assert got(redis_url, stream) == []


@pytest.mark.parametrize("when", ["copied", "lost"])
def test_another_checkpoint_directory_sends_nothing(redis_url: str, tmp_path: Path, when: str) -> None:
    """A copy that goes its own way, and a new one under the same name."""
    stream, other = events_of(redis_url), tmp_path / "other"
    sink_of(stream, tmp_path)(batch(0), 0)
    if when == "copied":
        shutil.copytree(tmp_path / "into", other / "into")
    sink_of(stream, tmp_path)(batch(1), 1)
    number = 1 if when == "copied" else 0
    with pytest.raises(DataLoss, match="Another checkpoint directory has sent rows"):
        sink_of(stream, other)(batch(number), number)
    with pytest.raises(ConfigurationError, match="Another checkpoint directory has sent rows"):
        sink_of(stream, other).begin(batch(number))
    sink_of(stream, tmp_path)(batch(2), 2)
    assert numbers(redis_url, stream) == [*range(3 * ROWS)]


def test_two_pipelines_send_to_one_stream_and_neither_knows_of_the_other(
    redis_url: str, tmp_path: Path
) -> None:
    stream = events_of(redis_url)
    for number in range(3):
        sink_of(stream, tmp_path / "a", "a")(batch(number), number)
        sink_of(stream, tmp_path / "b", "b")(batch(number + 3), number)
    assert numbers(redis_url, stream) == [*range(6 * ROWS)]


def test_a_failover_that_takes_back_the_growth_itself_is_a_data_loss(redis_url: str, tmp_path: Path) -> None:
    """The rows of the new partitions are gone, and so is the map that had them."""
    stream = events_of(redis_url)
    sink_of(stream, tmp_path)(batch(0), 0)
    seal(redis_url, stream, "4+3")
    sink_of(stream, tmp_path)(batch(1), 1)
    seal(redis_url, stream, "4")
    for work in (lambda sink: sink.begin(batch(2), 1), lambda sink: sink(batch(2), 2)):
        with pytest.raises(
            (DataLoss, ConfigurationError), match=r"Partition [456] of stream 'events' stands at 0-"
        ):
            work(sink_of(events_of(redis_url), tmp_path))
    assert len(got(redis_url, stream)) == ROWS


def test_a_partition_that_stands_before_what_is_kept_is_never_waited_for(
    redis_url: str, tmp_path: Path
) -> None:
    """Of two batches that it lacks one is not there: nothing that could be sent leads to the next."""
    stream = events_of(redis_url)
    saved = sent_and_saved(redis_url, stream, tmp_path)
    put_back(redis_url, saved[0], partitions=[1])
    (tmp_path / "into" / "events" / "batches" / "000001.json").unlink()
    with pytest.raises(DataLoss, match=r"Partition 1 of stream 'events' stands at 0-\w+"):
        sink_of(stream, tmp_path)(batch(3), 3)


def test_a_checkpoint_directory_that_is_behind_the_stream_is_refused(redis_url: str, tmp_path: Path) -> None:
    """Batches of Spark's are numbered anew, or from where a backup was made."""
    stream = events_of(redis_url)
    for number in range(3):
        sink_of(stream, tmp_path)(batch(number), number)
    with pytest.raises(DataLoss, match=r"has sent batch 2 to stream 'events', and Spark plans batch 1"):
        sink_of(stream, tmp_path)(batch(1), 1)
    with pytest.raises(ConfigurationError, match=r"has planned batch 1 last"):
        sink_of(stream, tmp_path).begin(batch(1), 1)
    sink_of(stream, tmp_path).begin(batch(2), 2)


def test_a_start_after_empty_batches_and_a_kill_goes_on(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = events_of(redis_url)
    sink_of(stream, tmp_path)(batch(0), 0)
    sink_of(stream, tmp_path)(batch(1, rows=0), 1)
    with monkeypatch.context() as patch:
        dying(patch, "published", 1)
        with pytest.raises(Died):
            sink_of(stream, tmp_path)(batch(2), 2)
    sink_of(stream, tmp_path).begin(batch(2), 2)
    sink_of(stream, tmp_path)(batch(2), 2)
    assert len(numbers(redis_url, stream)) == 2 * ROWS


# -- values ----------------------------------------------------------------------------------------


def test_a_row_that_does_not_fit_is_named_and_nothing_is_sent(redis_url: str, tmp_path: Path) -> None:
    """The pipeline's function is corrected, and the same batch is computed anew."""
    stream = events_of(redis_url)
    rows = table_of(range(ROWS)).to_pylist()
    rows[70]["k"] = None
    wrong = Staged(pa.Table.from_pylist(rows, table_of([]).schema))
    with pytest.raises(
        RecordError, match=r"Pipeline 'back' has a row .*column 'k' of Event is null.*Nothing"
    ):
        sink_of(stream, tmp_path)(wrong, 0)
    assert got(redis_url, stream) == []
    sink_of(stream, tmp_path)(batch(0), 0)
    assert numbers(redis_url, stream) == [*range(ROWS)]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"n": pa.int64(), "k": pa.string(), "other": pa.int64()}, "column 'other'.*Event has no such field"),
        ({"n": pa.int64()}, "no column 'k', which Event needs"),
        ({"n": pa.float64(), "k": pa.string()}, "'n' of the table is double, and Event needs int64"),
        ({"n": pa.int64(), "k": pa.string(), "_headers": pa.string()}, "headers are a map"),
    ],
)
def test_columns_that_are_no_fields_are_refused_before_the_start(
    redis_url: str, tmp_path: Path, columns: dict[str, pa.DataType], says: str
) -> None:
    result = Staged(pa.schema(list(columns.items())).empty_table())
    with pytest.raises(ConfigurationError, match=says):
        sink_of(events_of(redis_url), tmp_path).begin(result)


class Named(msgspec.Struct):
    n: int
    id: str = msgspec.field(default_factory=lambda: "computed")


def test_a_key_that_each_attempt_would_compute_anew_is_refused(redis_url: str, tmp_path: Path) -> None:
    app = App("shop", redis_url=redis_url)
    result = Staged(pa.schema([("n", pa.int64())]).empty_table())
    for key in ("id", lambda record: record.id):
        stream = app.stream(f"named-{callable(key)}", Named, key=key, partitions=2)
        with pytest.raises(ConfigurationError, match="no column 'id', which the key of stream"):
            sink_of(stream, tmp_path).begin(result)
    sink_of(app.stream("by-n", Named, key="n", partitions=2), tmp_path).begin(result)


def test_files_of_a_task_that_is_late_are_no_rows(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, write = events_of(redis_url), Staged.parquet

    def with_another(self: Staged, path: str) -> None:
        write(self, path)
        write(self, f"{path}/_temporary/0")

    monkeypatch.setattr(Staged, "parquet", with_another)
    sink_of(stream, tmp_path)(batch(0), 0)
    assert numbers(redis_url, stream) == [*range(ROWS)]


def test_rows_that_spark_wrote_elsewhere_are_not_taken_for_none(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Staged, "parquet", lambda self, path: None)
    with pytest.raises(ConfigurationError, match="written the rows of batch 0 where this process finds none"):
        sink_of(events_of(redis_url), tmp_path)(batch(0), 0)


def test_rows_without_a_key_go_to_all_partitions_though_a_batch_has_one(
    redis_url: str, tmp_path: Path
) -> None:
    stream = events_of(redis_url, key=None)
    for number in range(40):
        sink_of(stream, tmp_path)(batch(number, rows=1), number)
    assert {each.partition for each in got(redis_url, stream)} == {0, 1, 2, 3}


def test_a_stream_of_columns_takes_no_headers(redis_url: str, tmp_path: Path) -> None:
    columns = [("n", pa.int64()), ("k", pa.string()), ("_headers", pa.map_(pa.string(), pa.string()))]
    result = Staged(pa.schema(columns).empty_table())
    with pytest.raises(ConfigurationError, match="entries of columns, which have no headers"):
        sink_of(events_of(redis_url, codec="arrow"), tmp_path).begin(result)


@pytest.mark.parametrize("codec", ["json", "msgpack", "fields"])
def test_a_column_of_headers_becomes_the_headers_of_each_row(
    redis_url: str, tmp_path: Path, codec: str
) -> None:
    stream = events_of(redis_url, codec=codec)
    heads = pa.array(
        [[("from", f"row {n}")] if n % 3 else None for n in range(ROWS)], pa.map_(pa.string(), pa.string())
    )
    sink_of(stream, tmp_path)(Staged(table_of(range(ROWS)).append_column("_headers", heads)), 0)
    found = {each.record.n: each.headers for each in got(redis_url, stream)}
    assert found == {n: {"from": f"row {n}"} if n % 3 else {} for n in range(ROWS)}


class Item(msgspec.Struct):
    sku: str
    price: Decimal | None


class Wide(msgspec.Struct):
    name: str
    flag: bool
    raw: bytes
    at: dt.datetime
    day: dt.date
    lasts: dt.timedelta
    price: Decimal
    items: list[Item]
    tags: dict[str, int]
    maybe: int | None = None


@pytest.mark.parametrize("codec", ["json", "msgpack", "arrow"])
def test_values_of_all_types_arrive_as_they_are(redis_url: str, tmp_path: Path, codec: Any) -> None:
    stream = App("shop", redis_url=redis_url).stream(
        "wide", Wide, key=("name", "day"), partitions=3, codec=codec
    )
    records = [
        Wide(
            f"näme {n}\0", n % 2 == 0, bytes([n]), dt.datetime(9999, 12, 31, 23, 59, n, 999_999, dt.UTC),
            dt.date(1, 1, 1 + n), dt.timedelta(microseconds=-n), Decimal(f"{n}.5"),
            [Item("a", None), Item("b", Decimal("0.01"))], {"x": n, "y": -(2**62)}, n or None,
        )
        for n in range(20)
    ]  # fmt: skip
    rows = pa.Table.from_batches([stream.spec.record.to_arrow(records)])
    sink_of(stream, tmp_path)(Staged(rows), 0)
    found = [each.record for each in got(redis_url, stream)]
    assert sorted(found, key=lambda each: each.raw) == records


def test_a_large_row_is_sent_alone_and_one_that_is_too_large_is_refused(
    redis_url: str, tmp_path: Path
) -> None:
    stream = events_of(redis_url, entry_bytes_max=2_000)
    rows = table_of(range(ROWS)).to_pylist()
    rows[3]["k"], rows[50]["k"] = "x" * 1_900, "y" * 1_900
    sink_of(stream, tmp_path)(Staged(pa.Table.from_pylist(rows)), 0)
    assert numbers(redis_url, stream) == [*range(ROWS)]
    rows[50]["k"] = "y" * 2_001
    with pytest.raises(RecordError, match=r"entry_bytes_max is 2000.*Nothing of this micro-batch"):
        sink_of(stream, tmp_path)(Staged(pa.Table.from_pylist(rows)), 1)


# -- functions of the program ------------------------------------------------------------------------


def test_two_sinks_of_one_name_in_one_function_are_refused(redis_url: str, tmp_path: Path) -> None:
    from streamworker.spark import into_stream
    from streamworker.spark.sinks.sink import Handed

    stream = events_of(redis_url)
    send, other = into_stream(stream), into_stream(stream, name="other")

    def write(rows: Any, query: str, number: int) -> None:
        send(rows, query, number)
        other(batch(1), query, number)

    (tmp_path / "metadata").write_text('{"id": "a query"}')
    Handed(write, "back", str(tmp_path))(batch(0), 0)
    assert numbers(redis_url, stream) == [*range(2 * ROWS)]

    def twice(rows: Any, query: str, number: int) -> None:
        send(rows, query, number)
        send(batch(3), query, number)

    with pytest.raises(ConfigurationError, match="sends to events/back twice"):
        Handed(twice, "back", str(tmp_path))(batch(2), 1)
    with pytest.raises(ConfigurationError, match="outside a pipeline"):
        send(batch(0), "a query", 0)
