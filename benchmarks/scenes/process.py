"""Scene ``process``: the rate of handling and committing records, and the server's CPU time for it."""

from benchmarks.contest import Contest, Peer
from benchmarks.figures import LOOP, Row, Target, rows_against
from benchmarks.filling import fill, fill_records
from benchmarks.measuring.figures import figures_of
from benchmarks.measuring.ground import BenchGround
from benchmarks.measuring.programs import Program
from benchmarks.measuring.scenes import BATCH, FORWARDING, PACKED, RECORD, handling
from benchmarks.measuring.task import payloads
from benchmarks.runnel import runnel_python

HANDWRITTEN = Program(LOOP, ("-m", "benchmarks.peers.handwritten"))
FASTSTREAM = Peer(
    "FastStream batches",
    ("-m", "benchmarks.peers.faststream_batches"),
    entries="faststream",
    needs="faststream",
)
TASKIQ_BROKER = "benchmarks.peers.taskiq_tasks:broker"
TASKIQ = Peer(
    "taskiq",
    ("-m", "taskiq", "worker", "--workers", "1", "--log-level", "ERROR", TASKIQ_BROKER),
    entries="taskiq",
    needs="taskiq_redis",
)
FASTSTREAM_MAX, TASKIQ_MAX, RUNNEL_MAX = 50_000, 10_000, 10_000
"""Records of programs that would need minutes for all records; their rate does not depend on the number."""


def with_runnel(contest: Contest) -> list[Program]:
    """Return runnel's program; where it cannot run here, none, and say so in ``left_out``."""
    python = runnel_python()
    if python is None:
        contest.left_out.append("runnel: it needs a Python 3.8, and its packages from PyPI.")
        return []
    return [
        Program("runnel", ("-m", "benchmarks.peers.runnel_batches"), entries="runnel", python=str(python))
    ]


def runnel_key(ground: BenchGround) -> str:
    """Return the key of runnel's partition 0: it reads the number from the end of the key."""
    return f"sw:{{{ground.name}.runnel}}.0"


async def process(contest: Contest) -> list[Row]:
    """Measure all kinds of handlers against a hand-written loop and other libraries, on the same records."""
    contest.say("filling")
    ground = contest.ground
    size = {"partitions": contest.partitions}
    keys = {"events": await fill_records(ground, "events", contest.records, **size)}
    keys[PACKED] = await ground.fill_packed(PACKED, contest.records, **size)
    peers = contest.installed([FASTSTREAM, TASKIQ])
    if FASTSTREAM in peers:
        keys["faststream"] = ground.keys("faststream", 1)
        records = payloads(min(contest.records, FASTSTREAM_MAX))
        await fill(ground, keys["faststream"][0], records, "__data__")
    if TASKIQ in peers:
        from benchmarks.peers.taskiq_tasks import messages

        keys["taskiq"] = ground.keys("taskiq", 1)
        await fill(ground, keys["taskiq"][0], messages(min(contest.records, TASKIQ_MAX)), "data")
    if runnel := with_runnel(contest):
        keys["runnel"] = [runnel_key(ground)]
        await fill(ground, keys["runnel"][0], payloads(min(contest.records, RUNNEL_MAX)), "data")
    found = await handling(contest, [BATCH, HANDWRITTEN, FORWARDING, RECORD, *peers, *runnel], keys)
    speed, cpu = figures_of(found, "per_s", "events/s"), figures_of(found, "server_us", "µs")
    rows = []
    for scene, what, ours, theirs, target in (
        ("batch", "batch handler (1,000), no forwarding", BATCH, HANDWRITTEN, Target(1.2)),
        ("forwarding", "batch handler (1,000), forwarding", FORWARDING, HANDWRITTEN, Target(0.6)),
        ("record", "record handler", RECORD, HANDWRITTEN, Target(0.5)),
        ("faststream", "batch handler (1,000), no forwarding", BATCH, FASTSTREAM, Target(8)),
        ("taskiq", "record handler, forwarding nothing", RECORD, TASKIQ, None),
        *(("runnel", "batch handler (1,000), no forwarding", BATCH, each, None) for each in runnel),
    ):
        rows += rows_against(scene, what, speed, ours.name, {theirs.name: target})
    what = "server CPU for an event: read and commit"
    rows += rows_against("server-cpu", what, cpu, BATCH.name, {LOOP: Target(0.5, at_most=True)})
    return rows
