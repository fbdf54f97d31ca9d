"""Scenes ``produce`` and ``latency``: the rate of sends, and the time from a send to the handler."""

from streamworker.dev.bench.contest import Contest, Contestant
from streamworker.dev.bench.figures import Figures, Row, Target
from streamworker.dev.bench.record import payloads
from streamworker.dev.bench.task import FIRST, Begun, Delays, Sent

BY_HAND = ("-m", "streamworker.dev.bench.peers.handwritten")
SENDER = ("-m", "streamworker.dev.bench.sender")
PER_S = 1_000
SECONDS_MAX = 10
"""A longer run at a steady rate gives no further information."""


async def produce(contest: Contest) -> list[Row]:
    """Measure ``send_many`` against a pipeline of redis-py, with 1,000 records in each call."""
    both = [Contestant("send_many", SENDER, "send"), Contestant("redis-py pipeline", BY_HAND, "send")]
    found: dict[str, list[float]] = {each.name: [] for each in both}
    for run, each in contest.turns(both):
        contest.say(f"run {run + 1} of {contest.runs}: {each.name}")
        keys = contest.ground.keys("sent", contest.partitions)
        async with contest.started(each, keys, stream="sent", records=contest.records) as process:
            found[each.name].append((await process.told(Sent)).per_s)
        await contest.ground.remove_keys()
    ours, theirs = (Figures(each.name, "events/s", tuple(found[each.name])) for each in both)
    return [Row("produce", "send_many of 1,000", ours, theirs, Target(3))]


async def latency(contest: Contest) -> list[Row]:
    """Measure the time from a send to the handler at 1,000 records a second, against XADD and XREAD."""
    readers = [Contestant("record handler", mode="latency"), Contestant("blocking XREAD", BY_HAND, "latency")]
    senders = {
        "record handler": Contestant("sender", SENDER, "send evenly"),
        "blocking XREAD": Contestant("sender by hand", BY_HAND, "send evenly"),
    }
    found: dict[str, list[Delays]] = {each.name: [] for each in readers}
    count = min(contest.records, PER_S * SECONDS_MAX)
    for run, each in contest.turns(readers):
        contest.say(f"run {run + 1} of {contest.runs}: {each.name}")
        keys = contest.ground.keys("paced", 1)
        async with contest.started(each, keys, stream="paced", records=count + 1) as reader:
            # The reader certainly reads once it has received a record.
            await contest.ground.fill(keys[0], payloads(1))
            await reader.told(Begun, FIRST)
            sending = contest.started(senders[each.name], keys, stream="paced", records=count, per_s=PER_S)
            async with sending as sender:
                found[each.name].append(await reader.told(Delays, beside=sender))
        await contest.ground.remove_keys()
    rows = []
    for field, most in (("p50_ms", 1.0), ("p99_ms", 5.0)):
        ours, theirs = (
            Figures(each.name, "ms", tuple(getattr(delays, field) for delays in found[each.name]))
            for each in readers
        )
        name = field.removesuffix("_ms")
        what = f"latency {name} at {PER_S:,} events/s, send to handler"
        rows.append(
            Row(f"latency-{name}", what, ours, theirs, Target(most, at_most=True, is_difference=True))
        )
    return rows
