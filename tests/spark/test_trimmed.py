"""Trimming under Spark: what is missing is said to the row (F38), and a named reader is waited for (F39)."""

import asyncio
import logging
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from structlog.testing import capture_logs

from streamworker import App
from streamworker.core.data.entries import EntryId
from streamworker.errors import DataLoss
from streamworker.redisio.data.ackedlog import entry_rows
from streamworker.redisio.group import readers
from streamworker.redisio.keys import GroupKeys
from streamworker.spark.source import offsets
from streamworker.spark.source.datasource import LogStreamReader
from streamworker.spark.source.offsets import Position
from streamworker.spark.source.options import SourceOptions, parse_options
from streamworker.spark.source.schema import spark_schema
from streamworker.testing import local_worker
from tests.chaos.figures import record, repeats
from tests.helpers import wait_for_async
from tests.raw import opened
from tests.spark.acked import ORDER, AckedLog
from tests.spark.conftest import Connect
from tests.spark.reading import Query
from tests.spark.specs import Order

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
        reader = LogStreamReader(self.options, spark_schema(ORDER, self.options))
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
    "count", [150, pytest.param(repeats(5_000, 1_000), marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
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

LIMIT = 25
"""Entries of an acked log at most."""


@pytest.mark.anyio
async def test_trimming_waits_for_a_query_that_is_away_and_the_limit_says_so(
    redis_url: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two queries, one stops. Its rows stay; at the limit work waits and says for whom."""
    connect("default", redis_url)
    looks, look = [0], readers.slowest_rows

    async def counted(*given: Any) -> Any:
        looks[0] += 1
        return await look(*given)

    monkeypatch.setattr(readers, "slowest_rows", counted)
    app = App("shop", redis_url=redis_url, trim_interval_ms=50, acked_entries_max=LIMIT)
    stream = app.stream("orders", Order, key="user", partitions=1)

    @app.processor(stream, name="price", batch=10, within=0.01)
    async def price(batch: list[Order]) -> list[Order]:
        return batch

    async def send(first: int, count: int) -> None:
        await stream.send_many(Order(n, "u", 1.0) for n in range(first, first + count))

    with capture_logs() as logs, opened(redis_url) as redis:
        log = GroupKeys("shop", "orders", "price").acked(0)
        async with local_worker(app, url=redis_url) as worker:
            options = {"app": "shop", "stream": "orders", "processor": "price"}
            fast, slow = (Query({**options, "reader": name}) for name in ("fast", "slow"))
            await send(0, 50)
            await worker.until_drained()
            for query in (fast, slow):
                query.run()
            await send(50, 500)
            full = await worker.until(
                lambda now: "acked log full" in now.processors["price"].partitions[0].reason
            )
            assert full.processors["price"].partitions[0].lag > 0
            fast.run()
            before = looks[0]
            await wait_for_async(lambda: looks[0] > before + 3, "the worker has looked at the readers")
            oldest = redis.xrange(log, count=1)
            assert oldest and EntryId.parse(oldest[0][0]).ms <= 60, "rows of the slow query's are there"
            assert len(fast.table) > 100
            while len(slow.table) < 550 or len(fast.table) < 550:
                for query in (fast, slow):
                    query.run()
                await asyncio.sleep(0.02)
            await worker.until_drained()
            await wait_for_async(lambda: redis.xlen(log) <= 1, "the log is trimmed")
    warnings = [line for line in logs if line["event"] == "acked_log_full"]
    assert "start its pipeline or forget the reader" in warnings[0]["reason"]
    assert fast.table == slow.table == list(range(550))
    record(
        "F39",
        "one of two queries stopped while the log grows to its limit",
        times=1,
        target="no trim below a live reader; a warning at the limit",
        verdict="met",
        said="no row of the slower reader's was trimmed, though the other was ahead; the warning, and what "
        "to do, in the worker's log and in status; both tables equal the log",
    )
