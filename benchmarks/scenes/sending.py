"""Scenes ``produce`` and ``latency``: the rate of sends, and the time from a send to the handler."""

from benchmarks.contest import Contest
from benchmarks.figures import Row, Target
from benchmarks.measuring.figures import figures_of
from benchmarks.measuring.programs import Program
from benchmarks.measuring.scenes import EVEN_SENDER, PER_S, READER, SENDER, delays, sending

BY_HAND = ("-m", "benchmarks.peers.handwritten")
PIPELINE = Program("redis-py pipeline", BY_HAND, "send", "sent")
XREAD = Program("blocking XREAD", BY_HAND, "latency", "paced")
XADD = Program("sender by hand", BY_HAND, "send evenly", "paced")


async def produce(contest: Contest) -> list[Row]:
    """Measure ``send_many`` against a pipeline of redis-py, with 1,000 records in each call."""
    speed = figures_of(await sending(contest, [SENDER, PIPELINE]), "per_s", "events/s")
    return [Row("produce", "send_many of 1,000", speed[SENDER.name], speed[PIPELINE.name], Target(3))]


async def latency(contest: Contest) -> list[Row]:
    """Measure the time from a send to the handler at 1,000 records a second, against XADD and XREAD."""
    found = await delays(contest, {READER: EVEN_SENDER, XREAD: XADD})
    rows = []
    for name, most in (("p50", 1.0), ("p99", 5.0)):
        late = figures_of(found, f"{name}_ms", "ms")
        what = f"latency {name} at {PER_S:,} events/s, send to handler"
        target = Target(most, at_most=True, is_difference=True)
        rows.append(Row(f"latency-{name}", what, late[READER.name], late[XREAD.name], target))
    return rows
