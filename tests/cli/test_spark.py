"""`streamworker spark` and `run --spark`: the command around the pipelines, with real Spark."""

import fcntl
import os
import re
import signal
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import redis

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.workers.spark import _told_why
from streamworker.importing import resolve_app
from streamworker.spark.driver.progress import PipelineProgress
from tests.cli.conftest import SHOP, Invoke, work_off
from tests.cli.test_send import orders
from tests.conftest import SpawnWorker
from tests.helpers import logging_set_back, wait_for

pytestmark = pytest.mark.spark("runs pipelines")

PIPELINE = """

@app.pipeline(pricing, path="lake/orders", trigger="1 second")
def table(frame):
    return frame
"""


@pytest.mark.full("Spark and workers take 20 s of CPU")
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_run_with_spark_writes_the_table_and_ends_both(
    streamworker: Invoke, spawn: SpawnWorker, shop: Path
) -> None:
    """One command: the worker commits, Spark writes; SIGTERM ends both with 0; `--once` adds nothing.

    It says so, and where a partition stands it names it, and ends with 1.
    """
    (shop / "shop.py").write_text(SHOP + PIPELINE, "utf-8")
    streamworker.does("send", "shop:orders", "-", input="\n".join(orders(40)))
    both = spawn("run", "shop:app", "--spark", "--processor", "price")

    table = shop / "lake" / "orders"
    wait_for(lambda: list(table.glob("_spark_metadata/0")), "Spark has committed a batch", 200)

    def readers() -> dict[str, int]:
        found: dict[str, int] = streamworker.tells("lag", "shop:price")[0]["readers"]
        return found

    wait_for(readers, "the reader is known")
    both.terminate()
    assert both.wait(60) == ExitCode.OK, both.log()
    once = spawn("spark", "shop:app", "--pipeline", "table", "--once")
    assert once.wait(200) == ExitCode.OK, once.log()
    assert pq.read_table(table).num_rows == 40
    assert "There were no new rows: the pipelines have read all that was committed." in once.log()

    policies = "{ValueError: Halt(), OSError: Retry(backoff=60)}"
    stands = SHOP.replace("errors=DeadLetter()", f"errors={policies}").replace("DeadLetter", "Halt, Retry")
    stands = stands.replace("raise ValueError", "raise (OSError if order.order_id == 42 else ValueError)")
    (shop / "shop.py").write_text(stands + PIPELINE, "utf-8")
    bad = '{"order_id": 41, "customer": "bad", "amount": -1.0}'
    away = '{"order_id": 42, "customer": "away", "amount": -1.0}'
    streamworker.does("send", "shop:orders", "-", input=f"{bad}\n{away}")
    worker = spawn("run", "shop:app", "--processor", "price")

    def both_stand() -> bool:
        status = streamworker("status", "shop:price").stdout
        return "halted" in status and "retrying" in status

    wait_for(both_stand, "a partition has halted, and another one is retrying")
    standing = spawn("spark", "shop:app", "--once")
    assert standing.wait(200) == ExitCode.FAILED, standing.log()
    for number, state in ((41, "halted"), (42, "retrying")):
        says = rf"Partition \d of price stands still, {state}: .*order {number}: amount is negative"
        assert re.search(says, standing.log()), standing.log()
    worker.terminate()


SLOWLY = """
    import time
    from pathlib import Path
    from pyspark.sql import functions

    @functions.udf("long")
    def slowly(number):
        Path("begun").touch()
        time.sleep(0.2)
        return number

    return frame.withColumn("slow", slowly("order_id"))
"""


@pytest.mark.full("starts Spark")
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_signal_to_the_whole_group_of_processes_lets_spark_finish_its_batch(
    streamworker: Invoke, spawn: SpawnWorker, shop: Path
) -> None:
    """`timeout` and supervisors signal Spark's JVM, too, which ends after the driver has left it."""
    (shop / "shop.py").write_text(SHOP + PIPELINE.replace("    return frame\n", SLOWLY), "utf-8")
    streamworker.does("send", "shop:orders", "-", input="\n".join(orders(40)))
    worker = spawn("run", "shop:app", "--processor", "price")
    driver = spawn("spark", "shop:app")
    wait_for((shop / "begun").exists, "a batch runs", 200)
    family = psutil.Process(driver.pid).children(recursive=True)
    os.killpg(driver.pid, signal.SIGTERM)
    assert driver.wait(120) == ExitCode.OK, driver.log()
    assert "Traceback" not in driver.log()
    assert pq.read_table(shop / "lake" / "orders").num_rows == 40
    wait_for(lambda: not any(each.is_running() for each in family), "all of Spark has ended", 60)
    worker.terminate()


