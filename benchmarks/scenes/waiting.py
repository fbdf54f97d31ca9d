"""Scene ``waiting``: a handler that waits, with calls in order and with concurrent calls.

``streamworker run benchmarks.scenes.waiting:app`` starts its worker.
"""

import asyncio
import os

from benchmarks.contest import Contest
from benchmarks.figures import Row, Target
from benchmarks.filling import fill_records
from benchmarks.measuring.figures import figures_of
from benchmarks.measuring.programs import Program, worker
from benchmarks.measuring.scenes import handling
from benchmarks.measuring.task import VARIABLE, BenchEvent, Tally, Task, task_of_this_process
from streamworker.app import App

WAIT_S = 0.005
"""About the response time of a service nearby."""
CALLS = 64
IN_ORDER_MAX = 1_000
"""In order these take 5 s; the concurrent calls get 20 times as many records."""
TIMES = 20
OVERLAPPING = Program("concurrency=64", worker("benchmarks.scenes.waiting:app"), "overlapping", "many")
IN_ORDER = Program("in order", OVERLAPPING.command, "in order", "few")


async def waiting(contest: Contest) -> list[Row]:
    """Measure ``concurrency=64, ordered_by="key"`` against the same handler in order."""
    count = min(contest.records // TIMES, IN_ORDER_MAX)
    keys = {
        "many": await fill_records(contest.ground, "many", count * TIMES),
        "few": await fill_records(contest.ground, "few", count),
    }
    speed = figures_of(await handling(contest, [OVERLAPPING, IN_ORDER], keys), "per_s", "events/s")
    what = "calls that overlap, in order by key: the handler waits 5 ms, 1,000 keys"
    return [Row("waiting", what, speed[OVERLAPPING.name], speed[IN_ORDER.name], Target(30))]


def make_app(task: Task) -> App:
    """Make the app of one run, with one processor that is named after the run's group."""
    made = App(task.app)
    stream = made.stream(task.stream, BenchEvent, key="key", partitions=task.partitions)
    tally = Tally(task.begun_path)

    async def wait(event: BenchEvent) -> None:  # noqa: ARG001 - it is only counted
        tally.add(1)
        await asyncio.sleep(WAIT_S)

    if task.mode == OVERLAPPING.mode:
        made.processor(stream, name=task.group, concurrency=CALLS, ordered_by="key")(wait)
    else:
        made.processor(stream, name=task.group)(wait)
    return made


if VARIABLE in os.environ:
    app = make_app(task_of_this_process())
