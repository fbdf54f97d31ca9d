"""Tables in an object store equal the log, however often and wherever Spark's driver is killed."""

import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.chaos.figures import repeats
from tests.helpers import wait_for
from tests.spark.acked import AckedLog
from tests.spark.clouds import OF, copied, read_by_each
from tests.spark.driver import DIES, LAKE, ONLY, ROWS_A_BATCH
from tests.spark.processes import START_S, Driver
from tests.spark.test_driver_killed import numbered
from tests.spark.test_killed_in_an_archive import read_up_to
from tests.stage.moto import moto_server, variables

NAMED = [
    (kind, f"{step}:{when}:{n}")
    for kind, steps in OF.items()
    for n, step, when in itertools.product((1, 2), steps, ("before", "after"))
    if n == 1 or step not in {"claimed", "created"}
]
"""A table is claimed or created once, so these come first."""
BATCHES = 4
"""Of a life, at least."""


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with moto_server() as server:
        for name, value in {**variables(server), LAKE: "s3://lake/killed"}.items():
            monkeypatch.setenv(name, value)
        yield "s3://lake/killed"


@pytest.mark.soak("each kill is another start of Spark")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("lives", [repeats(len(NAMED) + 9, 6)])
def test_a_driver_killed_at_any_step_adds_each_batch_to_a_store_once(
    spark: SparkSession,
    acked: AckedLog,
    redis_url: str,
    lake: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lives: int,
) -> None:
    """Before and after each step of each sink, and at random; rows come in another order each time."""
    rng, rows = random.Random(lives), int(ROWS_A_BATCH)
    places = sorted(rng.sample(NAMED, min(lives - 3, len(NAMED))), key=NAMED.index)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="sw") as scratch:
        for kind, place in [*places, *zip(itertools.cycle(OF), [""] * (lives - len(places)))]:
            for p in (0, 1):
                acked.fill(p, [rows // 8] * 4 * BATCHES)
            monkeypatch.setenv(ONLY, kind)
            monkeypatch.setenv(DIES, place)
            driver = Driver(tmp_path, redis_url, scratch)
            try:
                if place:
                    wait_for(partial(is_dead, driver), f"{kind} dies at {place}", START_S)
                else:
                    done = numbered(tmp_path, kind, "commits") + rng.randint(1, BATCHES - 2)
                    wait_for(partial(has_done, driver, tmp_path, kind, done), f"{done} is done", START_S)
                    time.sleep(rng.random() / 2)  # Any moment will do, and each is another one.
            finally:
                driver.kill()
            planned, done = (numbered(tmp_path, kind, each) for each in ("offsets", "commits"))
            found["in mid-batch" if planned > done else "between batches"] += 1
            print(kind, place or "at random", planned, done, flush=True)
        monkeypatch.delenv(ONLY)
        monkeypatch.setenv(DIES, "")
        monkeypatch.setenv("ROWS_A_BATCH", str(10 * rows))  # The lives have read a part of the log.
        ends = [len(acked.written[p]) for p in (0, 1)]
        driver = Driver(tmp_path, redis_url, scratch)
        try:
            for kind in OF:
                read = partial(has_read, driver, tmp_path, kind, ends)
                wait_for(read, f"{kind} has read all", START_S)
        finally:
            driver.kill()
    newest = {(p, row["user"]): row["n"] for p, written in acked.written.items() for row in written}
    expected = {kind: acked.placed() for kind in ("batches", "delta")}
    expected["merged"] = sorted((p, user, n) for (p, user), n in newest.items())
    for kind, wanted in expected.items():
        names = ["_partition", "user" if kind == "merged" else "_offset", "n"]
        readers = read_by_each(f"{lake}/{kind}", kind, names)
        copy = spark.read.parquet(*copied(f"{lake}/{kind}", kind, tmp_path / f"copy-{kind}"))
        readers["spark"] = sorted(map(tuple, copy.select(names).collect()))
        for reader, read_rows in readers.items():
            assert read_rows == wanted, (kind, reader)
        print(f"{kind}: {len(wanted)} rows, each once, by {', '.join(readers)}")
    print(f"{lives} kills, {dict(found)}")
    assert found["in mid-batch"] >= sum("mark read" not in place for _, place in places)


def is_dead(driver: Driver) -> bool:
    return not driver.running


def has_done(driver: Driver, folder: Path, kind: str, batch: int) -> bool:
    return driver.alive() and numbered(folder, kind, "commits") >= batch


def has_read(driver: Driver, folder: Path, kind: str, ends: list[int]) -> bool:
    return has_done(driver, folder, kind, 0) and read_up_to(folder, kind) == ends
