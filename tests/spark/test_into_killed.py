"""Streams that pipelines send to get each row once, in order, whatever is killed, wherever.

pytest -m soak -s tests/spark/test_into_killed.py

INTO_ROWS and INTO_KILLS make it longer: by hand 1,000,000 rows and 100 kills. INTO_MASTER names another
master, and PIPELINES=back leaves out the other pipeline.
"""

import json
import os
import random
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from tests.helpers import wait_for
from tests.spark.acked import AckedLog, orders
from tests.spark.conftest import Connect
from tests.spark.driver import ONLY
from tests.spark.into import got
from tests.spark.into_driver import ENDS, KEYS, PLACES, SHUFFLES, UNLOCKED, WINDOW, streams_on
from tests.spark.processes import START_S, Driver
from tests.spark.test_driver_killed import highest
from tests.spark.test_killed_in_turn import executors_of
from tests.spark.test_python_killed import kill_one
from tests.stage.server import Server, on_file

ROWS = int(os.environ.get("INTO_ROWS", "20_000"))
KILLS = int(os.environ.get("INTO_KILLS", "6"))
WAITING = int(os.environ.get("INTO_WAITING", "1"))
"""Drivers that start Spark while another one runs: a start takes most of the time."""
MASTER = os.environ.get("INTO_MASTER", "local-cluster[1,2,1024]")
"""The executor of a local cluster is a process of its own, and a task that was lost is tried again."""
KINDS = (
    *PLACES,
    *["driver", "zombie"],
    *["executor", "executor"] * ("cluster" in MASTER),
    *["python", "redis", "redis", "redis beside a stopped driver"] * 2,
)
"""What is killed: a driver at a place or anywhere; and a zombie, which wakes beside the driver after it."""
PIPELINES = (os.environ[ONLY],) if ONLY in os.environ else ("back", "windows")
BATCHES = 3
"""Of the rows of one kill."""
PATIENCE_S = 3 * START_S
LAST = 999_000
"""The number of a row that is so late that it closes all windows."""


