"""Fixtures for all tests: real servers and real worker processes."""

import os
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

from streamworker.dev.cluster import EmbeddedCluster
from streamworker.dev.server import EmbeddedServer
from tests.cluster import roles
from tests.helpers import WorkerProcess, logging_set_back
from tests.raw import close_clusters, opened
from tests.sentinel.trio import QUIET_MS, Trio

# A test judges no times: on a busy machine an example may take a second.
settings.register_profile("busy", settings(), deadline=None)
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

ALONE = {
    "rebalance/test_many_workers.py": "counts commands, and how long partitions stand still",
    "rebalance/test_rebalances.py": "how long partitions stand still, with sessions of about a second",
    "rebalance/test_weighted.py": "shares by the load that is measured",
    "redisio/test_attempts.py": "how seldom is knocked, and how soon who waits is let in",
    "simulation/test_simulation.py": "uses both cores itself",
}
"""What ``make test`` runs while nothing else runs, and why. Single tests have the marker themselves."""

FULL = {
    "benchmarks/test_brokers.py::test_a_broker_is_measured_beside_ours_and_ends": "starts brokers",
    "benchmarks/test_contests.py::test_calls_that_overlap_are_faster_than_calls_in_order": "compares times",
    "benchmarks/test_contests.py::test_each_contestant_handles_all_records_of_the_same_streams": "runs each",
    "benchmarks/test_contests.py::test_the_command_fails_where_a_ratio_fell": "compares times",
    "benchmarks/test_contests.py::test_the_command_prints_json_and_writes_ratios_and_a_picture": "runs each",
    "benchmarks/test_contests.py::test_upkeep_is_measured_from_outside": "measures for seconds",
    "benchmarks/test_tables.py::test_a_table_is_measured_beside_a_loop_by_hand": "measures for seconds",
    "chains/test_cluster.py": "a Cluster that loses its nodes one after the other",
    "chains/test_losses.py": "as above, each time with what it had confirmed last",
    "chains/test_kills.py": "kills workers for a quarter of a minute",
    "chaos/test_cluster_kinds.py": "faults of a Cluster take seconds each",
    "chaos/test_nemesis.py": "faults that need root, and parts of seconds to be right",
    "chaos/test_rows_data.py": "rows of the fault matrix wait for what a fault leads to",
    "chaos/test_rows_network.py": "as above",
    "chaos/test_rows_server.py": "as above",
    "chaos/test_rows_versions.py": "as above, and needs the whole history of git",
    "chaos/test_rows_workers.py": "as above",
    "chaos/test_soak.py": "a storm of faults, and a mistake that it must catch",
    "cli/test_bad_day.py": "waits until a record has failed five times, from one second apart",
    "benchmarks/test_command.py::test_ctrl_c_ends_a_bench_without_leaving_keys": "runs the bench three times",
    "cli/test_dev.py": "starts a server, a worker and a watcher each time",
    "cli/test_graph.py::test_graph_names_each_edge_and_the_cycles": "runs workers for seconds",
    "cli/test_hostile_text.py::test_no_command_writes_to_a_terminal_what_it_obeys": "20 commands",
    "cli/test_hostile_text.py::test_no_command_passes_on_to_a_pipe_what_a_terminal_obeys": "20 commands",
    "cli/test_looking.py::test_a_stream_of_seconds_tells_no_rate_of_growth": "waits for seconds to pass",
    "cli/test_looking.py::test_status_tells_the_rate_of_each_processor": "as above",
    "cli/test_run.py::test_with_reload_a_change_starts_the_worker_anew": "starts workers again and again",
    "cli/test_spark.py::test_run_with_spark_writes_the_table_and_ends_both": "Spark and workers, 20 s of CPU",
    "cluster/test_adopted.py": "nodes of a Cluster fail over",
    "cluster/test_calls.py": "a Cluster of its own that loses nodes",
    "cluster/test_node_away.py": "waits for a Cluster to replace a node",
    "cluster/test_tls.py": "TLS is Redis' alone: the Valkey of PyPI has none",
    "cluster/test_workers.py": "workers on a Cluster that loses nodes and moves slots",
    "contract/test_later_planted.py::test_each_planted_mistake_shows": "twenty random runs a mistake",
    "contract/test_model.py::test_a_mistake_that_is_planted_in_the_model_is_noticed": "a history a mistake",
    "contract/test_packs_planted.py": "runs the tests of entries of many records for each mistake",
    "core/test_outbox_planted.py": "runs the property of a lane for each mistake",
    "dev/test_demo.py": "the whole demo, as users run it; its verdict has times in it",
    "durability/test_failover.py": "failovers and power failures, one after the other",
    "durability/test_full_disk.py": "root mounts a small disk",
    "fundamentals/test_13_timers.py::test_what_is_missed_is_skipped_run_once_or_caught_up": "waits",
    "rebalance": "how long partitions stand still is measured, and sessions and holds run out",
    "runtime/test_tables_planted.py": "runs the tests of tables for each mistake",
    "runtime/test_timers_planted.py": "runs a storm of timers for each mistake",
    "runtime/test_fetcher.py::test_a_new_entry_reaches_its_buffer_within_milliseconds": "measures a latency",
    "runtime/test_keeper.py::test_a_dead_peer_is_removed_when_its_time_is_over_and_not_later": (
        "waits for a worker's death to be seen"
    ),
    "runtime/test_keyed_mode.py::test_whatever_becomes_of_its_owners_the_log_is_exact": "kills owners",
    "runtime/test_keyed_mode.py::test_waiting_handlers_go_faster_by_far_side_by_side": "measures rates",
    "runtime/test_keyed_mode.py::test_what_concurrency_costs_a_record": "measures rates",
    "security/test_tls.py": "TLS is Redis' alone: the Valkey of PyPI has none",
    "sentinel": "sentinels, replicas and failovers, which take seconds each",
    "runtime/test_sync.py::test_sync_sends_at_seven_tenths_of_the_rate_of_async": "compares times",
    "simulation/test_planted.py": "runs schedules for each mistake until it is found",
    "simulation/test_simulation.py::test_the_promises_hold_under_every_assignment": "sixty schedules of each",
    "simulation/test_simulation.py::test_workers_that_only_come_and_go_do_nothing_twice": "thirty schedules",
    "testing/test_clock.py::test_a_processor_paused_for_an_hour_goes_on_where_it_stood": "an hour",
    "test_docs.py::test_python_that_a_reader_is_told_to_run_runs": "starts servers and workers",
    "test_examples.py::test_an_example_ends_with_the_line_that_it_promises": "starts servers and workers",
    "test_examples.py::test_a_whole_application_passes_its_own_tests_and_strict_types": "seven tests, mypy",
    "test_wheel.py::test_a_wheel_has_the_files_of_the_package_and_no_other": "builds it, with what PyPI has",
    "test_guarantees.py::test_i9_the_spark_table_equals_the_log": "a JVM and three workers, a minute of CPU",
    "spark": "a query of Spark takes seconds, and the source has some hundred tests of them",
}
"""What ``make test`` leaves to ``make test-full``, and why. Besides these: all that runs on ``redis7``, what
runs on a Cluster or by way of sentinels in tests/contract, parameters with the marker, and further seeds."""

