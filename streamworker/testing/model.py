"""What Redis does for a group, each operation in one step, on plain values.

The simulator's cores act on this in place of a server. It follows the scripts in ``redisio/lua`` line
by line, and is held to real servers by the contract tests: the same sequences of operations give
the same answers and leave the same behind. Entries have plain numbers for ids: milliseconds since
the model was made.

``OPERATIONS`` is the counterpart of ``redisio.operations.OPERATIONS``: from effect to the event
that answers it. A protocol with operations of its own adds a class of them (see ``Extension``).
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple, Protocol

from streamworker.core import events as ev
from streamworker.core.control import ControlMessage
from streamworker.core.entries import EntryId
from streamworker.core.locks import Acquired, AcquireReply, Held, Stale
from streamworker.core.membership import Membership

CONTENDER_GAP_MS = 3_000
"""Where nobody asked for this long the wait begins anew: the contender may have slept."""
CONTROL_KEPT = 500
"""Messages that the control stream keeps. Readers are never this far behind, or read a hint less."""


class Code(Enum):
    """The answer to a commit."""

    OK = "ok"
    DUP = "dup"
    FENCED = "fenced"
    GAP = "gap"
    FULL = "full"


class Record(NamedTuple):
    """One source entry: its id, and which of its producer's entries it is."""

    id: int
    number: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Entries after ``previous`` up to ``new``: a request, and what then stands in the acked log."""

    owner: str
    epoch: int
    previous: int
    new: int
    rows: tuple[Record, ...] = ()


@dataclass(slots=True)
class Lock:
    """All that belongs to one partition: lock hash, source stream, acked log, producer key."""

    owner: str = ""
    epoch: int = 1_000
    generation: int = 0
    wanted_since: int | None = None
    wanted_at: int = 0
    wanted_in: int = 0
    """The latest generation in which somebody waits."""
    checkpoint: int = 0
    log_id: str = "log"
    """Empty: the lock was lost, and the next acquire makes it anew."""
    log: list[Commit] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)
    last_event: int = 0
    last_number: int = 0


@dataclass(frozen=True, slots=True)
class LockChange:
    """A lock has another owner, epoch or generation than before, as MONITOR would show it."""

    partition: int
    command: str
    """``acquire`` or ``release``."""
    by: str
    owner_before: str
    owner: str
    epoch: int
    generation: int


class Extension(Protocol):
    """The operations that a protocol brings beside those of documents and locks."""

    def perform(self, effect: ev.Effect, server_ms: int) -> ev.Event | None:
        """Do an effect at a time of the server; None if it is not one of this protocol's."""

    def flush(self) -> None:
        """Lose everything, as after a restart without data."""


@dataclass(slots=True)
class _Stored:
    """What is lost with the server's memory."""

    locks: list[Lock]
    document: bytes | None = None
    beats: dict[str, ev.Beat] = field(default_factory=dict)
    loads: dict[str, Mapping[int, int]] = field(default_factory=dict)
    control: list[tuple[int, ControlMessage]] = field(default_factory=list)


