"""The events that every core takes and the effects that it returns; those of one protocol are in its folder.

An **event** is something that happened; the runtime or the simulator passes it to ``handle(event, now_ms)``.
An **effect** is something to do; ``handle`` returns a list of them, and the caller starts them in that order.
An effect that asks Redis for something names the event that carries its answer. Every such effect gets
exactly one answer, which may say that there was none: nobody knows then whether Redis executed the call.

Events and effects never carry records. A worker may handle a million records between two events.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from streamworker.core.control import ControlMessage
from streamworker.core.ownership.locks import Acquired, AcquireReply
from streamworker.core.words import plain


class Event:
    """Something that happened. Each kind is a frozen dataclass below, or in a protocol's module."""

    __slots__ = ()
    is_routine: ClassVar[bool] = False
    """Whether a transcript omits it if it has no effects."""

    def in_words(self) -> str:
        """Write the event for people; ``transcript`` has the words for those below."""
        return plain(self)


class Effect:
    """Something to do. Each kind is a frozen dataclass below, or in a protocol's module."""

    __slots__ = ()

    def in_words(self) -> str:
        """Write the effect for people; ``transcript`` has the words for those below."""
        return plain(self)


# -- events: in ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The worker was told to take part in the group."""


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """The worker was told to stop: drain its partitions, release their locks, leave the group."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed(Event):
    """The time that ``next_deadline_ms`` named has come."""


@dataclass(frozen=True, slots=True)
class ControlReceived(Event):
    """Messages from the control stream, oldest first."""

    messages: tuple[ControlMessage, ...]


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
    """A runner ended: Redis refused its commit, since this worker no longer holds the lock."""

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
class AcquireLocks(Effect):
    """Acquire the locks of some partitions. Answer: ``LocksAnswered``."""

    partitions: tuple[int, ...]
    owner: str
    generation: int
    live: tuple[str, ...]
    """All members at that generation: a lock of any other owner counts as free."""


@dataclass(frozen=True, slots=True)
class ReleaseLocks(Effect):
    """Release locks. Answer: ``LocksReleased``."""

    owner: str
    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PostControl(Effect):
    """Post a message to the control stream. No answer; a lost message only causes a delay."""

    message: ControlMessage


@dataclass(frozen=True, slots=True)
class StartRunner(Effect):
    """Handle the records of a partition from its checkpoint on."""

    partition: int
    owner: str
    lock: Acquired


@dataclass(frozen=True, slots=True)
class DrainRunner(Effect):
    """Finish and commit the current batch, then stop. Event: ``RunnerStopped``."""

    partition: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CancelRunner(Effect):
    """Stop at once; uncommitted records stay uncommitted. Event: ``RunnerStopped``."""

    partition: int
    epoch: int


@dataclass(frozen=True, slots=True)
class DropRunner(Effect):
    """Stop at once, and send no event: the worker has lost the membership of this runner."""

    partition: int
    epoch: int


@dataclass(frozen=True, slots=True)
class MarkLock(Effect):
    """Write a partition's state to its lock, for observers such as ``status``. No answer."""

    partition: int
    owner: str
    epoch: int
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class PauseBatches(Effect):
    """Start no batch: this worker's heartbeats get no answer, and its peers may consider it dead."""


@dataclass(frozen=True, slots=True)
class ResumeBatches(Effect):
    """Start batches again."""


@dataclass(frozen=True, slots=True)
class Note(Effect):
    """Write a log event whose reason only the core knows."""

    event: str
    fields: Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Finished(Effect):
    """This worker has left the group and owns no partition. This is the last effect."""
