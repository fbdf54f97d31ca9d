"""Records that are sent with an id: once within a window, or later.

An id is one record of its key. Both scripts can be repeated: each call has a name, by which a script knows
that it answers a repeat.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from streamworker.core.data.channel import AppendCode, AppendReply
from streamworker.core.data.placement import canonical_key
from streamworker.errors import BackendUnavailable
from streamworker.redisio.data.streams import append_by
from streamworker.redisio.group.locks import answered
from streamworker.redisio.keys import StreamKeys, number
from streamworker.redisio.scripts import (
    LATER_CANCEL,
    LATER_MOVE,
    LATER_PUT,
    LEAVE_LATER,
    SEND_ONCE,
    TAKE_LATER,
    Call,
    Script,
    checked,
)
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import Durability
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import pairs_of

MOVED_MAX = 200
"""Maximum records that one call moves; it takes a millisecond of server time, more with large records."""
LISTED_MAX = 500
OVERDUE_MS = 60_000
"""What has been due for so long should have been sent by a worker."""


def digest_of(key: bytes | None, id: str) -> str:
    """Return the name of a key's id in Redis: of 128 bits, however long both are.

    >>> digest_of(b"ann", "1") == digest_of(b"an", "n1")
    False
    """
    return hashlib.blake2b(canonical_key((key, id)) or b"", digest_size=16).hexdigest()


class IdCall(NamedTuple):
    """A call about an id; it may be repeated unchanged."""

    script: Script
    call: Call

    async def run(self, backend: Backend, durability: Durability) -> AppendReply:
        """Make the call once; ``OTHER`` comes with what was said of the first record of the id."""
        (reply,) = await append_by(backend, self.script, [self.call], durability)
        return reply


def send_once(
    keys: StreamKeys,
    partition: int,
    digest: str,
    call: str,
    fields: Sequence[bytes],
    *,
    window_ms: int,
    limit: int,
) -> IdCall:
    """Append a record, unless one of its id was appended within the window.

    Without fields this asks whether one was, in a partition that is sealed: ``SEALED`` says that none was.
    """
    records = [1, "f", len(fields), *fields] if fields else []
    named = {"call": call, "window_ms": window_ms, "limit": limit, "records": records}
    return IdCall(SEND_ONCE, SEND_ONCE.at(keys, partition, once=keys.seen(partition, digest), **named))


def schedule(
    keys: StreamKeys,
    partition: int,
    digest: str,
    call: str,
    fields: Sequence[bytes],
    *,
    due: tuple[str, int],
    named: tuple[str, bytes | None],
    replace: bool,
    limit: int,
) -> IdCall:
    """Keep a record until it is due: ``after`` or ``at`` a time in ms. ``named`` is its id and its key."""
    texts = (named[0].encode(), named[1] or b"", *fields)
    record = b"%s\n%s" % (b",".join(b"%d" % len(text) for text in texts), b"".join(texts))
    how, time_ms = due
    what = {"id": digest, "call": call, "how": how, "time_ms": time_ms, "limit": limit, "record": record}
    return IdCall(LATER_PUT, LATER_PUT.at(keys, partition, replace=int(replace), **what))


def cancel(keys: StreamKeys, partition: int, digest: str, call: str, *, window_ms: int) -> IdCall:
    """Drop a record that waits; the value of the reply is ``0`` if none does."""
    named = {"id": digest, "call": call, "window_ms": window_ms}
    return IdCall(LATER_CANCEL, LATER_CANCEL.at(keys, partition, **named))


async def open_since_ms(backend: Backend, keys: StreamKeys, bases: Sequence[int]) -> list[float]:
    """Return for how long each of some generations of a grown stream has been open; 0 if nobody knows.

    A generation is named by its first partition.
    """
    opened = await backend.execute("HMGET", keys.meta, *(f"opened:{base}" for base in bases))
    now_ms = await backend.time_ms(near=keys.meta)
    return [max(0, now_ms - number(each)) if each else 0 for each in opened]


async def any_waits(backend: Backend, keys: StreamKeys, partitions: Sequence[int]) -> bool:
    """Return whether records wait, or were sent lately, in any of the partitions."""
    names = [keys.later(p) for p in partitions]
    asked = [("EXISTS", *some) for some in backend.server.by_slot(names)]
    return any(all_answered(await backend.pipeline(asked)))


class Moved(NamedTuple):
    """What one call has moved from one partition."""

    records: int
    is_full: bool
    """Whether the partition has no room for the next one."""
    next_ms: int | None
    """Time until the next is due; None if nothing waits."""


async def move_due(
    backend: Backend, keys: StreamKeys, partitions: Sequence[int], *, limit: int, window_ms: int
) -> Mapping[int, Moved]:
    """Send what is due in some partitions, in one round trip; any process may repeat the call.

    Partitions that Redis refused are missing in the result; if it refused all, this raises.
    """
    named = {"most": MOVED_MAX, "limit": limit, "window_ms": window_ms}
    calls = [LATER_MOVE.at(keys, p, **named) for p in partitions]
    replies = await backend.run_many(LATER_MOVE, calls)
    return dict(answered(list(partitions), replies, _moved))


def _moved(reply: Any) -> Moved:
    code, sent, next_ms = reply
    return Moved(int(sent), code == b"FULL", int(next_ms) if next_ms else None)


async def hand_on(
    backend: Backend,
    keys: StreamKeys,
    partition: int,
    place_of: Callable[[bytes], int],
    durability: Durability,
    *,
    ids: Sequence[str] = (),
    most: int = MOVED_MAX,
) -> int | None:
    """Move what is scheduled in a sealed partition; ``place_of`` returns where each record goes by its key.

    Moved are the records that wait, nearly in the order of their times, and what is known of some ``ids``.
    Any process may do this at any time; what is not as durable as it must be stays. The result is how many
    ids are left; None if a partition that should follow is sealed itself, so that the map is too old.
    """
    arrived: list[bytes] = []
    while True:
        named = {"most": most, "ids": ids, "moved": arrived}
        reply = checked(await backend.run(LEAVE_LATER, LEAVE_LATER.at(keys, partition, **named)))
        read_ms, left, *flat = reply[1:]
        if not flat:
            return int(left)
        rows = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
        calls = [
            TAKE_LATER.at(
                keys, place_of(_place_in(name, known)), id=name, at=at, known=known, read_ms=int(read_ms)
            )
            for name, at, known in rows
        ]
        replies = await append_by(backend, TAKE_LATER, calls, durability)
        taken = [row for row, its in zip(rows, replies, strict=True) if its.code is AppendCode.OK]
        if not taken:
            if replies[0].code is AppendCode.SEALED:
                return None
            raise replies[0].error or BackendUnavailable(
                f"What is scheduled in partition {partition} was read too long ago to be moved.",
                remedy="It is read again.",
            )
        arrived = [text for name, _, known in taken for text in (name, known)]


def _place_in(digest: bytes, known: bytes) -> bytes:
    """Return what decides the partition of a record that waits: its key, or its id if it has none."""
    if not known.startswith(b"w "):
        return b""
    name, key = _texts(known)[:2]
    return name if digest_of(None, name.decode("utf-8", "replace")).encode() == digest else key


class Waiting(NamedTuple):
    """A record that waits to be sent."""

    partition: int
    id: str
    key: str
    due_ms: int
    fields: Mapping[bytes, bytes]


async def waiting(backend: Backend, keys: StreamKeys, partition: int) -> list[Waiting]:
    """Return the records of a partition that wait, in the order in which they are due."""
    found: list[Waiting] = []
    start = 0
    while True:
        ids = await backend.execute("ZRANGE", keys.later(partition), start, start + LISTED_MAX - 1)
        if not ids:
            return found
        start += LISTED_MAX
        stored = await backend.execute("HMGET", keys.delayed(partition), *ids)
        found += [_waiting(partition, known) for known in stored if known and known.startswith(b"w ")]


def _waiting(partition: int, known: bytes) -> Waiting:
    parts = _texts(known)
    name, key = (text.decode("utf-8", "replace") for text in parts[:2])
    return Waiting(partition, name, key, int(known.split(b" ", 3)[2]), pairs_of(parts[2:]))


def _texts(known: bytes) -> list[bytes]:
    """Return the id, the key and the fields of a record that waits."""
    head, _, texts = known.partition(b"\n")
    sizes = list(map(int, head.split(b" ")[3].split(b",")))
    return [texts[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


async def overdue(backend: Backend, keys: StreamKeys, partitions: int) -> int:
    """Return how many records have been due for ``OVERDUE_MS``, or would have been forgotten since."""
    now_ms = await backend.time_ms(near=keys.later(0))
    asked = [("ZCOUNT", keys.later(p), "-inf", now_ms - OVERDUE_MS) for p in range(partitions)]
    return sum(all_answered(await backend.pipeline(asked)))
