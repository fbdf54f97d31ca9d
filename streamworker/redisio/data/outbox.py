"""Outboxes: what one slot sends to partitions of other streams, each message once.

A script of the slot adds messages in the step that commits what they come from; ``lua/parts/outbox.lua`` has
its functions. Whoever owns the slot forwards them, and deletes those that their targets have taken.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from streamworker.core.data.channel import AppendReply
from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import START, Message, OutboxPosition, Target
from streamworker.core.events import StartRunner
from streamworker.errors import BackendError, DecodeError
from streamworker.records.packs import FIRST, HEADER_PREFIX, Pack
from streamworker.redisio.data.streams import PAYLOAD, Headers, Packing, Payload, append_by
from streamworker.redisio.keys import GroupKeys, OutboxKeys, StreamKeys
from streamworker.redisio.scripts import FORWARD, MOVE_MESSAGES, OPEN_OUTBOX, Call, checked, wrong_type
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY, Durability, Undurable
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import pairs_of
from streamworker.redisio.wire.link import Argument

LAST = "#"
"""Field of the heads: id of the last message. No stream can have this name."""
LOST = "lost:"
"""How fields of the heads begin that tell what a target lost: ``lost:TARGET:FIRST`` to the last record."""
MOVED = "moved:"
"""How fields of the heads begin that tell up to which position the messages for a target that takes no more
have been replaced: ``moved:TARGET``."""
READ_COUNT = 200
NUMBER_MAX = 2**53

Packed = bytes | tuple[Payload, Headers]
"""A payload alone, or a payload or fields with headers."""

_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(list[Any]).decode


@dataclass(frozen=True, slots=True)
class Heads:
    """Where an outbox stands."""

    last: str
    """Id of the last message; empty if there was none."""
    positions: Mapping[Target, OutboxPosition]
    """How far the history of each target has come."""
    lost: Mapping[tuple[Target, int], int]
    """Records that targets lost after they had confirmed them: the last by target and first."""
    moved: Mapping[Target, OutboxPosition] = field(default_factory=dict)
    """Up to where the messages for targets that take no more have been replaced."""

    @property
    def lost_records(self) -> int:
        """How many records that is. A target may have lost some in two failovers, and they count once."""
        count, before, end = 0, None, 0
        for (to, first), last in sorted(self.lost.items()):
            start = max(first, end + 1) if to == before else first
            count += max(0, last - start + 1)
            before, end = to, max(last, start - 1)
        return count


@dataclass(frozen=True, slots=True)
class OutboxWrite:
    """Messages that a commit adds to an outbox."""

    after: str
    """Id of the message before; empty if there was none."""
    messages: Sequence[Message]
    limit: int
    """Messages that the outbox may hold when these are added."""

    def named(self) -> dict[str, Any]:
        """Return the arguments of a script that commits."""
        sends: list[Argument] = []
        for each in self.messages:
            sends += (str(each.id), str(each.to), str(each.since), str(each.through), each.data)
        return {"outbox_limit": self.limit, "outbox_last": self.after, "sends": sends}


def pack_records(limit: int, args: Sequence[Argument]) -> bytes:
    """Return the content of a message: the limit of the target, and what its append takes."""
    return _encode([limit, *args])


def unpack_records(data: bytes, packing: Packing) -> list[Packed]:
    """Return the entries of a message, those of many records as their records.

    Entries of columns stay as they are, and so does one that cannot be read.
    """
    _, _, kind, *rest = _decode(data)
    if kind == "v":
        return rest
    found: list[Packed] = []
    at, records = 0, 1
    while at < len(rest):
        if kind == "p":
            records, at = rest[at], at + 1
        end = at + 1 + rest[at]
        flat, at = rest[at + 1 : end], end
        each = [dict(zip(flat[::2], flat[1::2], strict=True))]
        if records > 1 and packing != "arrow":
            pack = Pack(b"0-%d" % records, [FIRST, b"0-1", b"extra", b"0", *flat])
            with suppress(DecodeError):
                each = [pack.fields_of(index) for index in range(len(pack.raws))]
        found += map(_packed, each)
    return found


def _packed(fields: dict[bytes, bytes]) -> Packed:
    headers = {name.removeprefix(HEADER_PREFIX): value for name, value in fields.items() if name != PAYLOAD}
    if PAYLOAD not in fields or not all(name.startswith(HEADER_PREFIX) for name in fields.keys() - {PAYLOAD}):
        return fields, None
    return (fields[PAYLOAD], headers) if headers else fields[PAYLOAD]


# -- at the source ---------------------------------------------------------------------------


async def open_outbox(backend: Backend, keys: OutboxKeys, durability: Durability = MEMORY) -> Heads:
    """Return where an outbox stands, once all that is in it is durable. The call may be repeated."""
    call = OPEN_OUTBOX.at(keys)
    (reply,) = await backend.run_many(OPEN_OUTBOX, [call], durability=durability)
    if isinstance(reply, Undurable):
        raise reply.error()
    if isinstance(reply, BackendError):
        raise reply
    return heads_of(checked(reply)[1])


async def read_heads(backend: Backend, outboxes: Iterable[OutboxKeys]) -> list[Heads]:
    """Return where some outboxes stand, durable or not, in one round trip."""
    replies = await backend.pipeline([("HGETALL", keys.heads) for keys in outboxes])
    return [heads_of(flat) for flat in all_answered(replies)]


def heads_of(flat: Sequence[bytes]) -> Heads:
    """Parse the fields and values of an outbox's heads; what cannot be read is left out."""
    last, positions, lost, moved = "", {}, {}, {}
    for name, value in pairs_of(flat).items():
        its_name, text = name.decode("utf-8", "replace"), value.decode("utf-8", "replace")
        try:
            if its_name == LAST:
                last = text
            elif its_name.startswith(LOST):
                target, _, first = its_name.removeprefix(LOST).rpartition(":")
                lost[Target.parse(target), int(first)] = int(text)
            elif its_name.startswith(MOVED):
                moved[Target.parse(its_name.removeprefix(MOVED))] = OutboxPosition.parse(text)
            elif its_name:
                positions[Target.parse(its_name)] = OutboxPosition.parse(text)
        except ValueError:  # Another program wrote it.
            continue
    return Heads(last, positions, lost, moved)


