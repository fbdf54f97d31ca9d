"""The app of the soak: each worker and each producer writes down what it did, before and after.

``handled`` takes batches, and counts records in its state; a timer of its own moves the sum. What it returns
goes to its log and, as in a chain, to two others: ``counted`` keeps a table by key, and ``overlapping`` takes
several keys at a time. A timer of the app sends its times there, too. ``main`` is a producer's program.
"""

import asyncio
import os
import random
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from streamworker import App, Context, DeadLetter, Stream
from streamworker.errors import BackendError, BackendRefused, ProducerError, StreamFull
from tests.chaos.history import Recorder, monotonic_ms

APP, STREAM, PROCESSOR = "chaos", "events", "handled"
PASSED, COUNTED, OVERLAPPING, TOTALS = "passed", "counted", "overlapping", "totals"
"""The stream that ``handled`` sends to, the processors that take it, and the table of the first."""
PASSED_PARTITIONS = 5
WIDTH = 8
"""Records that ``overlapping`` takes at a time."""
TICK_S = 0.5
SWEEP = "sweep"
"""The timer, and the producer and key of what it sends."""
KEYS = 41
"""Keys of each producer."""
RUNS = (1, 12, 7)
"""Records of one key after another that a producer sends at a time: they share entries, but for the first."""
CHUNK = sum(RUNS)
BATCH = 8
"""Fewer than an entry holds, so that batches end within entries."""
DOOMED_EVERY = 97
"""One of so many records cannot be handled, and belongs among the dead letters."""
SEND_TIMEOUT_S = 12.0
"""After this a producer gives up: the outcome is unknown."""


class Thing(msgspec.Struct):
    producer: str
    key: str
    seq: int
    doomed: bool = False


class Done(msgspec.Struct):
    producer: str
    key: str
    seq: int
    source: str


class Doomed(Exception):
    """A record that cannot be handled."""


DOOMS = (Doomed, asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit)
"""What the function raises at such a record, in turn. Whatever it is, it costs the record and no worker."""


def plant_in(environ: Mapping[str, str]) -> None:
    """Make the mistake that the soak is to find, if there is one."""
    if plant := environ.get("CHAOS_PLANT"):
        from tests.planting import PLANTS, put_in

        put_in(PLANTS[plant])


