"""A group of forked workers under fire: who does what to whom, and what an observer sees of it.

The server may be one, a Cluster, or the primary that sentinels name. All checks are made from the source, the
acked logs and the workers' own ledgers, read by a client that does not go through the disturbed network.
"""

import asyncio
import contextlib
import json
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import redis.asyncio as aredis
import redis.exceptions

from streamworker.core.data.entries import EntryId
from streamworker.core.snapshot import GroupSnapshot
from streamworker.errors import BackendError, BackendRefused, StreamworkerError
from streamworker.redisio.data.ackedlog import decode_entry
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.runtime.send.producer import Sent
from streamworker.urls import kind_of
from tests.chaos.forked import Forge, Forked
from tests.chaos.rows_app import PROCESSOR, STREAM, Item, make_app
from tests.chaos.sender import Sender, Sends
from tests.chaos.times import FAST
from tests.helpers import whole_lines
from tests.judge import check_chain, check_rows, schemas_of
from tests.stage.crew import Crew
from tests.stage.server import Server

APP = "tests.chaos.rows_app:app"
"""What commands call the app of a team, with its ``environ``."""
POLL_S = 0.05
READ_COUNT = 2_000
KEYS = 97
"""Fewer than the records under way at a time, so that some share a key."""
PATIENCE_S = 60.0
"""How long anything is waited for that must happen: on a busy machine a process may stand for seconds."""


def setting(environ: Mapping[str, str], name: str) -> int:
    return int(environ[f"STREAMWORKER_{name.upper()}"])


