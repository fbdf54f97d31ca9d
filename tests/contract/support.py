"""What many contract cases need: a group with partitions, entries and commits in few words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import redis

from streamworker.cli.doctor.repair_plan import plan_group
from streamworker.core.control import GroupChanged
from streamworker.core.data.channel import AppendCode
from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.core.data.outbox import START, Message, OutboxPosition, Target
from streamworker.core.data.placement import Placement
from streamworker.core.data.readers import ReaderPosition
from streamworker.core.events import AcquireLocks, Effect, Event
from streamworker.core.ownership.locks import Acquired, AcquireReply
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.core.protocols.membership.events import (
    ChangeDocument,
    DocumentChanged,
    HeartbeatDone,
    MendDocument,
)
from streamworker.records.entries import StoredEntry
from streamworker.redisio.admin import repair
from streamworker.redisio.data import commit, streams
from streamworker.redisio.data.ackedlog import AckedBatch, encode_batch
from streamworker.redisio.data.commit import CommitReply, CommitRequest, DeadEntry
from streamworker.redisio.data.outbox import pack_records
from streamworker.redisio.group import locks, membership
from streamworker.redisio.group.membership import Renewal
from streamworker.redisio.group.operation import Access
from streamworker.redisio.group.operations import OPERATIONS
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.settings import Settings

STREAM = StreamKeys("shop", "orders")
GROUP = GroupKeys("shop", "orders", "price")
OTHER_GROUP = GroupKeys("shop", "orders", "audit")
TO = Target("priced", 5)

Raw: TypeAlias = "redis.Redis"
"""A plain client: what other programs may do to our keys, and what they see of them."""

OTHER_TYPES = {
    "string": ("SET", "x"),
    "list": ("RPUSH", "x"),
    "hash": ("HSET", "x", "y"),
    "set": ("SADD", "x"),
    "zset": ("ZADD", "1", "x"),
    "stream": ("XADD", "*", "x", "y"),
}
"""How another program writes a value of each type."""

NOBODY_IS_DEAD = Settings(session_timeout_ms=10_000_000, slow_after_ms=10_000_000)
GENERATION = 7
DRAIN_DEADLINE_MS = 60_000


async def register_reader(backend: Backend, keys: GroupKeys, name: str, position: ReaderPosition) -> None:
    """Store a reader's position, as Spark's driver does."""
    await backend.execute("HSET", keys.readers, name, position.text())


class Group:
    """One group, with calls that leave out what a case does not care about."""

    def __init__(self, backend: Backend, stream: StreamKeys, keys: GroupKeys) -> None:
        self.backend = backend
        self.stream = stream
        self.keys = keys
        self._numbers = Counter[tuple[int, str]]()

    def other(self, keys: GroupKeys) -> "Group":
        return Group(self.backend, self.stream, keys)

    async def register(self, partitions: int = 1, start: str = "earliest") -> None:
        await streams.register(self.backend, self.keys, Placement(partitions), start)

    async def send(
        self, count: int, partition: int = 0, *, producer: str = "p", limit: int = 0
    ) -> list[Entry]:
        """Append ``count`` entries and return them as they were stored."""
        before = await self._last_id(partition)
        since = self._numbers[partition, producer]
        entries: list[tuple[bytes, None]] = [(b"%d" % n, None) for n in range(count)]
        append = streams.Append(partition, producer, since + 1, limit, entries, since)
        self._numbers[partition, producer] += 1
        (reply,) = await streams.append_many(self.backend, self.stream, [append])
        assert reply.code is AppendCode.OK, reply
        return await streams.range_entries(
            self.backend, self.stream.events(partition), before.successor(), None, count
        )

    async def _last_id(self, partition: int) -> EntryId:
        newest = await self.backend.execute("XREVRANGE", self.stream.events(partition), "+", "-", "COUNT", 1)
        return EntryId.parse(newest[0][0]) if newest else ZERO

    async def acquire(
        self,
        owner: str = "w1",
        partition: int = 0,
        *,
        generation: int = GENERATION,
        live: Sequence[str] = (),
        drain_deadline_ms: int = DRAIN_DEADLINE_MS,
    ) -> AcquireReply:
        """Ask for one lock, in a group of ``owner`` and whoever else is ``live``."""
        access = Access(self.backend, self.keys, drain_deadline_ms)
        ask = AcquireLocks((partition,), owner, generation, (owner, *live))
        return (await locks.acquire(access, ask)).replies[partition]

    async def own(self, owner: str = "w1", partition: int = 0, *, generation: int = GENERATION) -> Acquired:
        reply = await self.acquire(owner, partition, generation=generation)
        assert isinstance(reply, Acquired), reply
        return reply

    async def begun(self, count: int) -> tuple[list[Entry], Acquired]:
        return await self.send(count), await self.own()

    async def do(self, effect: Effect) -> Event:
        """Do an effect of a core, as the runtime does it."""
        access = Access(self.backend, self.keys, DRAIN_DEADLINE_MS)
        return await OPERATIONS[type(effect)](access, effect)

    async def beat(self, member: str, measured: Mapping[int, int] | None = None) -> HeartbeatDone:
        """Send a heartbeat that is answered."""
        (reply,) = await membership.heartbeat(
            self.backend, [Renewal(self.keys, member, 1, "run", 0, measured)]
        )
        assert isinstance(reply, HeartbeatDone), reply
        return reply

    async def join(self, *names: str, partitions: int = 1) -> tuple[Membership, DocumentChanged]:
        """Write the first document, with some members."""
        document, now_ms = Membership.empty(partitions, "range"), await self.backend.time_ms()
        for name in names:
            document = document.with_member(Member(f"{name}.1", name, "host", 42, now_ms))
        message = GroupChanged(0, "join", names[-1], tuple(range(partitions)))
        written = await self.do(ChangeDocument(0, document, message, document.ids, ()))
        assert isinstance(written, DocumentChanged)
        return document, written

    async def release(self, owner: str, epoch: int, partition: int = 0) -> bool:
        return (await locks.release_many(self.backend, self.keys, {partition: epoch}, owner))[partition]

    async def lock(self, partition: int = 0) -> locks.LockView:
        view = await locks.read_lock(self.backend, self.keys, partition)
        assert view is not None
        return view

    async def commit(self, request: CommitRequest) -> CommitReply:
        (reply,) = await commit.commit_many(self.backend, self.keys, [request])
        return reply


def request(
    lock: Acquired,
    entries: Sequence[Entry],
    *,
    owner: str = "w1",
    partition: int = 0,
    rows: int = 0,
    state: Mapping[Any, bytes | None] | None = None,
    dead: Sequence[DeadEntry] = (),
    trim: bool = False,
    acked_limit: int = 0,
    acked_trim_rows: int = 0,
    previous: EntryId | None = None,
    epoch: int | None = None,
    reads: Sequence[tuple[EntryId, EntryId]] | None = None,
) -> CommitRequest:
    """Return the commit of some entries that follow the lock's checkpoint."""
    before = lock.checkpoint if previous is None else previous
    return CommitRequest(
        partition=partition,
        owner=owner,
        epoch=lock.epoch if epoch is None else epoch,
        previous=before,
        reads=[
            (after, StoredEntry(first, ""))
            for after, first in ([(before, entries[0].id)] if reads is None else reads)
        ],
        new=entries[-1].id,
        entries=len(entries),
        batch=batch_of(rows, entries[0].id) if rows else None,
        state=state or {},
        dead=dead,
        trim=trim,
        acked_limit=acked_limit,
        acked_trim_rows=acked_trim_rows,
    )


