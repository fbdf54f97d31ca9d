"""Fixtures for all tests: real servers and real worker processes."""

import gc
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import pytest
import structlog
from hypothesis import settings

from streamworker.dev.server import EmbeddedServer
from tests.chaos.forked import Forge, Forked
from tests.helpers import logging_set_back
from tests.raw import close_clusters, opened
from tests.stage.cluster import Cluster
from tests.stage.server import QUIET_MS, Server
from tests.stage.trio import Trio
from tests.strays import strays

# A test judges no times: on a busy machine an example may take a second.
settings.register_profile("busy", settings(), deadline=None)
settings.register_profile("brief", settings(), deadline=None, max_examples=20)  # `make check`
settings.load_profile("busy")

# A shell starts what it runs in the background with SIGINT ignored, and all that tests start inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)

REDIS_SERVER = shutil.which("redis-server")
NO_REDIS_SERVER = (
    "There is no redis-server on the PATH, so tests run on Valkey only. "
    "To run them on Redis too: apt-get install redis-server"
)
CI = os.environ.get("CI") == "true"
TESTS = Path(__file__).parent
CONTRACT = TESTS / "contract"

SEEDS = 5
"""How many seeds of a test ``make test`` runs; with the others ``make test-full`` looks for what is rare."""

NEEDS = {
    "pyspark": [
        *("spark", "sentinel/test_spark.py", "deploy/test_production.py", "security/test_rights.py"),
        *("security/test_tls.py", "test_moving.py", "test_tutorials.py"),
    ],
    "axe_playwright_python": ["site", "web/test_page.py"],
    "pandas": ["chaos/test_windows.py"],
    "psycopg": ["test_outbox.py"],
}
"""What imports a package that Python 3.13 lacks here: of the extra `test`, or Spark."""

collect_ignore = [path for package, paths in NEEDS.items() if find_spec(package) is None for path in paths]

ON_REDIS_TOO = {
    "test_append", "test_commit", "test_packs", "test_scripts", "test_store", "test_trim",
}  # fmt: skip
"""Modules of tests/contract that ``make test-full`` tries on Redis 7, for what a server may do in its own
way: types and errors of commands, ids, trimming, connections. The others have the mark ``soak`` there,
since their Lua text is the same, and so has what runs in ``make test-full`` alone."""

ELSEWHERE_TOO = {"test_commit", "test_membership", "test_snapshot"}
"""Modules of tests/contract that ``make test-full`` tries on a Cluster and by way of sentinels. The others
have the mark ``soak`` there, since a test takes three times as long."""

WITH_REASON = {"alone", "full", "spark"}
"""Marks that take a test out of some runs: each says why."""

SOAK_TESTS: list[str] = []
"""The soak tests that were collected, whether they are run or not; see tests/test_nightly.py."""

