"""The events that every core takes and the effects that it returns; those of one protocol are in its folder.

An **event** is something that happened; the runtime or the simulator passes it to ``handle(event, now_ms)``.
An **effect** is something to do; ``handle`` returns a list of them, and the caller starts them in that order.
An effect that asks Redis for something names the event that carries its answer. Every such effect gets
exactly one answer, or ``Unanswered``.

Events and effects never carry records. A worker may handle a million records between two events.
"""

from collections.abc import Mapping
from typing import ClassVar

from streamworker.core.control import ControlMessage, together
from streamworker.core.ownership.locks import Acquired, AcquireReply
from streamworker.core.words import Worded, by_words, ranges


class Event(Worded):
    """Something that happened. The kinds are below, and in each protocol's folder."""

    is_routine: ClassVar[bool] = False
    """Whether a transcript omits it if it has no effects."""


class Effect(Worded):
    """Something to do. The kinds are below, and in each protocol's folder.

    One on a single ``partition`` is written with its name, the partition, and then the rest.
    """


# -- events: in ------------------------------------------------------------------------------


class Started(Event):
    """The worker was told to take part in the group."""


class StopRequested(Event):
    """The worker was told to stop: drain its partitions, release their locks, leave the group."""


class DeadlinePassed(Event):
    """The time that ``next_deadline_ms`` named has come."""

    is_routine: ClassVar[bool] = True


class ControlReceived(Event):
    """Messages from the control stream, oldest first."""

    is_routine: ClassVar[bool] = True
    messages: tuple[ControlMessage, ...]

    def __str__(self) -> str:
        return "ControlReceived: " + "; ".join(map(str, together(self.messages)))


class RequestsSeen(Event):
    """The versions of the operators' requests in some partitions' locks; the worker looks at intervals."""

    is_routine: ClassVar[bool] = True
    versions: Mapping[int, int]

    def __str__(self) -> str:
        return f"RequestsSeen: {by_words({p: f'version {v}' for p, v in self.versions.items()})}"


class PartitionsSeen(Event):
    """The worker has looked where its group works: on the partitions ``range(first, total)``.

    ``total`` is how many the stream's map has in all generations. ``first`` is where the oldest generation
    begins that has partitions which are not done in this group. ``total`` only rises; ``first`` falls again
    if a failover loses that a partition was done.

    A worker looks at intervals and at each ``LookAtPartitions``, and sends what it found even if nothing is
    new: the core compares it with what the group says by then. The looks of two workers may have different
    results, in any order.
    """

    is_routine: ClassVar[bool] = True
    first: int
    total: int

    def __str__(self) -> str:
        return f"PartitionsSeen: {ranges(range(self.first, self.total))}"


class Unanswered(Event):
    """A call got no answer: nobody knows whether Redis executed it."""

    call: Effect

    def __str__(self) -> str:
        return f"Unanswered: {self.call}"


class LocksAnswered(Event):
    """Answer to ``AcquireLocks``; a partition that is missing got no answer."""

    owner: str
    asked: tuple[int, ...]
    replies: Mapping[int, AcquireReply]

    def __str__(self) -> str:
        return "LocksAnswered: " + by_words({p: str(self.replies.get(p, "no answer")) for p in self.asked})


class LocksReleased(Event):
    """Answer to ``ReleaseLocks``; a partition that is missing got no answer."""

    owner: str
    asked: tuple[int, ...]
    released: frozenset[int]

    def __str__(self) -> str:
        said = {p: "" if p in self.released else "no answer" for p in self.asked}
        return f"LocksReleased: {by_words(said)}"


class _OfRunner(Event):
    partition: int
    epoch: int

    def __str__(self) -> str:
        return f"{type(self).__name__}: {self.partition}, epoch {self.epoch}"


class RunnerStopped(_OfRunner):
    """A runner ended: it drained, or it was cancelled."""


class RunnerFenced(_OfRunner):
    """A runner ended: Redis refused its commit, since this worker no longer holds the lock."""


class RunnerHalted(_OfRunner):
    """A runner stopped handling records; it keeps its partition until it is drained."""

    reason: str

    def __str__(self) -> str:
        return f"{super().__str__()}: {self.reason}"


# -- effects: out ----------------------------------------------------------------------------


class AcquireLocks(Effect):
    """Acquire the locks of some partitions. Answer: ``LocksAnswered``."""

    partitions: tuple[int, ...]
    owner: str
    generation: int
    live: tuple[str, ...]
    """All members at that generation: a lock of any other owner counts as free."""

    def __str__(self) -> str:
        return f"AcquireLocks {ranges(self.partitions)}, generation {self.generation}"


class ReleaseLocks(Effect):
    """Release locks. Answer: ``LocksReleased``."""

    owner: str
    epochs: Mapping[int, int]

    def __str__(self) -> str:
        return f"ReleaseLocks {ranges(self.epochs)}"


class LookAtPartitions(Effect):
    """Look at the stream's map and at what is done in this group.

    The stream has grown, or others work on other partitions than this worker has seen.
    ``PartitionsSeen`` follows when both are read; a look that fails is not repeated, since the next one at
    an interval replaces it. Until then the core starts no runner on a partition that it has not seen.
    """


class PostControl(Effect):
    """Post a message to the control stream. No answer; a lost message only causes a delay."""

    message: ControlMessage

    def __str__(self) -> str:
        return f"PostControl: {self.message}"


class StartRunner(Effect):
    """Handle the records of a partition from its checkpoint on."""

    partition: int
    owner: str
    lock: Acquired

    def __str__(self) -> str:
        return f"StartRunner {self.partition}, epoch {self.lock.epoch}, after entry {self.lock.checkpoint}"


class _OnRunner(Effect):
    partition: int
    epoch: int

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.partition}, epoch {self.epoch}"


class DrainRunner(_OnRunner):
    """Finish and commit the current batch, then stop. Event: ``RunnerStopped``."""


class CancelRunner(_OnRunner):
    """Stop at once; uncommitted records stay uncommitted. Event: ``RunnerStopped``."""


class DropRunner(_OnRunner):
    """Stop at once, and send no event: the worker has lost the membership of this runner."""


class MarkLock(Effect):
    """Write a partition's state to its lock, for observers such as ``status``. No answer."""

    partition: int
    owner: str
    epoch: int
    state: str
    reason: str
    retry: tuple[int, ...] = ()
    """In state ``retrying``: the attempts that failed, and in ms by this worker's clock when the first failed
    and when the next begins."""

    def __str__(self) -> str:
        return f"MarkLock {self.partition}: {self.state}{f' ({self.reason})' if self.reason else ''}"


class PauseBatches(Effect):
    """Start no batch: this worker's heartbeats get no answer, and its peers may consider it dead."""


class ResumeBatches(Effect):
    """Start batches again."""


class Note(Effect):
    """Write a log event whose reason only the core knows."""

    event: str
    fields: Mapping[str, str | int]


class Finished(Effect):
    """This worker has left the group and owns no partition. This is the last effect."""
