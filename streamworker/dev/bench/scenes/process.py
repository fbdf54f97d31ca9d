"""Scene ``process``: the rate of handling and committing records, and the server's CPU time for it."""

from streamworker.dev.bench.contest import Contest, Contestant, rates, server_cpu
from streamworker.dev.bench.figures import LOOP, Row, Target, rows_against
from streamworker.dev.bench.record import payloads

TASKIQ_BROKER = "streamworker.dev.bench.peers.taskiq_tasks:broker"
BATCH = Contestant("batch handler", mode="batch")
FORWARDING = Contestant("batch handler, forwarding", mode="forwarding")
RECORD = Contestant("record handler", mode="record")
HANDWRITTEN = Contestant(LOOP, ("-m", "streamworker.dev.bench.peers.handwritten"), reads_group=True)


FASTSTREAM = Contestant(
    "FastStream batches",
    ("-m", "streamworker.dev.bench.peers.faststream_batches"),
    needs="faststream",
    entries="faststream",
    reads_group=True,
)
TASKIQ = Contestant(
    "taskiq",
    ("-m", "taskiq", "worker", "--workers", "1", "--log-level", "ERROR", TASKIQ_BROKER),
    needs="taskiq_redis",
    entries="taskiq",
    reads_group=True,
)
FASTSTREAM_MAX, TASKIQ_MAX = 50_000, 10_000
"""Records of programs that would need minutes for all records; their rate does not depend on the number."""


async def process(contest: Contest) -> list[Row]:
    """Measure all kinds of handlers against a hand-written loop and other libraries, on the same records."""
    contest.say("filling")
    ground = contest.ground
    keys = {"events": await ground.fill_records("events", contest.records, partitions=contest.partitions)}
    peers = contest.installed([FASTSTREAM, TASKIQ])
    if FASTSTREAM in peers:
        keys["faststream"] = [ground.events("faststream")]
        await ground.fill(
            ground.events("faststream"), payloads(min(contest.records, FASTSTREAM_MAX)), "__data__"
        )
    if TASKIQ in peers:
        from streamworker.dev.bench.peers.taskiq_tasks import messages

        keys["taskiq"] = [ground.events("taskiq")]
        await ground.fill(ground.events("taskiq"), messages(min(contest.records, TASKIQ_MAX)), "data")
    found = await contest.in_turn([BATCH, HANDWRITTEN, FORWARDING, RECORD, *peers], keys)
    speed, cpu = rates(found), server_cpu(found)
    rows = []
    for scene, what, ours, theirs, target in (
        ("batch", "batch handler (1,000), no forwarding", BATCH, HANDWRITTEN, Target(1.2)),
        ("forwarding", "batch handler (1,000), forwarding", FORWARDING, HANDWRITTEN, Target(0.6)),
        ("record", "record handler", RECORD, HANDWRITTEN, Target(0.5)),
        ("faststream", "batch handler (1,000), no forwarding", BATCH, FASTSTREAM, Target(8)),
        ("taskiq", "record handler, forwarding nothing", RECORD, TASKIQ, None),
    ):
        rows += rows_against(scene, what, speed, ours.name, {theirs.name: target})
    what = "server CPU for an event: read and commit"
    rows += rows_against("server-cpu", what, cpu, BATCH.name, {LOOP: Target(0.5, at_most=True)})
    return rows
