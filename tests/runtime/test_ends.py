"""How a worker process ends: with 0 only when it drained, whatever the code does that it runs."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from streamworker.cli.exit_codes import ExitCode
from streamworker.runtime.watch.stages import FORCED, UNTOLD
from tests.conftest import SpawnWorker
from tests.helpers import WorkerProcess, wait_for
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

KILLER = """
async def handle(line: Line) -> Line:
    if line.text == "bad":
        os._exit(9)
    return line
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
ALL_CANCELLED = """
async def handle(line: Line) -> None:
    if line.text == "bad":
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(60)
"""
OURS_CANCELLED = """
async def handle(line: Line) -> None:
    if line.text == "bad":
        [task] = [task for task in asyncio.all_tasks() if "Committer.run" in task.get_name()]
        task.cancel()
        await asyncio.sleep(60)
"""


CHATTY = """
async def handle(batch: list[Line]) -> None:
    for _ in range(10_000):
        print("x" * 1_000, file=sys.stderr)
"""
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


def _is_over(worker: WorkerProcess, url: str) -> bool:
    return not worker.running or _left(url) == 0


def _left(url: str) -> int:
    with opened(url) as raw:
        groups = [raw.xinfo_groups(f"sw:{{ends.lines.{number}}}:events")[0] for number in range(8)]
        return sum(group["lag"] for group in groups)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_cancel_in_a_thread_ends_no_worker_and_a_signal_ends_them_all_with_0(
    workers: int, redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker, tmp_path: Path
) -> None:
    """One after the other ended with 0 in silence, and nobody was left."""
    write_app("ends", APP.replace("FUNCTION", CANCELLED))
    team = [spawn("run", "ends:app") for _ in range(workers)]
    wait_for(lambda: all("worker_started" in worker.log() for worker in team), "all have started")
    wait_for(lambda: _states(redis_url) == {b"running"}, "they run")
    _send(redis_url, "bad")
    _send(redis_url, "good")
    wait_for(lambda: _left(redis_url) == 0, "all is handled")
    with opened(redis_url) as raw:
        for number in range(8):
            [(_, letter)] = raw.xrange(f"sw:{{ends.lines.{number}}}:dead:handle")
            assert b"the function raised CancelledError" in letter[b"error"]
    assert all(worker.running for worker in team)
    for worker in team:
        worker.terminate()
    assert [worker.wait(30) for worker in team] == [0] * workers
    for worker in team:
        assert "worker_left" in worker.log()
        assert "threads_left_behind" not in worker.log()
    assert (tmp_path / "said").read_text() == "goodbye"


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (IN_A_TASK, "SystemExit: 0"),
        (IN_A_TASK.replace("leave(0)", "leave(3)"), "SystemExit: 3"),
        (ALL_CANCELLED, "CancelledError"),
        (OURS_CANCELLED, "its tasks were cancelled"),
    ],
    ids=["exit 0 in a task", "exit 3 in a task", "all tasks cancelled", "a task of ours cancelled"],
)
def test_a_worker_that_code_of_a_function_ends_says_so_and_does_not_end_with_0(
    function: str, says: str, redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker
) -> None:
    """Its supervisor is to start it again: what was in hand was not done."""
    write_app("ends", APP.replace("FUNCTION", function))
    worker = spawn("run", "ends:app")
    wait_for(lambda: _states(redis_url) == {b"running"}, "it runs")
    _send(redis_url, "bad")
    assert worker.wait(60) == UNTOLD == ExitCode.UNTOLD
    [said] = [line for line in worker.log().splitlines() if "worker_ended_untold" in line]
    assert says in said
    assert "worker_left" not in worker.log()


def test_a_module_that_ends_its_process_is_an_error_of_the_app(
    write_app: Callable[[str, str], Path], spawn: SpawnWorker
) -> None:
    """No worker ran, so there is no 0."""
    write_app("leaves", "import sys\nsys.exit(0)\n")
    worker = spawn("run", "leaves:app")
    assert worker.wait(60) == ExitCode.CONFIGURATION
    assert "SystemExit" in worker.log()


@pytest.mark.parametrize("is_left", [False, True], ids=["idle", "left behind"])
def test_only_a_call_that_was_left_behind_ends_a_process_without_its_last_words(
    is_left: bool, tmp_path: Path
) -> None:
    """A thread without a call ends by itself a moment later, and what the app registered is run."""
    work = "left_behind" if is_left else "time.sleep, args=(0.5,)"
    program = f"""
        import atexit, threading, time
        from streamworker.context import Place
        from streamworker.core.data.entries import Entry, EntryId
        from streamworker.runtime.run.threads import registered
        from streamworker.runtime.watch.stages import end_despite_threads

        def left_behind():
            given = dict(app="shop", processor="price", partition=3, epoch=1, owner="w", log=None)
            place = Place(**given, now=time.monotonic, key_of=None)
            with registered(left_behind, place, [Entry(EntryId(7, 1), {{}}, 0)]):
                time.sleep(60)

        atexit.register(print, "goodbye")
        threading.Thread(target={work}, name="AnyIO worker thread").start()
        time.sleep(0.1)
        end_despite_threads({FORCED})
        raise SystemExit({FORCED})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == FORCED
    assert ("goodbye" in done.stdout) is not is_left
    assert ("threads_left_behind" in done.stdout) is is_left
    assert ("processor price, partition 3, entry 7-1, for " in done.stdout) is is_left


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


def test_a_thread_that_was_left_behind_does_not_hold_up_the_end(
    redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker
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


@pytest.mark.timeout(600)  # It starts six processes, each of which may take ten seconds.
def test_a_record_that_kills_its_process_ends_two_more_than_it_has_attempts(
    redis_url: str, write_app: Callable[[str, str], Path], spawn: SpawnWorker
) -> None:
    """Workers are started again as a supervisor would; the sixth sets the record aside, and lives."""
    policy = "Retry(attempts=3, then=DeadLetter())"
    app = APP.replace("DeadLetter()", policy).replace("DeadLetter, Halt", "DeadLetter, Retry")
    app = app.replace('App("ends"', 'App("ends", heartbeat_interval_ms=200, dead_after_ms=400')
    write_app("ends", app.replace("FUNCTION", KILLER))
    deaths = 0
    for place in range(8):
        worker = spawn("run", "ends:app")
        if place == 0:
            wait_for(lambda: _states(redis_url) == {b"running"}, "it runs")
            with opened(redis_url) as raw:
                for text in ("good", "bad", "fine"):
                    raw.xadd("sw:{ends.lines.3}:events", {"v": f'{{"text": "{text}"}}'})
        wait_for(partial(_is_over, worker, redis_url), "it dies, or all is done")
        if worker.running:
            break
        deaths += 1
    assert deaths == 5
    with opened(redis_url) as raw:
        ((_, letter),) = raw.xrange("sw:{ends.lines.3}:dead:handle")
        assert b"Its worker died in attempt 3 at this record." in letter[b"error"]
