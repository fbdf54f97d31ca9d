"""What a core was told and what it answered, in words: the syntax of every transcript.

The simulator's ``--trace``, the tests in ``tests/protocol``, the pages in docs/ and a worker's log at
level ``debug`` are all written by ``step_in_words``. So an incident reads the same wherever it was seen:
one line for the event, and one for each effect behind an arrow. Effects on several partitions that
differ in nothing else share a line. An event or effect that this module has no words for is written
with its fields, so a new protocol needs nothing here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise

from streamworker.core import claim_events as claims
from streamworker.core import events as ev
from streamworker.core import lease_events as leases
from streamworker.core.control import (
    ControlMessage,
    GroupChanged,
    JoinWanted,
    LeaseChallenged,
    LeaseEnded,
    PartitionsAcquired,
    PartitionsReleased,
)
from streamworker.core.locks import Acquired, Held, Stale
from streamworker.core.membership import Membership
from streamworker.errors import CoordinationError

ROUTINE = (ev.HeartbeatDone, ev.DeadlinePassed, ev.ControlReceived, leases.LeasesUpdated)
"""Events that say nothing where nothing follows from them."""


def step_in_words(event: ev.Event, effects: Sequence[ev.Effect]) -> list[str]:
    """Write one step of a core: the event, then each effect behind an arrow.

    Examples
    --------
    >>> step_in_words(ev.Started(), [ev.ReadDocument()])
    ['Started', '-> ReadDocument']
    """
    return [event_in_words(event), *(f"-> {words}" for words in effects_in_words(effects))]


def is_news(event: ev.Event, effects: Sequence[ev.Effect]) -> bool:
    """Whether a step belongs in a transcript."""
    if isinstance(event, ev.ControlReceived) and any(isinstance(m, LeaseChallenged) for m in event.messages):
        return True  # a wait begins
    return bool(effects) or not isinstance(event, ROUTINE)


def runs(numbers: Iterable[int]) -> str:
    """Write partitions with runs shortened.

    Examples
    --------
    >>> runs((0, 1, 2, 5))
    '0-2,5'
    """
    ordered = sorted(numbers)
    if not ordered:
        return "nothing"
    parts, start = [], ordered[0]
    for here, following in pairwise([*ordered, ordered[-1] + 2]):
        if following != here + 1:
            parts.append(str(here) if here == start else f"{start}-{here}")
            start = following
    return ",".join(parts)


def name_of(owner: str) -> str:
    """Return the worker's name of an owner: what stands before its nonce; names may hold dots."""
    return owner.rpartition(".")[0] or owner


# -- events ----------------------------------------------------------------------------------


def event_in_words(event: ev.Event) -> str:
    """Write one event."""
    match event:
        case ev.DocumentRead(document, _, foreign) | ev.ChangeRefused(document, _, foreign):
            return f"{type(event).__name__}: {_document(document, foreign)}"
        case ev.DocumentChanged(generation):
            return f"DocumentChanged: generation {generation}"
        case ev.ControlReceived(messages):
            return "ControlReceived: " + "; ".join(map(_message, _together(messages)))
        case ev.LocksAnswered(_, asked, replies):
            return "LocksAnswered: " + _by_words(
                {p: _reply(replies[p]) if p in replies else "no answer" for p in asked}
            )
        case ev.LocksReleased(_, asked, released):
            return "LocksReleased: " + _by_words({p: "" if p in released else "no answer" for p in asked})
        case ev.RunnerStopped(partition, epoch) | ev.RunnerFenced(partition, epoch):
            return f"{type(event).__name__}: {partition}, epoch {epoch}"
        case ev.RunnerHalted(partition, epoch, reason):
            return f"RunnerHalted: {partition}, epoch {epoch}: {reason}"
        case ev.HeartbeatDone():
            return f"HeartbeatDone: {'lost, ' if event.lost else ''}generation {event.generation}"
        case ev.PeersProbed(connected):
            return f"PeersProbed: {_connections(connected)}"
        case ev.CallFailed(call):
            return f"CallFailed: {call.value}"
    return _event_of_claim(event) or _event_of_lease(event) or _plain(event)


