"""How a worker process ends: with 0 only when it drained, whatever the code does that it runs."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from streamworker import App
from streamworker.cli.exit_codes import ExitCode
from streamworker.runtime.watch.stages import FORCED, UNTOLD
from streamworker.runtime.worker import run_worker
from tests.conftest import SpawnWorker
from tests.helpers import wait_for
from tests.raw import opened

APP = """
import asyncio
import atexit
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from streamworker import App, DeadLetter, Halt

app = App("ends")
atexit.register(Path("said").write_text, "goodbye")


@dataclass
class Line:
    text: str


lines = app.stream("lines", Line, partitions=8, key="text")
running = []


async def leave(code):
    sys.exit(code)


async def cancelled():
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


@app.processor(lines, errors=DeadLetter())
FUNCTION
"""

ONE_BY_ONE = APP.replace("DeadLetter()", "Halt()")
"""An app that halts at what fails."""

CANCELLED = """
def handle(line: Line) -> None:
    if line.text == "bad":
        asyncio.run(cancelled())
"""
IN_A_TASK = """
async def handle(line: Line) -> None:
    if line.text == "bad":
        running.append(asyncio.create_task(leave(0)))
        await asyncio.sleep(60)
"""
CHATTY = """
async def handle(batch: list[Line]) -> None:
    for _ in range(10_000):
        print("x" * 1_000, file=sys.stderr)
"""
DEADLY = """
import os
from dataclasses import dataclass

from streamworker import App

app = App("deadly", heartbeat_interval_ms=200, dead_after_ms=400)


@dataclass
class Line:
    text: str


lines = app.stream("lines", Line, partitions=3)


@app.processor(lines)
async def other(line: Line) -> Line:
    return line


@app.processor(lines, concurrency=4)
async def handle(line: Line) -> None:
    if line.text == "bad":
        os._exit(9)
"""
"""An app with two processors, of which one may end its worker."""

SLEEPY = """
def handle(batch: list[Line]) -> None:
    time.sleep(120)
"""


def _states(url: str) -> set[bytes]:
    with opened(url) as raw:
        return {raw.hget(f"sw:{{ends.lines.{number}}}:lock:handle", "state") or b"" for number in range(8)}


def _send(url: str, text: str) -> None:
    with opened(url) as raw:
        for number in range(8):
            raw.xadd(f"sw:{{ends.lines.{number}}}:events", {"v": f'{{"text": "{text}"}}'})


def _left(url: str) -> int:
    with opened(url) as raw:
        groups = [raw.xinfo_groups(f"sw:{{ends.lines.{number}}}:events")[0] for number in range(8)]
        return sum(group["lag"] for group in groups)


def test_a_cancel_in_a_thread_ends_no_worker_and_a_signal_ends_it_with_0(
    redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker, tmp_path: Path
) -> None:
    """The cancel ended one worker after the other with 0 and in silence, until nobody was left."""
    write_app("ends", APP.replace("FUNCTION", CANCELLED))
    worker = spawn("run", "ends:app")
    wait_for(lambda: _states(redis_url) == {b"running"}, "it runs")
    _send(redis_url, "bad")
    _send(redis_url, "good")
    wait_for(lambda: _left(redis_url) == 0, "all is handled")
    with opened(redis_url) as raw:
        for number in range(8):
            [(_, letter)] = raw.xrange(f"sw:{{ends.lines.{number}}}:dead:handle")
            assert b"the function raised CancelledError" in letter[b"error"]
    assert worker.running
    worker.terminate()
    assert worker.wait(30) == 0
    assert "worker_left" in worker.log()
    assert "threads_left_behind" not in worker.log(), "a thread without a call ends by itself"
    assert (tmp_path / "said").read_text() == "goodbye"


def test_a_worker_that_code_of_a_function_ends_does_not_end_with_0(
    redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker
) -> None:
    """Its supervisor is to start it again: what was in hand was not done."""
    write_app("ends", APP.replace("FUNCTION", IN_A_TASK))
    worker = spawn("run", "ends:app")
    wait_for(lambda: _states(redis_url) == {b"running"}, "it runs")
    _send(redis_url, "bad")
    assert worker.wait(60) == UNTOLD == ExitCode.UNTOLD
    [said] = [line for line in worker.log().splitlines() if "worker_ended_untold" in line]
    assert "SystemExit: 0" in said
    assert "worker_left" not in worker.log()


@dataclass
class Line:
    text: str


async def _exit_in_a_task(tasks: list[asyncio.Task[Any]]) -> None:
    async def leave() -> None:
        sys.exit(3)

    tasks.append(asyncio.create_task(leave()))


async def _cancel_all(_: list[asyncio.Task[Any]]) -> None:
    for task in asyncio.all_tasks():
        task.cancel()


async def _cancel_ours(_: list[asyncio.Task[Any]]) -> None:
    [task] = [task for task in asyncio.all_tasks() if "Committer.run" in task.get_name()]
    task.cancel()


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (_exit_in_a_task, "SystemExit: 3"),
        (_cancel_all, "CancelledError"),
        (_cancel_ours, "its tasks were cancelled"),
    ],
)
def test_a_worker_says_which_code_of_a_function_has_ended_it(
    end: Callable[[list[asyncio.Task[Any]]], Awaitable[None]],
    says: str,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody told it to end, and it did not leave."""
    app, tasks = App("ends", redis_url=redis_url), list[asyncio.Task[Any]]()
    lines = app.stream("lines", Line, partitions=1)

    @app.processor(lines)
    async def handle(line: Line) -> None:
        await end(tasks)
        await asyncio.sleep(60)

    lines.sync.send(Line("bad"))
    app.close()
    # They would end this process when the worker has not left in time.
    monkeypatch.setattr("streamworker.runtime.worker.TwoStages", lambda *_, **__: nullcontext())
    with capture_logs() as logs:
        assert run_worker(app) == UNTOLD
    events = {log["event"]: log for log in logs}
    assert says in events["worker_ended_untold"]["reason"]
    assert "worker_left" not in events
    for task in tasks:
        task.exception()  # Else asyncio would print it.