async def read_messages(
    backend: Backend, keys: OutboxKeys, after: int, through: int, count: int
) -> list[Message]:
    """Return messages of an outbox by their numbers: those after one up to another, at most so many."""
    first, last = EntryId(after + 1, 0), f"{through}-{2**64 - 1}"
    found = await backend.execute("XRANGE", keys.messages, str(first), last, "COUNT", count)
    try:
        return [_message(entry_id, pairs_of(flat)) for entry_id, flat in found]
    except (KeyError, ValueError):  # Another program wrote it.
        raise wrong_type(keys.messages) from None


async def read_chains(
    backend: Backend, keys: OutboxKeys, to: Target | None = None
) -> dict[Target, list[Message]]:
    """Return all messages of an outbox by their targets, or those for one target."""
    chains: dict[Target, list[Message]] = {}
    async for message in each_message(backend, keys):
        if to in (None, message.to):
            chains.setdefault(message.to, []).append(message)
    return chains


async def each_message(
    backend: Backend, keys: OutboxKeys, through: int = NUMBER_MAX
) -> AsyncIterator[Message]:
    """Yield the messages of an outbox in order, up to one by its number."""
    at = 0
    while found := await read_messages(backend, keys, at, through, READ_COUNT):
        at = found[-1].number
        for message in found:
            yield message


def _message(entry_id: bytes, fields: Mapping[bytes, bytes]) -> Message:
    return Message(
        EntryId.parse(entry_id).ms,
        Target.parse(fields[b"to"].decode()),
        OutboxPosition.parse(fields[b"since"]),
        OutboxPosition.parse(fields[b"through"]),
        fields[b"data"],
    )


async def delete_messages(
    backend: Backend, taken: Mapping[OutboxKeys, Sequence[EntryId]]
) -> dict[OutboxKeys, BackendError]:
    """Delete messages that their targets have taken; return the outboxes that still have them, and why.

    The call may be repeated. It raises ``BackendError`` if nothing was answered.
    """
    replies = await backend.pipeline([("XDEL", keys.messages, *map(str, ids)) for keys, ids in taken.items()])
    return {keys: each for keys, each in zip(taken, replies, strict=True) if isinstance(each, BackendError)}