OURS = "STREAMWORKER_"
"""How the names of our environment variables begin."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer to write the transcripts of tests/protocol anew."""
    parser.addoption("--rewrite", action="store_true", help="write tests/protocol/*.txt as they come out now")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what lies in tests/contract on both servers, and what is not about one of them by way of
    sentinels and on a Cluster.
    """
    if CONTRACT in metafunc.definition.path.parents and "server" in metafunc.fixturenames:
        stem, is_full = metafunc.definition.path.stem, metafunc.definition.get_closest_marker("full")
        on_redis: Any = [] if stem in ON_REDIS_TOO and not is_full else pytest.mark.soak
        servers: list[Any] = ["valkey", pytest.param("redis7", marks=on_redis)]
        if not metafunc.definition.get_closest_marker("one_server"):
            slow = pytest.mark.full("three times as slow as on one server")
            mark = slow if stem in ELSEWHERE_TOO else pytest.mark.soak
            servers += [pytest.param(name, marks=mark) for name in ("sentinel", "cluster")]
        metafunc.parametrize("server", servers, indirect=True, scope="session")


def pytest_configure(config: pytest.Config) -> None:
    """Tell the slowest tests of a whole run, and of each in CI."""
    config.option.named = config.args_source is pytest.Config.ArgsSource.ARGS
    if config.option.durations is None and (CI or not config.option.named):
        config.option.durations = 10


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is left out where no ``-m`` was given."""
    if config.option.markexpr:
        return None
    if config.option.named:
        return 'soak tests are left out, unless all that is named is one: run them with -m "soak or not soak"'
    return 'full and soak tests are left out: run the former by naming their path, or with -m "not soak"'


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage meanwhile, which would be a quarter of the work, nor in what is collected later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Insist that a mark says why, and mark what needs Redis and what repeats a test by chance."""
    if _needs_redis(item):
        item.add_marker(pytest.mark.full("a fresh machine has no redis-server"))
    if _is_further_seed(item):
        item.add_marker(pytest.mark.full("a further seed"))
    if item.get_closest_marker("soak"):
        SOAK_TESTS.append(item.nodeid)
    bare = [mark.name for mark in item.iter_markers() if mark.name in WITH_REASON and not mark.args]
    if bare:
        raise pytest.UsageError(f"{item.nodeid}: give the mark {bare[0]} its reason, as in {bare[0]}('...')")
    if item.get_closest_marker("alone") and "mark.alone" not in item.path.read_text("utf-8"):
        raise pytest.UsageError(f"{item.nodeid}: write mark.alone in its file, where the Makefile looks")


def _is_further_seed(item: pytest.Item) -> bool:
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return bool(params.get("seed", 0) >= SEEDS)


def _needs_redis(item: pytest.Item) -> bool:
    return "redis7" in getattr(item, "fixturenames", ()) or "[redis7" in item.name or "-redis7" in item.name


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, unless it is named; and skip what needs a server that is not there.

    And begin with the files that take long: at the end one process would work on them alone.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    if not config.option.markexpr:
        left_out = ("soak",) if config.option.named else ("soak", "full")
        rest = [item for item in items if not any(map(item.get_closest_marker, left_out))]
        if rest or not config.option.named:
            config.hook.pytest_deselected(items=list(set(items).difference(rest)))
            items[:] = rest
    if REDIS_SERVER is None and not CI:
        for item in filter(_needs_redis, items):
            item.add_marker(pytest.mark.skip(reason=NO_REDIS_SERVER))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the files that use a Spark session to two processes: each process starts a JVM of its own."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    session = re.compile(r"\bspark_session\b|\bspark: SparkSession\b")
    files = [path for path in (TESTS / "spark").glob("test_*.py") if session.search(path.read_text("utf-8"))]
    names = sorted(path.relative_to(TESTS.parent).as_posix() for path in files)
    shared = {name: f"spark {n % 2}" for n, name in enumerate(names)}
    scheduler = LoadFileScheduling(config, log)
    file_of = scheduler._split_scope
    scheduler._split_scope = lambda test: shared.get(file_of(test), file_of(test))
    return scheduler


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each reason of a skip once, with its count, near the end: pytest prints it once a file."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"SKIPPED [{count}] {reason}")


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


@pytest.fixture(autouse=True)
def lines_of_all_levels() -> Iterator[None]:
    """Tests look at lines of level debug, which a worker in the process leaves out by itself."""
    with logging_set_back():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(0))
        yield


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
    assert REDIS_SERVER is not None, NO_REDIS_SERVER  # CI, which insists on both servers
    with EmbeddedServer(binary=REDIS_SERVER) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three primaries with a replica each, for the whole run."""
    with Cluster(node_timeout_ms=QUIET_MS) as nodes:
        yield nodes
        close_clusters()


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[Cluster]:
    """The Cluster of this run, empty, for a test that ends nodes or changes roles; all come back after it."""
    with cluster.may_change():
        yield cluster


@pytest.fixture(scope="session")
def sentinel() -> Iterator[Trio]:
    """A primary, two replicas and three sentinels, for the whole run; no test disturbs them."""
    with Trio(down_after_ms=QUIET_MS) as trio:
        yield trio


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> EmbeddedServer | Cluster | Trio:
    """The shared server of this test; in tests/contract each in turn, what sentinels name, and a Cluster."""
    found = request.getfixturevalue(getattr(request, "param", "valkey"))
    assert isinstance(found, EmbeddedServer | Cluster | Trio)
    return found


@pytest.fixture
def emptied(server: EmbeddedServer | Cluster | Trio) -> Iterator[str]:
    """URL of a real server that holds nothing, knows no users, and has room, whatever a test before left.

    After each test its keys are looked at: all that stay are in the table of docs/redis-keys.md (I8).
    """
    with opened(server.url) as client:
        client.config_set("maxmemory", "1gb")
        client.flushall()
        client.script_flush()
        if users := set(client.acl_users()) - {"default"}:
            client.acl_deluser(*users)
    yield server.url
    with opened(server.url) as client:
        left = strays(client)
    assert not left, f"the test left keys that docs/redis-keys.md does not know like this (TTL): {left}"


@pytest.fixture
def redis_url(emptied: str) -> str:
    """URL of the server of this test."""
    return emptied


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server of this test alone, to be stopped, killed or paused."""
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge]:
    """Where workers are forked from: a start of Python for each would take longer than most tests."""
    with Forge(tmp_path_factory.mktemp("forge")) as opened:
        yield opened


@pytest.fixture
def crew(forge: Forge) -> Iterator[Forge]:
    """Where the workers of a test are forked from; none outlives it."""
    yield forge
    forge.end_all()


class SpawnWorker(Protocol):
    """What the ``spawn`` fixture returns."""

    def __call__(
        self, *arguments: str, cwd: Path | None = None, environ: dict[str, str] | None = None
    ) -> Forked:
        """Start ``python -m streamworker <arguments>``."""


@pytest.fixture
def spawn(forge: Forge, redis_url: str, tmp_path: Path) -> Iterator[SpawnWorker]:
    """Start streamworker processes on this test's server, by fork; all are ended with the test.

    Apps are imported from ``cwd``, by default ``tmp_path``; the server's URL is in their
    environment.
    """
    started: list[Forked] = []

    def start(*arguments: str, cwd: Path | None = None, environ: dict[str, str] | None = None) -> Forked:
        process = forge.run(
            arguments,
            cwd=cwd or tmp_path,
            environ={**os.environ, "STREAMWORKER_REDIS_URL": redis_url, **(environ or {})},
            log_path=tmp_path / f"process-{len(started)}.log",
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