def test_a_worker_whose_log_nobody_reads_ends_at_its_deadline(
    redis_url: str, write_app: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Its main thread waits for room in the pipe of its log, with the log's lock in its hand."""
    write_app("ends", ONE_BY_ONE.replace("FUNCTION", CHATTY))
    environ = {
        **os.environ,
        "STREAMWORKER_REDIS_URL": redis_url,
        "STREAMWORKER_GRACE_PERIOD_MS": "500",
        "STREAMWORKER_SHUTDOWN_TIMEOUT_MS": "1000",
    }
    command = [sys.executable, "-m", "streamworker", "run", "ends:app"]
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE) as worker:
        try:
            wait_for(lambda: _states(redis_url) == {b"running"}, "it runs")
            _send(redis_url, "x")
            wchan = Path(f"/proc/{worker.pid}/syscall")
            wait_for(lambda: wchan.read_text().startswith("1 0x2 "), "it waits for its log's reader")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(25) == FORCED  # Without our setting it would be after 30 s.
        finally:
            worker.kill()


IN_THE_WAY = {
    "to_thread": ("await asyncio.to_thread(time.sleep, 120)", "thread (asyncio|uvloop)_0"),
    "pool": ("running.append(ThreadPoolExecutor(1, 'mine').submit(time.sleep, 120))", "thread mine_0"),
    "process": ("FORK.Process(target=time.sleep, args=(120,), name='mine').start()", r"process \d+ \(mine\)"),
    "atexit": ("atexit.register(time.sleep, 120)", ""),
    "task": ("running.append(asyncio.create_task(stubborn()))", ""),
    "nobody told it": ("await exit_in_a_task()", "thread mine"),
}
HELD = """
async def handle(line: Line) -> None:
    WAYS
    Path("in the way").touch()
"""
HELPERS = """
import multiprocessing
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

FORK = multiprocessing.get_context("fork")

async def stubborn():
    while True:
        try:
            await asyncio.sleep(120)
        except asyncio.CancelledError:
            pass

async def exit_in_a_task():
    threading.Thread(target=time.sleep, args=(120,), name="mine").start()
    running.append(asyncio.create_task(leave(0)))
    await asyncio.sleep(120)

def last_words():
    time.sleep(1)
    Path("last words").touch()

def child(ready):
    ready.set()
    time.sleep(120)
"""


