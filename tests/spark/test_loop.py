"""Records go from Redis through workers, Spark and Redis to workers again, each once, whatever is killed.

pytest -m soak -s tests/spark/test_loop.py

LOOP_KILLS makes it longer: by hand 40 kills.
"""

import itertools
import json
import os
import random
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pytest

from streamworker import App
from streamworker.redisio.keys import GroupKeys
from tests.chaos.forked import Forge, Forked
from tests.chaos.times import STEADY
from tests.helpers import wait_for
from tests.judge import read_logs
from tests.spark.into import got
from tests.spark.loop_app import Order, decisions
from tests.spark.processes import ROOT, START_S, Driver
from tests.stage.server import Server, on_file

KILLS = int(os.environ.get("LOOP_KILLS", "6"))
PATH = "tests.spark.loop_app:app"
KINDS = ("price", "driver", "decide", "redis")
"""What is killed in turn: a worker of the first hop, Spark, a worker of the last one, and the server."""
WORKERS, CUSTOMERS, BATCH = 2, 30, 90
AHEAD = 1_500
"""Orders that are on their way at most, so that the end does not wait for those that nobody killed."""
PATIENCE_S = 3 * START_S


class Sender:
    """Sends numbered orders from a thread until its block ends, so many ahead of those that are decided."""

    def __init__(self, url: str) -> None:
        self.sent = self.decided = 0
        self._url, self._stop = url, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        app = App("shop", redis_url=self._url)
        stream = app.stream("orders", Order, key="customer", partitions=3)
        while not self._stop.wait(0.1):
            if self.sent - self.decided > AHEAD:
                continue
            numbers = range(self.sent, self.sent + BATCH)
            stream.sync.send_many([Order(n, f"c{n % CUSTOMERS}") for n in numbers])
            self.sent += BATCH
        app.close()


class Ring:
    """The workers of both hops, the driver between them, and the server of all."""

    def __init__(self, crew: Forge, server: Server, folder: Path, scratch: str) -> None:
        self._crew, self._server, self._folder, self._scratch = crew, server, folder, scratch
        self._lives = itertools.count()
        self.workers = {kind: [self._begin(kind) for _ in range(WORKERS)] for kind in ("price", "decide")}
        self.driver = self._drive()

    def _begin(self, kind: str) -> Forked:
        name = f"{kind}-{next(self._lives)}"
        environ = {**os.environ, **STEADY, "STREAMWORKER_REDIS_URL": self._server.url}
        arguments = ["run", PATH, "--name", name, "--processor", kind]
        return self._crew.run(arguments, cwd=ROOT, environ=environ, log_path=self._folder / f"{name}.log")

    def _drive(self) -> Driver:
        command = ("streamworker", "spark", PATH, "--master", "local[2]")
        its = {"CHECKPOINT": str(self._folder / "checkpoint")}
        return Driver(self._folder, self._server.url, self._scratch, command=command, **its)

    def kill(self, kind: str, rng: random.Random) -> None:
        """Kill something, and start what takes its place."""
        if kind == "redis":
            self._server.kill()
            time.sleep(rng.random())
            self._server.start()
        elif kind == "driver":
            self.driver.kill()
            self.driver = self._drive()
        else:
            place = rng.randrange(WORKERS)
            self.workers[kind][place].kill()
            self.workers[kind][place] = self._begin(kind)

    def look(self) -> bool:
        """Start those again that did not reach the server as it was killed; fail for any other that ended."""
        for kind, its in self.workers.items():
            for place, worker in enumerate(its):
                if worker.was_unreached:
                    its[place] = self._begin(kind)
                assert its[place].running, worker.log()[-3000:]
        return self.driver.alive()

    def wait(self, count: Callable[[], int], least: int, what: str) -> None:
        """Wait until a count is as high as it must be, for as long as it grows."""
        last, deadline = -1, time.monotonic() + PATIENCE_S
        while (now := count()) < least:
            if now > last:
                last, deadline = now, time.monotonic() + PATIENCE_S
            assert self.look() and time.monotonic() < deadline, f"{what}: {now} of {least}"
            time.sleep(0.1)

    def end(self) -> None:
        self.driver.kill()
        for worker in itertools.chain(*self.workers.values()):
            worker.kill()


