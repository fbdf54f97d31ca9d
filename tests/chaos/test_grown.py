"""A stream grows three times while workers, the command that grows it and the server are killed.

pytest -m soak -s tests/chaos/test_grown.py
"""

import contextlib
import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgspec.msgpack
import pytest

from streamworker import App
from streamworker.redisio.keys import GroupKeys
from tests.chaos.forked import Forge, Forked
from tests.chaos.grown_app import FIRST, Order
from tests.chaos.killers import PROTOCOLS
from tests.helpers import wait_for
from tests.spark.reading import read
from tests.stage.server import Server

ROOT = Path(__file__).parent.parent.parent
KEYS = [GroupKeys("shop", "orders", name) for name in ("price", "audit")]
PATH = "tests.chaos.grown_app:"
TABLE = {"app": "shop", "stream": "orders", "table": "counts"}
CUSTOMERS, WORKERS = 300, 4


class Sender:
    """Sends numbered orders of each customer from a thread, until it is told to stop."""

    def __init__(self, url: str, seed: int) -> None:
        self.sent = Counter[str]()
        self._url, self._rng = url, random.Random(seed)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def sends(self, more: int) -> None:
        """Wait until so many more are sent."""
        until = self.sent.total() + more
        wait_for(lambda: self.sent.total() > until, "orders are sent")

    def _run(self) -> None:
        app = App("shop", redis_url=self._url)
        stream = app.stream("orders", Order, key="customer", partitions=FIRST)
        while not self._ends.wait(0.02):
            batch = []
            for customer in self._rng.choices(range(CUSTOMERS), k=40):
                self.sent[f"c{customer}"] += 1
                batch.append(Order(f"c{customer}", self.sent[f"c{customer}"]))
            stream.sync.send_many(batch)
        app.close()


class Fleet:
    """The workers, who live one after the other in each of some places."""

    def __init__(self, forge: Forge, folder: Path, environ: dict[str, str]) -> None:
        self._forge, self._folder, self._environ = forge, folder, environ
        self._lives = itertools.count()
        self.workers = [self._begin() for _ in range(WORKERS)]

    def run(self, *words: str) -> Forked:
        """Begin a command."""
        log_path = self._folder / f"{words[0]}-{next(self._lives)}.log"
        return self._forge.run(words, cwd=ROOT, environ=self._environ, log_path=log_path)

    def _begin(self) -> Forked:
        return self.run("run", f"{PATH}app", "--name", f"w{next(self._lives)}")

    def replace(self, place: int) -> None:
        """Kill a worker, and begin another one."""
        self.workers[place].kill()
        self.workers[place] = self._begin()


def numbers_by_customer(group: str) -> dict[str, list[int]]:
    """Return the numbers of each customer's rows in a group's acked logs, one generation after the other."""
    options = {"app": "shop", "stream": "orders", "processor": group, "includeMetadata": "true"}
    table = read(options)
    found = defaultdict[str, list[int]](list)
    columns = [table[name].to_pylist() for name in ("_partition", "_offset", "customer", "n")]
    for _, _, customer, n in sorted(zip(*columns, strict=True)):
        found[customer].append(n)
    return found


@contextlib.contextmanager
def grown_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(folder / "data", appendonly=True, more="appendfsync always\n") as server:
        monkeypatch.setenv("STREAMWORKER_REDIS_URL", server.url)
        yield server


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_record_is_handled_once_and_in_order_while_a_stream_grows_three_times(
    crew: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """In both groups, in 8, 12, 25 and 64 partitions, all of which are open in the end.

    One of them counts each customer in a table and in its state, and all orders in a field of the state.
    """
    rng = random.Random(protocol)
    with grown_server(tmp_path, monkeypatch) as server:
        environ = {"GROWN_URL": server.url, "GROWN_BY": protocol, "STREAMWORKER_REDIS_URL": server.url}
        with Sender(server.url, seed=rng.randrange(1 << 30)) as sender:
            fleet = Fleet(crew, tmp_path, environ)
            for count in (12, 25, 64):
                sender.sends(2_000)
                command = fleet.run("partitions", f"{PATH}orders", str(count), "--yes")
                time.sleep(rng.uniform(0.3, 2.5))
                command.kill()
                for _ in range(2):
                    fleet.replace(rng.randrange(WORKERS))
                server.kill()
                server.start()
                while not map_of(server).endswith(f"+{count}"):
                    fleet.run("partitions", f"{PATH}orders", str(count), "--yes").wait()
        sent = sender.sent

        def is_through() -> bool:
            with server.client() as client:
                locks = [client.hgetall(keys.lock(p)) for keys in KEYS for p in range(8 + 12 + 25 + 64)]
            rows = sum(int(lock.get(b"rows", 0)) for lock in locks)
            return rows == 2 * sent.total() and not any(b"from" in lock for lock in locks)

        wait_for(is_through, "all orders are handled, and all partitions are open", 240)
        for keys in KEYS:
            found = numbers_by_customer(keys.group)
            assert found == {customer: list(range(1, n + 1)) for customer, n in sent.items()}
        assert {row["customer"]: row["value"] for row in read(TABLE).to_pylist()} == sent
        with server.client() as client:
            sums = [client.hget(KEYS[1].state(p), "sum") for p in range(8 + 12 + 25, 8 + 12 + 25 + 64)]
        assert sum(msgspec.msgpack.decode(found) for found in sums if found) == sent.total()


def map_of(server: Server) -> str:
    with server.client() as client:
        value: Any = client.hget(KEYS[0].meta, "partitions")
        return str(value.decode())