@pytest.mark.full("starts workers, and waits for deadlines")
@pytest.mark.parametrize("way", IN_THE_WAY)
def test_a_worker_ends_at_its_deadline_whatever_holds_it(
    way: str, redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker, tmp_path: Path
) -> None:
    """Python waits for what the user's code has started, for minutes or for ever; the log names it."""
    code, holder = IN_THE_WAY[way]
    if way in ("to_thread", "nobody told it"):  # These never return.
        code = f'Path("in the way").touch()\n    {code}'
    app = APP.replace('App("ends"', 'App("ends", grace_period_ms=1_000, shutdown_timeout_ms=3_000')
    write_app("ends", HELPERS + app.replace("FUNCTION", HELD.replace("WAYS", code)))
    worker = spawn("run", "ends:app")
    wait_for(lambda: _states(redis_url) == {b"running"}, "it runs")
    with opened(redis_url) as raw:
        raw.xadd("sw:{ends.lines.3}:events", {"v": '{"text": "x"}'})
    wait_for((tmp_path / "in the way").exists, "something is in the way")
    if way != "nobody told it":
        worker.terminate()
    assert worker.wait(60) == FORCED
    [said] = [line for line in worker.log().splitlines() if "worker_forced_to_end" in line]
    assert "shutdown_timeout" in said and re.search(holder, said), said
    if way == "process":
        pid = int(re.findall(r"process (\d+)", said)[0])
        wait_for(lambda: not psutil.pid_exists(pid), "the child process has ended")


WAITED_FOR = """
async def handle(line: Line) -> None:
    threading.Thread(target=last_words).start()
"""


@pytest.mark.full("starts workers, and waits for deadlines")
def test_a_worker_waits_for_threads_that_end_before_its_deadline(
    redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker, tmp_path: Path
) -> None:
    """It ends with 0, and what the app has registered for its end is run."""
    write_app("ends", HELPERS + APP.replace("FUNCTION", WAITED_FOR))
    worker = spawn("run", "ends:app")
    wait_for(lambda: _states(redis_url) == {b"running"}, "it runs")
    _send(redis_url, "x")
    wait_for(lambda: _left(redis_url) == 0, "all is handled")
    worker.terminate()
    assert worker.wait(60) == 0
    assert (tmp_path / "last words").exists()
    assert (tmp_path / "said").read_text() == "goodbye"


FORKS = """
KIND handle(line: Line) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        ready = FORK.Event()
        process = FORK.Process(target=child, args=(ready,))
        process.start()
        ready.wait()
        os.kill(process.pid, number)
        process.join(20)
        Path(f"{line.text} {number.name}").write_text(str(process.exitcode))
        process.kill()
"""


@pytest.mark.full("starts workers, and waits for deadlines")
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_process_that_a_function_forks_obeys_signals(
    kind: str, redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker, tmp_path: Path
) -> None:
    """It inherited the worker's handlers, and nothing in it acts on them."""
    write_app("ends", HELPERS + APP.replace("FUNCTION", FORKS.replace("KIND", kind)))
    worker = spawn("run", "ends:app")
    wait_for(lambda: _states(redis_url) == {b"running"}, "it runs")
    with opened(redis_url) as raw:
        raw.xadd("sw:{ends.lines.3}:events", {"v": '{"text": "x"}'})
    wait_for(lambda: _left(redis_url) == 0, "all is handled")
    assert (tmp_path / "x SIGTERM").read_text() == str(-signal.SIGTERM)
    assert (tmp_path / "x SIGINT").read_text() == "1"  # KeyboardInterrupt
    worker.terminate()
    assert worker.wait() == 0


@pytest.mark.full("starts workers, and waits for deadlines")
@pytest.mark.parametrize("command", ["run", "spark"])
def test_a_worker_that_is_told_to_end_while_it_imports_its_app_ends_with_0(
    command: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker, tmp_path: Path
) -> None:
    """It owns nothing yet."""
    write_app("ends", 'import pathlib, time\npathlib.Path("imports").touch()\ntime.sleep(120)\n')
    worker = spawn(command, "ends:app")
    wait_for((tmp_path / "imports").exists, "it imports its app")
    worker.terminate()
    assert worker.wait(60) == 0


