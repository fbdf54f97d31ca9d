"""Outboxes: what one slot sends to partitions of other streams, each message once.

A script of the slot adds messages in the step that commits what they come from; ``lua/parts/outbox.lua`` has
its functions. Whoever owns the slot forwards them, and deletes those that their targets have taken.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from streamworker.core.data.channel import AppendReply
from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import START, Message, OutboxPosition, Target
from streamworker.errors import BackendError
from streamworker.redisio.data.streams import append_by
from streamworker.redisio.keys import OutboxKeys, StreamKeys
from streamworker.redisio.scripts import FORWARD, OPEN_OUTBOX, Call, checked, wrong_type
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY, Durability, Undurable
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import pairs_of
from streamworker.redisio.wire.link import Argument

LAST = "#"
"""Field of the heads: id of the last message. No stream can have this name."""
LOST = "lost:"
"""How fields of the heads begin that tell what a target lost: ``lost:TARGET:FIRST`` to the last record."""
READ_COUNT = 200
NUMBER_MAX = 2**53

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
    last, positions, lost = "", {}, {}
    for name, value in pairs_of(flat).items():
        field, text = name.decode("utf-8", "replace"), value.decode("utf-8", "replace")
        try:
            if field == LAST:
                last = text
            elif field.startswith(LOST):
                target, _, first = field.removeprefix(LOST).rpartition(":")
                lost[Target.parse(target), int(first)] = int(text)
            elif field:
                positions[Target.parse(field)] = OutboxPosition.parse(text)
        except ValueError:  # Another program wrote it.
            continue
    return Heads(last, positions, lost)


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
    at = 0
    while found := await read_messages(backend, keys, at, NUMBER_MAX, READ_COUNT):
        at = found[-1].number
        for message in found:
            if to in (None, message.to):
                chains.setdefault(message.to, []).append(message)
    return chains


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


async def note_lost(
    backend: Backend, keys: OutboxKeys, to: Target, stands: OutboxPosition, since: OutboxPosition
) -> None:
    """Keep what a target lost, for `status` and `doctor`."""
    await backend.execute("HSET", keys.heads, f"{LOST}{to}:{stands.records + 1}", since.records)


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


def forward_call(app: str, source: str, message: Message) -> Call:
    """Return keys and arguments of ``forward.lua`` for a message."""
    place, (limit, *records) = StreamKeys(app, message.to.stream), _decode(message.data)
    named = {"since": str(message.since), "through": str(message.through), "limit": limit}
    return FORWARD.at(place, message.to.partition, source=source, **named, records=records)
