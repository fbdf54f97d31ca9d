"""The app of the measured workers; ``streamworker run benchmarks.measuring.worker:app`` starts one."""

import os

from benchmarks.measuring.task import VARIABLE, BenchEvent, DelayTally, Tally, Task, task_of_this_process
from streamworker.app import App

WITHIN_S = 0.005
"""How long the last batch of a run waits for more records. The default of 50 ms would distort the time."""


def make_app(task: Task) -> App:
    """Make the app of one run, with one processor that is named after the run's group."""
    made = App(task.app)
    stream = made.stream(task.stream, BenchEvent, key="key", partitions=task.partitions)
    tally = Tally(task.begun_path)
    delays = DelayTally(task.begun_path, task.records)

    async def record(event: BenchEvent) -> None:  # noqa: ARG001 - it is only counted
        tally.add(1)

    async def latency(event: BenchEvent) -> None:
        delays.add(event.sent_ns)

    async def batch(events: list[BenchEvent]) -> None:
        tally.add(len(events))

    async def forwarding(events: list[BenchEvent]) -> list[BenchEvent]:
        tally.add(len(events))
        return events

    if task.mode in ("record", "latency"):
        made.processor(stream, name=task.group)(latency if task.mode == "latency" else record)
    else:
        function = forwarding if task.mode == "forwarding" else batch
        made.processor(stream, name=task.group, batch=task.batch, within=WITHIN_S)(function)
    return made


if VARIABLE in os.environ:
    app = make_app(task_of_this_process())