@dataclass(frozen=True, slots=True)
class Lock:
    owner: str
    """Member id; empty if it is free."""
    epoch: int

    @property
    def name(self) -> str:
        return self.owner.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of an acked log, as it was read."""

    id: bytes
    at_ms: int
    epoch: int
    last: str
    fields: Mapping[bytes, bytes]

    @property
    def rows_before(self) -> int:
        return int(self.id.split(b"-")[0]) - int(self.fields[b"rows"])

    def rows(self, schemas: Mapping[str, pa.Schema]) -> list[dict[str, Any]]:
        return list(decode_entry(EntryId.parse(self.id), dict(self.fields), schemas).to_pylist())


class Team(Crew):
    """Some workers of one group, and a sender of its records; an async context manager."""

    server: Server
    """What it has for itself, if a yard started it together with its server."""

    def __init__(
        self,
        url: str,
        forge: Forge,
        folder: Path,
        *,
        name: str,
        partitions: int = 4,
        environ: Mapping[str, str] = FAST,
        worker_url: str | None = None,
        producer_url: str | None = None,
        ledger: bool = False,
        single_entries: bool = False,
        durability: str = "memory",
        replicas: int = 1,
        rng: random.Random | None = None,
    ) -> None:
        self.url, self.name, self.partitions = url, name, partitions
        self.rng = rng or random.Random(0)
        self.sends = Sends()
        self.entries: dict[int, list[Entry]] = {p: [] for p in range(partitions)}
        self.flushed: set[int] = set()
        """Numbers that a fault has made vanish, which the test allows."""
        self.keys = GroupKeys(name, STREAM, PROCESSOR)
        self.ledger = folder / f"{name}-ledger"
        """Where workers write down what they execute, if they are to."""
        self.ledger.mkdir()
        its = {
            "ROWS_APP": name,
            "ROWS_PARTITIONS": str(partitions),
            "STREAMWORKER_REDIS_URL": worker_url or url,
            "STREAMWORKER_DURABILITY": durability,
            "STREAMWORKER_DURABILITY_REPLICAS": str(replicas),
            **({"ROWS_LEDGER": str(self.ledger)} if ledger else {}),
            **environ,
        }
        super().__init__(forge, folder, its, prefix=f"{name}-")
        sends = {"STREAMWORKER_REDIS_URL": producer_url or url}
        if single_entries:
            sends["ROWS_SINGLE"] = "1"
        self._app = make_app(its | sends, durability=durability, durability_replicas=replicas)
        self.items = self._app.registry.streams[STREAM]
        self.sender = Sender(self._app, self.items, lambda n: Item(f"k{n % KEYS}", n), self.sends)
        self._read_to = ["-"] * partitions
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        if not kind_of(self.url):
            self.raw = aredis.Redis.from_url(self.url, protocol=2)
            """A plain client of one server, for what others do to its keys."""
            self._stack.push_async_callback(self.raw.aclose)
        observer = Backend.open(self.url, name="observer", call_timeout_ms=10_000)
        self._observer = await self._stack.enter_async_context(observer)
        await self._stack.enter_async_context(self._app)
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.signal(signal.SIGKILL)
        with contextlib.suppress(StreamworkerError):
            await self._stack.aclose()

    # -- workers -------------------------------------------------------------------------------

    async def hired(self, *names: str, **environ: str) -> list[Lock]:
        """Start workers, and wait until they and those before them share the partitions evenly."""
        self.hire(*names, **environ)
        return await self.settled()

    @contextlib.asynccontextmanager
    async def at_work(self, *names: str, per_second: float = 60) -> AsyncIterator[None]:
        """Let workers work meanwhile; in the end all is done, it is right, and nobody was hurt."""
        await self.hired(*names)
        async with self.load(per_second):
            yield
        await self.finished()

    def _start_again(self) -> None:
        """Start whoever did not reach the server when it began, as a supervisor would."""
        for worker in self.workers.values():
            if worker.was_unreached:
                self.forge.again(worker)

    async def ended(self, worker: Forked) -> int:
        await self.until(f"{worker.name} of {self.name} ends", lambda: worker.code is not None)
        assert worker.code is not None
        return worker.code

    # -- waiting -------------------------------------------------------------------------------

    async def until(
        self,
        what: str,
        condition: Callable[[], Awaitable[Any] | Any],
        timeout_s: float = PATIENCE_S,
        poll_s: float = POLL_S,
    ) -> Any:
        """Wait for a condition; what Redis does not answer meanwhile counts as no."""
        deadline = time.monotonic() + timeout_s
        value: Any = None
        while True:
            self._start_again()
            try:
                value = condition()
                if hasattr(value, "__await__"):
                    value = await value
            except (redis.exceptions.RedisError, StreamworkerError, OSError):
                value = None
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{self.name}: waited {timeout_s:.0f} s in vain until {what}; last: {value!r}"
                )
            await asyncio.sleep(poll_s)

    async def settled(self) -> list[Lock]:
        async def look() -> list[Lock] | None:
            locks = await self.locks()
            sizes = Counter(lock.name for lock in locks)
            share, more = divmod(self.partitions, len(self.workers))
            expected = sorted([share + 1] * more + [share] * (len(self.workers) - more))
            held = sorted(sizes[name] for name in self.workers)
            return locks if set(sizes) <= set(self.workers) and held == expected else None

        found: list[Lock] = await self.until(f"{sorted(self.workers)} hold even shares", look)
        return found

    # -- looking -------------------------------------------------------------------------------

    async def locks(self) -> list[Lock]:
        asked = [("HMGET", self.keys.lock(p), "owner", "epoch") for p in range(self.partitions)]
        answers = all_answered(await self._observer.pipeline(asked))
        return [Lock((owner or b"").decode(), int(epoch or 0)) for owner, epoch in answers]

    async def shares(self) -> dict[str, int]:
        """Return how many partitions each worker holds."""
        return dict(Counter(lock.name for lock in await self.locks() if lock.owner))

    async def read_logs(self) -> None:
        asked = [
            ("XRANGE", self.keys.acked(p), self._read_to[p], "+", "COUNT", READ_COUNT)
            for p in range(self.partitions)
        ]
        for p, entries in enumerate(await self._observer.pipeline(asked)):
            if isinstance(entries, BackendRefused):
                continue  # A test may have put something else in a log's place for a while.
            if isinstance(entries, BackendError):
                raise entries
            for entry_id, flat in entries:
                fields = dict(zip(flat[::2], flat[1::2], strict=True))
                at_ms, epoch = int(fields[b"at"]), int(fields[b"epoch"])
                self.entries[p].append(Entry(entry_id, at_ms, epoch, fields[b"last"].decode(), fields))
                self._read_to[p] = f"({entry_id.decode()}"

    async def first_commits(
        self,
        since_ms: float,
        partitions: Collection[int],
        above: Mapping[int, int] | None = None,
    ) -> dict[int, int]:
        """Wait until partitions are committed to after a moment; return when, by the server's clock.

        ``above`` names epochs that the commit must be above.
        """
        above = above or {}

        def of(p: int) -> int | None:
            for entry in reversed(self.entries[p]):
                if entry.at_ms < since_ms:
                    break
                if entry.epoch > above.get(p, -1):
                    found[p] = entry.at_ms
            return found.get(p)

        found: dict[int, int] = {}

        async def look() -> bool:
            await self.read_logs()
            found.clear()
            return all(of(p) is not None for p in partitions)

        await self.until(f"partitions {sorted(partitions)} are committed to", look)
        return dict(found)

    async def held_by(self, name: str) -> dict[int, int]:
        """Return the partitions whose locks a worker has, with their epochs."""
        return {p: lock.epoch for p, lock in enumerate(await self.locks()) if lock.name == name}

    async def takeover_ms(self, since_ms: float, held: Mapping[int, int]) -> float:
        """Wait until others have committed to partitions at later epochs; return how long that took."""
        return max((await self.first_commits(since_ms, held, above=held)).values()) - since_ms

    async def resumed_ms(self, since_ms: float) -> float:
        """Wait until each partition is committed to again; return how long that took."""
        return max((await self.first_commits(since_ms, range(self.partitions))).values()) - since_ms

    async def snapshot(self) -> GroupSnapshot:
        return await take_snapshot(self._observer, self.name, STREAM, PROCESSOR)

    async def rebalances(self) -> list[tuple[str, int, int | None]]:
        """Return the changes of the group on record: cause, when, and how long it took."""
        return [(each.cause, each.at_ms, each.ms) for each in (await self.snapshot()).rebalances]

    async def moved(self) -> list[tuple[str, int]]:
        """Return cause and number of moves of each rebalance on record, oldest first."""
        return [(each.cause, len(each.moved)) for each in (await self.snapshot()).rebalances]

    async def begun(self) -> list[tuple[str, int]]:
        """Return cause and time of each; how long one took comes later."""
        return [(cause, at_ms) for cause, at_ms, _ in await self.rebalances()]

    def calls(self) -> Iterator[dict[str, Any]]:
        """Return all that was executed, by the workers' ledgers."""
        for path in self.ledger.glob("*.jsonl"):
            for line in whole_lines(path):
                yield {**json.loads(line), "pid": int(path.stem)}

    # -- sending -------------------------------------------------------------------------------

    async def send(self, count: int) -> None:
        """Send records over all partitions, and note what became of each."""
        await self.sender.send(count)

    def load(self, per_second: float = 40) -> AbstractAsyncContextManager[None]:
        return self.sender.load(per_second)

    # -- judging -------------------------------------------------------------------------------

    async def drained(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all nodes tell that no record waits; of one that is away nobody knows."""

        async def look() -> bool:
            snapshot = await self.snapshot()
            # A partition whose node gave no answer is shown as halted, without lag.
            return snapshot.lag == 0 and all(view.state != "halted" for view in snapshot.partitions)

        await self.until("there is no lag", look, timeout_s)

    async def finished(self, *but: Forked) -> None:
        """Wait until all is done; it must be right, and nobody but some workers may have been hurt."""
        await self.drained()
        await self.check()
        self.check_nobody_was_hurt(*but)

    def forget_logs(self) -> None:
        """Read all logs from their beginning again: the server has lost some of them."""
        self.entries = {p: [] for p in range(self.partitions)}
        self._read_to = ["-"] * self.partitions

    async def numbers(self) -> set[int]:
        await self._read_all()
        schemas = await self._schemas()
        logs = list(self.entries.values())

        def found() -> set[int]:
            return {row["n"] for entries in logs for entry in entries for row in entry.rows(schemas)}

        return await asyncio.to_thread(found)

    async def _read_all(self) -> None:
        before = -1
        while before != (before := sum(map(len, self.entries.values()))):
            await self.read_logs()

    async def check(self) -> None:
        """Nothing lost, nothing twice, in order, a chain, and one owner for each epoch."""
        await self._read_all()
        await self.check_entries()

    async def check_entries(self) -> None:
        """Judge what was read of the logs so far."""
        gone = await self._judged()
        assert not gone, f"{self.name}: confirmed and lost: {sorted(gone)[:20]} ({len(gone)})"

    async def lost(self) -> dict[int, Sent]:
        """Return what was confirmed and is gone, as after a failover; all else is right.

        Each of these sends, and no other, must have been reported to its sender.
        """
        self.forget_logs()
        await self._read_all()
        gone = await self._judged()
        await self.sender.ask_what_is_lost()
        silent = {n: sent for n, sent in gone.items() if not self.sends.reported(sent)}
        assert not silent, f"{self.name}: lost without a word: {sorted(silent)[:20]} ({len(silent)})"
        assert self.sends.reported_lost == len(gone), f"{self.name}: what was reported as lost is there"
        return gone

    async def _judged(self) -> dict[int, Sent]:
        """Return which confirmed sends are not in the logs, which must be right.

        In a thread: on a busy machine it takes long, and this event loop passes on what other teams say.
        """
        return await asyncio.to_thread(self._judge, await self._schemas())

    def _judge(self, schemas: Mapping[str, pa.Schema]) -> dict[int, Sent]:
        for p, entries in self.entries.items():
            chain = ((EntryId.parse(entry.id), entry.fields) for entry in entries)
            check_chain(f"{self.name}, partition {p}", chain)
        times = check_rows(
            (row for entry in entries for row in entry.rows(schemas)) for entries in self.entries.values()
        )
        came = self.sends.refused & times
        assert not came, f"{self.name}: refused and in the log: {sorted(came)[:20]}"
        assert not times or max(times) < self.sender.issued, f"{self.name}: nobody sent {max(times)}"
        confirmed = self.sends.confirmed.items()
        return {n: sent for n, sent in confirmed if n not in times and n not in self.flushed}

    async def _schemas(self) -> dict[str, pa.Schema]:
        flat = await self._observer.execute("HGETALL", self.keys.schemas)
        return schemas_of(dict(zip(flat[::2], flat[1::2], strict=True)))

    def check_nobody_was_hurt(self, *but: Forked) -> None:
        """No worker that is to live has ended, and none says that it met a bug."""
        ended = {worker.name: worker.code for worker in self.workers.values() if worker.code is not None}
        assert not ended, f"{self.name}: ended: {ended}\n" + self._last_words(ended)
        for worker in self.all_workers:
            said = "" if worker in but else worker.log()
            failed = "runner_failed" in said or "Traceback" in said
            assert not failed, f"{worker.log_path}:\n{said[-3000:]}"

    def _last_words(self, names: Collection[str]) -> str:
        return "\n".join(worker.log()[-2000:] for worker in self.all_workers if worker.name in names)


def now_ms() -> float:
    return time.time() * 1000