def _event_of_claim(event: ev.Event) -> str:
    match event:
        case claims.OwnershipListed(partitions, entries, _):
            owners = {entry.partition: name_of(entry.owner) for entry in entries}
            return f"OwnershipListed: of {partitions}, " + (_by_owner(owners) or "no entry")
        case claims.PartitionsClaimed(won, refused):
            return "PartitionsClaimed: " + _entries(won, refused)
        case claims.CheckpointsUpdated(updated, refused):
            return "CheckpointsUpdated: " + _entries(updated, refused)
        case claims.PartitionsGivenUp(partitions):
            return f"PartitionsGivenUp: {runs(partitions)}"
    return ""


def _event_of_lease(event: ev.Event) -> str:
    match event:
        case leases.LeasesChallenged(_, signalled):
            return f"LeasesChallenged: {'no answer' if signalled is None else runs(signalled)}"
        case leases.LeaseRaced(partition, winner, generation, allocated):
            if winner is None:
                return f"LeaseRaced: {partition} no answer"
            by = f", processed by {name_of(allocated)}" if allocated else ""
            return f"LeaseRaced: {partition} won by {name_of(winner)}, generation {generation}{by}"
        case leases.LeasesUpdated(done):
            return "LeasesUpdated" if done else "LeasesUpdated: no answer"
    return ""


# -- effects ---------------------------------------------------------------------------------


def effects_in_words(effects: Sequence[ev.Effect]) -> list[str]:
    """Write effects, in their order; those that differ only in the partition share a line."""
    lines: dict[tuple[str, str], list[int]] = {}
    for effect in effects:
        match effect:
            case ev.Note():
                continue
            case ev.StartRunner(partition, _, lock):
                rest = f", epoch {lock.epoch}, after entry {lock.checkpoint}"
            case (
                ev.DrainRunner(partition, epoch)
                | ev.CancelRunner(partition, epoch)
                | ev.DropRunner(partition, epoch)
            ):
                rest = f", epoch {epoch}"
            case ev.MarkLock(partition, _, _, state, reason):
                rest = f": {state}{f' ({reason})' if reason else ''}"
            case leases.RaceForLease(_, partition):
                rest = ""
            case _:
                lines[effect_in_words(effect), ""] = []
                continue
        lines.setdefault((type(effect).__name__, rest), []).append(partition)
    return [f"{head} {runs(partitions)}{rest}" if partitions else head
            for (head, rest), partitions in lines.items()]  # fmt: skip


def effect_in_words(effect: ev.Effect) -> str:
    """Write one effect on the group."""
    match effect:
        case ev.ChangeDocument(expected, membership, message, _, _):
            before = f"if the generation is {expected}" if expected else "if there is none"
            return f"ChangeDocument {before}: {message.cause} of {message.member}; {_owners(membership)}"
        case ev.MendDocument(_, membership, message, _):
            what = _owners(membership) if membership.generation else "there is none"
            return f"MendDocument if it is still the same: by {message.member}; {what}"
        case ev.StartHeartbeat(member):
            return f"StartHeartbeat {member}"
        case ev.ProbePeers(connections):
            return f"ProbePeers: connections {', '.join(map(str, sorted(connections)))}"
        case ev.AcquireLocks(partitions, _, generation, _):
            return f"AcquireLocks {runs(partitions)}, generation {generation}"
        case ev.ReleaseLocks(_, epochs):
            return f"ReleaseLocks {runs(epochs)}"
        case ev.PostControl(message):
            return f"PostControl: {_message(message)}"
        case claims.ClaimPartitions(_, etags) | claims.UpdateCheckpoints(_, etags):
            return f"{type(effect).__name__} " + _by_words({p: _if_etag(etags[p]) for p in etags})
        case claims.GiveUpPartitions(_, partitions):
            return f"GiveUpPartitions {runs(partitions)}"
        case leases.ChallengeLeases(_, challenges):
            return "ChallengeLeases " + _by_words({p: how.value for p, how in challenges.items()})
        case leases.UpdateLeases(_, allocate, end, clear):
            parts = (("allocate", allocate), ("end", end), ("clear", clear))
            return "UpdateLeases: " + "; ".join(f"{what} {runs(which)}" for what, which in parts if which)
    return _plain(effect)


