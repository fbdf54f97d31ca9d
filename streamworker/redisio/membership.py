"""The membership document and heartbeats; ``core.membership`` says what they mean."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamworker.core.events import Beat
from streamworker.core.mending import LOOKED_AT_BYTES, fingerprint
from streamworker.errors import BackendError, BackendRefused
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import GroupKeys, whole
from streamworker.redisio.link import Argument
from streamworker.redisio.loads import loads_text
from streamworker.redisio.scripts import CHANGE_MEMBERS, HEARTBEAT, MEND_MEMBERS, checked

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
    foreign: str = ""
    """The type of what stands there, where that can be no document."""


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
    fingerprint: str = ""
    """Of the document, where this heartbeat looked at all of it; see ``core.mending``."""
    foreign: str = ""
    """A key that held something else: that of the loads, which is left alone, or that of the heartbeats,
    which were begun anew, or are none until somebody has mended the document, too."""


async def look_at_members(backend: Backend, keys: GroupKeys) -> tuple[bytes | None, int, str]:
    """Return the membership document, the server's clock in ms, and the type of what stands in its place.

    One round trip; the type is empty where there is a string, or nothing.

    Raises
    ------
    BackendError
        Without an answer, or if the key may not be read.
    """
    document, time = await backend.pipeline([("GET", keys.members), ("TIME",)])
    if isinstance(time, BackendError):
        raise time
    server_ms, foreign = int(time[0]) * 1000 + int(time[1]) // 1000, ""
    if isinstance(document, BackendRefused):
        kind = (await backend.execute("TYPE", keys.members)).decode()
        foreign = "" if kind in ("none", "string") else kind
    if isinstance(document, BackendError):
        if not foreign:
            raise document
        document = None
    return document, server_ms, foreign


async def put_aside(backend: Backend, keys: GroupKeys) -> str:
    """Return the fingerprint of what was put aside for the document or heartbeats; empty if there is none.

    Raises
    ------
    BackendError
        Without an answer, or the rights for it.
    """
    kind = (await backend.execute("TYPE", keys.damaged)).decode()
    if kind != "string":
        return "" if kind == "none" else kind
    return fingerprint(await backend.execute("GETRANGE", keys.damaged, 0, LOOKED_AT_BYTES - 1))


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
    flat = fields_of(message)
    args: list[Argument] = [expected or "", body, len(flat), *flat, len(removed), *removed, len(added)]
    for member in added:
        args += (member, _beat_text(0, "", 0))
    args.append(at_least)
    touched = (keys.members, keys.control, keys.beats, keys.loads, keys.damaged)
    reply = checked(await backend.run(CHANGE_MEMBERS, touched, args))
    if reply[0] == b"OK":
        return Changed(int(reply[1]), int(reply[2]))
    return Conflict(reply[1], int(reply[2]))


async def mend_members(
    backend: Backend,
    keys: GroupKeys,
    *,
    seen: str,
    body: str,
    message: Mapping[str, str],
    present: Sequence[str] = (),
    at_least: int = 0,
) -> Changed | Conflict:
    """Put aside what is no document, if it is still what was seen, and write one in its place.

    May be repeated: what was put aside is not there any more.

    Parameters
    ----------
    seen
        Its fingerprint; see ``core.mending``.
    body
        The new document without its generation; empty to leave none, and then the generation is 0.
    message
        For the control stream; the script sets its ``generation``.
    present
        Ids of the members that send heartbeats; those of others end with this.
    at_least
        The generation that the document gets at least.

    Raises
    ------
    BackendError
        ``BackendUnavailable``: it may or may not have been done.
    """
    flat = fields_of(message)
    args: list[Argument] = [seen, body, at_least, len(flat), *flat, *present]
    touched = (keys.members, keys.control, keys.beats, keys.loads, keys.damaged)
    reply = checked(await backend.run(MEND_MEMBERS, touched, args))
    if reply[0] == b"OK":
        return Changed(int(reply[1] or 0), int(reply[2]))
    return Conflict(reply[1], int(reply[2]), reply[3].decode())


def fields_of(message: Mapping[str, str]) -> list[Argument]:
    """Return the fields of a message but for its generation, as the scripts take them."""
    return [part for name, value in message.items() if name != "generation" for part in (name, value)]


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
            (each.keys.members, each.keys.beats, each.keys.loads, each.keys.damaged),
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
    code, generation, server_ms, *rest = reply
    return HeartbeatReply(
        code == b"LOST",
        int(generation) if generation else None,
        int(server_ms),
        read_beats(rest[0] if rest else ()),
        rest[1].decode() if rest else "",
        rest[2].decode() if rest else "",
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
