"""Writes the events and effects of a core in words: the syntax of every transcript.

The simulator's ``--trace``, the tests in ``tests/protocol``, the pages in docs/ and a worker's log at level
``debug`` all use ``step_in_words``. So an incident reads the same in each of them: one line for the event,
and one for each effect, behind an arrow. Effects on several partitions that do not differ otherwise share a
line. This module has the words for what several protocols share. What only one protocol has writes itself
(``in_words``), by default with its fields, so a new protocol needs no change here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from streamworker.core import events as ev
from streamworker.core.control import (
    ControlMessage,
    GroupChanged,
    PartitionsAcquired,
    PartitionsMessage,
    PartitionsReleased,
)
from streamworker.core.ownership.locks import Acquired, Held, Stale
from streamworker.core.words import by_words, name_of, runs

ROUTINE = (ev.DeadlinePassed, ev.ControlReceived)
"""Events that a transcript omits if they have no effects; a protocol's own say so themselves."""


def step_in_words(event: ev.Event, effects: Sequence[ev.Effect]) -> list[str]:
    """Write one step of a core: the event, then each effect behind an arrow.

    Examples
    --------
    >>> step_in_words(ev.Started(), [ev.PauseBatches()])
    ['Started', '-> PauseBatches']
    """
    return [event_in_words(event), *(f"-> {words}" for words in effects_in_words(effects))]


def is_news(event: ev.Event, effects: Sequence[ev.Effect]) -> bool:
    """Whether a step belongs in a transcript."""
    if isinstance(event, ev.ControlReceived) and any(message.is_news for message in event.messages):
        return True
    return bool(effects) or not (event.is_routine or isinstance(event, ROUTINE))


# -- events ----------------------------------------------------------------------------------


def event_in_words(event: ev.Event) -> str:
    """Write one event."""
    match event:
        case ev.ControlReceived(messages):
            return "ControlReceived: " + "; ".join(map(_message, _together(messages)))
        case ev.LocksAnswered(_, asked, replies):
            return "LocksAnswered: " + by_words(
                {p: _reply(replies[p]) if p in replies else "no answer" for p in asked}
            )
        case ev.LocksReleased(_, asked, released):
            return "LocksReleased: " + by_words({p: "" if p in released else "no answer" for p in asked})
        case ev.RunnerStopped(partition, epoch) | ev.RunnerFenced(partition, epoch):
            return f"{type(event).__name__}: {partition}, epoch {epoch}"
        case ev.RunnerHalted(partition, epoch, reason):
            return f"RunnerHalted: {partition}, epoch {epoch}: {reason}"
    return event.in_words()


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
            case _ if hasattr(effect, "partition"):
                rest, partition = "", effect.partition
            case _:
                lines[effect_in_words(effect), ""] = []
                continue
        lines.setdefault((type(effect).__name__, rest), []).append(partition)
    return [f"{head} {runs(partitions)}{rest}" if partitions else head
            for (head, rest), partitions in lines.items()]  # fmt: skip


def effect_in_words(effect: ev.Effect) -> str:
    """Write one effect on the group."""
    match effect:
        case ev.AcquireLocks(partitions, _, generation, _):
            return f"AcquireLocks {runs(partitions)}, generation {generation}"
        case ev.ReleaseLocks(_, epochs):
            return f"ReleaseLocks {runs(epochs)}"
        case ev.PostControl(message):
            return f"PostControl: {_message(message)}"
    return effect.in_words()


# -- parts of them ---------------------------------------------------------------------------


def _together(messages: Iterable[ControlMessage]) -> list[ControlMessage]:
    """Merge the messages of one kind, owner and generation, one for each partition, into one message."""
    alike: dict[object, ControlMessage] = {}
    for message in messages:
        if not isinstance(message, PartitionsMessage):
            alike[message] = message
            continue
        key = (type(message), message.owner, message.generation)
        before = alike.get(key)
        known = before.partitions if isinstance(before, PartitionsMessage) else ()
        alike[key] = replace(message, partitions=(*known, *message.partitions))
    return list(alike.values())


def _message(message: ControlMessage) -> str:
    match message:
        case GroupChanged(generation, cause, member, moved):
            return f"changed, generation {generation}: {cause} of {member}, moved {runs(moved)}"
        case PartitionsReleased(partitions, owner, generation) | PartitionsAcquired(
            partitions, owner, generation
        ):
            return f"{message.kind} {runs(partitions)} by {name_of(owner)}, generation {generation}"
    return message.in_words()


def _reply(reply: Acquired | Held | Stale) -> str:
    match reply:
        case Acquired():
            return f"acquired, epoch {reply.epoch}"
        case Held(owner, waited_ms):
            return f"held by {name_of(owner)}" + (f" for {waited_ms} ms" if waited_ms else "")
        case Stale(generation):
            return f"stale, generation {generation}"
