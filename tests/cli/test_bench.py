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
    """Programs find machine, figures, ratios and what was left out; ratios go to a file as well."""
    done = streamworker("bench", "process", *SMALL, "--redis-url", redis_url, "--json",
                        "--ratios", "ratios.json", "--svg", "bars.svg")  # fmt: skip
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert set(report) == {"command", "failed", "left_out", "machine", "rows", "runs"}
    assert not report["failed"]
    assert [row["scene"] for row in report["rows"]][:3] == ["batch", "forwarding", "record"]
    first = report["rows"][0]
    assert set(first) == {"against", "is_met", "ours", "pairs", "ratio", "scene", "target", "what"}
    assert first["ratio"] == pytest.approx(first["ours"]["median"] / first["against"]["median"])
    assert {"cores", "cpu", "python", "server", "redis"} <= set(report["machine"])
    assert any("runnel" in reason for reason in report["left_out"])
    assert json.loads(Path("ratios.json").read_text())["batch"] == pytest.approx(first["ratio"], abs=0.001)
    assert Path("bars.svg").read_text().startswith("<svg")
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0


@pytest.mark.slow
def test_bench_fails_where_a_ratio_fell(streamworker: Invoke, redis_url: str, tmp_path: Path) -> None:
    """And names it; the figures are printed all the same."""
    reference = tmp_path / "ratios.json"
    reference.write_text('{"columns-both": 1000.0, "columns-send": 0.0001}')
    done = streamworker("bench", "columns", *SMALL, "--redis-url", redis_url, "--check", str(reference))
    assert done.exit_code == 1
    assert "columns-both: the ratio is" in done.stderr and "and was 1000.00" in done.stderr
    assert "columns-send: the ratio" not in done.stderr
    assert "JSON records" in done.stdout


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


def test_a_file_of_ratios_that_cannot_be_read_is_told_before_anything_is_measured(
    invoke: Invoke, tmp_path: Path
) -> None:
    """Not after minutes."""
    (tmp_path / "ratios.json").write_text("[]")
    done = invoke("bench", "process", "--check", str(tmp_path / "ratios.json"))
    assert done.exit_code == 3
    assert "holds no ratios" in done.stderr


def test_a_bench_refuses_a_name_that_is_not_a_benchs(streamworker: Invoke, redis_url: str) -> None:
    """It would remove an app's keys."""
    done = streamworker("bench", "process", "--redis-url", redis_url, "--name", "shop")
    assert done.exit_code == 3
    assert "removes them when it ends" in done.stderr