SEEDS = 5
"""How many seeds of a test ``make test`` runs; with the others ``make test-full`` looks for what is rare."""

STAYS = {
    "chaos/test_rows_server.py::test_a_restart_with_its_data_moves_loses_and_repeats_nothing",
    "cli/test_dev.py::test_dev_runs_an_app_on_a_server_of_its_own_and_ends_with_all_of_it",
    "cluster/test_workers.py::test_workers_process_forward_and_share_on_a_cluster",
    "rebalance/test_keyed_takeovers.py",
    "rebalance/test_protocols.py::test_a_worker_that_leaves_gives_up_its_entries",
    "sentinel/test_doctor.py",
    "sentinel/test_judge.py",
    "sentinel/test_urls.py",
    "spark/test_checks.py",
    "spark/test_connection.py",
    "spark/test_failures.py",
    "spark/test_java.py",
    "spark/test_logs.py",
    "spark/test_offsets.py",
    "spark/test_options.py",
    "spark/test_killed_drivers.py",
}
"""What ``make test`` keeps of them. The narrowest place decides."""

SPARK = {
    "cli/test_spark.py",
    "dev/test_demo.py",
    "dev/test_flights.py",  # its data set, as that of the next, comes with the extra `demo`
    "dev/test_verdict.py",
    "records/test_arrow.py::test_spark_takes_the_schema_without_a_cast",
    "sentinel/test_spark.py",
    "spark",
    "test_guarantees.py::test_i9_the_spark_table_equals_the_log",
    "test_wrong_use.py::test_spark_without_java",
}
"""What needs pyspark, which `make test-no-spark` does without; and parameters with the marker."""

