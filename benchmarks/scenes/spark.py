"""Scene ``spark``: reading an acked log against Parquet and row by row, and the time of a micro-batch."""

import asyncio
import secrets
import tempfile
import time
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.contest import Contest
from benchmarks.figures import Row, Target
from benchmarks.measuring.figures import BenchFigures
from benchmarks.measuring.programs import STALL_S, BenchFailed, Program
from benchmarks.measuring.scenes import FORWARDING, PACKED
from benchmarks.measuring.task import Begun
from streamworker.errors import JavaMissing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from streamworker.spark.driver.session import Session

LOG, PARQUET, BY_ROW = (Program(name) for name in ("acked log", "Parquet", "row by row"))
STREAMED, RATE = (Program(name) for name in ("acked log to Parquet", "rate source to Parquet"))
PARTITIONS = 2
"""Number of partitions if Spark does not report how many tasks it runs at a time."""
FEW_ROWS = 10
"""Rows of a micro-batch: few, but enough that each task writes a file."""
TRIGGER = "1 second"
"""The rate source produces rows every second."""
BATCHES, FIRST_BATCHES = 8, 2
"""Measured micro-batches of a run, and those before them that only load code and are not counted."""
POLL_S = 0.2


async def spark(contest: Contest, *, session: "Session | None" = None, batches: int = BATCHES) -> list[Row]:
    """Measure Spark on the acked log of a worker, in one Spark session; by default in one of its own.

    ``batches`` is the number of measured micro-batches of a run.
    """
    if not contest.has("pyspark", "spark"):
        return []
    contest.say("starting Spark")
    opened: Session
    try:
        opened = await asyncio.to_thread(_open, contest.ground.url) if session is None else session
    except JavaMissing as error:
        contest.left_out.append(f"spark: {error}")
        return []
    try:
        log, rows = await _log_of(contest, opened.parallelism or PARTITIONS)
        return [
            *await _read(contest, opened, log, rows),
            await _stream(contest, opened, log, batches),
        ]
    finally:
        if session is None:
            await asyncio.to_thread(opened.stop)


def _open(url: str) -> "Session":
    from streamworker.spark.driver.session import open_session

    return open_session("bench", redis_url=url)


async def _log_of(contest: Contest, partitions: int) -> tuple[dict[str, str], int]:
    """Let a worker forward all records; return the options that read its log, and the number of rows."""
    contest.say("filling")
    keys = await contest.ground.fill_packed(PACKED, contest.records, partitions=partitions)
    async with contest.started(FORWARDING, keys) as worker:
        await worker.told(Begun)
        await worker.done()
        log = {"app": contest.ground.name, "stream": PACKED, "processor": worker.task.group}
    return log, await contest.ground.length(keys)


# -- reading the whole log -------------------------------------------------------------------


async def _read(contest: Contest, session: "Session", log: dict[str, str], rows: int) -> list[Row]:
    """Read all rows in turn from the log, from Parquet, and from the log row by row."""
    contest.say("warming up")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        frames = await asyncio.to_thread(_frames, session, log, f"{folder}/rows", rows)

        async def rows_per_s(program: Program) -> float:
            return rows / await asyncio.to_thread(_seconds, frames[program])

        found = await contest.in_turn(list(frames), rows_per_s)
    ours, parquet, by_row = (BenchFigures(name, "rows/s", tuple(runs)) for name, runs in found.items())
    what = f"Spark reads {rows:,} rows"
    return [
        Row("spark-parquet", what, ours, parquet, Target(0.3)),
        Row("spark-by-row", what, ours, by_row, Target(5)),
    ]


def _frames(session: "Session", log: dict[str, str], parquet: str, rows: int) -> "dict[Program, DataFrame]":
    """Return the same rows from the log, from Parquet and row by row; each frame has been read once."""
    from benchmarks.peers.row_by_row import NAME, RowByRowSource
    from streamworker.spark.driver.session import register
    from streamworker.spark.source.datasource import FORMAT

    register(session.spark)
    session.spark.dataSource.register(RowByRowSource)
    read = session.spark.read
    frames = {LOG: read.format(FORMAT).options(**log).load()}
    frames[LOG].write.parquet(parquet)
    frames[PARQUET] = read.parquet(parquet)
    frames[BY_ROW] = read.format(NAME).options(**log).load()
    if (written := frames[PARQUET].count()) != rows:
        raise BenchFailed(f"Spark read {written} of {rows} rows of the acked log.")
    for frame in frames.values():
        _seconds(frame)  # Warm up: Spark loads and compiles code.
    return frames


def _seconds(frame: "DataFrame") -> float:
    """Return the seconds that Spark needs to read all columns of all rows; it writes them nowhere."""
    begun_s = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return time.monotonic() - begun_s


# -- small micro-batches ---------------------------------------------------------------------


async def _stream(contest: Contest, session: "Session", log: dict[str, str], batches: int) -> Row:
    """Append a few rows a second to Parquet, in turn from the log and from Spark's rate source."""

    async def batch_ms(program: Program) -> float:
        return await asyncio.to_thread(_batch_ms, program, session, log, batches)

    found = await contest.in_turn([STREAMED, RATE], batch_ms)
    ours, rate = (BenchFigures(name, "ms", tuple(runs)) for name, runs in found.items())
    what = f"micro-batch of {FEW_ROWS} rows, committed to Parquet"
    return Row("spark-micro-batch", what, ours, rate, Target(150, at_most=True, is_difference=True))


def _few_of(session: "Session", log: dict[str, str]) -> "DataFrame":
    """Return a streaming frame of the log as a pipeline reads it, with few rows in each micro-batch."""
    from streamworker.spark.driver.session import register
    from streamworker.spark.source.datasource import FORMAT

    register(session.spark)
    options = {**log, "maxRowsPerTrigger": str(FEW_ROWS), "maxPartitions": str(_tasks(session))}
    return (
        session.spark.readStream.format(FORMAT)
        .options(**options, reader=f"bench-{secrets.token_hex(4)}")
        .load()
    )


def _rate(session: "Session") -> "DataFrame":
    options = {"rowsPerSecond": str(FEW_ROWS), "numPartitions": str(_tasks(session))}
    return session.spark.readStream.format("rate").options(**options).load()


def _tasks(session: "Session") -> int:
    return session.parallelism or PARTITIONS


def _batch_ms(program: Program, session: "Session", log: dict[str, str], batches: int) -> float:
    """Run a query for some micro-batches; return the median time of one."""
    frame = _few_of(session, log) if program is STREAMED else _rate(session)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        writer = frame.writeStream.format("parquet").option("path", f"{folder}/table")
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
        query = writer.trigger(processingTime=TRIGGER).start()
        try:
            return median(_durations(query, FIRST_BATCHES + batches)[FIRST_BATCHES:])
        finally:
            query.stop()


def _durations(query: "StreamingQuery", batches: int) -> list[int]:
    """Return the times of the first micro-batches with rows in ms, as Spark reports them."""
    from streamworker.spark.driver.failures import read_failure

    deadline = time.monotonic() + STALL_S
    found: dict[int, int] = {}
    while len(found) < batches:
        for event in query.recentProgress:
            if event["numInputRows"]:
                found.setdefault(event["batchId"], event["durationMs"]["triggerExecution"])
        if not query.isActive or time.monotonic() > deadline:
            error = query.exception()
            why = read_failure(str(error)).message if error else query.status["message"]
            raise BenchFailed(f"A query made {len(found)} of {batches} micro-batches. {why}")
        time.sleep(POLL_S)
    return [found[batch] for batch in sorted(found)][:batches]
