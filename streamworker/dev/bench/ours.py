"""The app of the measured workers; ``streamworker run streamworker.dev.bench.ours:app`` starts one."""

import asyncio
import os

from streamworker.app import App
from streamworker.dev.bench.record import Event
from streamworker.dev.bench.task import VARIABLE, DelayTally, Tally, Task, task_of_this_process

WAIT_S = 0.005
"""How long a handler of the scene ``waiting`` waits: about the response time of a service nearby."""
CALLS = 64
WITHIN_S = 0.005
"""How long the last batch of a run waits for more records. Other programs do not wait, and the default of
50 ms would distort the time."""


def make_app(task: Task) -> App:
    """Make the app of one run, with one processor that is named after the run's group."""
    made = App(task.app)
    stream = made.stream(task.stream, Event, key="key", partitions=task.partitions)
    tally = Tally(task.begun_path)

    async def record(event: Event) -> None:  # noqa: ARG001 - it is only counted
        tally.add(1)

    async def batch(events: list[Event]) -> None:
        tally.add(len(events))

    async def forwarding(events: list[Event]) -> list[Event]:
        tally.add(len(events))
        return events

    delays = DelayTally(task.begun_path, task.records)

    async def latency(event: Event) -> None:
        delays.add(event.sent_ns)

    async def waiting(event: Event) -> None:  # noqa: ARG001 - it is only counted
        tally.add(1)
        await asyncio.sleep(WAIT_S)

    singles = {"record": record, "latency": latency, "waiting": waiting}
    if task.mode == "overlapping":
        made.processor(stream, name=task.group, concurrency=CALLS, ordered_by="key")(waiting)
    elif task.mode in singles:
        made.processor(stream, name=task.group)(singles[task.mode])
    elif task.mode == "batch":
        made.processor(stream, name=task.group, batch=task.batch, within=WITHIN_S)(batch)
    else:
        made.processor(stream, name=task.group, batch=task.batch, within=WITHIN_S)(forwarding)
    return made


if VARIABLE in os.environ:
    app = make_app(task_of_this_process())
