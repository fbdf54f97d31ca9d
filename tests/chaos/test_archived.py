"""A stream is archived while workers, readers and the server are killed, and woken zombies put segments.

pytest -m soak -s tests/chaos/test_archived.py

ARCHIVED_RECORDS and ARCHIVED_KILLS make it longer: by hand 2,000,000 records and 50 kills.
"""

import contextlib
import itertools
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import duckdb
import psutil
import pyarrow as pa
import pytest

from streamworker import App
from streamworker.archive.store import store_at
from streamworker.core.words import name_of
from streamworker.redisio.data.ackedlog import decode_entry
from streamworker.redisio.keys import GroupKeys
from tests.chaos.archived_app import (
    AFTER_MS,
    BEFORE,
    BETWEEN,
    EVERY_MS,
    PARTITIONS,
    REFUSED,
    STOPS,
    Order,
)
from tests.chaos.forked import Forge, Forked
from tests.chaos.times import STEADY
from tests.helpers import wait_for
from tests.judge import schemas_of
from tests.stage.moto import moto_server, variables
from tests.stage.server import Server, cut, newest_aof

ROOT = Path(__file__).parent.parent.parent
PATH = "tests.chaos.archived_app:app"
RECORDS = int(os.environ.get("ARCHIVED_RECORDS", "120_000"))
KILLS = int(os.environ.get("ARCHIVED_KILLS", "8"))
"""Kills of workers from outside and of the server; workers also end by themselves beside their puts."""
CUSTOMERS, BATCH, WORKERS = 40, 2_000, 3
CUT_BYTES = 100_000
"""Less than the server writes in the last second before a kill, but for one that rests."""
HURTS = {"ARCHIVED_DIES_BEFORE": "0.03", "ARCHIVED_DIES_BETWEEN": "0.05", "ARCHIVED_STOPS": "0.04"}
KEPT_S = (EVERY_MS + AFTER_MS) / 1000 + 1
"""What was confirmed so long before the server lost its tail is in the archive or in what is left."""
PATIENCE_S = 240


def keys_of(group: str) -> GroupKeys:
    return GroupKeys("shop", "orders", group)


class Sender:
    """Sends numbered orders of each customer from a thread, and notes when each call returned."""

    def __init__(self, url: str, records: int) -> None:
        self.confirmed: list[tuple[float, int]] = []
        """The time, and up to which number each customer's orders were confirmed then."""
        self.is_done = False
        self._url, self._calls = url, records // BATCH
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    @property
    def last(self) -> int:
        """The number of each customer's last order."""
        return self.confirmed[-1][1]

    def before(self, at_s: float) -> int:
        """Return up to which number orders were confirmed before a time."""
        return max((n for when_s, n in self.confirmed if when_s < at_s), default=0)

    def _run(self) -> None:
        app = App("shop", redis_url=self._url)
        stream = app.stream("orders", Order, key="customer", partitions=PARTITIONS)
        each = BATCH // CUSTOMERS
        for call in range(self._calls):
            numbers = range(call * each + 1, call * each + each + 1)
            batch = [Order(f"c{c}", n, "x" * (n % 30)) for n in numbers for c in range(CUSTOMERS)]
            stream.sync.send_many(batch)
            self.confirmed.append((time.time(), numbers[-1]))
            time.sleep(0.2)
        app.close()
        self.is_done = True


