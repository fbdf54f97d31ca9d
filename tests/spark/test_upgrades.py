"""Workers upgraded forth and back at random moments, and the driver killed: no row loses a column (S1)."""

import random
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.spark.driver.session import Session
from tests.helpers import wait_for
from tests.spark.acked import AckedLog, orders
from tests.spark.processes import START_S, Driver, few_and_many
from tests.spark.running import Running
from tests.spark.test_driver_killed import numbered
from tests.spark.upgraded import NAME, pipeline_in

pytestmark = pytest.mark.full("a query of Spark takes seconds")

ROWS_AN_ENTRY = 8
PAUSE_S = 0.03
"""Between two commits of the worker: some 250 rows a second."""
VERSION_S = 3.0
"""How long a version of the worker runs at most."""
RESTARTS, LACKS = "starts again from its checkpoint", "the schema of the query lacks it"


class Fleet:
    """What workers forward: the older or the newer of the two latest versions of the record.

    Each upgrade brings a version with one optional field more, in turn a column and a field of the nested
    record; every second switch goes back to the version before. Fields have the number of their version.
    """

    def __init__(self, acked: AckedLog, rng: random.Random) -> None:
        self._acked, self._rng = acked, rng
        self.newest = self.version = 1
        self.switches = self.rows = 0

    def switch(self) -> None:
        """Upgrade the workers, or roll them back."""
        self.switches += 1
        if self.switches % 2:
            self.newest += 1
            self.version = self.newest
        else:
            self.version -= 1

    def forward(self, seconds: float) -> None:
        """Commit rows of the version of now for so long, and some in any case."""
        until = time.monotonic() + seconds
        while True:
            batch = self.batch(self.rows, self.version)
            self.rows += batch.num_rows
            self._acked.append(self._rng.randrange(self._acked.partitions), batch)
            if time.monotonic() > until:
                return
            time.sleep(PAUSE_S)

    def batch(self, first: int, version: int) -> pa.RecordBatch:
        """Return rows of a version of the record."""
        batch = orders(first, ROWS_AN_ENTRY)
        versions = range(2, version + 1)
        for each in versions[::2]:
            values = [None if n % 5 == 0 else n + each / 256 for n in batch["n"].to_pylist()]
            batch = batch.append_column(f"extra{each}", pa.array(values, pa.float64()))
        if fields := [f"zone{each}" for each in versions[1::2]]:
            places = [{name: f"{name} of {n}" for name in fields} for n in batch["n"].to_pylist()]
            kind = pa.struct([(name, pa.string()) for name in fields])
            batch = batch.append_column("place", pa.array(places, kind))
        return batch


def live(driver: Driver, fleet: Fleet, folder: Path, rng: random.Random, switches: int) -> None:
    """Let a driver do a batch, then switch so often at random moments; one switch may come before that.

    Half of the versions stay until the driver has done a batch, so that on a slow machine, too, some are met.
    """

    def do_a_batch() -> None:
        done = numbered(folder, NAME, "commits")

        def has_done() -> bool:
            fleet.forward(0.2)
            return driver.alive() and numbered(folder, NAME, "commits") > done

        wait_for(has_done, "the driver has done a batch", timeout_s=START_S)

    def has_restarted() -> bool:
        fleet.forward(0.2)
        return driver.alive() and RESTARTS in (folder / "driver.log").read_text()

    early = rng.randint(0, 1) if fleet.switches else 0
    for _ in range(early):
        fleet.forward(rng.uniform(0, VERSION_S))
        fleet.switch()
    do_a_batch()
    for _ in range(switches - early):
        fleet.forward(rng.uniform(0, VERSION_S))
        fleet.switch()
        fleet.forward(0)
        if fleet.switches == 1:
            wait_for(has_restarted, "the query has met the first newer schema", timeout_s=START_S)
        elif rng.random() < 1 / 2:
            do_a_batch()
        assert driver.alive()


def filled(value: Any, kind: pa.DataType) -> Any:
    """Return a value as a table of this type has it: a field that it was forwarded without is null."""
    if value is None or not pa.types.is_struct(kind):
        return value
    return {field.name: filled(value.get(field.name), field.type) for field in kind}


