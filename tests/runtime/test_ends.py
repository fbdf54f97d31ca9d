"""How a worker process ends: with 0 only when it drained, whatever the code does that it runs."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
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
from tests.chaos.forked import Forked
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
async def handle(line: Line) -> None:
    if line.text == "bad":
        os._exit(9)
"""
"""A function that ends its process."""

SLEEPY = """
def handle(batch: list[Line]) -> None:
    time.sleep(120)
"""


EVENTS, LOCK = "sw:{ends.lines.%d}:events", "sw:{ends.lines.%d}:lock:handle"


def _states(url: str) -> set[bytes]:
    with opened(url) as raw:
        return {raw.hget(LOCK % number, "state") or b"" for number in range(8)}


def _send(url: str, text: str, partitions: Iterable[int] = range(8)) -> None:
    with opened(url) as raw:
        for number in partitions:
            raw.xadd(EVENTS % number, {"v": f'{{"text": "{text}"}}'})


def _lag(raw: Any, number: int) -> int:
    events = EVENTS % number
    dropped = raw.hget(events.replace(":events", ":counts"), "dropped")
    return int(raw.xlen(events) + int(dropped or 0) - int(raw.hget(LOCK % number, "entries") or 0))


def _until_handled(url: str) -> None:
    with opened(url) as raw:

        def left() -> int:
            return sum(_lag(raw, number) for number in range(8))

        wait_for(lambda: left() == 0, "all is handled")


Begin = Callable[..., Forked]


@pytest.fixture
def begin(redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker) -> Begin:
    """Start a worker of an app with such a function, and wait until it runs."""

    def begin(function: str, app: str = APP) -> Forked:
        write_app("ends", app.replace("FUNCTION", function))
        worker = spawn("run", "ends:app")
        wait_for(lambda: _states(redis_url) == {b"running"}, "it runs")
        return worker

    return begin


def test_a_cancel_in_a_thread_ends_no_worker_and_a_signal_ends_it_with_0(
    redis_url: str, begin: Begin, tmp_path: Path
) -> None:
    """The cancel ended one worker after the other with 0 and in silence, until nobody was left."""
    worker = begin(CANCELLED)
    _send(redis_url, "bad")
    _send(redis_url, "good")
    _until_handled(redis_url)
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


def test_a_worker_that_code_of_a_function_ends_does_not_end_with_0(redis_url: str, begin: Begin) -> None:
    """Its supervisor is to start it again: what was in hand was not done."""
    worker = begin(IN_A_TASK)
    _send(redis_url, "bad")
    assert worker.wait(60) == UNTOLD == ExitCode.UNTOLD
    [said] = [line for line in worker.log().splitlines() if "worker_ended_untold" in line]
    assert "SystemExit: 0" in said
    assert "worker_left" not in worker.log()


@dataclass
class Line:
    text: str


def _all_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks()


def _one_of_ours() -> set[asyncio.Task[Any]]:
    [task] = [task for task in asyncio.all_tasks() if "Committer.run" in task.get_name()]
    return {task}


