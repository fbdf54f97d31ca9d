"""Fixtures for all tests: real servers and real worker processes."""

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from streamworker.dev.cluster import EmbeddedCluster
from streamworker.dev.server import EmbeddedServer
from tests.helpers import WorkerProcess
from tests.raw import close_clusters, opened
from tests.sentinel.trio import QUIET_MS, Trio

REDIS_SERVER = shutil.which("redis-server")
NO_REDIS_SERVER = (
    "There is no redis-server on the PATH, so tests run on Valkey only. "
    "To run them on Redis too: apt-get install redis-server"
)
TESTS = Path(__file__).parent
CONTRACT = TESTS / "contract"

ALONE = {
    "rebalance/test_many_workers.py": "counts commands, and how long partitions stand still",
    "rebalance/test_rebalances.py": "how long partitions stand still, with sessions of about a second",
    "rebalance/test_weighted.py": "shares by the load that is measured",
    "redisio/test_attempts.py": "how seldom is knocked, and how soon who waits is let in",
    "simulation/test_simulation.py": "uses both cores itself",
}
"""What ``make test`` runs while nothing else runs, and why. Single tests have the marker themselves."""

ELSEWHERE_TOO = {"test_commit", "test_membership", "test_snapshot", "test_trim"}
"""Modules of tests/contract that are tried on a Cluster and by way of sentinels in the default suite; the
others with the marker ``soak``, since a test takes three times as long there."""

OURS = "STREAMWORKER_"
"""How the names of our environment variables begin."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer to write the transcripts of tests/protocol anew."""
    parser.addoption("--rewrite", action="store_true", help="write tests/protocol/*.txt as they come out now")


def pytest_configure(config: pytest.Config) -> None:
    """Insist on both servers where the suite decides about a change."""
    if REDIS_SERVER is None and os.environ.get("CI") == "true":
        raise pytest.UsageError("CI needs a redis-server on the PATH: apt-get install redis-server")


def pytest_report_header() -> str | None:
    """Say when a server is missing."""
    return NO_REDIS_SERVER if REDIS_SERVER is None else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what lies in tests/contract on both servers, and what is not about one of them by way of
    sentinels and on a Cluster.
    """
    if CONTRACT in metafunc.definition.path.parents and "server" in metafunc.fixturenames:
        servers: list[Any] = ["valkey", "redis7"]
        if not metafunc.definition.get_closest_marker("one_server"):
            marks = () if metafunc.definition.path.stem in ELSEWHERE_TOO else pytest.mark.soak
            servers += [pytest.param(name, marks=marks) for name in ("sentinel", "cluster")]
        metafunc.parametrize("server", servers, indirect=True, scope="session")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what runs by itself."""
    places = {
        place.relative_to(TESTS).as_posix()
        for place in [item.path, *item.path.parents]
        if TESTS in place.parents
    }
    if places & ALONE.keys():
        item.add_marker(pytest.mark.alone)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a server that is not there: it is counted, and its reason stands at the end.

    And begin with the files that take long: at the end one process would work on them alone.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    if REDIS_SERVER is not None:
        return
    for item in items:
        if "[redis7" in item.name or "-redis7" in item.name:
            item.add_marker(pytest.mark.skip(reason=NO_REDIS_SERVER))


def _our_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(OURS)}


_variables = _our_variables()
"""As the last test has left them."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Insist that a test takes back what it has set: a later one would use the server of an earlier one."""
    global _variables
    yield
    before, _variables = _variables, _our_variables()
    changed = sorted({name for name, _ in before.items() ^ _variables.items()})
    assert not changed, f"the test, or a fixture that stays, has changed {', '.join(changed)}"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio, which redis-py needs."""
    return "asyncio"


@pytest.fixture(scope="session")
def valkey() -> Iterator[EmbeddedServer]:
    """A Valkey server for the whole run."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis7() -> Iterator[EmbeddedServer]:
    """The distribution's Redis server for the whole run."""
    if REDIS_SERVER is None:
        pytest.fail(NO_REDIS_SERVER)
    with EmbeddedServer(binary=REDIS_SERVER) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """Three primaries with a replica each, for the whole run."""
    with EmbeddedCluster() as nodes:
        yield nodes
        close_clusters()


@pytest.fixture(scope="session")
def sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """A primary, two replicas and three sentinels, for the whole run; no test disturbs them."""
    with Trio(tmp_path_factory.mktemp("trio"), down_after_ms=QUIET_MS) as trio:
        yield trio


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> EmbeddedServer | EmbeddedCluster | Trio:
    """The shared server of this test; in tests/contract each in turn, what sentinels name, and a Cluster."""
    found = request.getfixturevalue(getattr(request, "param", "valkey"))
    assert isinstance(found, EmbeddedServer | EmbeddedCluster | Trio)
    return found


@pytest.fixture
def redis_url(server: EmbeddedServer | EmbeddedCluster | Trio) -> str:
    """URL of a server that holds nothing, and has room: a test that made it full may have failed."""
    with opened(server.url) as client:
        client.config_set("maxmemory", "1gb")
        client.flushall()
        client.script_flush()
    return server.url


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A server of this test alone, to be stopped, killed or paused."""
    with EmbeddedServer() as server:
        yield server


class SpawnWorker(Protocol):
    """What the ``spawn`` fixture returns."""

    def __call__(
        self, *arguments: str, cwd: Path | None = None, environ: dict[str, str] | None = None
    ) -> WorkerProcess:
        """Start ``python -m streamworker <arguments>``."""


@pytest.fixture
def spawn(redis_url: str, tmp_path: Path) -> Iterator[SpawnWorker]:
    """Start real streamworker processes on this test's server; all are ended with the test.

    Apps are imported from ``cwd``, by default ``tmp_path``; the server's URL is in their
    environment.
    """
    started: list[WorkerProcess] = []

    def start(
        *arguments: str, cwd: Path | None = None, environ: dict[str, str] | None = None
    ) -> WorkerProcess:
        process = WorkerProcess(
            arguments,
            cwd=cwd or tmp_path,
            log_path=tmp_path / f"process-{len(started)}.log",
            environ={"STREAMWORKER_REDIS_URL": redis_url, **(environ or {})},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()


@pytest.fixture
def write_app(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a module for worker processes to import; returns its path."""

    def write(name: str, source: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(source, "utf-8")
        return path

    return write
