"""The membership document and heartbeats; ``core.membership`` says what they mean."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamworker.core.events import Beat
from streamworker.errors import BackendError, BackendRefused
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import GroupKeys, whole
from streamworker.redisio.link import Argument
from streamworker.redisio.loads import loads_text
from streamworker.redisio.scripts import CHANGE_MEMBERS, HEARTBEAT, checked

_CLIENT = re.compile(rb"(?:^|\n)id=(\d+) ")


@dataclass(frozen=True, slots=True)
class Changed:
    """The document was written."""

    generation: int
    server_ms: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Somebody else wrote first; nothing was done."""

    document: bytes | None
    """What they wrote; None if they deleted it."""
    server_ms: int


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The answer to a heartbeat."""

    lost: bool
    """The group removed this member; nothing was renewed."""
    generation: int | None
    """Of the document; None if there is none."""
    server_ms: int
    beats: Mapping[str, Beat]
    """Of all members, ours too."""


async def read_members(backend: Backend, keys: GroupKeys) -> bytes | None:
    """Return the membership document; None if there is none.

    Raises
    ------
    BackendError
        Without an answer, or if the key is no string.
    """
    document: bytes | None = await backend.execute("GET", keys.members)
    return document


async def read_members_and_clock(backend: Backend, keys: GroupKeys) -> tuple[bytes | None, int]:
    """Return the membership document and the server's clock in ms, in one round trip.

    Raises
    ------
    BackendError
        As :func:`read_members`.
    """
    replies = await backend.pipeline([("GET", keys.members), ("TIME",)])
    for reply in replies:
        if isinstance(reply, BackendError):
            raise reply
    document, (seconds, micros) = replies
    return document, int(seconds) * 1000 + int(micros) // 1000


async def change_members(
    backend: Backend,
    keys: GroupKeys,
    *,
    expected: int,
    body: str,
    message: Mapping[str, str],
    added: Sequence[str] = (),
    removed: Sequence[str] = (),
    at_least: int = 0,
) -> Changed | Conflict:
    """Write a document if the generation is still the expected one, and post a message with it.

    Not to be repeated blindly: after a lost answer, read the document and look whether the
    change is in it.

    Parameters
    ----------
    expected
        Generation that was read; 0 for "there is no document".
    body
        The new document without its generation.
    message
        For the control stream; the script sets its ``generation``.
    added, removed
        Member ids whose heartbeats begin and end with this change.
    at_least
        The generation that it gets at least.

    Raises
    ------
    BackendError
        ``BackendUnavailable``: it may or may not have been done.
    """
    flat: list[Argument] = []
    for name, value in message.items():
        if name != "generation":
            flat += (name, value)
    args: list[Argument] = [expected or "", body, len(flat), *flat, len(removed), *removed, len(added)]
    for member in added:
        args += (member, _beat_text(0, "", 0))
    args.append(at_least)
    touched = (keys.members, keys.control, keys.beats, keys.loads)
    reply = checked(await backend.run(CHANGE_MEMBERS, touched, args))
    if reply[0] == b"OK":
        return Changed(int(reply[1]), int(reply[2]))
    return Conflict(reply[1], int(reply[2]))


class Renewal(NamedTuple):
    """What a heartbeat says of one membership."""

    keys: GroupKeys
    member: str
    client_id: int
    """Of the connection that carries it; see :meth:`Backend.identity`."""
    run_id: str
    """Of the server, on a Cluster of the one that has the group's keys."""
    load: int = 0
    """What all partitions of the member ask of it."""
    loads: Mapping[int, int] | None = None
    """What each asks, where that was measured since the last heartbeat."""


async def heartbeat(backend: Backend, renewals: Sequence[Renewal]) -> list[HeartbeatReply | BackendError]:
    """Renew memberships in several groups, in one round trip. May be repeated.

    Parameters
    ----------
    renewals
        One for each group.

    Returns
    -------
    list
        A reply for each group; the error for one that was refused, for instance since a key of it
        holds something else than ours. The others are renewed all the same.

    Raises
    ------
    BackendUnavailable
        Without an answer.
    """
    calls = [
        (
            (each.keys.members, each.keys.beats, each.keys.loads),
            (each.member, _beat_text(each.client_id, each.run_id, each.load), loads_text(each.loads)),
        )
        for each in renewals
    ]
    return [_heartbeat_reply(reply) for reply in await backend.run_many(HEARTBEAT, calls)]


def _heartbeat_reply(reply: Any) -> HeartbeatReply | BackendError:
    try:
        if isinstance(reply, BackendError):
            return reply
        checked(reply)
    except BackendRefused as error:
        return error
    code, generation, server_ms, *beats = reply
    return HeartbeatReply(
        code == b"LOST",
        int(generation) if generation else None,
        int(server_ms),
        read_beats(beats[0] if beats else ()),
    )


def read_beats(flat: Sequence[bytes]) -> dict[str, Beat]:
    """Read the hash of heartbeats; one that is not ours to read counts as never seen."""
    beats: dict[str, Beat] = {}
    for member, value in zip(flat[::2], flat[1::2], strict=True):
        parts = value.decode("utf-8", "replace").split("|")
        if len(parts) != 4:
            continue
        server_ms, client_id, load = whole(parts[0]), whole(parts[1]), whole(parts[3])
        if server_ms is not None and client_id is not None and load is not None:
            beats[member.decode("utf-8", "replace")] = Beat(server_ms, client_id, parts[2], load)
    return beats


def _beat_text(client_id: int, run_id: str, load: int) -> str:
    return f"{client_id}|{run_id}|{load}"


async def connected(backend: Backend, client_ids: Sequence[int], near: str = "") -> set[int] | None:
    """Return which of some connections the server still has; None if it does not tell us.

    Connections have their numbers at one server: on a Cluster at the one that has the key ``near``.

    Raises
    ------
    BackendUnavailable
        Without an answer.
    """
    if not client_ids:
        return set()
    try:
        listed: bytes = await backend.execute("CLIENT", "LIST", "ID", *client_ids, near=near)
    except BackendRefused:
        return None
    return {int(number) for number in _CLIENT.findall(listed)}
