"""Spark for its tests: one session for the whole run, on a real server."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamworker.spark import pyspark_streamworker
from streamworker.spark.driver.session import Session, open_session
from streamworker.spark.source import logs
from streamworker.variables import CONNECTIONS_VARIABLE
from tests.helpers import wait_for
from tests.postgres import INITDB, postgres
from tests.spark.acked import AckedLog
from tests.spark.driver import WAREHOUSE
from tests.spark.processes import START_S, ConnectServer

HANGS_S = 300
"""Where a machine is slow, some of these tests start Spark for a minute: later than this one hangs."""


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.spark("imports pyspark"))
    if {"spark_session", "connect_server"} & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.full("a query of Spark takes seconds"))
        item.add_marker(pytest.mark.slow)
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(HANGS_S))


Connect = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def means_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test knows from another how large entries are."""
    monkeypatch.setattr(logs, "_means", {})


@pytest.fixture(scope="session")
def connections_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which Spark's processes look connections up; read anew by each call."""
    path = tmp_path_factory.mktemp("connections") / "connections.toml"
    path.touch(mode=0o600)
    return path


@pytest.fixture
def connect(connections_file: Path, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Give a Redis URL a name that Spark knows, and this process until the end of the test."""
    connections_file.write_text("")
    monkeypatch.setenv(CONNECTIONS_VARIABLE, str(connections_file))

    def add(name: str, url: str) -> None:
        with connections_file.open("a") as file:
            file.write(f'{name} = "{url}"\n')

    return add


@pytest.fixture(scope="session")
def spark_session(connections_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """The session that all Spark tests share; a start takes some six seconds."""
    folder = tmp_path_factory.mktemp("spark")
    # Where a wheel puts it: at the top level, for Spark to find.
    shutil.copytree(Path(pyspark_streamworker.__file__).parent, folder / "site" / "pyspark_streamworker")
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "100",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(folder),
        "spark.eventLog.compress": "false",
        # A user's has one; it is looked at by test_secrets.
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / "site"))
        patch.setenv(CONNECTIONS_VARIABLE, str(connections_file))
        session = open_session("tests", master="local[2]", log_path=folder / "jvm.log", conf=conf)
    with session:
        yield session


@pytest.fixture
def spark(spark_session: Session) -> SparkSession:
    return spark_session.spark


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go where the test runs, as they do for a user with a relative path."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def acked(redis_url: str, connect: Connect) -> Iterator[AckedLog]:
    """The acked logs of processor ``price`` on stream ``orders`` of app ``shop``, two partitions."""
    connect("default", redis_url)
    with AckedLog(redis_url, partitions=2) as log:
        yield log


@pytest.fixture
def warehouse(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Name a PostgreSQL of the test's own to the drivers that it starts, where one is installed."""
    if INITDB is None:
        yield
        return
    with postgres() as dsn:
        monkeypatch.setenv(WAREHOUSE, dsn)
        yield


@pytest.fixture
def connect_server(redis_url: str, tmp_path: Path) -> Iterator[ConnectServer]:
    """A Spark Connect server that answers, with its files in a folder of a short name, for its sockets."""
    with tempfile.TemporaryDirectory(prefix="sw") as scratch:
        server = ConnectServer(tmp_path, redis_url, scratch)
        server.start()
        try:
            wait_for(server.answers, "the server answers", timeout_s=START_S)
            yield server
        finally:
            server.kill()
