"""Hand-written programs with redis-py: ``python -m benchmarks.peers.handwritten``."""

import time
from itertools import cycle, islice
from typing import Any

import msgspec
import redis

from benchmarks.measuring.task import (
    BenchEvent,
    DelayTally,
    Pace,
    SentRecords,
    Tally,
    Task,
    events,
    task_of_this_process,
    tell,
)

BLOCK_MS = 1000


def consume(task: Task, client: Any) -> None:
    """Read with XREADGROUP, decode and acknowledge with XACK, until the process is stopped."""
    decode = msgspec.json.Decoder(BenchEvent).decode
    tally = Tally(task.begun_path)
    for key in task.keys:
        client.xgroup_create(key, task.group, "0")
    wanted = dict.fromkeys(task.keys, ">")
    while True:
        found = client.xreadgroup(task.group, "bench", wanted, count=task.batch, block=BLOCK_MS)
        for key, entries in found:
            batch = [decode(fields[b"v"]) for _, fields in entries]
            tally.add(len(batch))
            client.xack(key, task.group, *[entry_id for entry_id, _ in entries])


def consume_each(task: Task, client: Any) -> None:
    """Read with XREADGROUP, call a function with each record, and acknowledge in one round trip."""
    decode = msgspec.json.Decoder(BenchEvent).decode
    delays = DelayTally(task.begun_path, task.records)
    for key in task.keys:
        client.xgroup_create(key, task.group, "0", mkstream=True)
    wanted = dict.fromkeys(task.keys, ">")
    while True:
        found = client.xreadgroup(task.group, "bench", wanted, count=task.batch, block=BLOCK_MS)
        for _, entries in found:
            for _, fields in entries:
                delays.add(decode(fields[b"v"]).sent_ns)
        if len(found) == 1:
            ((key, entries),) = found
            client.xack(key, task.group, *[entry_id for entry_id, _ in entries])
        elif found:
            pipe = client.pipeline(transaction=False)
            for key, entries in found:
                pipe.xack(key, task.group, *[entry_id for entry_id, _ in entries])
            pipe.execute()


def send(task: Task, client: Any) -> None:
    """Send records with pipelines of XADD, one batch in each, and report the rate."""
    encode = msgspec.json.Encoder().encode
    records, keys = events(task.records + task.batch), cycle(task.keys)
    spent_s: list[float] = []
    while chunk := list(islice(records, task.batch)):
        begun_s = time.monotonic()
        pipe = client.pipeline(transaction=False)
        for event in chunk:
            pipe.xadd(next(keys), {"v": encode(event)})
        pipe.execute()
        spent_s.append(time.monotonic() - begun_s)
    tell(task.begun_path, SentRecords(task.records / sum(spent_s[1:])))  # The first makes the connection.


def send_evenly(task: Task, client: Any) -> None:
    """Send records one by one with XADD."""
    encode = msgspec.json.Encoder().encode
    pace = Pace(task.per_s)
    for event in events(task.records):
        time.sleep(pace.pause_s())
        event.sent_ns = time.monotonic_ns()
        client.xadd(task.keys[0], {"v": encode(event)})


SLICES_PER_S = 2_000
"""Round trips a second of a sender at a steady rate: one for each record, unless the rate is higher."""


def send_slices(task: Task, client: Any) -> None:
    """Send single entries at a steady rate, in turn to each stream."""
    encode = msgspec.json.Encoder().encode
    a_slice = max(1, task.per_s // SLICES_PER_S)
    pace, keys, records = Pace(task.per_s // a_slice), cycle(task.keys), events(task.records)
    while chunk := list(islice(records, a_slice)):
        time.sleep(pace.pause_s())
        pipe = client.pipeline(transaction=False)
        for event in chunk:
            event.sent_ns = time.monotonic_ns()
            pipe.xadd(next(keys), {"v": encode(event)})
        pipe.execute()


def wait_for_each(task: Task, client: Any) -> None:
    """Read records with a blocking XREAD, and report their delays."""
    decode = msgspec.json.Decoder(BenchEvent).decode
    delays = DelayTally(task.begun_path, task.records)
    last = b"0"
    while True:
        for _, entries in client.xread({task.keys[0]: last}, count=task.batch, block=BLOCK_MS) or ():
            for _, fields in entries:
                delays.add(decode(fields[b"v"]).sent_ns)
            last = entries[-1][0]


MODES = {
    "batch": consume,
    "each": consume_each,
    "send": send,
    "send evenly": send_evenly,
    "send slices": send_slices,
    "latency": wait_for_each,
}

if __name__ == "__main__":
    mine = task_of_this_process()
    MODES[mine.mode](mine, redis.Redis.from_url(mine.url))
