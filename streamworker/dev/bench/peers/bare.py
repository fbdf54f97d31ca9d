"""What nobody can be faster than: one step of a worker's work and nothing around it.

``python -m streamworker.dev.bench.peers.bare``, each mode on a sync connection and a batch at a time.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import redis

from streamworker.core.entries import ZERO, EntryId
from streamworker.core.locks import Acquired
from streamworker.dev.bench.record import Event
from streamworker.dev.bench.task import Sent, Task, task_of_this_process, tell
from streamworker.redisio.client import Backend
from streamworker.redisio.commit import CommitCode, CommitRequest, commit_call
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.link import pack
from streamworker.redisio.locks import acquire_many
from streamworker.redisio.scripts import COMMIT
from streamworker.redisio.streams import register
from streamworker.settings import plaintext_allowed

OWNER = "bare"


class Bare:
    """A connection whose replies are taken as the parser makes them."""

    def __init__(self, task: Task) -> None:
        self._task = task
        pool = redis.Redis.from_url(task.url, protocol=2).connection_pool
        self._connection: Any = pool.get_connection()

    def call(self, *arguments: str | bytes | int) -> Any:
        """Make one round trip."""
        self._connection.send_packed_command([pack(arguments)], check_health=False)
        return self._connection.read_response()

    def reads(self) -> Iterator[list[Any]]:
        """Read all entries of the stream, a batch at a time."""
        last, left = b"0", self._task.records
        while left > 0:
            ((_, entries),) = self.call(
                "XREAD", "COUNT", self._task.batch, "STREAMS", self._task.keys[0], last
            )
            last, left = entries[-1][0], left - len(entries)
            yield entries

    def committer(self) -> Callable[[bytes, int], None]:
        """Take the lock of partition 0; return what commits up to an id, with so many entries."""
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
        await register(backend, keys, 1, "earliest")
        found = await acquire_many(
            backend, keys, [0], owner=OWNER, generation=1, live=[OWNER], drain_deadline_ms=0
        )
    lock = found[0]
    assert isinstance(lock, Acquired), lock
    return lock.epoch


def read(bare: Bare) -> float:
    """Read with XREAD and let hiredis parse it."""
    begun_s = time.monotonic()
    for _ in bare.reads():
        pass
    return time.monotonic() - begun_s


def decode(bare: Bare) -> float:
    """Decode payloads that are there already, with msgspec."""
    batches = [[fields[1] for _, fields in entries] for entries in bare.reads()]
    load = msgspec.json.Decoder(Event).decode
    begun_s = time.monotonic()
    for batch in batches:
        list(map(load, batch))
    return time.monotonic() - begun_s


def commit(bare: Bare) -> float:
    """Commit batches that nobody reads."""
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
    load = msgspec.json.Decoder(Event).decode
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
    tell(mine.begun_path, Sent(mine.records / MODES[mine.mode](Bare(mine))))