class RedisModel:
    """The scripts of redisio, on plain values.

    Parameters
    ----------
    partitions
        How many locks there are.
    drain_deadline_ms
        How long a contender waits for a live owner.
    clock
        The server's clock.
    on_post
        Called when there is something new on the control stream.
    extend
        Makes the operations that a protocol brings.
    """

    def __init__(
        self,
        partitions: int,
        *,
        drain_deadline_ms: int,
        clock: Callable[[], int],
        on_post: Callable[[], None] = lambda: None,
        extend: Callable[["RedisModel"], Extension] | None = None,
    ) -> None:
        self._drain_deadline_ms = drain_deadline_ms
        self._clock = clock
        self._start_ms = clock()
        self._on_post = on_post
        self._serial = 0
        self.stored = _Stored([Lock() for _ in range(partitions)])
        self.extension = None if extend is None else extend(self)
        self.history: list[Membership] = []
        """Every document that was ever written."""
        self.connections: set[int] = set()
        self.run = 1
        """Which run of the server this is."""
        self.tells_connections = True
        self.acked_limit = 0
        """Entries that an acked log may hold; 0 for no limit. No reader lets any of them go."""
        self.calls = 0
        """Calls about documents and locks: a group at rest makes none."""
        self.commands = 0
        """All commands but reads, appends and commits: what the protocol costs."""
        self.fenced = 0
        """Commits that were refused."""
        self.overtaken = 0
        """Locks that were taken from a live owner, because it did not release in time."""
        self.on_lock: Callable[[LockChange], None] = lambda _: None
        self.on_held: Callable[[int], None] = lambda _: None
        self.on_commit: Callable[[int, Commit], None] = lambda _partition, _commit: None

    @property
    def locks(self) -> list[Lock]:
        """The partitions."""
        return self.stored.locks

    @property
    def beats(self) -> dict[str, ev.Beat]:
        """Everybody's last heartbeat."""
        return self.stored.beats

    @property
    def control(self) -> list[ControlMessage]:
        """The control stream, oldest first."""
        return [message for _, message in self.stored.control]

    @property
    def membership(self) -> Membership | None:
        """The document as it is now."""
        return None if self.stored.document is None else Membership.parse(self.stored.document)

    # -- documents -----------------------------------------------------------------------------

    def read(self) -> ev.Event:
        """``GET members``."""
        self.calls += 1
        return ev.DocumentRead(self.stored.document, self._clock())

    def change(self, effect: ev.ChangeDocument) -> ev.Event:
        """``change_members.lua``."""
        self.calls += 1
        current = self._generation()
        if current != effect.expected:
            return ev.ChangeRefused(self.stored.document, self._clock())
        generation = max(current + 1, self._clock(), effect.at_least)
        document = b'{"generation":%d,%s' % (generation, effect.membership.body()[1:].encode())
        self.stored.document = document
        self.history.append(Membership.parse(document))
        for member in effect.removed:
            self.beats.pop(member, None)
            self.stored.loads.pop(member, None)
        for member in effect.added:
            self.beats[member] = ev.Beat(self._clock(), 0, "", 0)
        self.post(replace(effect.message, generation=generation))
        return ev.DocumentChanged(generation)

    def post(self, message: ControlMessage) -> None:
        """``XADD control``."""
        self._serial += 1
        self.stored.control.append((self._serial, message))
        del self.stored.control[:-CONTROL_KEPT]
        self._on_post()

    def control_after(self, serial: int) -> tuple[int, tuple[ControlMessage, ...]]:
        """``XREAD control``: where the stream ends now, and what came after a place."""
        fresh: list[ControlMessage] = []
        for at, message in reversed(self.stored.control):
            if at <= serial:
                break
            fresh.append(message)
        return self._serial, tuple(reversed(fresh))

    def heartbeat(
        self,
        member: str,
        connection: int,
        sent_ms: int,
        load: int = 0,
        loads: Mapping[int, int] | None = None,
    ) -> ev.HeartbeatDone:
        """``heartbeat.lua``."""
        self.commands += 1
        lost = member not in self.beats
        if not lost:
            self.beats[member] = ev.Beat(self._clock(), connection, self.run_id, load)
            if loads is not None:
                self.stored.loads[member] = dict(loads)
        beats = {} if lost else dict(self.beats)
        return ev.HeartbeatDone(member, lost, self._generation(), sent_ms, self.run_id, beats)

    @property
    def run_id(self) -> str:
        """The server's run id."""
        return f"run-{self.run}"

    def read_loads(self) -> ev.Event:
        """``HGETALL loads``."""
        return ev.LoadsRead(dict(self.stored.loads), self._clock())

    def probe(self, connections: Sequence[int]) -> ev.Event:
        """``CLIENT LIST ID``."""
        alive = frozenset(connections) & self.connections
        return ev.PeersProbed(alive if self.tells_connections or not connections else None)

    def _generation(self) -> int:
        document = self.stored.document
        return 0 if document is None else int(document[14 : document.index(b",")])

    # -- locks ---------------------------------------------------------------------------------

    def acquire(self, partition: int, owner: str, generation: int, live: Sequence[str]) -> AcquireReply:
        """``acquire.lua``."""
        self.calls += 1
        lock, now_ms = self.locks[partition], self._clock()
        if not lock.log_id:
            lock.epoch, lock.log_id = now_ms, f"log-{now_ms}"
        before = (lock.owner, lock.epoch, lock.generation)
        if lock.generation > generation:
            return Stale(lock.generation)
        if lock.owner != owner:
            if lock.owner and lock.owner in live:
                waited_ms = self._wait(lock, now_ms, generation)
                if waited_ms < self._drain_deadline_ms:
                    self.on_held(partition)
                    return Held(lock.owner, waited_ms)
                self.overtaken += 1
            lock.owner, lock.epoch, lock.wanted_since = owner, lock.epoch + 1, None
        elif lock.generation < generation and generation >= lock.wanted_in:
            lock.wanted_since = None
        lock.generation = generation
        self._changed(partition, "acquire", owner, before)
        rows = sum(len(commit.rows) for commit in lock.log)
        return Acquired(lock.epoch, EntryId(lock.checkpoint, 0), 0, rows, lock.log_id)

    @staticmethod
    def _wait(lock: Lock, now_ms: int, generation: int) -> int:
        lock.wanted_in = generation if lock.wanted_since is None else max(lock.wanted_in, generation)
        if lock.wanted_since is None or now_ms - lock.wanted_at > CONTENDER_GAP_MS:
            lock.wanted_since = now_ms
        lock.wanted_at = now_ms
        return now_ms - lock.wanted_since

    def release(self, partition: int, owner: str, epoch: int) -> bool:
        """``release.lua``: whether the lock was ours, or is free since we gave it back."""
        self.calls += 1
        lock = self.locks[partition]
        if lock.epoch != epoch or lock.owner not in (owner, ""):
            return False
        before = (lock.owner, lock.epoch, lock.generation)
        lock.owner, lock.wanted_since = "", None
        self._changed(partition, "release", owner, before)
        return True

    def _changed(self, partition: int, command: str, by: str, before: tuple[str, int, int]) -> None:
        lock = self.locks[partition]
        if before != (lock.owner, lock.epoch, lock.generation):
            self.on_lock(
                LockChange(partition, command, by, before[0], lock.owner, lock.epoch, lock.generation)
            )

    # -- records -------------------------------------------------------------------------------

    def append(self, partition: int, number: int) -> None:
        """``append.lua``; a number that was there before is a retry."""
        lock = self.locks[partition]
        if number > lock.last_number:
            lock.last_number = number
            lock.last_event = max(lock.last_event + 1, self._clock() - self._start_ms)
            lock.events.append(Record(lock.last_event, number))

    def read_events(self, partition: int, after: int, count: int) -> list[Record]:
        """``XREAD events``."""
        return [record for record in self.locks[partition].events if record.id > after][:count]

    def is_fenced(self, owner: str, epoch: int, commit: Commit) -> bool:
        """Whether a commit is refused while the lock has this owner and epoch."""
        return (owner, epoch) != (commit.owner, commit.epoch)

    def commit(self, partition: int, commit: Commit) -> Code:
        """``commit.lua``, with the trimming of the source."""
        lock = self.locks[partition]
        if self.is_fenced(lock.owner, lock.epoch, commit):
            self.fenced += 1
            return Code.FENCED
        if lock.checkpoint == commit.new:
            return Code.DUP
        if lock.checkpoint != commit.previous or not self.has(partition, commit.new):
            return Code.GAP
        if commit.rows and self.follows(partition, commit.previous) != commit.rows[0].id:
            return Code.GAP
        if commit.rows and 0 < self.acked_limit <= sum(1 for each in lock.log if each.rows):
            return Code.FULL
        self.take(partition, commit)
        self.trim(partition, commit.new)
        return Code.OK

    def has(self, partition: int, entry: int) -> bool:
        """Whether a source entry is there: a failover may have lost it after it was read."""
        return any(record.id == entry for record in self.locks[partition].events)

    def follows(self, partition: int, entry: int) -> int:
        """Return the source entry after one: more may have been trimmed when the batch was read."""
        return next((each.id for each in self.locks[partition].events if each.id > entry), 0)

    def take(self, partition: int, commit: Commit) -> None:
        """Put a commit into the acked log and move the checkpoint."""
        lock = self.locks[partition]
        lock.log.append(commit)
        lock.checkpoint = commit.new
        self.on_commit(partition, commit)

    def trim(self, partition: int, up_to: int) -> None:
        """Drop source entries that the group is past."""
        lock = self.locks[partition]
        lock.events = [record for record in lock.events if record.id > up_to]

    # -- the server's own fate -----------------------------------------------------------------

    def snapshot(self) -> object:
        """Return all data as they are now, for ``restart``: what a replica has."""
        extra = {} if self.extension is None else vars(self.extension)
        return copy.deepcopy((self.stored, {k: v for k, v in extra.items() if not callable(v)}))

    def restart(self) -> None:
        """Start anew with all data: connections end, and client ids mean something else."""
        self.run += 1
        self.connections.clear()

    def lose_suffix(self, snapshot: Any) -> None:
        """Fail over to a replica that has not heard of the latest writes."""
        self.restart()
        self.stored, kept = snapshot
        if self.extension is not None:
            vars(self.extension).update(kept)

    def flush(self) -> None:
        """Start anew without data; locks are registered anew by the next acquire."""
        self.restart()
        last_event = self._clock() - self._start_ms
        self.stored = _Stored([Lock(epoch=0, log_id="", last_event=last_event) for _ in self.locks])
        if self.extension is not None:
            self.extension.flush()

    # -- effects -------------------------------------------------------------------------------

    def perform(self, effect: ev.Effect, lost: Callable[[], bool] = lambda: False) -> ev.Event:
        """Do an effect of a core.

        Parameters
        ----------
        effect
            One that has an answer.
        lost
            Whether the next part of a pipeline is lost, on its way there or back.
        """
        self.commands += 1
        operation = OPERATIONS.get(type(effect))
        if operation is not None:
            return operation(self, effect, lost)
        event = None if self.extension is None else self.extension.perform(effect, self._clock())
        if event is None:
            raise TypeError(f"The model has no operation for {effect!r}.")
        return event