class Fleet:
    """Workers, who live one after the other in each of some places."""

    def __init__(self, forge: Forge, folder: Path, environ: dict[str, str]) -> None:
        self.counts = Counter[str]()
        self._forge, self._folder, self._environ = forge, folder, environ
        self._lives = itertools.count()
        self._stopped: set[int] = set()
        self.workers = [self._begin() for _ in range(WORKERS)]

    def say(self, **environ: str) -> None:
        """Give further variables to those that begin from now on."""
        self._environ |= environ

    def _begin(self) -> Forked:
        name = f"w{next(self._lives)}"
        arguments = ["run", PATH, "--name", name]
        path = self._folder / f"{name}.log"
        worker = self._forge.run(arguments, cwd=ROOT, environ=self._environ, log_path=path)
        worker.name = name
        return worker

    def kill(self, place: int) -> None:
        """Kill a worker, which is replaced when it is looked at."""
        self.workers[place].kill()

    def replace_all(self) -> None:
        for place, worker in enumerate(self.workers):
            worker.kill()
            self.workers[place] = self._begin()

    def look(self, server: Server) -> None:
        """Replace those that have ended; wake those that have stopped, once others own their partitions."""
        for place, worker in enumerate(self.workers):
            if not worker.running:
                self.workers[place] = self._begin()
            elif worker.pid in self._stopped:
                with server.client() as client:
                    owners = [client.hget(keys_of("archive").lock(p), "owner") for p in range(PARTITIONS)]
                if worker.name not in {name_of((owner or b"").decode()) for owner in owners}:
                    self._stopped.discard(worker.pid)
                    worker.resume()
                    self.counts["zombies woken"] += 1
            else:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED:
                        self._stopped.add(worker.pid)

    def figures(self) -> dict[str, int]:
        """Return what workers have said of themselves."""
        logs = "".join(path.read_text("utf-8", "replace") for path in self._folder.glob("w*.log"))
        told = {what: logs.count(what) for what in (BEFORE, BETWEEN, STOPS, REFUSED)}
        return {**self.counts, **told, "passed": logs.count("archive_passed")}


