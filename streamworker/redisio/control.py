"""The control stream: post, wait, look back. ``core.control`` says what the messages mean."""

from collections.abc import Mapping, Sequence
from typing import Any

from streamworker.core.entries import ZERO, EntryId
from streamworker.errors import BackendError
from streamworker.redisio.client import Backend, BlockingConnection
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.link import Argument

MESSAGES_MAX = 10_000
"""About how many messages a control stream keeps: days of rebalances."""

ControlEntry = tuple[str, EntryId, dict[str, str]]
"""Key of the stream, id, fields."""


async def read_control(
    connection: BlockingConnection, positions: Mapping[GroupKeys, EntryId], block_ms: int
) -> list[ControlEntry]:
    """Wait for messages of some groups, after the given ids; empty if none came in time.

    Raises
    ------
    BackendError
        Without an answer.
    """
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

    Raises
    ------
    BackendError
        Some may have been posted. A message is a hint, so one that is lost or doubled does no harm.
    """
    commands: list[Sequence[Argument]] = []
    for message in messages:
        flat = [part for pair in message.items() for part in pair]
        commands.append(("XADD", keys.control, "MAXLEN", "~", MESSAGES_MAX, "*", *flat))
    for reply in await backend.pipeline(commands):
        if isinstance(reply, BackendError):
            raise reply


async def foreign_types(backend: Backend, groups: Sequence[GroupKeys]) -> dict[GroupKeys, str]:
    """Return what stands in place of some groups' control streams, where that is something else.

    Raises
    ------
    BackendUnavailable
        Without an answer.
    """
    kinds = await backend.pipeline([("TYPE", keys.control) for keys in groups])
    return {
        keys: kind.decode()
        for keys, kind in zip(groups, kinds, strict=True)
        if isinstance(kind, bytes) and kind not in (b"stream", b"none")
    }


async def last_control_id(backend: Backend, keys: GroupKeys) -> EntryId:
    """Return the id of the newest message, to listen from there; zero if there is none.

    Raises
    ------
    BackendError
        Without an answer.
    """
    newest: Any = await backend.execute("XREVRANGE", keys.control, "+", "-", "COUNT", 1)
    return EntryId.parse(newest[0][0]) if newest else ZERO


def fields_of(flat: Sequence[bytes]) -> dict[str, str]:
    """Return an entry's fields as text."""
    return {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in zip(flat[::2], flat[1::2], strict=True)
    }
