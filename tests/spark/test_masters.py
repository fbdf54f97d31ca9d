"""One application file, unchanged, on every kind of Spark that docs/spark-clusters.md names."""

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
from streamworker.spark.driver.session import SMALL_MACHINE
from tests.conftest import SpawnWorker
from tests.helpers import WorkerProcess, wait_for
from tests.spark.acked import AckedLog
from tests.spark.processes import START_S, ConnectServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.full("a query of Spark takes seconds")]

SPARK_HOME = Path(pyspark.__file__).parent
FURTHER = pytest.mark.soak
"""For kinds of Spark that try no code of ours but what tests/cli/test_spark.py, the standalone cluster and
the Connect server of test_parquet_readers.py try: what could fail here is another release of Spark."""
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}
PYTHON = {"PYSPARK_PYTHON": sys.executable}

APP = """
import json
from dataclasses import dataclass
from pathlib import Path

from streamworker import App
from tasks import same

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
    if not conf.get("spark.submit.pyFiles", ""):
        frame.sparkSession.addArtifacts("tasks.py", pyfile=True)
    return frame.mapInArrow(same, frame.schema)
"""
TASKS = """
def same(batches):
    yield from batches
"""
"""A module of the user's own, whose function runs in tasks; docs/spark-clusters.md names the ways to them."""
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
"""What a user of spark-submit writes, as docs/spark-clusters.md shows it."""
DECLARED = """
from pyspark import pipelines as dp


@dp.table
def rows():
    frame = spark.readStream.format("streamworker").option("reader", "rows")
    return frame.option("app", "shop").option("stream", "orders").option("processor", "price").load()


@dp.materialized_view
def totals():
    return spark.read.table("rows").groupBy("user").count()
"""
"""A streaming table and a view of it, for spark-pipelines."""


@pytest.fixture
def app_file(acked: AckedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The application's file beside the table that it will write, and 600 rows in the log."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "STREAMWORKER_CONNECTIONS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "app.py").write_text(APP, "utf-8")
    (tmp_path / "tasks.py").write_text(TASKS, "utf-8")
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


@FURTHER
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
    conf = "--conf", "spark.executor.memory=512m", "--conf", "spark.submit.pyFiles=tasks.py"
    seen = assert_done(
        spawn(*command, *conf, "--conf", "spark.ui.enabled=false", environ=LOOPBACK | PYTHON), app_file, acked
    )
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


@FURTHER
def test_the_application_runs_on_a_connect_server(
    acked: AckedLog, app_file: Path, spawn: SpawnWorker, connect_server: ConnectServer
) -> None:
    """The table's path is one of this machine, where the server writes it."""
    assert_done(spawn("spark", "app:app", "--once", "--remote", connect_server.url), app_file, acked)


def run_command(folder: Path, redis_url: str, name: str, *arguments: str, **more: str) -> str:
    """Run a command of Spark's own in a folder to its end; returns what it printed."""
    environ = {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_CONF_DIR": str(folder),
        "JAVA_HOME": str(find_java().home),
        "STREAMWORKER_REDIS_URL": redis_url,
        **more,
    }
    done = subprocess.run(
        [SPARK_HOME / "bin" / name, *arguments],
        cwd=folder,
        env={**os.environ, **LOOPBACK, **PYTHON, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@FURTHER
def test_the_application_runs_by_spark_submit(acked: AckedLog, app_file: Path, redis_url: str) -> None:
    """With the session that spark-submit makes, whose settings stay; the source finds itself there, too."""
    (app_file / "job.py").write_text(JOB, "utf-8")
    conf = "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=3"
    command = "spark-submit", "--master", "local[2]", "--py-files", "tasks.py", *conf, "job.py"
    printed = run_command(app_file, redis_url, *command)
    assert "rows by the source alone: 600" in printed
    seen = settings_of_equal(app_file, acked)
    assert (seen["spark.master"], seen["spark.sql.shuffle.partitions"]) == ("local[2]", "3")


@FURTHER
def test_declarative_pipelines_read_the_source(acked: AckedLog, app_file: Path, redis_url: str) -> None:
    """With a catalog that outlives the run; a second run adds the rows that came since to the table."""
    storage, warehouse = app_file / "storage", app_file / "warehouse"
    spec = {"name": "shop", "storage": storage.as_uri(), "libraries": [{"glob": {"include": "declared.py"}}]}
    (app_file / "spark-pipeline.yml").write_text(json.dumps(spec))
    (app_file / "declared.py").write_text(DECLARED)
    settings = {
        **{name: SMALL_MACHINE[name] for name in ("spark.driver.extraJavaOptions", "spark.ui.enabled")},
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.sql.shuffle.partitions": "2",
    }
    # Not as --conf: of more than four of these, spark-pipelines of Spark 4.3 forgets some.
    lines = [f"{name} {value}\n" for name, value in settings.items()]
    (app_file / "spark-defaults.conf").write_text("".join(lines))
    for more in ([], [70]):
        acked.fill(0, more)
        # With this variable its Connect server takes a free port; otherwise 15002, which may be taken.
        run_command(app_file, redis_url, "spark-pipelines", "run", SPARK_TESTING="0")
        rows = pq.read_table(warehouse / "rows")
        assert sorted(rows["n"].to_pylist()) == acked.numbers()
        totals = pq.read_table(warehouse / "totals")
        assert sum(totals["count"].to_pylist()) == len(rows)
