"""The table equals the log, however often and whenever Spark's driver is killed (F35)."""

import json
import os
import random
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import duckdb
import polars as pl
import psutil
import psycopg
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from streamworker.spark.driver.scratch import LOCK_NAME, LOG_NAME, PREFIX
from tests.chaos.checker import Judge, Violation
from tests.chaos.dump import dump_of, take_dump
from tests.chaos.figures import record, repeats
from tests.helpers import wait_for
from tests.postgres import INITDB
from tests.spark.acked import AckedLog
from tests.spark.driver import ROWS_A_BATCH, WAREHOUSE
from tests.spark.processes import START_S, Driver

BATCHES_A_LIFE = 4
ENTRIES_A_BATCH = 20
POLL_S = 0.001
"""Between the file of a batch in the table and its commit lie some 20 ms."""


PIPELINES = ("legs", "each", "totals", "delta", *(["stored"] if INITDB else []))
STAGES = ("planned", "in the task", "written")
"""Of a batch that is not committed: as soon as it is in ``offsets``; somewhat later; and as soon as it is
in the table."""


def highest(folder: Path) -> int:
    """Return the highest number of a batch in a folder; -1 if there is none."""
    try:
        numbers = [re.sub(r"\.(compact|json)$", "", each.name) for each in folder.iterdir()]
    except FileNotFoundError:
        return -1
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def numbered(folder: Path, name: str, kind: str) -> int:
    return highest(folder / ".streamworker" / name / name / "checkpoint" / kind)


def in_table(folder: Path, name: str) -> int:
    table = folder / name
    if name == "delta":
        return highest(table / "_delta_log")  # Each batch is one version, of the same number.
    if name == "stored":
        with suppress(psycopg.errors.UndefinedTable), psycopg.connect(os.environ[WAREHOUSE]) as connection:
            found = connection.execute("SELECT batch FROM streamworker_batches").fetchone()
            return int(found[0]) if found else -1
        return -1
    if table.is_symlink():
        return int(table.readlink().name.split("-")[1])
    if (table / ".last").exists():
        return int((table / ".last").read_text().rpartition("-")[2])
    return highest(table / "_spark_metadata")


def stage(folder: Path, name: str) -> str:
    """Return how far the last batch of a pipeline is, judging by the disk."""
    batch = numbered(folder, name, "offsets")
    if batch <= numbered(folder, name, "commits"):
        return "committed"
    return "written" if in_table(folder, name) == batch else "planned"


def live_a_little(driver: Driver, folder: Path, rng: random.Random) -> None:
    """Wait until a driver is in the middle of a batch, at a moment of its own.

    Of its second batch at the earliest: the first may be one that the driver before left in the middle.
    """
    name, moment = rng.choice(PIPELINES), rng.choice(STAGES)
    done = numbered(folder, name, "commits") + rng.randint(1, BATCHES_A_LIFE - 2)
    wait_for(
        lambda: driver.alive() and numbered(folder, name, "commits") >= done,
        f"the driver has done batch {done}",
        timeout_s=START_S,
    )
    deadline = time.monotonic() + START_S
    wanted = "written" if moment == "written" else "planned"
    while stage(folder, name) != wanted:
        assert driver.alive() and time.monotonic() < deadline, f"{name} is not {wanted}"
        time.sleep(POLL_S)
    if moment == "in the task":
        # Not synchronisation: any moment will do, and each is another one.
        time.sleep(rng.random() / 4)