@pytest.mark.parametrize(
    ("cancelled", "says"), [(_all_tasks, "CancelledError"), (_one_of_ours, "its tasks were cancelled")]
)
def test_a_worker_whose_tasks_a_function_cancels_says_so_and_does_not_end_with_0(
    cancelled: Callable[[], set[asyncio.Task[Any]]],
    says: str,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody told it to end, and it did not leave."""
    app = App("ends", redis_url=redis_url)
    lines = app.stream("lines", Line, partitions=1)

    @app.processor(lines)
    async def handle(line: Line) -> None:
        for task in cancelled():
            task.cancel()
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
    while True:
        time.sleep(0.1)  # A signal that comes just before a sleep does not end it, and is handled after it.
"""


@pytest.mark.full("starts workers, and waits for deadlines")
@pytest.mark.parametrize("way", IN_THE_WAY)
def test_a_worker_ends_at_its_deadline_whatever_holds_it(
    way: str, redis_url: str, begin: Begin, tmp_path: Path
) -> None:
    """Python waits for what the user's code has started, for minutes or for ever; the log names it."""
    code, holder = IN_THE_WAY[way]
    if way in ("to_thread", "nobody told it"):  # These never return.
        code = f'Path("in the way").touch()\n    {code}'
    app = APP.replace('App("ends"', 'App("ends", grace_period_ms=1_000, shutdown_timeout_ms=3_000')
    worker = begin(HELD.replace("WAYS", code), HELPERS + app)
    _send(redis_url, "x", [3])
    wait_for((tmp_path / "in the way").exists, "something is in the way")
    if way != "nobody told it":
        worker.terminate()
    assert worker.wait(60) == FORCED
    [said] = [line for line in worker.log().splitlines() if "worker_forced_to_end" in line]
    assert "shutdown_timeout" in said and re.search(holder, said), said
    if way == "process":
        pid = int(re.findall(r"process (\d+)", said)[0])
        wait_for(lambda: not psutil.pid_exists(pid), "the child process has ended")


@pytest.mark.full("starts a worker, and waits for its deadline")
def test_a_worker_that_redis_keeps_from_leaving_does_not_blame_its_event_loop(
    redis_url: str, begin: Begin
) -> None:
    """Nothing of the user's code runs."""
    app = APP.replace('App("ends"', 'App("ends", grace_period_ms=1_000, shutdown_timeout_ms=3_000')
    worker = begin("async def handle(line: Line) -> None: ...", app)
    with opened(redis_url) as raw:
        raw.client_pause(30_000, all=False)
        try:
            worker.terminate()
            assert worker.wait(60) == FORCED
        finally:
            raw.client_unpause()
    [said] = [line for line in worker.log().splitlines() if "worker_forced_to_end" in line]
    assert "its tasks, such as a call to Redis" in said, said


TAKEN = """
async def handle(line: Line) -> None:
    signal.signal(signal.SIGTERM, lambda *_: Path("mine").touch())
    Path("taken").touch()
"""


@pytest.mark.full("starts a worker, and waits for its looks at the handlers")
def test_a_worker_drains_although_a_library_has_replaced_its_handler_of_sigterm(
    redis_url: str, begin: Begin, tmp_path: Path
) -> None:
    """As Ray's does; else the worker would never hear of its end, and its partitions wait for its death."""
    worker = begin(TAKEN, HELPERS + APP)
    _send(redis_url, "x")
    wait_for((tmp_path / "taken").exists, "the handler is replaced")
    wait_for(lambda: "signal_taken_back" in worker.log(), "the worker has taken it back")
    worker.terminate()
    assert worker.wait(60) == 0
    assert not (tmp_path / "mine").exists()
    assert "<lambda>" in worker.log()


WAITED_FOR = """
async def handle(line: Line) -> None:
    threading.Thread(target=last_words).start()
"""


@pytest.mark.full("starts workers, and waits for deadlines")
def test_a_worker_waits_for_threads_that_end_before_its_deadline(
    redis_url: str, begin: Begin, tmp_path: Path
) -> None:
    """It ends with 0, and what the app has registered for its end is run."""
    worker = begin(WAITED_FOR, HELPERS + APP)
    _send(redis_url, "x")
    _until_handled(redis_url)
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
        process.join(60)
        Path(f"{line.text} {number.name}").write_text(str(process.exitcode))
        process.kill()
"""


@pytest.mark.full("starts workers, and waits for deadlines")
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_process_that_a_function_forks_obeys_signals(
    kind: str, redis_url: str, begin: Begin, tmp_path: Path
) -> None:
    """It inherited the worker's handlers, and nothing in it acts on them."""
    worker = begin(FORKS.replace("KIND", kind), HELPERS + APP)
    _send(redis_url, "x", [3])
    _until_handled(redis_url)
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
    write_app("ends", 'import pathlib, time\npathlib.Path("imports").touch()\nwhile True: time.sleep(0.1)\n')
    worker = spawn(command, "ends:app")
    wait_for((tmp_path / "imports").exists, "it imports its app")
    worker.terminate()
    assert worker.wait(60) == 0


def test_a_thread_that_was_left_behind_does_not_hold_up_the_end(
    redis_url: str, begin: Begin, tmp_path: Path
) -> None:
    """A call that took too long cannot be interrupted; the worker leaves, and ends, without it."""
    worker = begin(SLEEPY, ONE_BY_ONE.replace("errors=Halt()", "errors=Halt(), timeout=0.2"))
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
    """By default. A supervisor starts workers again: after at most eight deaths they live, and say why."""
    app = ONE_BY_ONE.replace("errors=Halt()", "concurrency=4").replace("partitions=8", "partitions=3")
    app = app.replace('App("ends"', 'App("ends", heartbeat_interval_ms=200, dead_after_ms=400')
    write_app("ends", app.replace("FUNCTION", DEADLY))
    environ = {**os.environ, "STREAMWORKER_REDIS_URL": redis_url, "COLUMNS": "400"}
    workers = [spawn("run", "ends:app", "--name", f"w{place}") for place in range(2)]
    deaths = 0

    def tells(*command: str) -> str:
        line = [sys.executable, "-m", "streamworker", *command]
        return subprocess.run(
            line, check=False, cwd=tmp_path, env=environ, capture_output=True, text=True
        ).stdout

    def lives() -> bool:
        nonlocal deaths
        for place, worker in enumerate(workers):
            if not worker.running:
                deaths += 1
                workers[place] = spawn("run", "ends:app", "--name", f"w{place}")
        assert deaths <= 8, "it goes on for ever"
        return bool(raw.hget(LOCK % 1, "state") == b"halted")

    with opened(redis_url) as raw:
        wait_for(lambda: raw.hget(LOCK % 2, "state") == b"running", "they run")
        for text in ["good"] * 40 + ["bad"] + ["fine"] * 40:
            _send(redis_url, text, [1])
        for _ in range(40):
            _send(redis_url, "good", [0, 2])
        bad = raw.xrange(EVENTS % 1, count=41)[40][0].decode()
        wait_for(lives, "it is found", timeout_s=300)

        def lags() -> list[int]:
            return [_lag(raw, number) for number in range(3)]

        wait_for(lambda: lags() == [0, 41, 0], "all others are handled")
    logs = "".join(log.read_text() for log in tmp_path.glob("process-*.log"))
    shown = tells("status", "ends:handle"), tells("doctor", "ends:app")
    for said in (*shown, logs):
        assert "3 workers died in a row in the call of this record" in said
    for said in shown:
        assert f"streamworker dead put MODULE:handle 1/{bad}" in said
        assert "streamworker retry MODULE:handle --partition 1" in said
    assert "workers_died_in_call" in logs
