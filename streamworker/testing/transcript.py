"""What cores were told and what they answered, in words: a line for each event and effect.

docs/protocol.md shows such transcripts, and ``streamworker simulate --trace`` prints one.
"""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise

from streamworker.core import events as ev
from streamworker.core.control import GroupChanged, PartitionsAcquired, PartitionsReleased
from streamworker.core.locks import Acquired, Held, Stale
from streamworker.core.membership import Membership


class Transcript:
    """Lines about several workers, in the order of time.

    Parameters
    ----------
    quiet
        Leave out events that led to nothing.
    """

    def __init__(self, *, quiet: bool = True) -> None:
        self.lines: list[str] = []
        self.start_ms = 0
        self._quiet = quiet

    def took(self, now_ms: int, name: str, event: ev.Event, effects: Sequence[ev.Effect]) -> None:
        """Write down that a core was told something, and what it wants done."""
        if self._quiet and not effects and not isinstance(event, ev.LocksAnswered):
            return
        self.lines.append(f"{now_ms - self.start_ms:>6} ms  {name}  {event_in_words(event)}")
        self.lines += [
            f"{'':>15}-> {effect_in_words(effect)}" for effect in effects if not isinstance(effect, ev.Note)
        ]

    def happened(self, now_ms: int, text: str) -> None:
        """Write down what happened to a worker or to the server."""
        self.lines.append(f"{now_ms - self.start_ms:>6} ms  ({text})")

    def __str__(self) -> str:
        return "\n".join(self.lines)


def runs(numbers: Sequence[int]) -> str:
    """Write partitions with runs shortened.

    Examples
    --------
    >>> runs((0, 1, 2, 5))
    '0-2,5'
    """
    if not numbers:
        return "nothing"
    ordered = sorted(numbers)
    parts, start = [], ordered[0]
    for here, following in pairwise([*ordered, ordered[-1] + 2]):
        if following != here + 1:
            parts.append(str(here) if here == start else f"{start}-{here}")
            start = following
    return ",".join(parts)


def event_in_words(event: ev.Event) -> str:
    """Write one event."""
    match event:
        case ev.DocumentRead(document, _):
            return f"DocumentRead: {_document(document)}"
        case ev.ChangeRefused(document, _):
            return f"ChangeRefused: {_document(document)}"
        case ev.DocumentChanged(generation):
            return f"DocumentChanged: generation {generation}"
        case ev.ControlReceived(messages):
            return "ControlReceived: " + "; ".join(map(_message, messages))
        case ev.LocksAnswered(_, asked, replies):
            unanswered = sorted(set(asked).difference(replies))
            parts = [f"{p} {_reply(reply)}" for p, reply in sorted(replies.items())]
            return "LocksAnswered: " + "; ".join(
                [*parts, *([f"{runs(unanswered)} no answer"] if unanswered else [])]
            )
        case ev.LocksReleased(_, asked, _):
            return f"LocksReleased: {runs(asked)}"
        case ev.RunnerStopped(partition, epoch) | ev.RunnerFenced(partition, epoch):
            return f"{type(event).__name__}: {partition}, epoch {epoch}"
        case ev.HeartbeatDone():
            return f"HeartbeatDone: {'lost, ' if event.lost else ''}generation {event.generation}"
        case ev.PeersProbed(connected):
            return f"PeersProbed: {sorted(connected or ()) or 'none is connected'}"
        case ev.CallFailed(call):
            return f"CallFailed: {call.value}"
        case ev.Started() | ev.StopRequested() | ev.DeadlinePassed():
            return type(event).__name__
    return _plain(event)


def effect_in_words(effect: ev.Effect) -> str:
    """Write one effect."""
    match effect:
        case ev.ChangeDocument(expected, membership, message, _, _):
            before = f"if the generation is {expected}" if expected else "if there is none"
            return f"ChangeDocument {before}: {message.cause} of {message.member}; {_owners(membership)}"
        case ev.StartHeartbeat(member):
            return f"StartHeartbeat {member}"
        case ev.ProbePeers(connections):
            return f"ProbePeers: connections {sorted(connections)}"
        case ev.AcquireLocks(partitions, _, generation, _):
            return f"AcquireLocks {runs(partitions)}, generation {generation}"
        case ev.ReleaseLocks(_, epochs):
            return f"ReleaseLocks {runs(tuple(epochs))}"
        case ev.PostControl(message):
            return f"PostControl: {_message(message)}"
        case ev.StartRunner(partition, _, lock):
            return f"StartRunner {partition}, epoch {lock.epoch}, after entry {lock.checkpoint}"
        case (
            ev.DrainRunner(partition, epoch)
            | ev.CancelRunner(partition, epoch)
            | ev.DropRunner(partition, epoch)
        ):
            return f"{type(effect).__name__} {partition}, epoch {epoch}"
        case ev.MarkLock(partition, _, _, state, _):
            return f"MarkLock {partition}: {state}"
        case ev.StopHeartbeat() | ev.PauseBatches() | ev.ResumeBatches() | ev.Finished() | ev.ReadDocument():
            return type(effect).__name__
    return _plain(effect)


def _plain(thing: object) -> str:
    """Write what this module has no words for: another protocol's events and effects."""
    if not is_dataclass(thing):
        return type(thing).__name__
    values = {field.name: getattr(thing, field.name) for field in fields(thing)}
    return " ".join(
        [type(thing).__name__, *(f"{name}={getattr(v, 'value', v)}" for name, v in values.items())]
    )


def _owners(membership: Membership) -> str:
    names = {member.id: member.name for member in membership.members}
    shares = [
        f"{names[owner]}: {runs(sorted(membership.owned_by(owner)))}"
        for owner in dict.fromkeys(membership.owners)
        if owner is not None
    ]
    return "; ".join(shares) or "nobody"


def _message(message: object) -> str:
    match message:
        case GroupChanged(generation, cause, member, moved):
            return f"changed, generation {generation}: {cause} of {member}, moved {runs(moved)}"
        case PartitionsReleased(partitions, owner, generation):
            return f"released {runs(partitions)} by {owner.split('.')[0]}, generation {generation}"
        case PartitionsAcquired(partitions, owner, generation):
            return f"acquired {runs(partitions)} by {owner.split('.')[0]}, generation {generation}"
    return _plain(message)


def _document(document: bytes | None) -> str:
    if document is None:
        return "there is none"
    membership = Membership.parse(document)
    return f"generation {membership.generation}, {_owners(membership)}"


def _reply(reply: Acquired | Held | Stale) -> str:
    match reply:
        case Acquired():
            return f"acquired, epoch {reply.epoch}"
        case Held(owner, _):
            return f"held by {owner.split('.')[0]}"
        case Stale(generation):
            return f"stale, generation {generation}"
