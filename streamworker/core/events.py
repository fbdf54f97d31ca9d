"""The whole border between the core and the world: what comes in, and what goes out.

An **event** is something that happened; the runtime or the simulator brings it to
``handle(event, now_ms)``. An **effect** is something to be done; ``handle`` returns a list of
them, to be started in that order. An effect that asks Redis for something names the event that
carries its answer. Every such effect gets exactly one answer, and ``CallFailed`` stands for
"no answer", after which nobody knows whether it was done.

Records never cross this border. A worker may handle a million of them between two events.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from streamworker.core.control import ControlMessage, GroupChanged
from streamworker.core.locks import Acquired, AcquireReply
from streamworker.core.membership import Membership


class Event:
    """Something that happened. Each kind is a frozen dataclass below, or in a protocol's module."""

    __slots__ = ()


class Effect:
    """Something to be done. Each kind is a frozen dataclass below, or in a protocol's module."""

    __slots__ = ()


# -- events: in ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The worker was told to take part in the group."""


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """The worker was told to finish: drain, release, leave."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed(Event):
    """The time that ``next_deadline_ms`` named has come."""


@dataclass(frozen=True, slots=True)
class DocumentRead(Event):
    """Answer to ``ReadDocument``; and to ``MendDocument`` where nothing was written in its place."""

    document: bytes | None
    server_ms: int
    foreign: str = ""
    """The type of what stands there, where that can be no document."""


@dataclass(frozen=True, slots=True)
class DocumentChanged(Event):
    """Answer to ``ChangeDocument`` and ``MendDocument``: done."""

    generation: int


@dataclass(frozen=True, slots=True)
class ChangeRefused(Event):
    """Answer to ``ChangeDocument`` and ``MendDocument``: somebody else was first, and wrote this."""

    document: bytes | None
    server_ms: int
    foreign: str = ""
    """As in ``DocumentRead``."""


class Call(Enum):
    """Which call got no answer."""

    DOCUMENT = "document"
    PROBE = "probe"
    LOADS = "loads"


@dataclass(frozen=True, slots=True)
class CallFailed(Event):
    """No answer to what is about the document, to ``ProbePeers`` or to ``ReadLoads``."""

    call: Call


@dataclass(frozen=True, slots=True)
class ControlReceived(Event):
    """Messages from the control stream, oldest first."""

    messages: tuple[ControlMessage, ...]


@dataclass(frozen=True, slots=True)
class Beat:
    """What a member wrote at its last heartbeat."""

    server_ms: int
    connection: int
    """Its heartbeat connection's client id at the server."""
    run_id: str
    """The server's run id when it connected: client ids start anew with the server."""
    load: int
    """What all its partitions ask of it, in thousandths of a worker's time; 0 if it is not measured."""


@dataclass(frozen=True, slots=True)
class HeartbeatDone(Event):
    """Our heartbeat was taken, or refused because we are no member any more (``lost``)."""

    member: str
    """Which of our memberships it was for; one that we gave up is ignored."""
    lost: bool
    generation: int
    """Of the document; 0 where there is none."""
    sent_ms: int
    """By our clock, before it was sent."""
    run_id: str
    beats: Mapping[str, Beat]
    fingerprint: str = ""
    """Of the document, where this heartbeat looked at all of it."""


@dataclass(frozen=True, slots=True)
class PeersProbed(Event):
    """Answer to ``ProbePeers``."""

    connected: frozenset[int] | None
    """Client ids that the server still has; None where it does not tell."""


@dataclass(frozen=True, slots=True)
class LoadsRead(Event):
    """Answer to ``ReadLoads``."""

    loads: Mapping[str, Mapping[int, int]]
    """By member what each of its partitions asks of it, in thousandths of a worker's time."""
    server_ms: int


@dataclass(frozen=True, slots=True)
class LocksAnswered(Event):
    """Answer to ``AcquireLocks``; a partition that is missing got no answer."""

    owner: str
    asked: tuple[int, ...]
    replies: Mapping[int, AcquireReply]


@dataclass(frozen=True, slots=True)
class LocksReleased(Event):
    """Answer to ``ReleaseLocks``; a partition that is missing got no answer."""

    owner: str
    asked: tuple[int, ...]
    released: frozenset[int]


@dataclass(frozen=True, slots=True)
class RunnerStopped(Event):
    """A runner ended: it drained, or it was cancelled."""

    partition: int
    epoch: int


