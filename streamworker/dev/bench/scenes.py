"""The scenes of ``streamworker bench``, and how their programs are measured."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from streamworker.dev.bench.figures import BenchFigures, Report, describe, figures_of
from streamworker.dev.bench.ground import open_ground
from streamworker.dev.bench.programs import Bench, Program, RunTiming, Told
from streamworker.dev.bench.task import FIRST, Begun, Delays, RowRates, SentRecords

SENDER = Program("send_many", ("-m", "streamworker.dev.bench.sender"), "send", "sent")
PACKED = "packed"
"""The stream whose entries hold many records, as ``send_many`` writes them."""
BATCH = Program("batch handler", mode="batch", entries=PACKED)
FORWARDING = Program("batch handler, forwarding", mode="forwarding", entries=PACKED)
RECORD = Program("record handler", mode="record", entries=PACKED)
ROWS = ("-m", "streamworker.dev.bench.rows")
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


# -- the scenes of the command ----------------------------------------------------------------


async def produce(bench: Bench) -> list[BenchFigures]:
    """Measure ``send_many`` with 1,000 records in each call."""
    found = await sending(bench, [SENDER])
    return [*figures_of(found, "per_s", "events/s", what="{} of 1,000").values()]


async def process(bench: Bench) -> list[BenchFigures]:
    """Measure the rates of handlers, and the server's CPU time."""
    bench.say("filling")
    keys = await bench.ground.fill_packed(PACKED, bench.records, partitions=bench.partitions)
    found = await handling(bench, [BATCH, FORWARDING, RECORD], {PACKED: keys})
    return [
        *figures_of(found, "per_s", "events/s").values(),
        *figures_of(found, "server_us", "µs", what="{}: server CPU for an event").values(),
    ]


async def columns(bench: Bench) -> list[BenchFigures]:
    """Measure ``codec="arrow"`` beside JSON records."""
    found = await rows_and_records(bench)
    parts = {
        "both_per_s": "{}: send, handle and forward, in one process",
        "send_per_s": "{}: send",
        "handle_per_s": "{}: handle and forward",
    }
    return [
        each
        for field, what in parts.items()
        for each in figures_of(found, field, "rows/s", what=what).values()
    ]


async def latency(bench: Bench) -> list[BenchFigures]:
    """Measure the time from a send to a record handler."""
    found = await delays(bench, {READER: EVEN_SENDER})
    return [
        each
        for name in ("p50", "p99")
        for each in figures_of(found, f"{name}_ms", "ms", what=f"{{}}, {name} at {PER_S:,} events/s").values()
    ]


SCENES: dict[str, Callable[[Bench], Awaitable[list[BenchFigures]]]] = {
    "produce": produce,
    "process": process,
    "columns": columns,
    "latency": latency,
}
"""The scenes by their name on the command line, in the order in which ``all`` runs them."""


async def run_bench(
    url: str,
    names: Sequence[str],
    *,
    runs: int,
    records: int,
    partitions: int,
    command: str,
    name: str | None,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> Report:
    """Run some of ``SCENES`` on a server, and remove all keys of the bench.

    ``command`` is the command line that repeats the bench, for the report; ``name`` the name of its app,
    random if None; ``say`` and ``warn`` take progress messages, and warnings about the figures.
    """
    figures = {}
    async with open_ground(url, name, warn=warn) as ground:
        for scene in names:
            bench = Bench(ground, runs, records, partitions, prefixed(say, scene))
            figures[scene] = await SCENES[scene](bench)
            await ground.remove_keys()
        machine = describe(await ground.server())
    return Report(machine=machine, figures=figures, runs=runs, command=command)


def prefixed(say: Callable[[str], None], scene: str) -> Callable[[str], None]:
    """Return a callback that names the scene before its progress messages."""
    return lambda text: say(f"{scene}: {text}")
