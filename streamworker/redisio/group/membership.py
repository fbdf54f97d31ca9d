"""The membership document and the heartbeats; ``core.membership`` says what they mean."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamworker.core.control import GroupChanged
from streamworker.core.protocols.membership.events import (
    Beat,
    ChangeDocument,
    ChangeRefused,
    DocumentChanged,
    DocumentRead,
    HeartbeatDone,
    MendDocument,
)
from streamworker.core.protocols.membership.mending import LOOKED_AT_BYTES, fingerprint
from streamworker.errors import BackendError, BackendRefused
from streamworker.redisio.group.loads import loads_text
from streamworker.redisio.keys import GroupKeys, whole
from streamworker.redisio.scripts import CHANGE_MEMBERS, HEARTBEAT, MEND_MEMBERS, checked, wrong_type
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.info import ms_of, pairs_of

_CLIENT = re.compile(rb"(?:^|\n)id=(\d+) ")
_CLIENT_NAME = re.compile(rb" name=(\S+) ")


async def read_members(backend: Backend, keys: GroupKeys) -> DocumentRead:
    """Read the membership document, or the type of a value at its key that is none."""
    document, time = await backend.pipeline([("GET", keys.members), ("TIME",)])
    if isinstance(time, BackendError):
        raise time
    if isinstance(document, BackendRefused):
        kind = (await backend.execute("TYPE", keys.members)).decode()
        if kind not in ("none", "string"):
            return DocumentRead(None, ms_of(time), kind)
    if isinstance(document, BackendError):
        raise document
    return DocumentRead(document, ms_of(time))


async def quarantined(backend: Backend, keys: GroupKeys) -> str:
    """Return the fingerprint of the stored damaged document or heartbeats; empty if there is none."""
    kind = (await backend.execute("TYPE", keys.damaged)).decode()
    if kind != "string":
        return "" if kind == "none" else kind
    return fingerprint(await backend.execute("GETRANGE", keys.damaged, 0, LOOKED_AT_BYTES - 1))


async def change_members(
    backend: Backend, keys: GroupKeys, change: ChangeDocument, seen: Mapping[str, bytes] | None = None
) -> DocumentChanged | ChangeRefused:
    """Write a document if the generation is still the expected one, and post a message with it.

    Do not repeat it blindly: after a lost answer, read the document and check whether it has the change.

    The heartbeats of the members ``added`` and ``removed`` begin and end with this change. With ``seen``,
    their heartbeats as they were read, nothing changes if a removed member has another one by now.
    """
    begun = _beat_text(0, "", 0)
    call = CHANGE_MEMBERS.at(
        keys,
        expected=change.expected or "",
        body=change.membership.body(),
        least=change.at_least,
        message=_words(change.message),
        removed=[
            word
            for member in change.removed
            for word in (member, "*" if seen is None else seen.get(member, b""))
        ],
        added=[word for member in change.added for word in (member, begun)],
    )
    code, found, server_ms = checked(await backend.run(CHANGE_MEMBERS, call))
    return DocumentChanged(int(found)) if code == b"OK" else ChangeRefused(found, int(server_ms))


async def mend_members(
    backend: Backend, keys: GroupKeys, mend: MendDocument
) -> DocumentChanged | DocumentRead | ChangeRefused:
    """Move a damaged document aside if it is still the one that was seen, and write a new document.

    The call may be repeated: a repeat no longer finds the damaged value. If the new membership has no
    generation, no document is written. Heartbeats of members that are not present in it are removed.
    """
    known, message = mend.membership, _words(mend.message)
    body = known.body() if known.generation else ""
    named = {"seen": mend.seen, "body": body, "least": mend.at_least, "message": message}
    call = MEND_MEMBERS.at(keys, **named, present=known.present_ids)
    code, found, server_ms, *kind = checked(await backend.run(MEND_MEMBERS, call))
    if code != b"OK":
        return ChangeRefused(found, int(server_ms), kind[0].decode())
    return DocumentChanged(int(found)) if body else DocumentRead(None, int(server_ms))


def _words(message: GroupChanged) -> list[str]:
    """Return the fields and values of a message without its generation."""
    return [
        part for name, value in message.fields().items() if name != "generation" for part in (name, value)
    ]


class Renewal(NamedTuple):
    """The heartbeat of one membership."""

    keys: GroupKeys
    member: str
    client_id: int
    """Client id of the connection that carries the heartbeat; see :meth:`Backend.identity`."""
    run_id: str
    """Run id of the server; on a Cluster, of the node that has the group's keys."""
    load: int = 0
    """Load of all partitions of the member."""
    loads: Mapping[int, int] | None = None
    """Load of each partition, if it was measured since the last heartbeat."""


async def heartbeat(
    backend: Backend, renewals: Sequence[Renewal], sent_ms: int = 0
) -> list[HeartbeatDone | BackendError]:
    """Renew memberships in several groups, in one round trip. The call may be repeated.

    If Redis refuses the heartbeat of one group, for instance because a key of the group holds another type,
    its reply is the error, and the other groups are renewed. ``sent_ms`` is the worker's present time.
    """
    calls = [
        HEARTBEAT.at(
            each.keys,
            member=each.member,
            beat=_beat_text(each.client_id, each.run_id, each.load),
            measured=loads_text(each.loads),
        )
        for each in renewals
    ]
    replies = await backend.run_many(HEARTBEAT, calls)
    return [_heartbeat_done(*each, sent_ms) for each in zip(renewals, replies, strict=True)]


def _heartbeat_done(renewal: Renewal, reply: Any, sent_ms: int) -> HeartbeatDone | BackendError:
    if isinstance(reply, BackendError):
        return reply
    if reply[0] == b"BADTYPE":
        return wrong_type(reply[1])
    code, generation, _, *rest = reply
    beats, seen, foreign = rest or ((), b"", b"")
    known = (int(generation or 0), sent_ms, renewal.run_id, read_beats(beats))
    return HeartbeatDone(renewal.member, code == b"LOST", *known, seen.decode(), foreign.decode())


def read_beats(flat: Sequence[bytes]) -> dict[str, Beat]:
    """Parse the hash of heartbeats; a value that cannot be parsed counts as no heartbeat."""
    beats: dict[str, Beat] = {}
    for member, value in pairs_of(flat).items():
        parts = value.decode("utf-8", "replace").split("|")
        if len(parts) != 4:
            continue
        server_ms, client_id, load = whole(parts[0]), whole(parts[1]), whole(parts[3])
        if server_ms is not None and client_id is not None and load is not None:
            beats[member.decode("utf-8", "replace")] = Beat(server_ms, client_id, parts[2], load)
    return beats


def _beat_text(client_id: int, run_id: str, load: int) -> str:
    return f"{client_id}|{run_id}|{load}"


async def connected(backend: Backend, client_ids: Sequence[int], near: str = "") -> frozenset[int] | None:
    """Return which of some connections the server still has; None if this user may not ask.

    Client ids are valid at one server: on a Cluster at the node that has the key ``near``.
    """
    if not client_ids:
        return frozenset()
    try:
        listed: bytes = await backend.execute("CLIENT", "LIST", "ID", *client_ids, near=near)
    except BackendRefused:
        return None
    return frozenset(int(number) for number in _CLIENT.findall(listed))


async def names_connected(backend: Backend, near: str = "") -> frozenset[str]:
    """Return the names of all connections at the server that has a key; none if this user may not ask."""
    try:
        listed: bytes = await backend.execute("CLIENT", "LIST", near=near)
    except BackendRefused:
        return frozenset()
    return frozenset(name.decode("utf-8", "replace") for name in _CLIENT_NAME.findall(listed))
