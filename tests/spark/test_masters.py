"""One application file, unchanged, on every kind of Spark that docs/spark-clusters.md names."""

import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from deltalake import DeltaTable

from streamworker.core.data.readers import read_position
from streamworker.spark.driver.java import find_java
from streamworker.spark.driver.session import SMALL_MACHINE
from tests.conftest import SpawnWorker
from tests.helpers import LoggedProcess, wait_for
from tests.postgres import INITDB, postgres
from tests.spark.acked import AckedLog
from tests.spark.processes import START_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.full("a query of Spark takes seconds")]

SPARK_HOME = Path(pyspark.__file__).parent
FURTHER = pytest.mark.soak
"""For kinds of Spark that try no code of ours but what a Connect server, a page that is followed, and the
settings for a cluster in test_session try: what could fail here is another release of Spark."""
RUN_S = 2 * START_S
"""The whole application takes some twenty seconds on a machine that has nothing else to do."""
FAILS = (
    "ModuleNotFoundError: No module named 'nowhere'. Spark's Python processes need it: install it where they "
    "run."
)
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}
PYTHON = {"PYSPARK_PYTHON": sys.executable}

APPLICATION = Path(__file__).parent / "application.py"
TASKS = """
def same(batches):
    yield from batches


def put(rows, query, batch):
    rows.write.mode("overwrite").parquet(f"lake/own/{query}-{batch}")
"""
"""A module of the user's own, to which docs/spark-clusters.md names the ways: a function for tasks, and a
sink that writes a batch under a name that is the same in each attempt."""
JOB = """
import sys

from pyspark.sql import SparkSession

from app import app
from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.spark.driver.session import Session

spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("streamworker").option("app", "shop").option("processor", "price").load()
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
    return spark.read.table("rows").groupBy("customer").count()
"""
"""A streaming table and a view of it, for spark-pipelines."""


MIDNIGHT = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)
HOURS = [MIDNIGHT + dt.timedelta(hours=each) for each in range(3)]
"""The windows that are closed by the last order."""
ROWS = 20_100
"""A micro-batch of 20,000, which two tasks read, and one of 100."""


def ordered(numbers: range) -> pa.RecordBatch:
    """Return orders of seven customers, in the first three hours of a day; the last is a day later."""
    minutes = [24 * 60 if n == ROWS - 1 else n % 180 for n in numbers]
    return pa.record_batch(
        {
            "order_id": pa.array(numbers, pa.int64()),
            "customer": pa.array([f"customer-{n % 7}" for n in numbers]),
            "total": pa.array([n / 4 for n in numbers], pa.float64()),
            "placed_at": pa.array(
                [MIDNIGHT + dt.timedelta(minutes=each) for each in minutes], pa.timestamp("us", "UTC")
            ),
        }
    )


