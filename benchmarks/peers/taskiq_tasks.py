"""taskiq with tasks of a Redis stream; ``taskiq worker`` runs ``broker``, as its users do.

A task is one record. taskiq acknowledges a task after it has run.
"""

import os
from typing import Any

from taskiq import TaskiqMessage
from taskiq_redis import RedisStreamBroker

from benchmarks.measuring.task import VARIABLE, Tally, Task, events, task_of_this_process

NAME = "handle"


def make_broker(task: Task) -> RedisStreamBroker:
    """Make the broker for one run."""
    made = RedisStreamBroker(
        task.url,
        queue_name=task.keys[0],
        consumer_group_name=task.group,
        consumer_id="0",
        xread_count=task.batch,
    )
    tally = Tally(task.begun_path)

    @made.task(task_name=NAME)
    async def handle(*_fields: Any) -> None:
        tally.add(1)

    return made


def messages(count: int) -> list[bytes]:
    """Return tasks as taskiq stores them in Redis."""
    formatter = RedisStreamBroker("redis://localhost").formatter
    return [
        formatter.dumps(
            TaskiqMessage(
                task_id=f"task-{event.number}",
                task_name=NAME,
                labels={},
                args=[event.number, event.key, event.amount, event.sent_ns],
                kwargs={},
            )
        ).message
        for event in events(count)
    ]


if VARIABLE in os.environ:
    broker = make_broker(task_of_this_process())