def keep_busy(acked: AckedLog, folder: Path) -> None:
    """Have enough in the log for a life to be in the midst of it, and no more: the last reads all.

    Enough for the pipeline that is ahead: the other one has what lies between besides.
    """
    rows, batches = int(ROWS_A_BATCH), 2 * BATCHES_A_LIFE
    done = max(numbered(folder, name, "commits") for name in PIPELINES) * rows
    if sum(map(len, acked.written.values())) - done < rows * batches:
        for p in acked.placement.active:
            acked.fill(p, [rows // ENTRIES_A_BATCH] * ENTRIES_A_BATCH * (batches // acked.placement.live))


def survive(kills: int, acked: AckedLog, redis_url: str, folder: Path, spark: SparkSession) -> None:
    """Kill a driver so often while the log grows, let the last one finish, and compare.

    In turn a driver is killed alone, with its JVM, or its JVM alone. The JVM of one that was killed alone
    goes on, in the middle of the batch, when the next driver is there: two that write may spoil the tables.
    """
    rng = random.Random(kills)
    found: Counter[str] = Counter()
    orphan: psutil.Process | None = None
    with tempfile.TemporaryDirectory(prefix="sw") as scratch:
        for life in range(kills):
            keep_busy(acked, folder)
            driver = Driver(folder, redis_url, scratch)
            try:
                outlive(orphan, driver)
                orphan = None
                live_a_little(driver, folder, rng)
                if life % 3 == 0:
                    orphan = driver.kill_alone()
                elif life % 3 == 1:
                    lose_its_jvm(driver, folder)
            finally:
                if orphan is None:
                    driver.kill()
            stages = {name: stage(folder, name) for name in PIPELINES}
            found.update(stages.values())
            found["mid-batch"] += set(stages.values()) != {"committed"}
            print(f"life {life}: {stages}", flush=True)
        acked.fill(0, [7])
        finish(orphan, acked, Driver(folder, redis_url, scratch), folder)
        assert_swept(Path(scratch))
    assert found["mid-batch"] > kills // 2
    assert_tables_equal_the_log(acked, folder, spark)
    record(
        "F35",
        "driver and JVM killed with SIGKILL, or the driver alone while its JVM goes on"
        + (", in small" if kills < 10 else ""),
        times=kills,
        target="each table equals the log" + ("" if kills < 100 else " after 100 kills"),
        verdict="met",
        said=f"of {len(PIPELINES)} queries in it: {found['planned']} times planned or in the task, "
        f"{found['written']} times written and not committed, {found['committed']} times between batches",
        seed=kills,
    )


def lose_its_jvm(driver: Driver, folder: Path) -> None:
    """Kill the JVM alone: the driver does not hang, says so, and names the log of the JVM."""
    driver.kill_jvm()
    assert driver.wait() != 0
    said = (folder / "driver.log").read_text().rpartition("Spark's JVM has ended unexpectedly")[2]
    assert Path(said.partition("its output is in ")[2].split()[0].rstrip(".")).exists()


def read_all(driver: Driver, acked: AckedLog, folder: Path) -> None:
    """Wait until all pipelines have all there is, for as long as they get on."""
    expected = sum(len(rows) for rows in acked.written.values())
    batches, deadline = 0, time.monotonic() + START_S
    each = folder / "each"
    while (
        total(folder) != expected
        or sum(pq.read_metadata(file).num_rows for file in each.rglob("*.parquet")) != expected
        or DeltaTable(folder / "delta").count() != expected
        or ("stored" in PIPELINES and len(of_psql()) != expected)
        or {stage(folder, name) for name in PIPELINES} != {"committed"}
    ):
        done = sum(numbered(folder, name, "commits") for name in PIPELINES)
        if done > batches:
            batches, deadline = done, time.monotonic() + START_S
        assert driver.alive() and time.monotonic() < deadline, (
            f"no batch after {batches}: {total(folder)} rows"
        )
        time.sleep(20 * POLL_S)


def finish(orphan: psutil.Process | None, acked: AckedLog, driver: Driver, folder: Path) -> None:
    """Let a driver come to the end of the log, and end it in order."""
    try:
        outlive(orphan, driver)
        read_all(driver, acked, folder)
    finally:
        driver.terminate()
        code = driver.wait()
    assert code == 0


def assert_swept(scratch: Path) -> None:
    left = {str(each.relative_to(scratch)) for each in scratch.rglob("*") if each.is_file()}
    ours = {name for name in left if name.startswith(PREFIX)}
    assert {name.partition("/")[2] for name in ours} <= {LOCK_NAME, LOG_NAME}, ours


def outlive(orphan: psutil.Process | None, driver: Driver) -> None:
    """Let the JVM of a killed driver go on once the next driver has found it."""
    if orphan is None:
        return
    try:
        wait_for(driver.waits, "the next driver waits", timeout_s=START_S)
        assert driver.jvm() is None
    finally:
        orphan.resume()


def total(folder: Path) -> int:
    """Return how many rows the pipelines of Spark's own formats have seen, by what they left on disk."""
    if stage(folder, "totals") != "committed" or not (folder / "totals").exists():
        return -1
    version = (folder / "totals").resolve()
    files = list(version.glob("*.parquet"))
    return sum(sum(pq.read_table(file)["orders"].to_pylist()) for file in files)


def rows_of_each(folder: Path) -> list[tuple[int, int, int]]:
    """Read the batches as programs do that know nothing of Spark: all files that are there."""
    tables = [pq.read_table(file, partitioning=None) for file in (folder / "each").rglob("*.parquet")]
    return [(row["_partition"], row["_offset"], row["n"]) for table in tables for row in table.to_pylist()]


def of_psql() -> list[tuple[int, ...]]:
    """Read the table of PostgreSQL as its users do."""
    ask = ["-Atqc", "SELECT _partition, _offset, n FROM stored", "-F", ","]
    command = [str(Path(str(INITDB)).with_name("psql")), os.environ[WAREHOUSE], *ask]
    lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    return sorted(tuple(map(int, line.split(","))) for line in lines)


def rows_of_delta(folder: Path, spark: SparkSession) -> dict[str, list[tuple[int, ...]]]:
    """Read the Delta table with each reader that docs/spark-reference.md names."""
    table = DeltaTable(folder / "delta")
    names = ["_partition", "_offset", "n"]
    found = {
        "pandas": table.to_pandas()[names].itertuples(index=False, name=None),
        "polars": pl.read_delta(str(folder / "delta")).select(names).iter_rows(),
        "duckdb": duckdb.from_arrow(table.to_pyarrow_table()).project(", ".join(names)).fetchall(),
        "spark": spark.read.parquet(*table.file_uris()).select(names).collect(),
    }
    return {name: sorted(tuple(map(int, row)) for row in rows) for name, rows in found.items()}


def assert_tables_equal_the_log(acked: AckedLog, folder: Path, spark: SparkSession) -> None:
    """Compare the tables with what was committed, row by row."""
    assert sorted(rows_of_each(folder)) == acked.placed()
    assert all(file.stat().st_size for file in (folder / "each").rglob("*"))
    for name, found in rows_of_delta(folder, spark).items():
        assert found == acked.placed(), name
    if "stored" in PIPELINES:
        assert of_psql() == acked.placed()
    rows = spark.read.parquet(str(folder / "legs")).collect()
    placed = sorted((row._partition, row._offset, row.n) for row in rows)
    assert placed == acked.placed()
    assert not violations_of_i9(acked, folder, placed)
    for wrong in (placed[1:], [placed[0], *placed]):
        assert violations_of_i9(acked, folder, wrong), "the judge finds a row too few, and one too many"
    counts: dict[str, int] = {}
    for row in (row for written in acked.written.values() for row in written):
        counts[row["user"]] = counts.get(row["user"], 0) + 1
    table = spark.read.parquet(str((folder / "totals").resolve()))
    assert {row.user: row.orders for row in table.collect()} == counts


def violations_of_i9(
    acked: AckedLog, folder: Path, placed: Sequence[tuple[int, int, int]]
) -> list[Violation]:
    """Have the soak's checker judge a table: it decodes the logs by itself, up to Spark's last commit."""
    checkpoint = folder / ".streamworker" / "legs" / "legs" / "checkpoint"
    offsets = (checkpoint / "offsets" / str(numbered(folder, "legs", "commits"))).read_text().splitlines()
    committed = {int(p): rows for p, rows in json.loads(offsets[-1])["p"].items()}
    assert committed == {p: len(rows) for p, rows in acked.written.items()}, "it has read all there is"
    found = take_dump(
        acked.redis, app=acked.app, stream="orders", group="price", partitions=acked.partitions,
        row_of=lambda row: ["", "", row["n"], "0-0"],
    )  # fmt: skip
    found["table"] = {
        p: {"committed": rows, "rows": [(offset, "", "", n) for q, offset, n in placed if q == p]}
        for p, rows in committed.items()
    }
    judge = Judge([], dump_of(found))
    judge.table_equals_log()
    return judge.violations


@pytest.mark.usefixtures("warehouse")
@pytest.mark.soak("each kill is another start of Spark")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kills", [repeats(100, 9)])
def test_a_driver_killed_in_mid_batch_leaves_no_trace(
    spark: SparkSession, acked: AckedLog, redis_url: str, tmp_path: Path, kills: int
) -> None:
    """Alone, with its JVM, or the JVM alone: appended rows are there once, the replaced result is whole."""
    survive(kills, acked, redis_url, tmp_path, spark)
