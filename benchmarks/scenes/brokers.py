"""Scene ``brokers``: RabbitMQ streams and NATS JetStream beside a Redis that writes a file as they do."""

import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.brokers import BROKERS, BrokerGround
from benchmarks.contest import Contest
from benchmarks.figures import Row
from benchmarks.measuring.figures import BenchFigures, figures_of
from benchmarks.measuring.ground import open_ground
from benchmarks.measuring.programs import Bench, Program, RunTiming
from benchmarks.measuring.scenes import BATCH, PACKED, RECORD, SENDER, handling, sending
from benchmarks.measuring.task import SentRecords
from streamworker.dev.server import EmbeddedServer

OURS = {
    "send": (SENDER, "send_many of 1,000, on a server with a file"),
    "batch": (BATCH, "batch handler (1,000), on a server with a file"),
    "record": (RECORD, "record handler, on a server with a file"),
}
SIZE = "a stored record: in our memory, in their files"


async def brokers(contest: Contest) -> list[Row]:
    """Measure sends, handlers and the size of a record; each has the records in one stream."""
    there = [each for each in BROKERS if each.is_there(contest)]
    if not there:
        return []
    for each in there:
        missing = [f"{mode} handler" for mode in OURS if mode not in each.modes] + [
            "forwarding to an acked log"
        ]
        contest.left_out.append(f"{each.name}: {' and '.join(missing)}, which {each.client} does not have.")
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="bench-")))
        server = stack.enter_context(EmbeddedServer(folder / "redis", maxmemory="4gb", appendonly=True))
        ours = Bench(await stack.enter_async_context(open_ground(server.url)), 1, contest.records)
        # As the others: an answer follows the write, and the system decides when the disk has it.
        await ours.ground.backend.execute("CONFIG", "SET", "appendfsync", "no")
        contest.say("starting brokers")
        theirs = [
            await stack.enter_async_context(each.started(folder / each.client, ours.ground.backend))
            for each in there
        ]
        return await _measured(contest, ours, theirs)


async def _measured(contest: Contest, ours: Bench, theirs: Sequence[BrokerGround]) -> list[Row]:
    contest.say("filling")
    for each in theirs:
        await each.per_s("send", "events", contest.records)
    sizes = {each.name: each.stored_bytes() for each in theirs}
    rows = await _rates(contest, ours, theirs, "send", [])
    keys = await ours.ground.fill_packed(PACKED, contest.records)
    size = await ours.ground.backend.execute("MEMORY", "USAGE", keys[0], "SAMPLES", 0)
    for mode in ("batch", "record"):
        rows += await _rates(contest, ours, theirs, mode, keys)
    figures = BenchFigures("a stream of Redis", "bytes", (size / contest.records,))
    return rows + [
        Row(
            f"{each.broker.client}-size",
            SIZE,
            figures,
            BenchFigures(each.name, "bytes", (sizes[each.name] / contest.records,)),
        )
        for each in theirs
    ]


async def _rates(
    contest: Contest, ours: Bench, theirs: Sequence[BrokerGround], mode: str, keys: list[str]
) -> list[Row]:
    program, what = OURS[mode]
    others = {each.name: each for each in theirs if mode in each.broker.modes}

    async def per_s(each: Program) -> RunTiming | SentRecords:
        if each.name in others and mode == "send":
            # To a new stream. The first batch is not counted.
            return await others[each.name].per_s(mode, f"s{secrets.token_hex(4)}", contest.records + 1000)
        if each.name in others:
            return await others[each.name].per_s(mode, "events", contest.records)
        if mode == "send":
            return (await sending(ours, [each]))[each.name][0]
        return (await handling(ours, [each], {PACKED: keys}))[each.name][0]

    found = await contest.in_turn([program, *map(Program, others)], per_s)
    speed = figures_of(found, "per_s", "events/s")
    return [
        Row(f"{other.broker.client}-{mode}", what, speed[program.name], speed[name])
        for name, other in others.items()
    ]
