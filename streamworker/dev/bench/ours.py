"""The app whose workers are measured; ``streamworker run streamworker.dev.bench.ours:app`` runs one."""

import os

from streamworker.app import App
from streamworker.dev.bench.record import Event
from streamworker.dev.bench.task import VARIABLE, Tally, Task, task_of_this_process


def make_app(task: Task) -> App:
    """Make the app for one run: one processor, whose name is the group of that run."""
    made = App(task.app)
    stream = made.stream(task.stream, Event, key="key", partitions=task.partitions)
    tally = Tally(task.begun_path)

    async def record(event: Event) -> None:  # noqa: ARG001 - counted, as in a batch
        tally.add(1)

    async def batch(events: list[Event]) -> None:
        tally.add(len(events))

    async def forwarding(events: list[Event]) -> list[Event]:
        tally.add(len(events))
        return events

    if task.mode == "record":
        made.processor(stream, name=task.group)(record)
    elif task.mode == "batch":
        made.processor(stream, name=task.group, batch=task.batch)(batch)
    else:
        made.processor(stream, name=task.group, batch=task.batch)(forwarding)
    return made


if VARIABLE in os.environ:
    app = make_app(task_of_this_process())