@dataclass(frozen=True, slots=True)
class RunnerFenced(Event):
    """A runner ended: a commit was refused, since the lock is not ours any more."""

    partition: int
    epoch: int


@dataclass(frozen=True, slots=True)
class RunnerHalted(Event):
    """A runner stopped handling records; it keeps its partition until it is drained."""

    partition: int
    epoch: int
    reason: str


# -- effects: out ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadDocument(Effect):
    """Read the membership document. Answer: ``DocumentRead`` or ``CallFailed``."""


@dataclass(frozen=True, slots=True)
class ChangeDocument(Effect):
    """Write a membership document if the generation is still ``expected``.

    Answer: ``DocumentChanged``, ``ChangeRefused`` or ``CallFailed``.
    """

    expected: int
    """0: only if there is none."""
    membership: Membership
    message: GroupChanged
    """Its generation is filled in by the script."""
    added: tuple[str, ...]
    removed: tuple[str, ...]
    at_least: int = 0
    """A generation that some lock knows: the new one is not below it, whatever the server's clock says."""


@dataclass(frozen=True, slots=True)
class MendDocument(Effect):
    """Put aside what is no document, if it is still what was seen, and write one in its place.

    Answer: ``DocumentChanged``, ``ChangeRefused`` or ``CallFailed``; ``DocumentRead`` where nothing is
    written in its place.
    """

    seen: str
    """Its fingerprint; see ``mending``."""
    membership: Membership
    """What is written. With generation 0 nothing is: the group begins anew."""
    message: GroupChanged
    """Its generation is filled in by the script."""
    at_least: int
    """As in ``ChangeDocument``."""


@dataclass(frozen=True, slots=True)
class StartHeartbeat(Effect):
    """From now on send heartbeats for this member, in place of any other of ours."""

    member: str


@dataclass(frozen=True, slots=True)
class SendHeartbeat(Effect):
    """Send a heartbeat at once, and the next one an interval after it."""


@dataclass(frozen=True, slots=True)
class StopHeartbeat(Effect):
    """Send no more heartbeats."""


@dataclass(frozen=True, slots=True)
class ReportLoad(Effect):
    """From now on measure at this pace what our partitions ask of us, and let heartbeats carry it."""

    every_ms: int
    """0: no more."""


@dataclass(frozen=True, slots=True)
class ReadLoads(Effect):
    """Read what all members measured last. Answer: ``LoadsRead`` or ``CallFailed``."""


@dataclass(frozen=True, slots=True)
class ProbePeers(Effect):
    """Ask the server which of these connections it still has. Answer: ``PeersProbed``."""

    connections: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AcquireLocks(Effect):
    """Ask for the locks of some partitions. Answer: ``LocksAnswered``."""

    partitions: tuple[int, ...]
    owner: str
    generation: int
    live: tuple[str, ...]
    """All members at that generation: a lock of anybody else is free."""


@dataclass(frozen=True, slots=True)
class ReleaseLocks(Effect):
    """Give locks back. Answer: ``LocksReleased``."""

    owner: str
    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PostControl(Effect):
    """Post to the control stream. No answer; a lost message costs one pause."""

    message: ControlMessage


@dataclass(frozen=True, slots=True)
class StartRunner(Effect):
    """Handle the records of a partition from its checkpoint on."""

    partition: int
    owner: str
    lock: Acquired


@dataclass(frozen=True, slots=True)
class DrainRunner(Effect):
    """Finish the batch in hand, commit it and stop. Event: ``RunnerStopped``."""

    partition: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CancelRunner(Effect):
    """Stop at once; what is not committed is not. Event: ``RunnerStopped``."""

    partition: int
    epoch: int


@dataclass(frozen=True, slots=True)
class DropRunner(Effect):
    """Stop at once, and send no event: the membership it belonged to is lost."""

    partition: int
    epoch: int


@dataclass(frozen=True, slots=True)
class MarkLock(Effect):
    """Show a partition's state in its lock, for those who look. No answer."""

    partition: int
    owner: str
    epoch: int
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class PauseBatches(Effect):
    """Start no batch: our heartbeats do not get through, and peers may think us dead."""


@dataclass(frozen=True, slots=True)
class ResumeBatches(Effect):
    """Batches may start again."""


@dataclass(frozen=True, slots=True)
class Note(Effect):
    """Something for the log. The core knows reasons that nobody else can know."""

    event: str
    fields: Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Finished(Effect):
    """This worker has left the group and owns nothing. The last effect there is."""
