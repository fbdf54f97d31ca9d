"""How the programs of streamworker are measured: sending, handling, rows and delays."""

from collections.abc import Callable, Mapping, Sequence

from benchmarks.measuring.programs import Bench, Program, RunTiming, Told
from benchmarks.measuring.task import FIRST, Begun, Delays, RowRates, SentRecords

SENDER = Program("send_many", ("-m", "benchmarks.measuring.sender"), "send", "sent")
PACKED = "packed"
"""The stream whose entries hold many records, as ``send_many`` writes them."""
BATCH = Program("batch handler", mode="batch", entries=PACKED)
FORWARDING = Program("batch handler, forwarding", mode="forwarding", entries=PACKED)
RECORD = Program("record handler", mode="record", entries=PACKED)
ROWS = ("-m", "benchmarks.measuring.rows")
COLUMNS = Program("columns", ROWS, "columns", "rows")
JSON_RECORDS = Program("JSON records", ROWS, "records", "rows")
READER = Program("record handler", mode="latency", entries="paced")
EVEN_SENDER = Program("sender", SENDER.command, "send evenly", "paced")

TIMES = 10
"""Rows for each JSON record, so that both runs take long enough to be measured."""
PER_S = 1_000
SECONDS_MAX = 10
"""A longer run at a steady rate gives no further information."""


async def sending(bench: Bench, senders: Sequence[Program]) -> dict[str, list[SentRecords]]:
    """Let each sender send all records, 1,000 in each call."""
    return await bench.in_turn(senders, lambda each: _told(bench, each, bench.records, SentRecords))


async def _told(bench: Bench, program: Program, records: int, kind: type[Told]) -> Told:
    """Run a program on streams that are empty, and return what it tells."""
    keys = bench.ground.keys(program.entries, bench.partitions)
    async with bench.started(program, keys, records=records) as process:
        found = await process.told(kind)
    await bench.ground.remove_keys()
    return found


async def handling(
    bench: Bench, programs: Sequence[Program], keys: Mapping[str, list[str]]
) -> dict[str, list[RunTiming]]:
    """Let each program handle all entries; ``keys`` are the filled streams by the programs' ``entries``."""
    return await bench.in_turn(programs, lambda each: bench.handled(each, keys[each.entries]))


async def rows_and_records(bench: Bench) -> dict[str, list[RowRates]]:
    """Send, handle and forward columns and JSON records, end to end and in parts, each on one core."""
    counts = {COLUMNS: bench.records * TIMES, JSON_RECORDS: bench.records}
    return await bench.in_turn(list(counts), lambda each: _told(bench, each, counts[each], RowRates))


async def delays(bench: Bench, senders: Mapping[Program, Program]) -> dict[str, list[Delays]]:
    """Measure the time from a send to the handler at a steady rate; ``senders`` has a sender by reader."""
    count = min(bench.records, PER_S * SECONDS_MAX)

    async def delay(reader: Program) -> Delays:
        keys = bench.ground.keys(reader.entries, 1)
        async with bench.started(reader, keys, records=count + 1) as process:
            # The reader certainly reads once it has received a record.
            await bench.ground.fill_packed(reader.entries, 1)
            await process.told(Begun, FIRST)
            async with bench.started(senders[reader], keys, records=count, per_s=PER_S) as sender:
                found = await process.told(Delays, beside=sender)
        await bench.ground.remove_keys()
        return found

    return await bench.in_turn(list(senders), delay)


def prefixed(say: Callable[[str], None], scene: str) -> Callable[[str], None]:
    """Return a callback that names the scene before its progress messages."""
    return lambda text: say(f"{scene}: {text}")
