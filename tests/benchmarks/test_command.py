"""``python -m benchmarks``: what it leaves behind, and what it refuses."""

import signal
import sys
from pathlib import Path

import pytest
import redis
from typer.testing import CliRunner

from benchmarks.__main__ import app
from streamworker.dev.children import Child
from tests.helpers import inherited, wait_for


@pytest.mark.full("runs the bench twice")
@pytest.mark.parametrize(
    ("how", "ctrl_c"),
    [
        (signal.SIGINT, signal.SIG_DFL),
        pytest.param(signal.SIGTERM, signal.SIG_IGN, id="in the background of a script"),
    ],
)
def test_ctrl_c_ends_a_bench_without_leaving_keys(
    redis_url: str, tmp_path: Path, how: signal.Signals, ctrl_c: signal.Handlers
) -> None:
    """So does a SIGTERM, also where a shell has started it with Ctrl-C ignored."""
    command = [sys.executable, "-m", "benchmarks", "process", "--redis-url", redis_url]
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
    ("arguments", "code", "says"),
    [
        (("nothing",), 2, "process"),
        (("process", "--runs", "0"), 2, "--runs"),
        (("process", "--records", "5"), 2, "--records"),
        (("process", "--redis-url", "redis://:canary@db.example"), 3, "plain text to db.example"),
    ],
)
def test_wrong_use_is_told_before_anything_starts(arguments: tuple[str, ...], code: int, says: str) -> None:
    """With the option's name, and no password."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code
    assert says in done.stderr
    assert "canary" not in done.output
