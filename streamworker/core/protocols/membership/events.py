"""The membership protocol's calls about the document, the heartbeats and the loads, and the answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from streamworker.core.control import GroupChanged
from streamworker.core.events import Effect, Event
from streamworker.core.protocols.membership.document import Membership
from streamworker.core.words import by_owner
from streamworker.errors import CoordinationError

# -- events: in ------------------------------------------------------------------------------


class _WithDocument(Event):
    document: bytes | None
    server_ms: int
    foreign: str = ""
    """The Redis type of the key's value, if that type cannot hold a document."""

    def __str__(self) -> str:
        return f"{type(self).__name__}: {_document(self.document, self.foreign)}"


class DocumentRead(_WithDocument):
    """Answer to ``ReadDocument``, and to ``MendDocument`` if it wrote no document."""


class DocumentChanged(Event):
    """Answer to ``ChangeDocument`` and ``MendDocument``: the document is written."""

    generation: int

    def __str__(self) -> str:
        return f"DocumentChanged: generation {self.generation}"


class ChangeRefused(_WithDocument):
    """Answer to ``ChangeDocument`` and ``MendDocument``: another worker wrote this document first."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A member's last heartbeat."""

    server_ms: int
    connection: int
    """The server's client id of the member's heartbeat connection."""
    run_id: str
    """The server's run id when the member connected: a restarted server assigns client ids anew."""
    load: int
    """The load of all its partitions, in thousandths of a worker's time; 0 if it is not measured."""


class HeartbeatDone(Event):
    """Redis took this worker's heartbeat, or refused it since the worker is no member any more (``lost``)."""

    is_routine: ClassVar[bool] = True
    member: str
    """The member id of the heartbeat; the core ignores an id that it gave up."""
    lost: bool
    generation: int
    """The document's generation; 0 if there is no document."""
    sent_ms: int
    """The time by this worker's clock just before it sent the heartbeat."""
    run_id: str
    beats: Mapping[str, Beat]
    fingerprint: str = ""
    """The document's fingerprint, if this heartbeat read the whole document; see ``mending``."""
    foreign: str = field(default="", compare=False)
    """A key that held another type, for the log: that of the loads, which the script leaves alone, or that of
    the heartbeats. The script starts the heartbeats anew; if the document is damaged, too, there are none
    until a member has repaired the document."""

    def __str__(self) -> str:
        return f"HeartbeatDone: {'lost, ' if self.lost else ''}generation {self.generation}"


class PeersProbed(Event):
    """Answer to ``ProbePeers``."""

    connected: frozenset[int] | None
    """The ids of the clients that are still connected; None if the server does not tell."""

    def __str__(self) -> str:
        if self.connected is None:
            return "PeersProbed: the server does not tell"
        return f"PeersProbed: connected: {', '.join(map(str, sorted(self.connected))) or 'none'}"


class LoadsRead(Event):
    """Answer to ``ReadLoads``."""

    loads: Mapping[str, Mapping[int, int]]
    """The load of each partition, by member, in thousandths of a worker's time."""
    server_ms: int


# -- effects: out ----------------------------------------------------------------------------


class DocumentCall(Effect):
    """A call about the document; there is at most one at a time."""


class ReadDocument(DocumentCall):
    """Read the membership document. Answer: ``DocumentRead``."""


class ChangeDocument(DocumentCall):
    """Write a membership document if the generation is still ``expected``.

    Answer: ``DocumentChanged`` or ``ChangeRefused``.
    """

    expected: int
    """0: write only if there is no document."""
    membership: Membership
    message: GroupChanged
    """The script fills in its generation."""
    added: tuple[str, ...]
    removed: tuple[str, ...]
    at_least: int = 0
    """A generation that a lock has: the new one must not be lower, even if the server's clock is."""

    def __str__(self) -> str:
        before = f"if the generation is {self.expected}" if self.expected else "if there is none"
        what = f"{self.message.cause} of {self.message.member}; {_owners(self.membership)}"
        return f"ChangeDocument {before}: {what}"


class MendDocument(DocumentCall):
    """Move a value that is no document aside, if it has not changed since, and write a document.

    Answer: ``DocumentChanged`` or ``ChangeRefused``; ``DocumentRead`` if nothing is written in its place.
    """

    seen: str
    """The fingerprint of the value; see ``mending``."""
    membership: Membership
    """The document to write. With generation 0 no document is written, and the group begins anew."""
    message: GroupChanged
    """The script fills in its generation."""
    at_least: int
    """As in ``ChangeDocument``."""

    def __str__(self) -> str:
        what = _owners(self.membership) if self.membership.generation else "there is none"
        return f"MendDocument if it is still the same: by {self.message.member}; {what}"


class StartHeartbeat(Effect):
    """Send heartbeats for this member id from now on, and for no other id of this worker."""

    member: str

    def __str__(self) -> str:
        return f"StartHeartbeat {self.member}"


class SendHeartbeat(Effect):
    """Send a heartbeat now, and the next one an interval after it."""


class StopHeartbeat(Effect):
    """Send no more heartbeats."""


class ReportLoad(Effect):
    """Measure the load of this worker's partitions at this interval, and send it with the heartbeats."""

    every_ms: int
    """0: stop measuring."""


class ReadLoads(Effect):
    """Read the latest loads of all members. Answer: ``LoadsRead``."""


class ProbePeers(Effect):
    """Ask the server which of these connections it still has. Answer: ``PeersProbed``."""

    connections: tuple[int, ...]

    def __str__(self) -> str:
        return f"ProbePeers: connections {', '.join(map(str, sorted(self.connections)))}"


def _owners(membership: Membership) -> str:
    names = {member.id: member.name for member in membership.members}
    owned = {p: names[owner] for p, owner in enumerate(membership.owners) if owner is not None}
    return by_owner(owned) or "nobody"


def _document(document: bytes | None, foreign: str) -> str:
    if foreign:
        return f"it is a {foreign}"
    if document is None:
        return "there is none"
    try:
        membership = Membership.parse(document)
    except CoordinationError:
        return "it cannot be read"
    return f"generation {membership.generation}, {_owners(membership)}"