def batch_of(rows: int, first: EntryId = ZERO) -> AckedBatch:
    """Return some rows, ready for a commit."""
    return encode_batch(pa.record_batch({"n": list(range(rows))}), first)


def message(number: int, since: OutboxPosition = START, *payloads: bytes, limit: int = 0) -> Message:
    """Return a message of some records, by default of one."""
    data = pack_records(limit, streams.records_args(payloads or (b"%d" % number,), "json"))
    return Message(number, TO, since, since.after(max(1, len(payloads)), data), data)


def chain(count: int) -> list[Message]:
    """Return messages that follow each other."""
    found: list[Message] = []
    for number in range(1, count + 1):
        found.append(message(number, found[-1].through if found else START))
    return found


def put(raw: Raw, key: str, kind: str = "list") -> None:
    """Let another program write over a key."""
    command, *arguments = OTHER_TYPES[kind]
    raw.delete(key)
    raw.execute_command(command, key, *arguments)


def mending(seen: str, after: Membership) -> MendDocument:
    """Return what a core asks for that has seen damage in place of a document."""
    return MendDocument(seen, after, GroupChanged(0, "repaired", "a", ()), after.generation + 1)


def everything(raw: Raw) -> dict[bytes, Any]:
    """Return the whole content of a server, to compare it before and after."""
    keys = list(raw.scan_iter())
    with raw.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.dump(key)
        return dict(zip(keys, pipe.execute(), strict=True))


async def mend_logs(group: Group, partitions: int = 1) -> list[str]:
    """Do what `streamworker repair` plans where nobody is dead; return what became of each step."""
    steps = plan_group(await repair.look(group.backend, group.keys, partitions), NOBODY_IS_DEAD)
    assert {step.action for step in steps} <= {"repair log"}
    return [await repair.do_step(group.backend, step, "ann") for step in steps]


def url_of_user(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{place}"))
