"""Trimming under Spark: what is missing is said to the row (F38), and a named reader is waited for (F39)."""

import asyncio
import json
import logging
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from redis import Redis
from structlog.testing import capture_logs

from streamworker import App
from streamworker.core.data.entries import EntryId
from streamworker.errors import DataLoss
from streamworker.redisio.data.ackedlog import entry_rows
from streamworker.redisio.keys import GroupKeys
from streamworker.spark.driver.session import Session
from streamworker.spark.source import offsets
from streamworker.spark.source.datasource import LogStreamReader
from streamworker.spark.source.offsets import Position
from streamworker.spark.source.options import SourceOptions, parse_options
from streamworker.spark.source.schema import spark_schema
from streamworker.testing import local_worker
from tests.chaos.figures import record
from tests.helpers import wait_for_async
from tests.spark.acked import ORDER, AckedLog
from tests.spark.conftest import Connect
from tests.spark.running import Running
from tests.spark.specs import Order, pipeline

MISSING = re.compile(r"Rows (\d+) to (\d+) are missing")
SEED = 38


# -- F38 -------------------------------------------------------------------------------------


@dataclass
class Trial:
    """One range of a log that is read while entries of it go."""

    acked: AckedLog
    entries: Sequence[tuple[bytes, dict[bytes, bytes]]]
    rng: random.Random
    options: SourceOptions

    def run(self, caplog: pytest.LogCaptureFixture) -> bool:
        """Read, and judge; returns whether rows that were wanted had gone."""
        self.acked.rewrite(0, self.entries)
        reader = LogStreamReader(self.options, spark_schema(ORDER))
        total = EntryId.parse(self.entries[-1][0]).ms
        begin = self.rng.randrange(total)
        since = offsets.to_json({0: Position(begin, self.acked.identity(0)), 1: offsets.START})
        until = reader.latestOffset(since, ReadAllAvailable())
        when = self.rng.choice(["before planning", "before reading", "meanwhile"])
        gone = self.take_away() if when == "before planning" else set()
        tasks = reader.partitions(since, until)
        gone = self.take_away() if when == "before reading" else gone
        found: list[int] = []
        loss: DataLoss | None = None
        try:
            for batch in (batch for task in tasks for batch in reader.read(task)):
                found += batch["n"].to_pylist()
                if when == "meanwhile" and not gone:
                    gone = self.take_away()
        except DataLoss as error:
            loss = error
        wanted = set(range(begin, total))
        left_out, named = wanted - set(found), named_in(caplog.messages)
        assert len(found) == len(set(found)) and set(found) <= wanted
        if loss is not None:
            assert self.options.fail_on_data_loss
            assert gone & wanted, f"a false alarm: {loss}"
        elif self.options.fail_on_data_loss:
            # What went meanwhile may have been fetched before.
            assert not left_out and (when == "meanwhile" or not gone & wanted)
        else:
            assert left_out == named and left_out <= gone
        return bool(gone & wanted)

    def take_away(self) -> set[int]:
        """Let entries go in one of the ways in which they do; returns the numbers of their rows."""
        key, redis = self.acked.keys.acked(0), self.acked.redis
        before = self.numbers()
        match self.rng.randrange(4):
            case 0:
                self.acked.trim(0, self.rng.randrange(1, max(before, default=1) + 2))
            case 1:
                redis.xtrim(key, maxlen=self.rng.randrange(len(self.entries)), approximate=False)
            case 2:
                redis.xdel(key, self.rng.choice(self.entries)[0])
            case _:
                redis.delete(key)
        return before - self.numbers()

    def numbers(self) -> set[int]:
        """Return the numbers of the rows that are there; they count from 0, and rows of a log from 1."""
        found: set[int] = set()
        for entry_id, fields in self.acked.entries(0):
            end = EntryId.parse(entry_id)
            found |= set(range(end.ms - entry_rows(end, fields), end.ms))
        return found


def named_in(warnings: list[str]) -> set[int]:
    found: set[int] = set()
    for first, last in (match.groups() for each in warnings for match in MISSING.finditer(each)):
        found |= set(range(int(first) - 1, int(last)))
    return found


