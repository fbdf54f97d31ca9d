"""A log that is trimmed under Spark: what is missing is said, to the row (F38)."""

import logging
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from streamworker.core.entries import EntryId
from streamworker.errors import DataLoss
from streamworker.redisio.ackedlog import entry_rows
from streamworker.spark import offsets
from streamworker.spark.offsets import Position
from streamworker.spark.options import SourceOptions, parse_options
from streamworker.spark.schema import spark_schema
from streamworker.spark.source import LogStreamReader
from tests.chaos.figures import record
from tests.spark.acked import ORDER, AckedLog

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
    """Return the numbers of the rows that warnings say are missing."""
    found: set[int] = set()
    for first, last in (match.groups() for each in warnings for match in MISSING.finditer(each)):
        found |= set(range(int(first) - 1, int(last)))
    return found


def trials(acked: AckedLog, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Read a log so often while parts of it go; nothing may be left out in silence."""
    rng = random.Random(SEED)
    acked.fill(0, [rng.randrange(1, 6) for _ in range(25)])
    entries = acked.entries(0)
    options = parse_options(acked.options(), streaming=True)
    damaged = 0
    with caplog.at_level(logging.WARNING, "streamworker.spark.logs"):
        for number in range(count):
            caplog.clear()
            fail = number % 2 == 0
            pieces = rng.choice([None, 3])
            trial = Trial(
                acked, entries, rng, replace(options, fail_on_data_loss=fail, min_partitions=pieces)
            )
            damaged += trial.run(caplog)
    record(
        "F38",
        "entries trimmed or deleted before planning, before reading or meanwhile",
        times=count,
        target="100% detected, also with failOnDataLoss=false; no false alarm",
        verdict="met",
        seed=SEED,
        said=f"{damaged} times rows that were wanted went: read before, or DataLoss, or named in a warning",
    )


@pytest.fixture
def here(acked: AckedLog, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AckedLog:
    """Acked logs that this process reads itself, with the code that runs in Spark's Python processes."""
    monkeypatch.setenv("STREAMWORKER_CONNECTION_DEFAULT", redis_url)
    return acked


def test_rows_that_were_trimmed_are_never_left_out_in_silence(
    here: AckedLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Whenever they go, and however the rows are split into tasks."""
    trials(here, 150, caplog)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_five_thousand_trims_are_all_noticed(here: AckedLog, caplog: pytest.LogCaptureFixture) -> None:
    """The same, longer."""
    trials(here, 5_000, caplog)
