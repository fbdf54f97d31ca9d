"""Sessions: quiet, started and stopped as often as wanted, and the source is there in each."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle as untyped_cloudpickle

from streamworker.errors import BackendUnavailable, ConfigurationError
from streamworker.spark.driver import session
from streamworker.spark.driver.session import (
    EVERYWHERE,
    TRAVELLING,
    Session,
    open_session,
    socket_conf,
)
from streamworker.spark.source.connection import Connection, resolve, variable_for
from streamworker.spark.source.datasource import StreamworkerDataSource
from tests.spark.acked import AckedLog
from tests.spark.queries import batch

cloudpickle: Any = untyped_cloudpickle

TWICE = """
import sys
from pathlib import Path
from streamworker.spark.driver.session import open_session

for attempt in (1, 2):
    places = {"redis_url": sys.argv[1], "log_path": Path(sys.argv[2])}
    with open_session("twice", master="local[1]", **places) as session:
        rows = session.spark.read.format("streamworker")
        rows = rows.options(app="shop", stream="orders", processor="price").load()
        # The second start is the one that could find leftovers; a first query takes some seconds.
        assert attempt == 1 or rows.count() == 3
        jvm = session._jvm
    assert jvm.poll() is not None
"""


@pytest.mark.full("starts Spark twice")
@pytest.mark.slow
def test_a_session_is_quiet_and_can_be_started_again(acked: AckedLog, redis_url: str, tmp_path: Path) -> None:
    """Its JVM prints to a file, ends with it, and leaves nothing in the folder it was started in."""
    acked.fill(0, [3])
    environ = {key: value for key, value in os.environ.items() if key != "STREAMWORKER_CONNECTIONS"}
    here = tmp_path / "here"
    here.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", TWICE, redis_url, str(tmp_path / "jvm.log")],
        cwd=here,
        env={**environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(here.iterdir()) == []
    assert (tmp_path / "jvm.log").exists()


def test_spark_finds_the_source_by_itself(spark_session: Session, acked: AckedLog) -> None:
    acked.fill(0, [3])
    fresh = spark_session.spark.newSession()
    assert fresh.read.format("streamworker").options(**acked.options()).load().count() == 3


def test_the_redis_url_reaches_spark_s_processes_through_their_environment(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = variable_for("default")
    monkeypatch.delenv(variable, raising=False)
    values = session._jvm_environment(Path("/java"), redis_url, local=True)
    with session.environment(values):
        assert os.environ[variable] == redis_url
        assert resolve("default") == redis_url, "a connections file of the machine came first"
    assert variable not in os.environ


def test_python_and_the_jvm_talk_through_sockets_that_nobody_else_reaches(
    spark_session: Session, acked: AckedLog, tmp_path: Path
) -> None:
    """Over TCP each task would stand still for 40 ms. Spark asks for no password on such a socket."""
    folder = Path(spark_session.spark.conf.get("spark.python.unix.domain.socket.dir") or "")
    acked.fill(0, [3])
    assert batch(spark_session.spark, acked.options()).count() == 3
    assert any(path.is_socket() for path in folder.iterdir())
    assert folder.stat().st_mode & 0o077 == 0

    for open_or_long in (tmp_path / "others", tmp_path / ("long" * 25)):
        open_or_long.mkdir()
    (tmp_path / "others").chmod(0o755)
    assert socket_conf(tmp_path / "others") == socket_conf(tmp_path / ("long" * 25)) == {}


def test_a_second_session_in_one_process_is_refused(spark_session: Session) -> None:
    with pytest.raises(ConfigurationError, match="running in this process already"):
        open_session("second")


def test_a_cluster_gets_no_settings_for_a_small_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside the user's. Without a Python it says what Spark's machines run; a failed start names its log."""
    started: dict[str, str] = {}

    def launch(conf: Any, popen_kwargs: Any) -> None:
        started.update(conf.getAll())
        raise OSError("no such master")

    monkeypatch.setattr(pyspark.java_gateway, "launch_gateway", launch)
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(session, "_forget_gateway", lambda: None)  # The one of other tests.
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    settings = {"spark.executor.memory": "512m", "spark.ui.showConsoleProgress": "true"}
    with pytest.raises(
        BackendUnavailable, match="did not start on spark://h:7077: no such master"
    ) as refused:
        open_session("x", master="spark://h:7077", conf=settings, log_path=tmp_path / "jvm.log")
    assert str(tmp_path / "jvm.log") in str(refused.value)
    assert started == {**EVERYWHERE, "spark.master": "spark://h:7077", "spark.app.name": "x", **settings}
    assert "PYSPARK_PYTHON is not set: Spark runs python3 on its machines" in caplog.text


def test_a_remote_server_has_a_scheme_of_its_own_and_no_master_beside_it() -> None:
    """One of the two would be ignored."""
    with pytest.raises(ConfigurationError, match="--master or --remote"):
        open_session("x", master="local[1]", remote="sc://h:1")
    with pytest.raises(ConfigurationError, match="sc://host:15002"):
        open_session("x", remote="spark://h:7077")


def test_a_query_that_went_on_while_its_server_was_out_of_reach_is_stopped_before_it_is_started() -> None:
    """Spark refuses a second query of a name, and the first one is the one that nobody watches."""
    stopped: list[str] = []

    def query(name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, stop=lambda: stopped.append(name))

    spark: Any = SimpleNamespace(streams=SimpleNamespace(active=[query("legs"), query("totals")]))
    Session(spark, None, remote=True).renew("legs")
    assert stopped == ["legs"]


def test_pyspark_missing_or_old_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    with pytest.raises(ConfigurationError, match=r"pyspark>=4\.2"):
        open_session("x")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ConfigurationError, match=r"streamworker\[spark\]"):
        open_session("x")


FAR_AWAY = """
import pickle, sys
for name in list(sys.modules):
    assert not name.startswith("streamworker"), name
source = pickle.load(sys.stdin.buffer)
try:
    source({"app": "shop", "stream": "orders", "processor": "price", "retryTimeout": "0.1"}).schema()
except Exception as error:
    print(type(error).__name__, error)
assert not any(name == "streamworker" for name in sys.modules)
"""


def test_the_source_travels_to_a_server_where_streamworker_is_not_installed(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remote Spark needs redis and pyarrow only; the rest comes with the query."""
    # A connection that is open here stays here.
    monkeypatch.setenv("STREAMWORKER_CONNECTION_HERE", redis_url)
    assert Connection("here", 1000).call(lambda client: client.ping())
    modules = [import_module(name) for name in TRAVELLING]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        data = cloudpickle.dumps(StreamworkerDataSource)
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    environ = {"STREAMWORKER_REDIS_URL": "redis://127.0.0.1:1/0", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", FAR_AWAY],
        input=data,
        capture_output=True,
        cwd=tmp_path,
        env=environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().startswith("BackendUnavailable Redis at 127.0.0.1:1 (connection 'default')")