def make_app(environ: Mapping[str, str]) -> App:
    plant_in(environ)
    app = App(
        APP, redis_url=environ["STREAMWORKER_REDIS_URL"], assignment=environ.get("CHAOS_ASSIGNMENT", "sticky")
    )
    things = app.stream(STREAM, Thing, key="key", partitions=int(environ["CHAOS_PARTITIONS"]))
    recorder = Recorder(Path(environ["CHAOS_HISTORY"], f"{environ['CHAOS_NAME']}.{os.getpid()}.jsonl"))
    handler_s = float(environ.get("CHAOS_HANDLER_S", "0.02"))

    def write(what: str, ctx: Context) -> None:
        ids = list(map(str, ctx.entry_ids))
        recorder.write("exec", what=what, partition=ctx.partition, epoch=ctx.epoch, ids=ids)

    def begin(batch: list[Thing], ctx: Context) -> float:
        """Return how long the call takes."""
        write("begin", ctx)
        for thing in batch:
            if thing.doomed:
                raise DOOMS[thing.seq // DOOMED_EVERY % len(DOOMS)](thing.seq)
        return random.uniform(0, 2 * handler_s)

    def end(batch: list[Thing], ctx: Context) -> list[Done]:
        done = [
            Done(thing.producer, thing.key, thing.seq, str(entry_id))
            for thing, entry_id in zip(batch, ctx.entry_ids, strict=True)
        ]
        ctx.state["sum"] = ctx.state.get("sum", 0) + len(batch)
        write("end", ctx)
        return done

    async def awaited(batch: list[Thing], ctx: Context) -> list[Done]:
        await asyncio.sleep(begin(batch, ctx))
        return end(batch, ctx)

    def in_thread(batch: list[Thing], ctx: Context) -> list[Done]:
        time.sleep(begin(batch, ctx))
        return end(batch, ctx)

    # Every other worker has it as a ``def`` function.
    function: Any = in_thread if environ["CHAOS_NAME"][-1] in "13579" else awaited
    options: dict[str, Any] = {"batch": BATCH, "within": 0.02, "errors": DeadLetter()}
    if environ["CHAOS_CHAIN"]:
        passed = app.stream(PASSED, Done, key="key", partitions=PASSED_PARTITIONS)
        declare_takers(app, passed, write, handler_s / 4)
        options["into"] = passed
    handled = app.processor(things, name=PROCESSOR, **options)(function)

    @handled.timer(every=TICK_S)  # type: ignore[untyped-decorator]
    async def flush(ctx: Context) -> None:
        ctx.state["flushed"] = ctx.state.get("flushed", 0) + ctx.state.pop("sum", 0)

    return app


def declare_takers(
    app: App, passed: Stream[Done], write: Callable[[str, Context], None], most_s: float
) -> None:
    """Declare who takes what is passed on; the table has each key's count, and a checksum of its order."""
    totals = app.table(TOTALS, list[int])
    in_hand: set[tuple[int, str]] = set()

    def done(its: Done, ctx: Context) -> Done:
        return Done(its.producer, its.key, its.seq, str(ctx.entry_id))

    @app.processor(passed, name=COUNTED, tables=[totals])
    async def counted(its: Done, ctx: Context) -> Done:
        count, order = await totals.get(its.key) or (0, 0)
        totals.set(its.key, [count + 1, zlib.crc32(b"%d" % its.seq, order)])
        return done(its, ctx)

    @app.processor(passed, name=OVERLAPPING, concurrency=WIDTH)
    async def overlapping(its: Done, ctx: Context) -> Done:
        if (mine := (ctx.epoch, its.key)) in in_hand:
            write("overlaps", ctx)
        in_hand.add(mine)
        try:
            await asyncio.sleep(random.uniform(0, most_s))
        finally:
            in_hand.discard(mine)
        return done(its, ctx)

    @app.timer(every=TICK_S, missed="all", into=passed)
    async def sweep(at: datetime, ctx: Context) -> Done:
        ctx.state["ticks"] = ctx.state.get("ticks", 0) + 1
        return Done(SWEEP, SWEEP, round(at.timestamp() / TICK_S), "0-0")


def key_of(n: int) -> int:
    """Return the number of a record's key."""
    run = sum(n % CHUNK >= end for end in accumulate(RUNS))
    return (n // CHUNK * len(RUNS) + run) % KEYS


class Producer:
    """Sends a number of records at a steady pace, and writes down each call and its outcome."""

    def __init__(self, name: str, count: int, per_second: float, environ: Mapping[str, str]) -> None:
        # A producer that is started again is another one: what its predecessor had under way may come late.
        self.name = f"{name}-{os.getpid()}"
        self._count, self._pace_s = count, CHUNK / per_second
        folder = Path(environ["CHAOS_HISTORY"])
        self._progress = folder / f"{name}.count"
        self._recorder = Recorder(folder / f"{name}.{os.getpid()}.jsonl")
        self._partitions = int(environ["CHAOS_PARTITIONS"])
        self._url = environ["STREAMWORKER_REDIS_URL"]
        self._told = 0
        """Losses that are written down."""

    async def run(self) -> None:
        """Send what is left of the count; records that were begun count, whatever became of them."""
        app = App(APP, redis_url=self._url)
        things = app.stream(STREAM, Thing, key="key", partitions=self._partitions)
        begun = int(self._progress.read_text() or 0) if self._progress.exists() else 0
        seq, next_s = 0, time.monotonic()
        async with app:
            self._lost = lambda: app.producer(things).lost
            while begun < self._count:
                count = min(CHUNK, self._count - begun)
                records = [
                    Thing(self.name, f"{self.name}.{key_of(n)}", n, n % DOOMED_EVERY == DOOMED_EVERY - 1)
                    for n in range(seq, seq + count)
                ]
                begun, seq = begun + count, seq + count
                self._progress.write_text(str(begun))
                await self._send(things, records)
                next_s = max(next_s + self._pace_s, time.monotonic() - 1)
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            await self._verify(app.producer(things))

    async def _verify(self, producer: Any) -> None:
        """Ask until somebody answers whether all that was confirmed is there, and write down what is not."""
        since = round(monotonic_ms(), 1)
        while True:
            try:
                await producer.verify()
                break
            except BackendError:
                await asyncio.sleep(1)
        self._write_lost()
        self._recorder.write("verified", producer=self.name, since=since)

    def _write_lost(self) -> None:
        lost = self._lost()
        for each in lost[self._told :]:
            words = {"producer": self.name, "partition": each.partition, "entries": each.records}
            self._recorder.write(
                "lost", first=str(each.first), last=str(each.last), is_all=each.is_all, **words
            )
        self._told = len(lost)

    async def _send(self, things: "object", records: list[Thing]) -> None:
        self._recorder.write(
            "send",
            what="invoke",
            producer=self.name,
            seqs=[record.seq for record in records],
            keys=[record.key for record in records],
            doomed=[record.seq for record in records if record.doomed],
        )
        send = things.send  # type: ignore[attr-defined]
        outcomes = await asyncio.gather(
            *(send(record, timeout=SEND_TIMEOUT_S) for record in records), return_exceptions=True
        )
        # First what is gone: once it is written that later sends were confirmed, this must have been said.
        self._write_lost()
        by_kind: dict[str, list[tuple[int, tuple[int, str]]]] = {}
        for record, outcome in zip(records, outcomes, strict=True):
            kind, place = "unknown", (-1, "0-0")
            if isinstance(outcome, StreamFull | BackendRefused):
                kind = "refused"
            elif isinstance(outcome, ProducerError):
                kind = "unknown"
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                kind, place = "ok", (outcome.partition, str(outcome.entry_id))
            by_kind.setdefault(kind, []).append((record.seq, place))
        for kind, found in by_kind.items():
            places = {"places": [place for _, place in found]} if kind == "ok" else {}
            seqs = [seq for seq, _ in found]
            self._recorder.write("send", what=kind, producer=self.name, seqs=seqs, **places)


async def main() -> None:
    """Run a producer until it has sent all; it goes on where the one before it in its place left off."""
    plant_in(os.environ)
    name, count, per_second = sys.argv[1:4]
    await Producer(name, int(count), float(per_second), os.environ).run()