def expected_rows(acked: AckedLog, schema: pa.Schema) -> dict[tuple[int, int], dict[str, Any]]:
    """Return what was forwarded, by partition and offset, with all columns that any worker had."""
    whole = pa.struct(list(schema))
    return {
        (p, offset): filled(row, whole)
        for p, rows in acked.written.items()
        for offset, row in enumerate(rows, 1)
    }


def rows_in_table(session: Session, folder: Path) -> list[tuple[tuple[int, int], dict[str, Any]]]:
    frame = session.spark.read.option("mergeSchema", "true").parquet(str(folder / NAME))
    metadata = {name for name in frame.columns if name.startswith("_")}
    found = []
    for row in frame.collect():
        values = row.asDict(recursive=True)
        place = values["_partition"], values["_offset"]
        found.append((place, {name: value for name, value in values.items() if name not in metadata}))
    return found


def wrong_rows(
    session: Session, acked: AckedLog, fleet: Fleet, folder: Path
) -> dict[tuple[int, int], tuple[dict[str, Any], dict[str, Any]]]:
    """Return the rows of the table, by place, that are not what was forwarded, and what that was."""
    expected = expected_rows(acked, fleet.batch(0, fleet.newest).schema)
    found = rows_in_table(session, folder)
    assert Counter(place for place, _ in found) == Counter(expected.keys()), "every row, and once"
    return {place: (row, expected[place]) for place, row in found if row != expected[place]}


@few_and_many("switches, kills", few=[3, 0], few_s=600, many=[100, 10], many_s=3600)
def test_every_row_has_every_column_that_its_worker_forwarded(
    spark_session: Session, acked: AckedLog, redis_url: str, tmp_path: Path, switches: int, kills: int
) -> None:
    """Rows flow all the while; each switch to a newer version meets a query that was planned without it."""
    rng = random.Random(switches)
    fleet = Fleet(acked, rng)
    fleet.forward(0)
    lives = kills + 1
    with tempfile.TemporaryDirectory(prefix="sw") as scratch:
        for life in range(lives):
            driver = Driver(tmp_path, redis_url, scratch, module="tests.spark.upgraded")
            try:
                share = switches * (life + 1) // lives - switches * life // lives
                live(driver, fleet, tmp_path, rng, share)
            finally:
                driver.kill()
            print(f"life {life}: {fleet.switches} switches, {fleet.rows} rows", flush=True)
    told: list[str] = []
    spec = pipeline_in(tmp_path)
    code = run_pipelines([spec], once=True, session=spark_session, on_progress=lambda p: told.append(p.state))
    assert code == 0

    wrong = wrong_rows(spark_session, acked, fleet, tmp_path)
    log = (tmp_path / "driver.log").read_text()
    changed = sum(RESTARTS in line and LACKS in line for line in log.splitlines())
    restarts = log.count(RESTARTS) + told.count("restarting")
    print(
        f"{fleet.rows} rows, {fleet.switches} switches, {fleet.newest} versions, {lives} kills, "
        f"{restarts} restarts of the query, of which {changed} for a newer schema; {len(wrong)} rows wrong"
    )
    assert not wrong, next(iter(wrong.items()))
    assert fleet.switches == switches
    assert changed > 0, "a query met a schema that it was not planned with"


@pytest.mark.slow
def test_the_comparison_finds_each_row_that_lost_a_column(
    spark_session: Session, acked: AckedLog, tmp_path: Path
) -> None:
    """With ``otherColumns=drop`` a query does what each one did before a new column ended it."""
    fleet = Fleet(acked, random.Random(0))
    fleet.forward(0)
    spec = pipeline_in(tmp_path)
    running = Running(spark_session, replace(spec, options={**spec.options, "otherColumns": "drop"}))
    try:
        running.wait_for_rows(fleet.rows)
        fleet.switch()
        fleet.forward(1)
        running.wait_for_rows(fleet.rows)
    finally:
        assert running.end() == 0
    expected = expected_rows(acked, fleet.batch(0, fleet.newest).schema)
    lost = {place for place, row in expected.items() if row["extra2"] is not None}
    fleet.forward(0)
    assert run_pipelines([spec], once=True, session=spark_session) == 0
    print(f"{len(lost)} of {fleet.rows} rows lost a column")
    assert wrong_rows(spark_session, acked, fleet, tmp_path).keys() == lost
