"""``streamworker bench``."""

import json
import signal
import sys
from pathlib import Path

import pytest
import redis

from streamworker.dev.children import Child
from tests.cli.conftest import Invoke
from tests.helpers import inherited, wait_for

SMALL = ("--runs", "1", "--records", "2000")


@pytest.mark.slow
def test_bench_prints_json_and_leaves_the_server_as_it_was(streamworker: Invoke, redis_url: str) -> None:
    """Programs find machine and figures of all scenes."""
    done = streamworker("bench", "all", *SMALL, "--redis-url", redis_url, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert set(report) == {"command", "figures", "machine", "runs"}
    assert {row["scene"] for row in report["figures"]} == {"produce", "process", "columns", "latency"}
    assert len(report["figures"]) == 1 + 6 + 6 + 2
    for row in report["figures"]:
        assert set(row) == {"scene", "name", "unit", "runs", "median", "least", "most"}
        assert row["median"] > 0 or row["unit"] == "µs", row
    assert {"cores", "cpu", "python", "server", "redis"} <= set(report["machine"])
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0


@pytest.mark.slow
def test_bench_prints_a_table(streamworker: Invoke, redis_url: str) -> None:
    """With the machine below it."""
    done = streamworker("bench", "produce", *SMALL, "--redis-url", redis_url)
    assert done.exit_code == 0, done.output
    assert "send_many of 1,000" in done.stdout and "Medians of 1 run on cores" in done.stdout


@pytest.mark.parametrize(
    ("how", "ctrl_c"),
    [
        (signal.SIGINT, signal.SIG_DFL),
        (signal.SIGTERM, signal.SIG_DFL),
        pytest.param(signal.SIGTERM, signal.SIG_IGN, id="in the background of a script"),
    ],
)
def test_ctrl_c_ends_a_bench_without_leaving_keys(
    redis_url: str, tmp_path: Path, how: signal.Signals, ctrl_c: signal.Handlers
) -> None:
    """So does a SIGTERM, also where a shell has started it with Ctrl-C ignored."""
    command = [sys.executable, "-m", "streamworker", "bench", "process", "--redis-url", redis_url]
    with inherited({signal.SIGINT: ctrl_c, signal.SIGTERM: signal.SIG_DFL}):
        child = Child([*command, "--records", "20000"], log_path=tmp_path / "log")
    with redis.Redis.from_url(redis_url) as client:
        try:
            wait_for(lambda: client.dbsize() > 2, "a worker is at work", 60)
            child._process.send_signal(how)
            assert child.wait(30), child.log_tail()
        finally:
            child.kill()
        assert child.exit_code == 130, child.log_tail()
        assert client.dbsize() == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing",), "process"),
        (("process", "--runs", "0"), "--runs"),
        (("process", "--records", "5"), "--records"),
    ],
)
def test_wrong_use_of_bench_is_told_before_anything_starts(
    invoke: Invoke, arguments: tuple[str, ...], says: str
) -> None:
    """With the option's name."""
    done = invoke("bench", *arguments)
    assert done.exit_code == 2
    assert says in done.stderr


def test_a_bench_refuses_a_name_that_is_not_a_benchs(streamworker: Invoke, redis_url: str) -> None:
    """It would remove an app's keys."""
    done = streamworker("bench", "process", "--redis-url", redis_url, "--name", "shop")
    assert done.exit_code == 3
    assert "removes them when it ends" in done.stderr
