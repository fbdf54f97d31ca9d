"""Sinks into an object store: each batch once, whoever is killed between which steps. The S3 is moto's."""

import datetime as dt
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as every Spark user writes it

from streamworker.archive import store
from streamworker.archive.store import Store
from streamworker.errors import ArchiveError, ArchiveUnavailable, ConfigurationError, DataLoss
from streamworker.spark.driver.failures import read_failure
from streamworker.spark.driver.session import Session
from streamworker.spark.sinks.deltalake import DeltaLake
from streamworker.spark.sinks.objects import ObjectBatches
from streamworker.spark.sinks.sink import OncePerBatch
from streamworker.spark.source.places import place_at
from streamworker.spark.source.table import latest_batch
from tests.chaos.proxy import Proxy
from tests.spark.acked import AckedLog
from tests.spark.arrow import Rows
from tests.spark.clouds import OF, OPTIONS, STEPS, dying, in_s3, objects_in, read_by_each
from tests.spark.running import run_once
from tests.spark.specs import pipeline
from tests.stage.moto import moto_server, variables

pytestmark = pytest.mark.full("starts an S3")

QUERY = "12345678-aaaa"
LIMIT = {"maxRowsPerTrigger": "5"}
LAST = dt.datetime(9999, 12, 31, 3, 30, tzinfo=dt.UTC)
NUMBER = itertools.count()
ROWS = 100
"""Of a batch."""


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture
def lake(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a folder of the test's own."""
    for name, value in variables(s3).items():
        monkeypatch.setenv(name, value)
    return f"s3://lake/clouds-{next(NUMBER)}"


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return of_query(tmp_path / "ck", QUERY)


def of_query(folder: Path, query: str) -> str:
    folder.mkdir()
    (folder / "metadata").write_text(f'{{"id": "{query}"}}')
    return str(folder)


SINKS: dict[str, Callable[..., OncePerBatch]] = {
    "batches": ObjectBatches,
    "delta": DeltaLake,
    "merged": lambda **given: DeltaLake(upsert=("n",), **given),
}


def rows_of(batch: int, rng: random.Random) -> Rows:
    """Return the rows of a batch, in another order each time, as after a shuffle."""
    numbers = list(range(batch * ROWS, (batch + 1) * ROWS))
    rng.shuffle(numbers)
    return Rows(pa.table({"n": numbers, "user": [f"user-{n % 7}" for n in numbers]}))


def numbers_in(url: str, kind: str) -> dict[str, list[int]]:
    return {reader: [n for (n,) in rows] for reader, rows in read_by_each(url, kind, ["n"]).items()}


class Killed(BaseException):
    """What a sink does not get to see: its process ends here."""


def end() -> None:
    raise Killed


@pytest.mark.parametrize(("kind", "step"), [(kind, step) for kind, steps in OF.items() for step in steps])
def test_a_sink_killed_before_or_after_a_step_adds_each_batch_once(
    lake: str, checkpoint: str, kind: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that runs again has its rows in another order."""
    rng, kills = random.Random(step), 0
    owner, name = STEPS[step]
    call = getattr(owner, name)
    for when, n in itertools.product(("before", "after"), (1, 2, 3)):
        table = f"{lake}/{when}-{n}"
        for batch in range(3):
            sink = SINKS[kind](path=table, checkpoint=checkpoint)
            with monkeypatch.context() as patch, suppress(Killed):
                patch.setattr(owner, name, dying(call, when, n, end))
                sink(rows_of(batch, rng), batch)
                kills -= 1
            kills += 1
            sink(rows_of(batch, rng), batch)
        for reader, found in numbers_in(table, kind).items():
            assert found == [*range(3 * ROWS)], (reader, when, n)
    print(f"{kind}: {kills} kills at {step}")
    assert kills >= 2


@pytest.mark.parametrize("kind", SINKS)
def test_the_first_batch_of_two_drivers_or_two_queries_is_there_once(
    lake: str, checkpoint: str, tmp_path: Path, kind: str
) -> None:
    """They have looked at the same time, and found no table."""
    rng, other = random.Random(kind), of_query(tmp_path / "other", "87654321-bbbb")
    for name, its, query in (("drivers", checkpoint, QUERY), ("queries", other, "87654321-bbbb")):
        table = f"{lake}/{name}"
        one, two = (SINKS[kind](path=table, checkpoint=each) for each in (checkpoint, its))
        with one.opened() as seen, two.opened() as seen_too:
            one.write(seen, rows_of(0, rng), QUERY, 0)
            with suppress(ConfigurationError):
                two.write(seen_too, rows_of(0, rng), query, 0)
        for reader, found in numbers_in(table, kind).items():
            assert found == [*range(ROWS)], reader
    with pytest.raises(ConfigurationError, match="written from another checkpoint directory"):
        two(rows_of(0, rng), 0)


@pytest.mark.parametrize("kind", SINKS)
def test_a_driver_that_another_has_passed_changes_nothing(lake: str, checkpoint: str, kind: str) -> None:
    """It was held up in the middle of a batch, and its table goes on from what the other has written."""
    rng, sink = random.Random(kind), SINKS[kind](path=lake, checkpoint=checkpoint)
    sink(rows_of(0, rng), 0)
    with suppress(ArchiveUnavailable), sink.opened() as before:
        for batch in (1, 2):
            sink(rows_of(batch, rng), batch)
        sink.write(before, rows_of(1, rng), QUERY, 1)
        pytest.fail("it has written batch 1")
    with pytest.raises(ConfigurationError, match="written from another checkpoint directory"):
        sink(rows_of(1, rng), 1)
    sink(rows_of(3, rng), 3)
    for reader, found in numbers_in(lake, kind).items():
        assert found == [*range(4 * ROWS)], reader


@pytest.mark.parametrize("kind", SINKS)
def test_a_table_that_was_lost_or_is_anothers_is_refused(
    lake: str, checkpoint: str, tmp_path: Path, kind: str
) -> None:
    """As on a disk; the checkpoint may be in the store, too."""
    new, in_store = of_query(tmp_path / "new", "87654321-bbbb"), f"{lake}/checkpoint"
    place_at(in_store).put_new("metadata", Path(checkpoint, "metadata").read_bytes())
    sink = SINKS[kind](path=f"{lake}/table", checkpoint=in_store.replace("s3:", "s3a:"))
    rng = random.Random(kind)
    for batch in range(3):
        sink(rows_of(batch, rng), batch)
    with pytest.raises(DataLoss, match="does not hold batch 6"):
        sink(rows_of(7, rng), 7)
    for refused in (sink, SINKS[kind](path=f"{lake}/table", checkpoint=new)):
        with pytest.raises(ConfigurationError, match="another checkpoint directory"):
            refused.begin()
    place_at(in_store).put_new("offsets/2", b"")
    sink.begin()
    place_at(f"{lake}/files").put_new("some.parquet", b"")
    with pytest.raises(ConfigurationError, match="holds files already"):
        SINKS[kind](path=f"{lake}/files", checkpoint=str(tmp_path / "none")).begin()


@pytest.mark.parametrize("kind", SINKS)
def test_a_store_that_is_away_is_asked_again(
    lake: str, checkpoint: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not taken for an empty table."""
    rng, sink = random.Random(kind), SINKS[kind](path=lake, checkpoint=checkpoint)
    sink(rows_of(0, rng), 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    store._store_at.cache_clear()
    with pytest.raises(ArchiveUnavailable, match=lake) as away:
        sink(rows_of(1, rng), 1)
    failure = read_failure(f"Traceback\nstreamworker.errors.ArchiveUnavailable: {away.value}")
    assert failure.may_last
    assert not failure.final


@pytest.mark.anyio
@pytest.mark.parametrize("kind", SINKS)
async def test_a_put_whose_answer_is_lost_is_found_to_be_ones_own(
    s3: str, lake: str, checkpoint: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the store's client, the sink, or the batch that runs again."""
    rng, tried, proxy = random.Random(kind), 0, Proxy(s3)
    await proxy.start()
    monkeypatch.setenv(
        "AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.url.rpartition(':')[2].partition('/')[0]}"
    )
    sink = SINKS[kind](path=lake, checkpoint=checkpoint)
    for batch in range(8):
        proxy.only_after, proxy.lose = b"PUT /lake/", batch % 3
        done = False
        while not done:
            tried += 1
            with suppress(ArchiveUnavailable):
                await anyio.to_thread.run_sync(sink, rows_of(batch, rng), batch)
                done = True
    await proxy.stop()
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    print(f"{kind}: {proxy.lost} answers lost, {tried} tries of 8 batches")
    assert proxy.lost >= 4
    for reader, found in numbers_in(lake, kind).items():
        assert found == [*range(8 * ROWS)], reader


def test_a_store_that_ignores_conditions_is_refused(
    lake: str, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "put_new", lambda store, name, body: True)
    with pytest.raises(ArchiveError, match="ignores conditions"):
        ObjectBatches(path=lake, checkpoint=checkpoint)(rows_of(0, random.Random(0)), 0)


def by_user(frame: DataFrame) -> DataFrame:
    return frame.groupBy("user").agg(F.count("*").alias("n"))


def of_time(frame: DataFrame) -> DataFrame:
    return frame.select("n", F.lit(LAST).cast("timestamp").alias("at"), F.expr("interval 1 second AS lasts"))


@pytest.mark.usefixtures("in_tmp_path")
def test_pipelines_write_to_a_store_and_keep_their_checkpoints_on_the_disk(
    spark_session: Session, acked: AckedLog, lake: str
) -> None:
    """Rows, a result that changes by its keys, and times as every reader of Parquet has them."""
    at = lake.replace("s3:", "s3a:")
    specs = [
        pipeline(of_time, name="rows", format="parquet-batches", path=f"{at}/rows", options=LIMIT),
        pipeline(
            by_user, name="users", format="deltalake", path=f"{at}/users", upsert=("user",), options=LIMIT
        ),
    ]
    for count in (12, 9):
        acked.fill(0, [count])
        assert run_once(spark_session, *specs) == (0, "")
        users = Counter(row["user"] for row in acked.written[0])
        for reader, found in read_by_each(f"{lake}/users", "merged", ["user", "n"]).items():
            assert found == sorted(users.items()), reader
        for reader, numbers in numbers_in(f"{lake}/rows", "batches").items():
            assert numbers == acked.numbers(), reader
    path, files = in_s3(f"{lake}/rows")
    rows = pq.read_table(path, filesystem=files)
    assert set(rows["at"].to_pylist()) == {LAST}
    assert set(rows["lasts"].to_pylist()) == {1_000_000}
    assert latest_batch(".streamworker/shop/rows/checkpoint", "commits") == 4
    assert not objects_in(f"{lake}/.streamworker")


@pytest.mark.parametrize("where", ["disk", "store"])
def test_a_row_of_a_delta_table_replaces_the_one_of_its_key(
    lake: str, checkpoint: str, tmp_path: Path, where: str
) -> None:
    """Of a batch the last one of a key. Columns that come later are added, and none goes unnoticed."""
    url = lake if where == "store" else str(tmp_path / "table")
    sink = DeltaLake(path=url, checkpoint=checkpoint, upsert=("Order id", "day"), partition_by=("day",))
    days, ids = ["a", "a", "b", "a"], [1, 2, 1, 1]
    sink(Rows(pa.table({"Order id": ids, "day": days, "v": [1, 2, 3, 4]})), 0)
    more = {"Order id": [2, 3], "day": ["a", "b"], "v": [5, 6], "new": [None, 1.5]}
    for batch in (1, 1):
        sink(Rows(pa.table(more)), batch)
    sink(Rows(pa.table({name: pa.array([], pa.table(more)[name].type) for name in more})), 2)
    found = pl.read_delta(url, storage_options=OPTIONS).select("Order id", "day", "v", "new").sort("v").rows()
    assert found == [(1, "b", 3, None), (1, "a", 4, None), (2, "a", 5, None), (3, "b", 6, 1.5)]
    assert DeltaTable(url, storage_options=OPTIONS).version() == 3
    with pytest.raises(ConfigurationError, match="'day' of upsert has a null"):
        sink(Rows(pa.table({**more, "day": [None, "b"]})), 3)
    with pytest.raises(ConfigurationError, match=r"Column 'v' .*long.*double"):
        sink(Rows(pa.table({**more, "v": [1.5, 2.0]})), 3)