@pytest.fixture
def app_file(acked: AckedLog, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The application's file beside the tables that it will write, and what its processors have forwarded."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "STREAMWORKER_CONNECTIONS"):
        monkeypatch.delenv(name, raising=False)
    shutil.copy(APPLICATION, tmp_path / "app.py")
    (tmp_path / "tasks.py").write_text(TASKS, "utf-8")
    for p in range(acked.partitions):
        acked.append(p, ordered(range(p * ROWS // 2, (p + 1) * ROWS // 2)))
    with AckedLog(redis_url, partitions=2, stream="found", processor="sum_up") as alerts:
        alerts.append(0, pa.record_batch({"customer": ["customer-1"], "reason": ["20 orders"]}))
    return tmp_path


@pytest.fixture
def warehouse(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A PostgreSQL for the pipeline `warehouse`; where there is none, the application is without it."""
    monkeypatch.delenv("WAREHOUSE", raising=False)
    if INITDB is None:
        yield ""
        return
    with postgres() as dsn:
        monkeypatch.setenv("WAREHOUSE", dsn)
        yield dsn


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
        daemon = {
            "SPARK_HOME": str(SPARK_HOME),
            "JAVA_HOME": str(find_java().home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false -XX:TieredStopAtLevel=1",
        }
        kind = f"org.apache.spark.deploy.{name.lower()}.{name}"
        ports = "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        process = LoggedProcess(
            [str(SPARK_HOME / "bin" / "spark-class"), kind, *ports, *more],
            cwd=self._folder,
            log_path=self._folder / f"{name}.log",
            environ={**os.environ, **LOOPBACK, **daemon, **(environ or {})},
        )
        self._held.callback(process.end)
        found = wait_for(
            lambda: re.search(started, process.log()), f"the {name} says {started}", timeout_s=START_S
        )
        assert found is not None
        return found[1]

    def close(self) -> None:
        self._held.close()


@pytest.fixture
def standalone(tmp_path: Path, redis_url: str) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path, redis_url)
    yield cluster
    cluster.close()


def assert_tables_equal_the_log(folder: Path, acked: AckedLog, warehouse: str) -> None:
    """Compare each sink with the rows that were forwarded."""
    sent = [row for rows in acked.written.values() for row in rows]
    lake, by_customer, by_hour = (
        folder / "lake",
        defaultdict[str, list[float]](list),
        defaultdict[Any, list[float]](list),
    )
    for row in sent:
        by_customer[row["customer"]].append(row["total"])
        if (hour := row["placed_at"].replace(minute=0)) in HOURS:
            by_hour[hour, row["customer"]].append(row["total"])

    def read(name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = pq.read_table((lake / name).resolve()).to_pylist()
        return found

    rows = sorted(read("rows"), key=lambda row: int(row["order_id"]))
    assert Counter(row.pop("task") for row in rows) == {0: ROWS - 10_000, 1: 10_000}
    assert rows == sent
    spent = {row["customer"]: (row["spent"], row["orders"]) for row in read("spent")}
    assert spent == {key: (sum(totals), len(totals)) for key, totals in by_customer.items()}
    hourly = {
        (row["window"]["start"], row["customer"]): (row["spent"], row["orders"]) for row in read("hourly")
    }
    assert hourly == {key: (sum(totals), len(totals)) for key, totals in by_hour.items()}
    alerted = [row["order_id"] for row in sent if row["customer"] == "customer-1"]
    assert sorted(row["order_id"] for row in read("alerts")) == alerted
    assert sorted(row["order_id"] for row in read("batches")) == list(range(ROWS))
    own = sorted(read("own"), key=lambda row: int(row["order_id"]))
    assert own == [{"order_id": row["order_id"], "placed_at": row["placed_at"]} for row in sent]
    delta = DeltaTable(lake / "delta").to_pyarrow_table(columns=["order_id", "day"]).to_pylist()
    days = [{"order_id": row["order_id"], "day": row["placed_at"].date()} for row in sent]
    assert sorted(delta, key=lambda row: int(row["order_id"])) == days
    if warehouse:
        with psycopg.connect(warehouse) as connection:
            stored = connection.execute("SELECT order_id, customer, total FROM orders ORDER BY 1").fetchall()
        assert stored == [(row["order_id"], row["customer"], row["total"]) for row in sent]


def assert_done(folder: Path, acked: AckedLog, warehouse: str) -> dict[str, str]:
    """Compare what a run has left; return the settings of Spark that the pipeline saw."""
    assert_tables_equal_the_log(folder, acked, warehouse)
    assert read_position(acked.redis.hget(acked.keys.readers, "broken")).failed == FAILS
    seen: dict[str, str] = json.loads((folder / "seen.json").read_text())
    return seen


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("local[*]", marks=FURTHER),
        pytest.param("local-cluster[1,1,1024]", marks=FURTHER),
        pytest.param("standalone", marks=FURTHER),
        "connect",
        pytest.param("spark-submit", marks=FURTHER),
    ],
)
def test_the_application_does_the_same_on_every_kind_of_spark(
    acked: AckedLog, app_file: Path, warehouse: str, spawn: SpawnWorker, redis_url: str,
    request: pytest.FixtureRequest, kind: str,
) -> None:  # fmt: skip
    """Each row once in each sink, read by as many tasks; a whole result without a watermark.

    A failure that ends one pipeline ends no other, and the command with 1.

    On masters of this machine nothing but URLs is in the environment: the command tells Spark which Python to
    run. The session of spark-submit keeps its settings.
    """
    given: tuple[str, ...]
    shuffles = "4"
    if kind == "spark-submit":
        (app_file / "job.py").write_text(JOB, "utf-8")
        conf = "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=3"
        given, shuffles = ("--master", "local[2]", "--py-files", "tasks.py", *conf, "job.py"), "3"
        printed = run_command(app_file, redis_url, "spark-submit", *given, code=1)
        assert f"rows by the source alone: {ROWS}" in printed
    else:
        elsewhere = {"standalone": ("--master", "standalone"), "connect": ("--remote", "connect_server")}
        option, fixture = elsewhere.get(kind, ("--master", ""))
        where = request.getfixturevalue(fixture).url if fixture else kind
        given = () if kind == "local[*]" else (option, where)
        if kind == "standalone":
            given = *given, "--conf", "spark.submit.pyFiles=tasks.py"
        environ = LOOPBACK | PYTHON if kind == "standalone" else None
        process = spawn("spark", "app:app", "--once", *given, environ=environ)
        assert process.wait(RUN_S) == 1, process.log()[-3000:]
        assert f"pipeline broken failed: {FAILS}" in process.log()
    seen = assert_done(app_file, acked, warehouse)
    assert seen["spark.sql.shuffle.partitions"] == shuffles
    if kind.startswith("local"):
        assert seen["spark.master"] == kind


def run_command(folder: Path, redis_url: str, name: str, *arguments: str, code: int = 0, **more: str) -> str:
    """Run a command of Spark's own in a folder to its end, with this exit code; returns what it printed."""
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
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done.stdout


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
    for numbers in ([], [range(ROWS, ROWS + 70)]):
        for each in numbers:
            acked.append(0, ordered(each))
        # With this variable its Connect server takes a free port; otherwise 15002, which may be taken.
        run_command(app_file, redis_url, "spark-pipelines", "run", SPARK_TESTING="0")
        rows = pq.read_table(warehouse / "rows")
        sent = [row["order_id"] for rows in acked.written.values() for row in rows]
        assert sorted(rows["order_id"].to_pylist()) == sorted(sent)
        totals = pq.read_table(warehouse / "totals")
        assert sum(totals["count"].to_pylist()) == len(rows)
