"""The control stream: post, wait, read back; ``core.control`` says what the messages mean."""

from collections.abc import Mapping, Sequence
from typing import Any

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend, BlockingConnection
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.info import pairs_of
from streamworker.redisio.wire.link import Argument

MESSAGES_MAX = 10_000
"""Approximate maximum of messages in a control stream: days of rebalances."""

ControlEntry = tuple[str, EntryId, dict[str, str]]
"""Key of the stream, id and fields of the entry."""


async def read_control(
    connection: BlockingConnection, positions: Mapping[GroupKeys, EntryId], block_ms: int
) -> list[ControlEntry]:
    """Wait for messages of some groups after the given ids; empty if none arrived in time."""
    keys = [group.control for group in positions]
    ids = [str(position) for position in positions.values()]
    reply = await connection.execute("XREAD", "BLOCK", block_ms, "STREAMS", *keys, *ids, block_ms=block_ms)
    return [
        (name.decode(), EntryId.parse(entry_id), fields_of(flat))
        for name, entries in reply or ()
        for entry_id, flat in entries
    ]


async def post(backend: Backend, keys: GroupKeys, messages: Sequence[Mapping[str, str]]) -> None:
    """Post messages, in one round trip.

    Without an answer some may have been posted. A message is a hint, so a lost or repeated one does no harm.
    """
    commands: list[Sequence[Argument]] = []
    for message in messages:
        flat = [part for pair in message.items() for part in pair]
        commands.append(("XADD", keys.control, "MAXLEN", "~", MESSAGES_MAX, "*", *flat))
    all_answered(await backend.pipeline(commands))


async def newest_id(backend: Backend, stream: str, up_to: str = "+") -> EntryId:
    """Return the id of the newest entry of any Redis stream, up to an id; zero if there is none."""
    newest: Any = await backend.execute("XREVRANGE", stream, up_to, "-", "COUNT", 1)
    return EntryId.parse(newest[0][0]) if newest else ZERO


def fields_of(flat: Sequence[bytes], errors: str = "replace") -> dict[str, str]:
    """Return the fields of an entry or a hash as text; ``errors`` says what becomes of other bytes."""
    return {name.decode(errors=errors): value.decode(errors=errors) for name, value in pairs_of(flat).items()}
