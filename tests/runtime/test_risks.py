"""What kills its process and is no record: it is found and held back, and no record is blamed for it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.conftest import SpawnWorker
from tests.helpers import wait_for

APP = """
import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from streamworker import App, Context, DeadLetter

app = App("risky", heartbeat_interval_ms=200, dead_after_ms=600)


@dataclass
class Line:
    number: int


lines = app.stream("lines", Line, partitions=3, key="number")


def dies() -> None:
    if Path("deadly").exists() and os.environ.get("WORKER"):
        with Path("deaths").open("a") as file:
            file.write("died\\n")
        os.kill(os.getpid(), signal.SIGKILL)


KIND


async def handle(line: Line) -> None:
    await asyncio.sleep(0.2)


ARGUMENTS = {"errors": DeadLetter(), "forward": False}
one = app.processor(lines, name="one", **ARGUMENTS)(handle)
many = app.processor(lines, name="many", concurrency=4, **ARGUMENTS)(handle)
TIMER
"""
OF_APP = """
@app.timer(every="0.5 seconds", missed="once")
async def sweep(ctx: Context) -> None:
    dies()
"""
OF_PARTITION = OF_APP.replace("@app.timer", "@one.timer")
RECORDS = 60
WORKERS_MAX = 12


@pytest.mark.full("starts a worker after each death")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "timer", "what"),
    [("", OF_APP, "timer sweep"), ("", OF_PARTITION, "timer sweep")],
    ids=["timer of the app", "timer of each partition"],
)
def test_what_kills_its_process_beside_records_is_held_back_and_no_record_is_blamed(
    kind: str,
    timer: str,
    what: str,
    redis_url: str,
    write_app: Callable[[str, str], Path],
    spawn: SpawnWorker,
    tmp_path: Path,
) -> None:
    """Its three deaths count against it alone; once it is put right, it runs again."""
    write_app("risky", APP.replace("KIND", kind).replace("TIMER", timer))
    (tmp_path / "deadly").touch()
    environ = {**os.environ, "STREAMWORKER_REDIS_URL": redis_url, "COLUMNS": "400"}
    sending = "import asyncio, risky\nasync def main():\n    async with risky.app:\n"
    sending += f"        await risky.lines.send_many([risky.Line(n) for n in range({RECORDS})])\n"

    def tells(*command: str) -> str:
        line = [sys.executable, *command]
        return subprocess.run(
            line, check=False, cwd=tmp_path, env=environ, capture_output=True, text=True
        ).stdout

    tells("-c", f"{sending}asyncio.run(main())")
    workers = [spawn("run", "risky:app", "--name", "w0", environ={"WORKER": "1"})]
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:

        def committed() -> bool:
            if not workers[-1].running:
                assert len(workers) < WORKERS_MAX, "it goes on for ever"
                workers.append(
                    spawn("run", "risky:app", "--name", f"w{len(workers)}", environ={"WORKER": "1"})
                )
            locks = [client.hgetall(key) for key in client.keys("sw:{risky.lines.*}:lock:*")]
            return len(locks) == 6 and sum(int(lock["entries"]) for lock in locks) == 2 * RECORDS

        wait_for(committed, "all records are handled", timeout_s=200)
        assert client.keys("*:dead:*") == []
    # A name that is left in one partition may be counted after the next worker has died in another one.
    assert (tmp_path / "deaths").read_text().count("died") <= 3 + 3
    held = f"{what} is held back: 3 workers died in a row in it"
    wait_for(lambda: held in tells("-m", "streamworker", "doctor", "risky:app"), "doctor names it")
    if timer != OF_APP:
        assert held in tells("-m", "streamworker", "status", "risky:app")
    (tmp_path / "deadly").unlink()
    if what.startswith("timer "):
        assert "held back: 3 workers died" in tells("-m", "streamworker", "timers", "risky:app")
        assert "Timer sweep ran" in tells("-m", "streamworker", "timers", "run-now", "risky:sweep")
    assert "held back" not in tells("-m", "streamworker", "doctor", "risky:app")