def rows_in(server: Server, stream: str, group: str, partitions: int) -> int:
    """Return how many rows a processor has forwarded."""
    keys = GroupKeys("shop", stream, group)
    with server.client() as client:
        return sum(int(client.hget(keys.lock(p), "rows") or 0) for p in range(partitions))


def decided(server: Server) -> int:
    return rows_in(server, "scores", "decide", 4)


def judge(numbers: Sequence[tuple[int, str]], sent: int) -> dict[str, int]:
    """Count what is wrong with numbers of orders and their customers, which are in the order of a log."""
    counts, by_customer = Counter(n for n, _ in numbers), defaultdict[str, list[int]](list)
    for n, customer in numbers:
        by_customer[customer].append(n)
    pairs = [pair for its in by_customer.values() for pair in itertools.pairwise(its)]
    return {
        "lost": len(set(range(sent)) - set(counts)),
        "twice": sum(each - 1 for each in counts.values()),
        "strange": len(set(counts) - set(range(sent))),
        "out of order": sum(a >= b for a, b in pairs),
    }


@pytest.mark.soak("each kill is another start of Spark")
@pytest.mark.timeout(3600)
def test_each_record_comes_once_through_workers_spark_and_workers_whatever_is_killed(
    crew: Forge, tmp_path: Path
) -> None:
    """In the order of its key: in the last log, stream and table. What is in between is trimmed."""
    seed, began_s = random.randrange(1 << 30), time.monotonic()
    rng, killed = random.Random(seed), Counter[str]()
    with (
        on_file(tmp_path / "data", appendfsync="always") as server,
        tempfile.TemporaryDirectory(prefix="sw") as scratch,
    ):
        ring = Ring(crew, server, tmp_path, scratch)
        try:
            with Sender(server.url) as sender:
                for life in range(KILLS):
                    kind = KINDS[life % len(KINDS)]
                    done = sender.decided = decided(server)
                    ring.wait(lambda: decided(server), done + BATCH, f"rows before kill {life}")
                    time.sleep(rng.random())  # Any moment will do, and each is another one.
                    ring.kill(kind, rng)
                    killed[kind] += 1
                    print(f"{time.monotonic() - began_s:.0f} s, kill {life}: {kind}, {done} rows", flush=True)
            ring.wait(lambda: decided(server), sender.sent, "all are decided")
            wait_for(lambda: len(got(server.url, decisions)) >= sender.sent, "all are forwarded", PATIENCE_S)
        finally:
            ring.end()
        with server.client() as client:
            logs = read_logs(client, GroupKeys("shop", "scores", "decide"), 4)
        last = [(row["n"], row["customer"]) for log in logs.values() for entry in log for row in entry.rows]
        sent_on = [(each.record.n, each.record.customer) for each in got(server.url, decisions)]
        found = {"log": judge(last, sender.sent), "decisions": judge(sent_on, sender.sent)}
        values = table_of(crew, server.url, tmp_path)
    figures = {"seed": seed, "s": round(time.monotonic() - began_s), "sent": sender.sent, "kills": killed}
    print(json.dumps({**figures, **found}))
    assert not any(each for its in found.values() for each in its.values())
    assert any(judge(last[1:], sender.sent).values()) and any(judge([*last, last[0]], sender.sent).values())
    assert sum(each["orders"] for each in values) == sender.sent
    assert {each["last"] for each in values} == set(range(sender.sent - CUSTOMERS, sender.sent))


def table_of(crew: Forge, url: str, folder: Path) -> list[dict[str, int]]:
    """Return the value of each customer, as the table has it."""
    log, environ = folder / "table.log", {**os.environ, "STREAMWORKER_REDIS_URL": url}
    arguments = ["table", "scan", "tests.spark.loop_app:seen", "--limit", "1000"]
    assert crew.run(arguments, cwd=ROOT, environ=environ, log_path=log).wait() == 0
    return [json.loads(line)["value"] for line in log.read_text().splitlines() if line.startswith("{")]