def _acquire(model: RedisModel, effect: ev.AcquireLocks, lost: Callable[[], bool]) -> ev.Event:
    done = {
        p: model.acquire(p, effect.owner, effect.generation, effect.live)
        for p in effect.partitions
        if not lost()
    }
    replies = {p: reply for p, reply in done.items() if not lost()}
    return ev.LocksAnswered(effect.owner, effect.partitions, replies)


def _release(model: RedisModel, effect: ev.ReleaseLocks, lost: Callable[[], bool]) -> ev.Event:
    arrived = [p for p in effect.epochs if not lost()]
    for p in arrived:
        model.release(p, effect.owner, effect.epochs[p])
    return ev.LocksReleased(effect.owner, tuple(effect.epochs), frozenset(p for p in arrived if not lost()))


OPERATIONS: Mapping[type[ev.Effect], Callable[[RedisModel, Any, Callable[[], bool]], ev.Event]] = {
    ev.ReadDocument: lambda model, _effect, _lost: model.read(),
    ev.ChangeDocument: lambda model, effect, _lost: model.change(effect),
    ev.ProbePeers: lambda model, effect, _lost: model.probe(effect.connections),
    ev.ReadLoads: lambda model, _effect, _lost: model.read_loads(),
    ev.AcquireLocks: _acquire,
    ev.ReleaseLocks: _release,
}

UNANSWERED: dict[type[ev.Effect], Callable[[Any], ev.Event]] = {
    ev.ReadDocument: lambda _: ev.CallFailed(ev.Call.DOCUMENT),
    ev.ChangeDocument: lambda _: ev.CallFailed(ev.Call.DOCUMENT),
    ev.ProbePeers: lambda _: ev.CallFailed(ev.Call.PROBE),
    ev.ReadLoads: lambda _: ev.CallFailed(ev.Call.LOADS),
    ev.AcquireLocks: lambda effect: ev.LocksAnswered(effect.owner, effect.partitions, {}),
    ev.ReleaseLocks: lambda effect: ev.LocksReleased(effect.owner, tuple(effect.epochs), frozenset()),
}
"""What stands for "no answer"; see ``extensions`` for those of other protocols."""