@dataclass(frozen=True, slots=True)
class Replaced:
    """Messages that are replaced in an outbox, since their targets take no more."""

    after: str
    """Id of the last message."""
    removed: Sequence[EntryId]
    noted: Mapping[str, str]
    """Fields of the heads."""
    gone: Sequence[str]
    """Fields of the heads that are removed."""
    messages: Sequence[Message]
    """What comes in their place."""


async def move_messages(
    backend: Backend, keys: GroupKeys, start: StartRunner, its: Replaced, durability: Durability
) -> str:
    """Replace messages in the outbox of a partition; the result is OK, FENCED or GAP (``move_messages.lua``).

    The call may be repeated.
    """
    write = OutboxWrite(its.after, its.messages, 0)
    call = MOVE_MESSAGES.at(
        keys,
        start.partition,
        owner=start.owner,
        epoch=start.lock.epoch,
        after=its.after,
        removed=list(map(str, its.removed)),
        noted=[each for pair in its.noted.items() for each in pair],
        gone=its.gone,
        sends=write.named()["sends"],
    )
    (reply,) = await backend.run_many(MOVE_MESSAGES, [call], durability=durability)
    if isinstance(reply, Undurable):
        raise reply.error()
    if isinstance(reply, BackendError):
        raise reply
    return str(checked(reply)[0].decode())


def lost_field(to: Target, stands: OutboxPosition) -> str:
    """Return the field of the heads that tells what a target lost after some position."""
    return f"{LOST}{to}:{stands.records + 1}"


async def note_lost(
    backend: Backend, keys: OutboxKeys, to: Target, stands: OutboxPosition, since: OutboxPosition
) -> None:
    """Keep what a target lost, for `status` and `doctor`."""
    await backend.execute("HSET", keys.heads, lost_field(to, stands), since.records)


# -- at the target ---------------------------------------------------------------------------


async def forward_many(
    backend: Backend, app: str, messages: Sequence[tuple[str, Message]], durability: Durability = MEMORY
) -> list[AppendReply]:
    """Forward messages, each with the name of its source, in one round trip and in order.

    The call may be repeated. It raises ``BackendError`` if nothing was answered.
    """
    calls = [forward_call(app, source, message) for source, message in messages]
    return await append_by(backend, FORWARD, calls, durability)


async def read_stands(backend: Backend, app: str, source: str, to: Target) -> OutboxPosition:
    """Return where a target stands with a source."""
    key = StreamKeys(app, to.stream).taken(to.partition)
    stored = await backend.execute("HGET", key, source)
    try:
        return OutboxPosition.parse(stored) if stored else START
    except ValueError:  # Another program wrote it.
        raise wrong_type(key) from None


async def read_ends(
    backend: Backend, app: str, source: str, targets: Sequence[Target]
) -> dict[Target, tuple[bool, OutboxPosition]]:
    """Return whether some targets take no more, and where they stand with a source: then for good."""
    places = [(StreamKeys(app, to.stream), to.partition) for to in targets]
    asked = [
        command
        for place, partition in places
        for command in (
            ("HMGET", place.counts(partition), "sealed"),
            ("HMGET", place.taken(partition), source),
        )
    ]
    replies = all_answered(await backend.pipeline(asked))
    found: dict[Target, tuple[bool, OutboxPosition]] = {}
    for to, (sealed,), (stored,) in zip(targets, replies[::2], replies[1::2], strict=True):
        try:
            found[to] = sealed is not None, OutboxPosition.parse(stored) if stored else START
        except ValueError:  # Another program wrote it.
            raise wrong_type(StreamKeys(app, to.stream).taken(to.partition)) from None
    return found


def forward_call(app: str, source: str, message: Message) -> Call:
    """Return keys and arguments of ``forward.lua`` for a message."""
    place, (limit, *records) = StreamKeys(app, message.to.stream), _decode(message.data)
    named = {"since": str(message.since), "through": str(message.through), "limit": limit}
    return FORWARD.at(place, message.to.partition, source=source, **named, records=records)