# -- parts of them ---------------------------------------------------------------------------


def _plain(thing: object) -> str:
    """Write what this module has no words for."""
    if not is_dataclass(thing):
        return type(thing).__name__
    values = {field.name: getattr(thing, field.name) for field in fields(thing)}
    return " ".join([type(thing).__name__, *(f"{name}={value}" for name, value in values.items())])


def _by_words(words: Mapping[int, str]) -> str:
    """Write partitions with words about each; those with the same words together."""
    alike: dict[str, list[int]] = {}
    for partition in sorted(words):
        alike.setdefault(words[partition], []).append(partition)
    return "; ".join(f"{runs(which)} {text}".rstrip() for text, which in alike.items()) or "nothing"


def _by_owner(owners: Mapping[int, str]) -> str:
    shares: dict[str, list[int]] = {}
    for partition in sorted(owners):
        shares.setdefault(owners[partition], []).append(partition)
    return "; ".join(f"{owner}: {runs(which)}" for owner, which in shares.items())


def _owners(membership: Membership) -> str:
    names = {member.id: member.name for member in membership.members}
    return (
        _by_owner({p: names[owner] for p, owner in enumerate(membership.owners) if owner is not None})
        or "nobody"
    )


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


def _together(messages: Iterable[ControlMessage]) -> list[ControlMessage]:
    """Return messages of one kind, owner and generation as one; each partition had its own."""
    alike: dict[object, ControlMessage] = {}
    for message in messages:
        if isinstance(message, GroupChanged | JoinWanted):
            alike[message] = message
            continue
        key = (type(message), message.owner, message.generation)
        before = alike.get(key)
        known = () if before is None or isinstance(before, GroupChanged | JoinWanted) else before.partitions
        alike[key] = replace(message, partitions=(*known, *message.partitions))
    return list(alike.values())


def _message(message: object) -> str:
    match message:
        case GroupChanged(generation, cause, member, moved):
            return f"changed, generation {generation}: {cause} of {member}, moved {runs(moved)}"
        case JoinWanted(name, _):
            return f"{name} wants to join"
        case PartitionsReleased(partitions, owner, generation):
            return f"released {runs(partitions)} by {name_of(owner)}, generation {generation}"
        case PartitionsAcquired(partitions, owner, generation):
            return f"acquired {runs(partitions)} by {name_of(owner)}, generation {generation}"
        case LeaseChallenged(partitions, owner, _):
            return f"challenged {runs(partitions)} by {name_of(owner)}"
        case LeaseEnded(partitions, owner, _):
            return f"ended {runs(partitions)} by {name_of(owner)}"
    return _plain(message)


def _reply(reply: Acquired | Held | Stale) -> str:
    match reply:
        case Acquired():
            return f"acquired, epoch {reply.epoch}"
        case Held(owner, waited_ms):
            return f"held by {name_of(owner)}" + (f" for {waited_ms} ms" if waited_ms else "")
        case Stale(generation):
            return f"stale, generation {generation}"


def _connections(connected: frozenset[int] | None) -> str:
    if connected is None:
        return "the server does not tell"
    return f"connected: {', '.join(map(str, sorted(connected))) or 'none'}"


def _if_etag(etag: int) -> str:
    return "if there is no entry" if etag == claims.NO_ENTRY else f"if the ETag is {etag}"


def _entries(done: Mapping[int, int], refused: Mapping[int, claims.OwnershipEntry | None]) -> str:
    words = {p: f"with ETag {etag}" for p, etag in done.items()}
    for partition, entry in refused.items():
        words[partition] = (
            f"refused, {name_of(entry.owner)} has it with ETag {entry.etag}" if entry else "refused, no entry"
        )
    return _by_words(words)