def test_a_thread_that_was_left_behind_does_not_hold_up_the_end(
    redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker, tmp_path: Path
) -> None:
    """A call that took too long cannot be interrupted; the worker leaves, and ends, without it."""
    write_app(
        "ends", ONE_BY_ONE.replace("FUNCTION", SLEEPY).replace("errors=Halt()", "errors=Halt(), timeout=0.2")
    )
    worker = spawn("run", "ends:app")
    wait_for(lambda: _states(redis_url) == {b"running"}, "it runs")
    _send(redis_url, "x")
    wait_for(lambda: b"halted" in _states(redis_url), "its call was given up")
    worker.terminate()
    assert worker.wait() == 0
    assert "worker_left" in worker.log()
    [said] = [line for line in worker.log().splitlines() if "threads_left_behind" in line]
    assert re.search(r"processor handle, partition \d, entry \d+-\d+, for ", said)
    assert not (tmp_path / "said").exists(), "it ended without its last words"


@pytest.mark.full("starts workers, and waits for deadlines")
@pytest.mark.timeout(600)  # It starts up to ten processes, each of which may take ten seconds.
def test_a_record_that_kills_its_process_halts_its_partition_alone(
    redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker, tmp_path: Path
) -> None:
    """By default. A supervisor starts workers again; after at most eight deaths they live, and all is said.

    Then an operator sets the record aside, and what is behind it is handled.
    """
    environ = {**os.environ, "STREAMWORKER_REDIS_URL": redis_url, "COLUMNS": "400"}
    write_app("deadly", DEADLY)
    workers = [spawn("run", "deadly:app", "--name", f"w{place}") for place in range(2)]
    deaths = 0

    def tells(*command: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "streamworker", *command],
            check=False,
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
        ).stdout

    def lags() -> dict[str, dict[str, int]]:
        return {
            each["processor"]: each["partitions"] for each in json.loads(tells("lag", "deadly:app", "--json"))
        }

    def lives() -> bool:
        nonlocal deaths
        for place, worker in enumerate(workers):
            if not worker.running:
                deaths += 1
                workers[place] = spawn("run", "deadly:app", "--name", f"w{place}")
        assert deaths <= 8, "it goes on for ever"
        with opened(redis_url) as raw:
            return bool(raw.hget("sw:{deadly.lines.1}:lock:handle", "state") == b"halted")

    with opened(redis_url) as raw:
        wait_for(lambda: raw.hget("sw:{deadly.lines.2}:lock:handle", "state") == b"running", "they run")
        for text in ["good"] * 40 + ["bad"] + ["fine"] * 40:
            raw.xadd("sw:{deadly.lines.1}:events", {"v": f'{{"text": "{text}"}}'})
        for partition in (0, 2):
            for _ in range(40):
                raw.xadd(f"sw:{{deadly.lines.{partition}}}:events", {"v": '{"text": "good"}'})
        bad = raw.xrange("sw:{deadly.lines.1}:events", count=41)[40][0].decode()
        wait_for(lives, "it is found", timeout_s=300)
    others = {"0": 0, "1": 0, "2": 0}
    wait_for(lambda: lags() == {"other": others, "handle": {**others, "1": 41}}, "all others are handled")
    named = f"streamworker dead put MODULE:handle 1/{bad}"
    logs = "".join(log.read_text() for log in tmp_path.glob("process-*.log"))
    for said in (tells("status", "deadly:handle"), tells("doctor", "deadly:app"), logs):
        assert "3 workers died in a row in the call of this record" in said
    for said in (tells("status", "deadly:handle"), tells("doctor", "deadly:app")):
        assert named in said and "streamworker retry MODULE:handle --partition 1" in said
    assert "workers_died_in_call" in logs
    assert "Done by worker" in tells(
        "dead", "put", "deadly:handle", f"1/{bad}", "--yes", "--wait", "1 minute"
    )
    wait_for(lambda: lags() == {"other": others, "handle": others}, "all is handled")
