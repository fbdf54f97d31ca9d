"""A Spark Connect server that dies under pipelines, again and again: it is told, and no row is lost (S5)."""

import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamworker.dev.server import free_port
from tests.chaos.figures import repeats
from tests.helpers import wait_for
from tests.spark.acked import AckedLog
from tests.spark.processes import ROOT, START_S, ConnectServer, Driver
from tests.spark.test_driver_killed import (
    PIPELINES,
    assert_tables_equal_the_log,
    keep_busy,
    numbered,
    read_all,
)

pytestmark = pytest.mark.full("a query of Spark takes seconds")

KILLS = repeats(20, 4)
TOLD_WITHIN_S = 10.0
LOST = "The Spark server does not answer, or was restarted"


def lost(folder: Path) -> int:
    return (folder / "driver.log").read_text().count(LOST)


def gone_on(driver: Driver, folder: Path, before: dict[str, int]) -> bool:
    return driver.alive() and all(numbered(folder, name, "commits") > before[name] for name in PIPELINES)


def live_and_die(server: ConnectServer, driver: Driver, folder: Path, rng: random.Random) -> float:
    """Kill the server in the midst of batches; returns after how many seconds the driver told of it."""
    before = {name: numbered(folder, name, "commits") for name in PIPELINES}
    wait_for(partial(gone_on, driver, folder, before), "both tables grow", timeout_s=START_S)
    time.sleep(rng.random())  # Not synchronisation: any moment will do, and each is another one.
    told = lost(folder)
    killed_at = time.monotonic()
    server.kill()
    wait_for(lambda: lost(folder) > told, "the driver tells of it", timeout_s=TOLD_WITHIN_S)
    return time.monotonic() - killed_at


# Even a single kill takes 80 s of CPU: a server and its pipelines start twice.
@pytest.mark.soak
@pytest.mark.usefixtures("warehouse")
@pytest.mark.timeout(3600)
def test_a_connect_server_killed_under_pipelines_costs_no_row(
    spark: SparkSession,
    acked: AckedLog,
    redis_url: str,
    connect_server: ConnectServer,
    tmp_path: Path,
) -> None:
    """One of them fails by itself, for good in the end, and stops none of the others."""
    rng = random.Random(KILLS)
    delays = []
    driver = Driver(tmp_path, redis_url, connect_server.scratch, connect_server.url)
    try:
        for _ in range(KILLS):
            keep_busy(acked, tmp_path)
            delays.append(live_and_die(connect_server, driver, tmp_path, rng))
            print(f"told after {delays[-1]:.1f} s", flush=True)
            connect_server.start()
        acked.fill(0, [7])
        read_all(driver, acked, tmp_path)
        wait_for(
            lambda: "pipeline broken failed: " in (tmp_path / "driver.log").read_text(),
            "the broken one is given up",
            timeout_s=START_S,
        )
        connect_server.kill()
        stopped_at = time.monotonic()
        driver.terminate()
        assert driver.wait() == 1, "a stop without a server is a stop"
        assert time.monotonic() - stopped_at < 2 * TOLD_WITHIN_S
        assert "Traceback" not in (tmp_path / "driver.log").read_text()
    finally:
        driver.kill()
    assert_tables_equal_the_log(acked, tmp_path, spark)
    print(f"{KILLS} kills, told after {max(delays):.1f} s at most; {len(acked.numbers())} rows", flush=True)


NOBODY = """
import sys, time
import pyspark.sql.connect.session  # It takes seconds to load, which nobody waits for the server.
from streamworker.errors import BackendUnavailable
from streamworker.spark.driver.session import open_session

begun_at = time.monotonic()
try:
    open_session("x", remote=sys.argv[1])
except BackendUnavailable as error:
    print(time.monotonic() - begun_at, error)
"""


@pytest.mark.slow
def test_a_connect_server_that_is_not_there_is_told_within_seconds() -> None:
    """Spark's own client would try for ten minutes."""
    url = f"sc://127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", NOBODY, url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, _, message = done.stdout.partition(" ")
    assert message.startswith(f"The Spark server {url} did not answer"), done
    assert float(seconds) < 2 * TOLD_WITHIN_S