class Place(NamedTuple):
    """Where an archive is, and what programs need to know to come there."""

    url: str
    environ: dict[str, str]

    def as_files(self, folder: Path) -> Path:
        """Return a folder with its objects."""
        if "://" not in self.url:
            return Path(self.url)
        store = store_at(self.url)
        for name in (each.name for p in range(PARTITIONS) for each in store.names(f"partition={p}")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            found = store.get(name)
            assert found is not None
            (folder / name).write_bytes(found.body)
        return folder


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """The variables that lead to an S3 of this module."""
    with moto_server() as url:
        yield variables(url)


@pytest.fixture(params=["files", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "files":
        return Place(str(tmp_path / "lake"), {})
    environ: dict[str, str] = request.getfixturevalue("s3")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return Place(f"s3://lake/{request.node.name}-{os.getpid()}", environ)


def acked(server: Server, group: str) -> pa.Table:
    """Return the rows of a group's acked log, with their places."""
    keys, tables = keys_of(group), []
    with server.client(60) as client:
        schemas = schemas_of(client.hgetall(keys.schemas))
        for p in range(PARTITIONS):
            after = "-"
            while entries := client.xrange(keys.acked(p), after, count=500):
                for name, fields in entries:
                    batch = pa.Table.from_batches([decode_entry(name, fields, schemas)])
                    at = pa.array([int(name.partition(b"-")[0])] * len(batch), pa.int64())
                    tables.append(batch.append_column("at", at))
                after = f"({entries[-1][0].decode()}"
    rows = pa.concat_tables(tables)
    return rows.append_column("row", pa.array(range(len(rows)), pa.int64()))


ARCHIVED = (
    "select customer, n, _time, _seq, partition from read_parquet('{}/*/*.parquet', hive_partitioning=true)"
)
JUDGED = """
    select count(*) as records, count(distinct (customer, n)) as distinct, max(n) as last,
        count(*) filter (n <= before) as unordered, count(*) filter (n > coalesce(before, 0) + 1) as gaps
    from (select *, lag(n) over (partition by customer order by {order}) as before from ({rows}))
"""


def judge(rows: str, order: str, **tables: pa.Table) -> dict[str, int]:
    """Count records, and where one does not follow the one before it of its customer."""
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        found = connection.sql(JUDGED.format(rows=rows, order=order)).to_arrow_table().to_pylist()
    return {name: int(value) for name, value in found[0].items()}


def numbers(rows: str, **tables: pa.Table) -> dict[str, set[int]]:
    """Return the numbers of each customer's records."""
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        found = connection.sql(f"select customer, list(n) from ({rows}) group by customer").fetchall()
    return {customer: set(its) for customer, its in found}


def is_through(server: Server, *groups: str) -> bool:
    """Whether groups have come to the end of all partitions."""
    with server.client() as client:
        for p in range(PARTITIONS):
            end = client.xinfo_stream(keys_of("live").events(p))["last-generated-id"]
            if any(client.hget(keys_of(group).lock(p), "checkpoint") != end for group in groups):
                return False
    return True


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tail", ["kept", "lost"])
def test_each_record_is_archived_once_and_read_again_once_whoever_is_killed(
    crew: Forge, tmp_path: Path, place: Place, tail: str
) -> None:
    """Live, from a group that was declared late, and from the files alone.

    Where the server loses its tail, records may be lost that were not archived yet: no others.
    """
    seed = random.randrange(1 << 30)
    rng, began_s = random.Random(seed), time.monotonic()
    fsync = "everysec" if tail == "lost" else "no"
    with Server(tmp_path / "data", appendonly=True, more=f"appendfsync {fsync}\n") as server:
        environ = {**os.environ, **STEADY, **HURTS, **place.environ, "ARCHIVED_AT": place.url}
        environ |= {"ARCHIVED_REDIS": server.url, "STREAMWORKER_REDIS_URL": server.url}
        fleet, cuts = Fleet(crew, tmp_path, environ), list[float]()
        with Sender(server.url, RECORDS) as sender:
            due_s, done = time.monotonic() + 3, 0
            pause_s = max(1.0, RECORDS / BATCH * 0.25 / KILLS)
            while not sender.is_done:
                time.sleep(0.1)
                fleet.look(server)
                if sender.confirmed and sender.last * CUSTOMERS > RECORDS // 2:
                    fleet.say(ARCHIVED_LATE="1")
                if time.monotonic() < due_s:
                    continue
                done, due_s = done + 1, time.monotonic() + rng.uniform(0.5, 1.5) * pause_s
                if done % 3:
                    fleet.kill(rng.randrange(WORKERS))
                    fleet.counts["workers killed"] += 1
                else:
                    killed_s = time.time()
                    server.kill()
                    if tail == "lost":
                        cuts.append(killed_s)
                        cut(newest_aof(tmp_path / "data"), rng.randrange(1, CUT_BYTES))
                    server.start()
                    fleet.counts["servers killed"] += 1
        fleet.say(ARCHIVED_LATE="1", **dict.fromkeys(HURTS, "0"))
        fleet.replace_all()
        for _ in range(3):  # Those of the late group, on their way.
            time.sleep(rng.uniform(0.5, 2))
            fleet.kill(rng.randrange(WORKERS))
            fleet.counts["workers killed"] += 1
            fleet.look(server)
        wait_for(
            lambda: is_through(server, "archive", "live", "late"), "all is archived and read", PATIENCE_S
        )
        live, late = acked(server, "live"), acked(server, "late")
    files = place.as_files(tmp_path / "fetched")
    rows = ARCHIVED.format(files)
    found = {
        "archive": judge(rows, "_time, _seq"),
        "live": judge("live", "row", live=live),
        "late": judge("late", "row", late=late),
    }
    segments = len([*files.glob("partition=*/*.parquet")])
    figures = {"seed": seed, "s": round(time.monotonic() - began_s), "segments": segments, **fleet.figures()}
    print(json.dumps({"at": place.url, "tail": tail, "sent": sender.last * CUSTOMERS, **figures}), found)
    for its in found.values():
        assert its["records"] == its["distinct"]
        assert its["unordered"] == 0
    archived = numbers(rows)
    if tail == "kept":
        assert {its["records"] for its in found.values()} == {sender.last * CUSTOMERS}
        return
    assert archived == numbers("late", late=late)
    lost = {n for c in range(CUSTOMERS) for n in {*range(1, sender.last + 1)} - archived[f"c{c}"]}
    may_be = [range(sender.before(at_s - KEPT_S) + 1, sender.before(at_s + 5) + 1) for at_s in cuts]
    assert not [n for n in lost if not any(n in each for each in may_be)]