TWO = (
    PIPELINE
    + """

@app.pipeline(pricing, audit, path="lake/both")
def both(priced, audited):
    return priced.join(audited, "order_id")
"""
)


@pytest.mark.parametrize("named", [("--pipeline", "table"), ("--pipeline", "both", "--pipeline", "table")])
def test_a_run_over_what_is_there_that_is_stopped_says_what_waits(
    streamworker: Invoke, spawn: SpawnWorker, shop: Path, redis_url: str, named: tuple[str, ...]
) -> None:
    """No success: a job with a deadline has not read what it was to read. Here it waits for a driver."""
    (shop / "shop.py").write_text(SHOP + TWO, "utf-8")
    streamworker.does("send", "shop:orders", "-", input="\n".join(orders(40)))
    work_off(redis_url)
    lock = shop / "lake" / ".streamworker" / "orders" / "table" / "checkpoint.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        once = spawn("spark", "shop:app", "--once", *named)
        wait_for(lambda: "waits for the previous driver" in once.log(), "it waits", 60)
        once.terminate()
        assert once.wait(60) == ExitCode.FAILED, once.log()
    assert "There were no new rows" not in once.log()
    assert "Pipeline table was stopped before it had read all: up to 40 rows wait." in once.log()
    # Each row of both processors waits for it.
    assert ("Pipeline both was stopped before it had read all: up to 80 rows" in once.log()) == (
        len(named) > 2
    )


def test_once_without_rows_tells_which_records_have_none_yet(
    shop: Path, streamworker: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that was committed is nothing, where no worker has ever run."""
    (shop / "shop.py").write_text(SHOP + PIPELINE, "utf-8")
    streamworker.does("send", "shop:orders", "-", input="\n".join(orders(40)))
    app, done = resolve_app("shop:app"), {"table": PipelineProgress("table", "done")}
    with logging_set_back():
        assert _told_why(app, None, done, has_read=False) == ExitCode.OK
    told = capsys.readouterr().out
    assert told.endswith("\n40 records wait for price, without rows yet: see `streamworker status`.\n")


def test_a_reader_that_will_not_come_back_can_be_forgotten(
    streamworker: Invoke, shop: Path, redis_url: str
) -> None:
    """Then the acked logs do not wait for it; a wrong name lists the readers there are, and removes none."""
    with redis.Redis.from_url(redis_url) as client:
        for name in ("revenue", "orders"):
            client.hset("sw:{shop.orders:price}:readers", name, '{"p":{"0":5},"log":{"0":"x"},"at":1}')
        wrong = streamworker("spark", "shop:app", "--forget", "revenue", "--forget", "revenues")
        assert wrong.exit_code == ExitCode.FAILED
        assert "Its readers: orders, revenue." in wrong.stderr
        assert client.hlen("sw:{shop.orders:price}:readers") == 2
        streamworker.does("spark", "shop:app", "--forget", "revenue", "--forget", "orders")
        assert client.hlen("sw:{shop.orders:price}:readers") == 0


def test_master_and_remote_contradict_each_other(invoke: Invoke) -> None:
    """Before Spark starts."""
    result = invoke("spark", "shop:app", "--master", "local", "--remote", "sc://host")
    assert result.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--conf", "executor.memory=2g"), "is no setting of Spark"),
        (("--conf", "spark.executor.memory"), "is no setting of Spark"),
        (("--packages", "a:b:1", "--remote", "sc://host"), "A Connect server has its own jars"),
    ],
)
def test_a_wrong_setting_of_spark_is_refused_before_it_starts(
    invoke: Invoke, given: tuple[str, ...], said: str
) -> None:
    """With what to write instead."""
    result = invoke("spark", "shop:app", *given)
    assert result.exit_code == ExitCode.USAGE
    assert said in " ".join(result.stderr.replace("│", " ").split())
