"""Drivers, executors, Python processes and Redis are killed in turn: each table equals the log."""

import contextlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.chaos.figures import record, repeats
from tests.helpers import wait_for
from tests.spark.acked import AckedLog
from tests.spark.conftest import Connect
from tests.spark.processes import START_S, Driver
from tests.spark.test_driver_killed import PIPELINES, assert_tables_equal_the_log, numbered, read_all
from tests.spark.test_python_killed import kill_one
from tests.stage.disturbed import ChaosServer

ROWS_AN_ENTRY = 1_000
MASTER = "local-cluster[1,2,1024]"
"""Its executor is a process of its own, and a task that was lost is tried again."""
KILLS = repeats(100, 12)
KINDS = ("driver", "executor", "python", "redis")


class Cluster:
    """A driver with its executor, in a life or the next."""

    def __init__(self, folder: Path, url: str, scratch: str) -> None:
        self._given = (folder, url, scratch, MASTER)
        self.driver = Driver(*self._given)

    def kill(self, kind: str, rng: random.Random) -> bool:
        """Kill one process of a kind; return whether there was one."""
        jvm = self.driver.jvm()
        if kind == "driver":
            self.driver.kill()
            self.driver = Driver(*self._given)
        elif kind == "python":
            return jvm is not None and kill_one(jvm, rng)
        else:
            for executor in executors_of(jvm) if jvm else ():
                executor.kill()
                return True
            return False
        return True


def executors_of(jvm: psutil.Process) -> Iterator[psutil.Process]:
    """Yield the JVMs of the executors of a driver."""
    for process in jvm.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                yield process


def batches(folder: Path) -> int:
    return sum(numbered(folder, name, "commits") for name in PIPELINES)


@pytest.mark.usefixtures("warehouse")
@pytest.mark.parametrize(
    ("kills", "rows"),
    [pytest.param(KILLS, 20_000 * KILLS, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])],
)
def test_whatever_is_killed_in_turn_each_table_equals_the_log(
    spark: SparkSession,
    connect: Connect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kills: int,
    rows: int,
) -> None:
    """At any moment; Redis starts again with what its append-only file holds."""
    monkeypatch.setenv("ROWS_A_BATCH", str(rows // (2 * kills)))
    rng, found = random.Random(kills), Counter[str]()
    with ChaosServer(tmp_path / "redis") as server, tempfile.TemporaryDirectory(prefix="sw") as scratch:
        connect("default", server.url)
        with AckedLog(server.url, partitions=2) as acked:
            for p in range(acked.partitions):
                acked.fill(p, [ROWS_AN_ENTRY] * (rows // acked.partitions // ROWS_AN_ENTRY))
            cluster = Cluster(tmp_path, server.url, scratch)
            try:
                for life in range(kills):
                    kind = KINDS[life % len(KINDS)]
                    done = batches(tmp_path)
                    wait_for(
                        lambda done=done: cluster.driver.alive() and batches(tmp_path) > done,  # type: ignore[misc]
                        f"a batch is done before kill {life}",
                        timeout_s=START_S,
                    )
                    # Not synchronisation: any moment will do, and each is another one.
                    time.sleep(rng.random())
                    if kind == "redis":
                        server.kill()
                        server.start()
                    else:
                        wait_for(
                            lambda kind=kind: cluster.kill(kind, rng),  # type: ignore[misc]
                            f"there is a process to kill: {kind}",
                            timeout_s=START_S,
                        )
                    found[kind] += 1
                    print(f"kill {life}: {kind}, {done} batches", flush=True)
                acked.reconnect()
                read_all(cluster.driver, acked, tmp_path)
                cluster.driver.terminate()
                assert cluster.driver.wait() == 0
            finally:
                cluster.driver.kill()
            assert_tables_equal_the_log(acked, tmp_path, spark)
    record(
        "F35",
        "drivers, executors, Python processes and Redis killed in turn",
        times=kills,
        target=f"each table equals the log of {rows} rows",
        verdict="met",
        said=", ".join(f"{kind} {times}" for kind, times in found.items()),
        seed=kills,
    )
