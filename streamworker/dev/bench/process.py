"""Scene ``process``: how fast records are handled and committed, and what that costs the server."""

from streamworker.dev.bench.contest import Contest, Contestant, rates, server_cpu
from streamworker.dev.bench.figures import Row, Target, rows_against

LOOP = "redis-py loop"
BATCH = Contestant("batch handler", mode="batch")
FORWARDING = Contestant("batch handler, forwarding", mode="forwarding")
RECORD = Contestant("record handler", mode="record")
HANDWRITTEN = Contestant(LOOP, ("-m", "streamworker.dev.bench.peers.handwritten"), reads_group=True)


async def process(contest: Contest) -> list[Row]:
    """Measure handlers of all kinds against a loop by hand, on the same entries of the same streams."""
    contest.say("filling")
    keys = await contest.ground.fill_records("events", contest.records, partitions=contest.partitions)
    found = await contest.in_turn([BATCH, HANDWRITTEN, FORWARDING, RECORD], {"events": keys})
    speed, cpu = rates(found), server_cpu(found)
    rows = []
    for scene, what, ours, least in (
        ("batch", "batch handler (1,000), no forwarding", BATCH, 1.2),
        ("forwarding", "batch handler (1,000), forwarding to the acked log", FORWARDING, 0.6),
        ("record", "record handler", RECORD, 0.5),
    ):
        rows += rows_against(scene, what, speed, ours.name, {LOOP: Target(least)})
    what = "server CPU for an event: read and commit"
    rows += rows_against("server-cpu", what, cpu, BATCH.name, {LOOP: Target(0.5, at_most=True)})
    return rows