collect_ignore = [place for place in SPARK if "::" not in place] if find_spec("pyspark") is None else []

ELSEWHERE_TOO = {"test_commit", "test_membership", "test_snapshot", "test_trim"}
"""Modules of tests/contract that are tried on a Cluster and by way of sentinels in ``make test-full``; the
others with the marker ``soak``, since a test takes three times as long there."""

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
        servers: list[Any] = ["valkey", "redis7"]
        if not metafunc.definition.get_closest_marker("one_server"):
            mark = pytest.mark.full if metafunc.definition.path.stem in ELSEWHERE_TOO else pytest.mark.soak
            servers += [pytest.param(name, marks=mark) for name in ("sentinel", "cluster")]
        metafunc.parametrize("server", servers, indirect=True, scope="session")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what runs by itself, what only ``make test-full`` runs, and what needs Spark."""
    file = item.path.relative_to(TESTS)
    test = f"{file.as_posix()}::{getattr(item, 'originalname', item.name)}"
    places = [test, *(place.as_posix() for place in (file, *file.parents))]
    narrowest = next((place for place in places if place in STAYS or place in FULL), None)
    if narrowest in FULL or _needs_redis(item) or _is_further_seed(item):
        item.add_marker(pytest.mark.full)
    if not ALONE.keys().isdisjoint(places):
        item.add_marker(pytest.mark.alone)
    if not SPARK.isdisjoint(places):
        item.add_marker(pytest.mark.spark)


def _is_further_seed(item: pytest.Item) -> bool:
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return bool(params.get("seed", 0) >= SEEDS)


def _needs_redis(item: pytest.Item) -> bool:
    return "redis7" in getattr(item, "fixturenames", ()) or "[redis7" in item.name or "-redis7" in item.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a server that is not there: it is counted, and its reason stands at the end.

    And begin with the files that take long: at the end one process would work on them alone.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    if REDIS_SERVER is None and not CI:
        for item in filter(_needs_redis, items):
            item.add_marker(pytest.mark.skip(reason=NO_REDIS_SERVER))


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
def cluster() -> Iterator[EmbeddedCluster]:
    """Three primaries with a replica each, for the whole run."""
    with EmbeddedCluster(node_timeout_ms=roles.QUIET_MS) as nodes:
        yield nodes
        close_clusters()


@pytest.fixture
def nodes(cluster: EmbeddedCluster) -> Iterator[EmbeddedCluster]:
    """The Cluster of this run, empty, for a test that ends nodes or changes roles; all come back after it."""
    with roles.may_change(cluster):
        yield cluster


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
def emptied(server: EmbeddedServer | EmbeddedCluster | Trio) -> str:
    """URL of a real server that holds nothing, and has room: a test that made it full may have failed."""
    with opened(server.url) as client:
        client.config_set("maxmemory", "1gb")
        client.flushall()
        client.script_flush()
    return server.url


@pytest.fixture
def redis_url(emptied: str) -> str:
    """URL of the server of this test."""
    return emptied


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
