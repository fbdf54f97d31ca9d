"""A worker that was told to end ends, whatever is in its way."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import redis

from streamworker.runtime.watch.stages import FORCED
from tests.conftest import SpawnWorker
from tests.helpers import wait_for

CHATTY = """
import sys
from dataclasses import dataclass

from streamworker import App

app = App("chatty")

@dataclass
class Line:
    text: str


lines = app.stream("lines", Line, partitions=1)


@app.processor(lines, batch=1)
async def talk(batch: list[Line]) -> None:
    for _ in range(10_000):
        print("x" * 1_000, file=sys.stderr)
"""

SLEEPY = """
import time
from dataclasses import dataclass

from streamworker import App

app = App("sleepy")

@dataclass
class Line:
    text: str


lines = app.stream("lines", Line, partitions=1)


@app.processor(lines, batch=1, attempts=1, timeout=0.2)
def doze(batch: list[Line]) -> None:
    time.sleep(120)
"""


def _add(url: str, app: str) -> None:
    with redis.Redis.from_url(url) as raw:
        raw.xadd(f"sw:{{{app}.lines.0}}:events", {"v": '{"text": "x"}'})


def _state(url: str, app: str, processor: str) -> bytes:
    with redis.Redis.from_url(url) as raw:
        return raw.hget(f"sw:{{{app}.lines.0}}:lock:{processor}", "state") or b""


def test_a_worker_whose_log_nobody_reads_ends_at_its_deadline(
    redis_url: str, write_app: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Its main thread waits for room in the pipe of its log, with the log's lock in its hand."""
    write_app("chatty", CHATTY)
    environ = {
        **os.environ,
        "STREAMWORKER_REDIS_URL": redis_url,
        "STREAMWORKER_GRACE_PERIOD_MS": "500",
        "STREAMWORKER_SHUTDOWN_TIMEOUT_MS": "1000",
    }
    command = [sys.executable, "-m", "streamworker", "run", "chatty:app"]
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE) as worker:
        try:
            wait_for(lambda: _state(redis_url, "chatty", "talk") == b"running", "it runs")
            _add(redis_url, "chatty")
            wchan = Path(f"/proc/{worker.pid}/syscall")
            wait_for(lambda: wchan.read_text().startswith("1 0x2 "), "it waits for its log's reader")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(10) == FORCED
        finally:
            worker.kill()


def test_a_thread_that_was_left_behind_does_not_hold_up_the_end(
    redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker
) -> None:
    """A call that took too long cannot be interrupted; the worker leaves, and ends, without it."""
    write_app("sleepy", SLEEPY)
    worker = spawn("run", "sleepy:app")
    wait_for(lambda: _state(redis_url, "sleepy", "doze") == b"running", "it runs")
    _add(redis_url, "sleepy")
    wait_for(lambda: _state(redis_url, "sleepy", "doze") == b"halted", "its call was given up")
    worker.terminate()
    assert worker.wait(10) == 0
    assert "worker_left" in worker.log()