@pytest.mark.full("150 trials")
@pytest.mark.parametrize(
    "count", [150, pytest.param(5_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_rows_that_were_trimmed_are_never_left_out_in_silence(
    acked: AckedLog, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """Whenever they go while a log is read, and however the rows are split into tasks."""
    rng = random.Random(SEED)
    acked.fill(0, [rng.randrange(1, 6) for _ in range(25)])
    entries = acked.entries(0)
    options = parse_options(acked.options(), streaming=True)
    damaged = 0
    with caplog.at_level(logging.WARNING, "streamworker.spark.source.logs"):
        for number in range(count):
            caplog.clear()
            how = replace(options, fail_on_data_loss=number % 2 == 0, min_partitions=rng.choice([None, 3]))
            damaged += Trial(acked, entries, rng, how).run(caplog)
    record(
        "F38",
        "entries trimmed or deleted before planning, before reading or meanwhile",
        times=count,
        target="100% detected, also with failOnDataLoss=false; no false alarm",
        verdict="met",
        seed=SEED,
        said=f"{damaged} times rows that were wanted went: read before, or DataLoss, or named in a warning",
    )


# -- F39 -------------------------------------------------------------------------------------

MAY_TAKE_S = 180.0
LIMIT = 25
"""Entries of an acked log at most."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.anyio
async def test_trimming_waits_for_a_query_that_is_away_and_the_limit_says_so(
    spark_session: Session, redis_url: str, connect: Connect, tmp_path: Path
) -> None:
    """Of two queries, one stops. Its rows stay; at the limit work waits and says for whom."""
    connect("default", redis_url)
    app = App("shop", redis_url=redis_url, trim_interval_ms=50, acked_entries_max=LIMIT)
    stream = app.stream("orders", Order, key="user", partitions=1)

    @app.processor(stream, name="price", batch=10, within=0.01)
    async def price(batch: list[Order]) -> list[Order]:
        return batch

    def begin(name: str) -> Running:
        return Running(spark_session, pipeline(lambda frame: frame, name=name, path=str(tmp_path / name)))

    async def send(first: int, count: int) -> None:
        await stream.send_many(Order(n, "u", 1.0) for n in range(first, first + count))

    with capture_logs() as logs:
        async with local_worker(app, url=redis_url) as worker:
            watch = Watch(redis_url)
            fast, slow = begin("fast"), begin("slow")
            try:
                # They are run apart: once one had read rows, the other could begin behind them.
                both = lambda: watch.told("slow") == watch.told("fast") == 0  # noqa: E731
                await wait_for_async(both, "both queries hold their places", MAY_TAKE_S)
                await send(0, 50)
                await worker.until_drained()
                await wait_for_async(lambda: watch.told("slow") == 50, "the slow query is at 50", MAY_TAKE_S)
                await asyncio.to_thread(slow.end)
                await send(50, 500)
                await wait_for_async(lambda: watch.length() >= LIMIT, "the log is full", MAY_TAKE_S)
                snapshot = (
                    await worker.until(
                        lambda now: "acked log full" in now.processors["price"].partitions[0].reason
                    )
                ).processors["price"]
                assert snapshot.partitions[0].lag > 0
                await wait_for_async(lambda: watch.told("fast") > 100, "the fast query is ahead", MAY_TAKE_S)
                assert watch.first() <= 50
                slow = begin("slow")
                done = lambda: watch.told("slow") == watch.told("fast") == 550  # noqa: E731
                await wait_for_async(done, "both queries are at the end", MAY_TAKE_S)
                await worker.until_drained()
                await wait_for_async(lambda: watch.length() <= 1, "the log is trimmed", MAY_TAKE_S)
            finally:
                await asyncio.to_thread(fast.end)
                await asyncio.to_thread(slow.end)
    warnings = [line for line in logs if line["event"] == "acked_log_full"]
    assert warnings
    assert "start its pipeline or forget the reader" in warnings[0]["reason"]
    assert watch.trimmed_too_far == 0
    for name in ("fast", "slow"):
        frame = spark_session.spark.read.parquet(str(tmp_path / name))
        found = await asyncio.to_thread(frame.collect)
        assert sorted(row.n for row in found) == list(range(550))
    record(
        "F39",
        "one of two queries stopped while the log grows to its limit",
        times=1,
        target="no trim below a live reader; a warning at the limit",
        verdict="met",
        said=f"{watch.looks} looks at the log: its first row was never behind the slower reader's; the "
        "warning, and what to do, in the worker's log and in status; both tables equal the log",
    )


class Watch:
    """Looks at the acked log and at what the readers have told."""

    def __init__(self, url: str) -> None:
        # Untyped: redis-py types every reply as all that any command may reply.
        self._redis: Any = Redis.from_url(url)
        self._keys = GroupKeys("shop", "orders", "price")
        self.looks = self.trimmed_too_far = 0

    def told(self, name: str) -> int:
        value = self._redis.hget(self._keys.readers, name)
        self._look()
        return int(json.loads(value)["p"].get("0", 0)) if value else -1

    def length(self) -> int:
        self._look()
        return int(self._redis.xlen(self._keys.acked(0)))

    def first(self) -> int:
        entries = self._redis.xrange(self._keys.acked(0), count=1)
        rows_before = int(self._redis.hget(self._keys.lock(0), "rows") or 0)
        if not entries:
            return rows_before
        end = EntryId.parse(entries[0][0])
        return end.ms - entry_rows(end, entries[0][1])

    def _look(self) -> None:
        # In this order: a reader only moves on, so what was trimmed before is behind where it is now.
        trimmed = self.first()
        told = [json.loads(value)["p"].get("0", 0) for value in self._redis.hvals(self._keys.readers)]
        self.looks += 1
        self.trimmed_too_far += bool(told) and trimmed > min(told)