class Siege:
    """A driver in a life or the next, its server, and the log that it reads."""

    def __init__(self, server: Server, acked: AckedLog, folder: Path, scratch: str, seed: int) -> None:
        self.server, self.acked, self.folder = server, acked, folder
        self.found, self.shuffles = Counter[str](), Counter[str]()
        self.rng, self._scratch, self._left = random.Random(seed), scratch, ROWS
        self._waiting: list[Driver] = []
        self.driver = self.begin()

    def begin(self, said: str = "") -> Driver:
        """Let a driver go on that has started Spark meanwhile, and start those after it."""
        while len(self._waiting) <= WAITING:
            shuffles = str(self.rng.choice([2, 3, 5, 8]))
            self.shuffles[shuffles] += 1
            command = ("tests.spark.into_driver", str(self.folder), MASTER)
            its = {SHUFFLES: shuffles}
            self._waiting.append(Driver(self.folder, self.server.url, self._scratch, command=command, **its))
        self.driver = self._waiting.pop(0)
        put(self.folder / f"go-{self.driver.pid}", said)
        return self.driver

    def end(self) -> None:
        for driver in (self.driver, *self._waiting):
            driver.kill()

    def fill(self, count: int) -> None:
        """Add rows to both partitions of the log, of those that are left."""
        count = min(count, self._left)
        self._left -= count
        for p in (0, 1):
            entries, rest = divmod(count // 2 if p else count - count // 2, 500)
            self.acked.fill(p, [500] * entries + [rest] * bool(rest))

    def batches(self) -> int:
        return sum(highest(self.folder / name / "commits") for name in PIPELINES)

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for something, for as long as the driver lives and batches get done."""
        done, deadline = self.batches(), time.monotonic() + PATIENCE_S
        while not condition():
            if (now := self.batches()) > done:
                done, deadline = now, time.monotonic() + PATIENCE_S
            assert self.driver.alive() and time.monotonic() < deadline, f"{what}: {self.driver.log()[-5000:]}"
            time.sleep(0.02)

    def go_on(self, rows: int) -> None:
        """Add rows, and wait until the driver has done a batch."""
        done = self.batches()
        self.fill(rows)
        self.wait(lambda: self.batches() > done, "a batch is done")

    def strike(self, kind: str) -> None:
        """Kill something while rows are under way; some driver runs then."""
        share = ROWS // KILLS
        self.go_on(share // 2)
        if kind in PLACES:
            put(self.folder / ENDS, f"{kind}:SIGKILL")
            self.fill(share - share // 2)
            wait_for(lambda: not self.driver.running, f"the driver dies: {kind}", PATIENCE_S)
            self.begin()
            return
        is_stopped = kind in {"zombie", "redis beside a stopped driver"}
        if is_stopped:
            put(self.folder / ENDS, f"{self.rng.choice(PLACES[:-1])}:SIGSTOP")
        self.fill(share - share // 2)
        if is_stopped:
            wait_for(self.is_stopped, "the driver stops", PATIENCE_S)
        else:
            time.sleep(self.rng.random() * 2)  # Any moment will do, and each is another one.
        if kind == "zombie":
            self.haunt()
        elif kind == "driver":
            self.driver.kill()
            self.begin()
        elif kind in {"executor", "python"}:
            self.wait(lambda: self.kill_one(kind), f"there is a process to kill: {kind}")
        else:
            self.server.kill()
            time.sleep(self.rng.random())
            self.server.start()
            self.acked.reconnect()
            os.killpg(self.driver.pid, signal.SIGCONT)

    def is_stopped(self) -> bool:
        return self.driver.alive() and psutil.Process(self.driver.pid).status() == psutil.STATUS_STOPPED

    def haunt(self) -> None:
        """Start a driver, wake the stopped one before it, and kill that after a while."""
        zombie = self.driver
        try:
            self.begin(UNLOCKED)
            self.go_on(0)
            os.killpg(zombie.pid, signal.SIGCONT)
            self.fill(ROWS // KILLS // BATCHES)
            time.sleep(1 + 3 * self.rng.random())
        finally:
            zombie.kill()

    def kill_one(self, kind: str) -> bool:
        """Kill a process of Spark's that runs tasks; return whether there was one."""
        jvm = self.driver.jvm()
        if jvm is None:
            return False
        if kind == "python":
            return kill_one(jvm, self.rng)
        for executor in executors_of(jvm):
            executor.kill()
            return True
        return False

    def finish(self) -> None:
        """Let the driver come to the end of the log, and end it in order."""
        self.fill(self._left)
        self.acked.append(0, orders(LAST, 1))
        ends = {str(p): len(rows) for p, rows in self.acked.written.items()}
        self.wait(lambda: all(self.has_read(name, ends) for name in PIPELINES), "all is read")
        self.driver.terminate()
        assert self.driver.wait() == 0

    def has_read(self, name: str, ends: dict[str, int]) -> bool:
        """Whether a pipeline has done all rows, and the last watermark is past all windows."""
        done = highest(self.folder / name / "commits")
        if done < 0:
            return False
        _, plan, offsets = (self.folder / name / "offsets" / str(done)).read_text().splitlines()
        is_closed = name == "back" or json.loads(plan)["batchWatermarkMs"] > ROWS // 2 * 1000
        return bool(is_closed and json.loads(offsets)["p"] == ends)


def put(path: Path, text: str) -> None:
    """Write a file that is there as a whole."""
    written = path.with_name("written")
    written.write_text(text)
    written.rename(path)


def wanted_of(acked: AckedLog) -> tuple[pd.DataFrame, pd.Series]:
    """Return what the streams should have, by pandas: all rows, and the counts of the windows that closed."""
    rows = pd.DataFrame([row for written in acked.written.values() for row in written]).sort_values("n")
    windows = rows[rows["n"] != LAST].assign(ends=(rows["n"] % 1_000_000 // WINDOW + 1) * WINDOW)
    keys = (rows["n"] // 1_000_000).astype(str) + "-" + (rows["n"] % KEYS).astype(str)
    events = pd.DataFrame({"n": rows["n"], "k": keys, "v": rows["amount"] * 2}).reset_index(drop=True)
    return events, windows.groupby(["user", "ends"]).size()


def judge(found: pd.DataFrame, wanted: pd.DataFrame) -> dict[str, int]:
    """Count what is wrong with the events of a stream, which are in its order."""
    by_key = found.groupby("k")
    return {
        "missing": len(set(wanted["n"]) - set(found["n"])),
        "twice": int(found["n"].duplicated().sum()),
        "strange": len(set(found["n"]) - set(wanted["n"])),
        "out of order": int((by_key["n"].diff() <= 0).sum()),
        "keys in two partitions": sum(len(each) > 1 for each in by_key["partition"].unique()),
    }


@pytest.mark.soak("each kill is another start of Spark")
@pytest.mark.timeout(7200)
def test_whatever_is_killed_each_row_is_sent_once_and_in_order(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers at each step of the sink, executors, Python processes, and a server that writes each answer.

    After a shuffle of another number of tasks in each life; and the counts of windows that closed.
    """
    monkeypatch.setenv("ROWS_A_BATCH", str(max(ROWS // KILLS // BATCHES, 100)))
    seed, began_s = random.randrange(1 << 30), time.monotonic()
    with (
        on_file(tmp_path / "data", appendfsync="always") as server,
        tempfile.TemporaryDirectory(prefix="sw") as scratch,
        AckedLog(server.url, partitions=2) as acked,
    ):
        connect("default", server.url)
        siege = Siege(server, acked, tmp_path, scratch, seed)
        kinds: list[str] = []
        try:
            for life in range(KILLS):
                kinds = kinds or siege.rng.sample(KINDS, len(KINDS))
                kind = kinds.pop()
                siege.strike(kind)
                siege.found[kind] += 1
                print(
                    f"{time.monotonic() - began_s:.0f} s, kill {life}: {kind}, {siege.batches()}", flush=True
                )
            siege.finish()
        finally:
            siege.end()
        events, windows = streams_on(server.url)
        rows = [
            (each.record.n, each.record.k, each.record.v, each.partition) for each in got(server.url, events)
        ]
        found = pd.DataFrame(rows, columns=["n", "k", "v", "partition"])
        sent = [
            (each.record.user, int(each.record.ends.timestamp()), each.record.orders)
            for each in got(server.url, windows)
        ]
    wanted, counts = wanted_of(acked)
    figures = judge(found, wanted)
    log = siege.driver.log()
    said = Counter(re.findall(r"starts again from its checkpoint in [\d.]+ s: (.{60})", log))
    print(
        json.dumps(
            {
                "seed": seed,
                "s": round(time.monotonic() - began_s),
                "rows": len(wanted),
                "events": len(found),
                "windows": len(sent),
                "kills": siege.found,
                "tasks": siege.shuffles,
                **figures,
                "restarts": said,
                "failed": log.count(" failed: "),
            }
        )
    )
    assert not any(figures.values())
    assert any(judge(found[1:], wanted).values()) and any(
        judge(pd.concat([found, found[:1]]), wanted).values()
    )
    in_order = found.sort_values("n")[["n", "k", "v"]].reset_index(drop=True)
    pd.testing.assert_frame_equal(in_order, wanted)
    if "windows" not in PIPELINES:
        return
    table = pd.DataFrame(sent, columns=["user", "ends", "orders"]).set_index(["user", "ends"])["orders"]
    pd.testing.assert_series_equal(table.sort_index(), counts.sort_index(), check_names=False)
