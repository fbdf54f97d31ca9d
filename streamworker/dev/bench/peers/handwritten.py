"""What people write by hand with redis-py: ``python -m streamworker.dev.bench.peers.handwritten``."""

from typing import Any

import msgspec
import redis

from streamworker.dev.bench.record import Event
from streamworker.dev.bench.task import Tally, Task, task_of_this_process

BLOCK_MS = 1000


def consume(task: Task) -> None:
    """Read with XREADGROUP, decode, acknowledge with XACK, until the process is ended."""
    client: Any = redis.Redis.from_url(task.url)
    decode = msgspec.json.Decoder(Event).decode
    tally = Tally(task.begun_path)
    wanted = dict.fromkeys(task.keys, ">")
    while True:
        found = client.xreadgroup(task.group, "bench", wanted, count=task.batch, block=BLOCK_MS)
        for key, entries in found:
            batch = [decode(fields[b"v"]) for _, fields in entries]
            tally.add(len(batch))
            client.xack(key, task.group, *[entry_id for entry_id, _ in entries])


if __name__ == "__main__":
    consume(task_of_this_process())
