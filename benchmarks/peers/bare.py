"""Upper limits for a worker: single steps of its work, without anything else.

``python -m benchmarks.peers.bare`` runs one mode on a sync connection, batch by batch.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import redis

from benchmarks.measuring.task import BenchEvent, SentRecords, Task, task_of_this_process, tell
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.placement import Placement
from streamworker.core.events import AcquireLocks
from streamworker.core.ownership.locks import Acquired
from streamworker.redisio.data.commit import CommitCode, CommitRequest, commit_call
from streamworker.redisio.data.streams import register
from streamworker.redisio.group.locks import acquire
from streamworker.redisio.group.operation import Access
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.scripts import COMMIT
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.link import pack
from streamworker.variables import plaintext_allowed

OWNER = "bare"


class Bare:
    """A connection that returns replies as the parser produces them."""

    def __init__(self, task: Task) -> None:
        self._task = task
        pool = redis.Redis.from_url(task.url, protocol=2).connection_pool
        self._connection: Any = pool.get_connection()

    def call(self, *arguments: str | bytes | int) -> Any:
        """Make one round trip."""
        self._connection.send_packed_command([pack(arguments)], check_health=False)
        return self._connection.read_response()

    def reads(self) -> Iterator[list[Any]]:
        """Read all entries of the stream, batch by batch."""
        last, left = b"0", self._task.records
        while left > 0:
            ((_, entries),) = self.call(
                "XREAD", "COUNT", self._task.batch, "STREAMS", self._task.keys[0], last
            )
            last, left = entries[-1][0], left - len(entries)
            yield entries

    def committer(self) -> Callable[[bytes, int], None]:
        """Acquire the lock of partition 0; return a function that commits up to an id and counts entries."""
        keys = GroupKeys(self._task.app, self._task.stream, self._task.group)
        epoch = asyncio.run(_own(self._task.url, keys))
        self.call("SCRIPT", "LOAD", COMMIT.text)
        previous = ZERO

        def commit(last: bytes, count: int) -> None:
            nonlocal previous
            new = EntryId.parse(last)
            request = CommitRequest(
                partition=0, owner=OWNER, epoch=epoch, previous=previous, new=new, entries=count
            )
            names, values = commit_call(keys, request)
            code = self.call("EVALSHA", COMMIT.sha, len(names), *names, *values)[0].decode()
            assert code == CommitCode.OK.value, code
            previous = new

        return commit


async def _own(url: str, keys: GroupKeys) -> int:
    async with Backend.open(url, name=OWNER, allow_plaintext=plaintext_allowed(os.environ)) as backend:
        await register(backend, keys, Placement(1), "earliest")
        answer = await acquire(Access(backend, keys, 0), AcquireLocks((0,), OWNER, 1, (OWNER,)))
    lock = answer.replies[0]
    assert isinstance(lock, Acquired), lock
    return lock.epoch


def read(bare: Bare) -> float:
    """Read all entries with XREAD; hiredis parses the replies."""
    begun_s = time.monotonic()
    for _ in bare.reads():
        pass
    return time.monotonic() - begun_s


def decode(bare: Bare) -> float:
    """Decode payloads that have been read before, with msgspec."""
    batches = [[fields[1] for _, fields in entries] for entries in bare.reads()]
    load = msgspec.json.Decoder(BenchEvent).decode
    begun_s = time.monotonic()
    for batch in batches:
        list(map(load, batch))
    return time.monotonic() - begun_s


def commit(bare: Bare) -> float:
    """Commit batches that have been read before."""
    lasts = [(entries[-1][0], len(entries)) for entries in bare.reads()]
    settle = bare.committer()
    begun_s = time.monotonic()
    for last, count in lasts:
        settle(last, count)
    return time.monotonic() - begun_s


def read_and_commit(bare: Bare) -> float:
    """Read a batch, commit it, read the next."""
    settle = bare.committer()
    begun_s = time.monotonic()
    for entries in bare.reads():
        settle(entries[-1][0], len(entries))
    return time.monotonic() - begun_s


def all_steps(bare: Bare) -> float:
    """Read a batch, decode it, commit it, read the next."""
    load = msgspec.json.Decoder(BenchEvent).decode
    settle = bare.committer()
    begun_s = time.monotonic()
    for entries in bare.reads():
        list(map(load, [fields[1] for _, fields in entries]))
        settle(entries[-1][0], len(entries))
    return time.monotonic() - begun_s


MODES = {
    "read": read,
    "decode": decode,
    "commit": commit,
    "read and commit": read_and_commit,
    "all steps": all_steps,
}

if __name__ == "__main__":
    mine = task_of_this_process()
    tell(mine.begun_path, SentRecords(mine.records / MODES[mine.mode](Bare(mine))))
