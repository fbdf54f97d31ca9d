"""One application file, unchanged, on every kind of Spark that docs/spark.md names.

Spark Connect has tests of its own.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from streamworker.spark.driver.java import find_java
from tests.conftest import SpawnWorker
from tests.helpers import WorkerProcess, wait_for
from tests.spark.acked import AckedLog

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SPARK_HOME = Path(pyspark.__file__).parent
START_S = 120.0
"""A run takes some ten seconds, and a multiple of that on a busy machine."""
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}
PYTHON = {"PYSPARK_PYTHON": sys.executable}

APP = """
import json
from dataclasses import dataclass
from pathlib import Path

from streamworker import App

app = App("shop")
SETTINGS = "spark.master", "spark.sql.shuffle.partitions", "spark.executor.memory"


@dataclass
class Order:
    n: int
    user: str
    amount: float


orders = app.stream("orders", Order, key="user", partitions=2)


@app.processor(orders, forward=True)
def price(order: Order) -> Order:
    return order


@app.pipeline(price, path="table")
def table(frame):
    conf = frame.sparkSession.conf
    Path("seen.json").write_text(json.dumps({key: conf.get(key, None) for key in SETTINGS}))
    return frame
"""
JOB = """
import sys

from pyspark.sql import SparkSession

from app import app
from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.spark.driver.session import Session

spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("streamworker")
rows = rows.option("app", "shop").option("stream", "orders").option("processor", "price").load()
print("rows by the source alone:", rows.count())
sys.exit(run_pipelines(app, once=True, session=Session(spark, log_path=None)))
"""
"""What a user of spark-submit writes, as docs/spark.md shows it."""


@pytest.fixture
def app_file(acked: AckedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The application's file beside the table that it will write, and 600 rows in the log."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "STREAMWORKER_CONNECTIONS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "app.py").write_text(APP, "utf-8")
    for p in range(acked.partitions):
        acked.fill(p, [100, 150, 50])
    return tmp_path


class Standalone:
    """A Master and a Worker of Spark on free ports of the loopback interface, with little memory."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self._folder = folder
        self._held = ExitStack()
        self.url = self._start("Master", r"Starting Spark master at (spark://\S+)")
        connection = {"STREAMWORKER_CONNECTION_DEFAULT": redis_url}
        more = "--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work"), self.url
        self._start("Worker", r"Successfully registered with master (\S+)", more, connection)

    def _start(
        self, name: str, started: str, more: Sequence[str] = (), environ: dict[str, str] | None = None
    ) -> str:
        """Start a daemon, and wait until it says the words; returns what the group in them matched."""
        log = self._folder / f"{name}.log"
        daemon = {
            "SPARK_HOME": str(SPARK_HOME),
            "JAVA_HOME": str(find_java().home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false -XX:TieredStopAtLevel=1",
        }
        kind = f"org.apache.spark.deploy.{name.lower()}.{name}"
        ports = "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", kind, *ports, *more],
                env={**os.environ, **LOOPBACK, **daemon, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._held.callback(process.wait)
        self._held.callback(process.kill)
        found = wait_for(
            lambda: re.search(started, log.read_text()), f"the {name} says {started}", timeout_s=START_S
        )
        assert found is not None
        return found[1]

    def commands_of_executors(self) -> list[str]:
        """Return how the Worker started each executor."""
        logs = [path.read_text() for path in (self._folder / "work").glob("*/*/stderr")]
        return re.findall(r"Spark Executor Command: .*", "\n".join(logs))

    def close(self) -> None:
        self._held.close()


@pytest.fixture
def standalone(tmp_path: Path, redis_url: str) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path, redis_url)
    yield cluster
    cluster.close()


def assert_done(process: WorkerProcess, folder: Path, acked: AckedLog) -> dict[str, str]:
    """Wait until a run has ended well with the table equal to the log; returns the settings that it saw."""
    assert process.process.wait(START_S) == 0, process.log()[-3000:]
    return settings_of_equal(folder, acked)


def settings_of_equal(folder: Path, acked: AckedLog) -> dict[str, str]:
    """Compare the table with the log, row by row; return the settings of Spark that the pipeline saw."""
    expected = [row for rows in acked.written.values() for row in rows]
    found = pq.read_table(folder / "table").to_pylist()
    assert sorted(found, key=lambda row: int(row["n"])) == sorted(expected, key=lambda row: int(row["n"]))
    seen: dict[str, str] = json.loads((folder / "seen.json").read_text())
    print(f"{len(found)} rows on {seen}")
    return seen


@pytest.mark.parametrize("master", [None, "local-cluster[1,1,1024]"], ids=str)
def test_the_application_runs_on_a_master_of_this_machine(
    acked: AckedLog, app_file: Path, spawn: SpawnWorker, master: str | None
) -> None:
    """Nothing but the URL of Redis is in the environment: the command tells Spark which Python to run."""
    given = () if master is None else ("--master", master)
    seen = assert_done(spawn("spark", "app:app", "--once", *given), app_file, acked)
    assert seen["spark.master"] == (master or "local[*]")
    assert seen["spark.sql.shuffle.partitions"] == "4"


def test_the_application_runs_on_a_standalone_cluster(
    acked: AckedLog, app_file: Path, spawn: SpawnWorker, standalone: Standalone
) -> None:
    """Settings reach Spark and the executors, and small streams get few shuffle partitions.

    Without ``PYSPARK_PYTHON`` the command says in one sentence what Spark's machines will run.
    """
    command = "spark", "app:app", "--once", "--master", standalone.url
    conf = "--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"
    seen = assert_done(spawn(*command, *conf, environ=LOOPBACK | PYTHON), app_file, acked)
    assert seen == {
        "spark.master": standalone.url,
        "spark.sql.shuffle.partitions": "4",
        "spark.executor.memory": "512m",
    }
    assert ["-Xmx512M" in each for each in standalone.commands_of_executors()] == [True]

    without = spawn(*command, environ=LOOPBACK)
    said = "PYSPARK_PYTHON is not set: Spark runs python3 on its machines, which needs streamworker[spark]"
    wait_for(lambda: said in without.log(), "the command says that PYSPARK_PYTHON is missing")
    without.kill()


def test_the_application_runs_by_spark_submit(acked: AckedLog, app_file: Path, redis_url: str) -> None:
    """With the session that spark-submit makes, whose settings stay; the source finds itself there, too."""
    (app_file / "job.py").write_text(JOB, "utf-8")
    submit = SPARK_HOME / "bin" / "spark-submit"
    conf = "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=3"
    environ = {
        "SPARK_HOME": str(SPARK_HOME),
        "JAVA_HOME": str(find_java().home),
        "STREAMWORKER_REDIS_URL": redis_url,
    }
    done = subprocess.run(
        [submit, "--master", "local[2]", *conf, "job.py"],
        cwd=app_file,
        env={**os.environ, **LOOPBACK, **PYTHON, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rows by the source alone: 600" in done.stdout
    seen = settings_of_equal(app_file, acked)
    assert (seen["spark.master"], seen["spark.sql.shuffle.partitions"]) == ("local[2]", "3")
