"""A model of Redis for one group, on plain values; each operation is one step.

The simulator's cores use it instead of a server. It follows the scripts in ``redisio/lua`` line by line.
The contract tests run the same sequences of operations on the model and on real servers, and compare the
answers and the stored data. Ids of records are plain numbers: milliseconds since the creation of the
model. An entry may hold many records, and has the id of its last.

``OPERATIONS`` is the counterpart of ``redisio.operations.OPERATIONS``: it maps an effect to the function
that returns its answer. A protocol with its own operations adds an ``Extension``.
"""

import copy
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any, Protocol

from streamworker.core import events as ev
from streamworker.core.data.entries import EntryId
from streamworker.core.ownership.locks import Acquired, AcquireReply, Held, Stale
from streamworker.core.protocols.membership import events as calls
from streamworker.redisio.data.commit import CommitCode
from tests.simulator.server.documents import Documents
from tests.simulator.server.outbox import Outboxes
from tests.simulator.server.stored import Commit, Lock, LockChange, Record, Stored

CONTENDER_GAP_MS = 3_000
"""After a longer gap between two attempts, the wait for a lock begins anew: the contender may have been
paused."""

_id_of, _end_of = attrgetter("id"), attrgetter("end")
_record = partial(tuple.__new__, Record)


class Extension(Protocol):
    """A protocol's own operations, besides those on documents and locks, and what they store."""

    def perform(self, server: Documents, effect: ev.Effect, server_ms: int) -> ev.Event | None:
        """Perform an effect at a server time; return None if the effect is not the protocol's."""


Snapshot = tuple[Stored, Extension | None]


class RedisModel(Documents, Outboxes):
    """The scripts of redisio, on plain values; ``extend`` creates the protocol's own operations."""

    def __init__(
        self,
        partitions: int,
        *,
        drain_deadline_ms: int,
        clock: Callable[[], int],
        extend: Callable[[], Extension | None] = lambda: None,
    ) -> None:
        self._drain_deadline_ms = drain_deadline_ms
        self.tick_ms = 1
        """How coarse the clock is that ids follow."""
        self.behind_ms = 0
        """How far the clock of the locks' server is behind that of the document's, as on a Cluster."""
        super().__init__(partitions, clock)
        self._start_ms = clock()
        self._extend = extend
        self.extension = extend()
        self.acked_limit = 0
        """Entries that an acked log may hold; 0 for no limit. The model never trims acked logs."""
        self.retention_ms = 0
        """How long source records stay after the group has committed them."""
        self.fenced = 0
        """Number of refused commits."""
        self.overtaken = 0
        """Number of locks that a contender took from a live owner that did not release in time."""
        self.on_lock: Callable[[LockChange], None] = lambda _: None
        self.on_acquired: Callable[[int, Lock], None] = lambda _partition, _lock: None
        """Called with a partition whose owner learns of its requests: a pause, and records to set aside."""
        self.on_held: Callable[[int, int], None] = lambda _partition, _generation: None
        """Called with a partition whose lock a contender is refused, and the contender's generation."""
        self.on_commit: Callable[[int, Commit], None] = lambda _partition, _commit: None

    @property
    def locks(self) -> list[Lock]:
        """The partitions."""
        return self.stored.locks

    # -- locks ---------------------------------------------------------------------------------

    def acquire(self, partition: int, owner: str, generation: int, live: Sequence[str]) -> AcquireReply:
        """``acquire.lua``."""
        self.calls += 1
        lock, now_ms = self.locks[partition], self.lock_ms
        if not lock.log_id:
            lock.epoch, lock.log_id = now_ms, f"log-{now_ms}"
        before = (lock.owner, lock.epoch, lock.generation)
        if lock.generation > generation:
            return Stale(lock.generation)
        if lock.owner != owner:
            if lock.owner and lock.owner in live:
                waited_ms = self._wait(lock, now_ms, generation)
                if waited_ms < self._drain_deadline_ms:
                    self.on_held(partition, generation)
                    return Held(lock.owner, waited_ms)
                self.overtaken += 1
            elif lock.owner and lock.events and lock.events[-1].id > lock.checkpoint:
                lock.died_at = lock.checkpoint
            lock.owner, lock.epoch, lock.wanted_since = owner, self.raised(lock.epoch), None
            lock.from_epoch = lock.epoch
        else:
            if lock.generation < generation and generation >= lock.wanted_in:
                lock.wanted_since = None
            if lock.obeyed != lock.requested:
                lock.epoch = self.raised(lock.epoch)
        lock.generation = generation
        self._changed(partition, "acquire", owner, before)
        rows = sum(len(commit.rows) for commit in lock.log)
        lock.obeyed = lock.requested
        self.on_acquired(partition, lock)
        aside = {EntryId(record, 0): "by ann" for record in lock.aside}
        more = (lock.requested, lock.is_paused, aside, 0 if lock.died_at == lock.checkpoint else None)
        return Acquired(lock.epoch, EntryId(lock.checkpoint, 0), 0, rows, lock.log_id, 0, 0, *more)

    def operator_request(self, partition: int, order: str, record: int = 0) -> int | None:
        """``request.lua``: return the new version; None if there is nothing to change."""
        lock = self.locks[partition]
        if not lock.log_id or (order == "resume" and not lock.is_paused):
            return None
        if order == "put":
            if record <= lock.checkpoint:
                return None
            lock.aside = (*(each for each in lock.aside if each > lock.checkpoint and each != record), record)
        elif order == "retry":
            lock.died_at = None
        lock.is_paused = order == "pause" or (lock.is_paused and order != "resume")
        lock.requested = max(self.lock_ms, lock.requested + 1)
        return lock.requested

    @property
    def lock_ms(self) -> int:
        """The time of the locks' server."""
        return self._clock() - self.behind_ms

    def raised(self, epoch: int) -> int:
        """``epoch.lua``: return the epoch of the next acquisition."""
        return max(self.lock_ms, epoch + 1)

    @staticmethod
    def _wait(lock: Lock, now_ms: int, generation: int) -> int:
        lock.wanted_in = generation if lock.wanted_since is None else max(lock.wanted_in, generation)
        if lock.wanted_since is None or now_ms - lock.wanted_at > CONTENDER_GAP_MS:
            lock.wanted_since = now_ms
        lock.wanted_at = now_ms
        return now_ms - lock.wanted_since

    def release(self, partition: int, owner: str, epoch: int) -> bool:
        """``release.lua``: return whether the owner held the lock, or has released it before."""
        self.calls += 1
        lock = self.locks[partition]
        is_known = epoch == lock.epoch or 0 < lock.from_epoch <= epoch <= lock.epoch
        if not is_known or lock.owner not in (owner, ""):
            return False
        before = (lock.owner, lock.epoch, lock.generation)
        lock.owner, lock.wanted_since = "", None
        self._changed(partition, "release", owner, before)
        return True

    def _changed(self, partition: int, command: str, by: str, before: tuple[str, int, int]) -> None:
        lock = self.locks[partition]
        if before != (lock.owner, lock.epoch, lock.generation):
            after = (lock.owner, lock.epoch, lock.generation)
            self.on_lock(LockChange(partition, command, by, before[0], *after, self.lock_ms))

    # -- records -------------------------------------------------------------------------------

    def append(self, partition: int, number: int, count: int = 1) -> None:
        """``append.lua``: append an entry with the records up to a number.

        A number that the partition has already is a retry, and ignored.
        """
        lock = self.locks[partition]
        if number > lock.last_number:
            lock.last_number = number
            first = max(lock.last_event + 1, (self.lock_ms - self._start_ms) // self.tick_ms * self.tick_ms)
            lock.last_event = first + count - 1
            ids, numbers = range(first, first + count), range(number - count + 1, number + 1)
            lock.events += map(_record, zip(ids, numbers, repeat(lock.last_event), strict=False))

    def read_events(self, partition: int, after: int, count: int) -> list[Record]:
        """``XREAD events``: whole entries, the first of which may begin before the id."""
        events = self.locks[partition].events
        start = end = bisect_right(events, after, key=_end_of)
        while end < len(events) and count:
            end, count = end + 1 + events[end].end - events[end].id, count - 1
        return events[start:end]

    def is_fenced(self, owner: str, epoch: int, commit: Commit) -> bool:
        """Return whether a lock with this owner and epoch refuses a commit."""
        return (owner, epoch) != (commit.owner, commit.epoch)

    def commit(self, partition: int, commit: Commit) -> CommitCode:
        """``commit.lua``, and the trimming of the source."""
        lock = self.locks[partition]
        if self.is_fenced(lock.owner, lock.epoch, commit):
            self.fenced += 1
            return CommitCode.FENCED
        if lock.checkpoint == commit.new and commit.tick in (0, lock.tick):
            return CommitCode.DUP
        if lock.checkpoint != commit.previous:
            return CommitCode.GAP
        if commit.tick:
            if not self.is_next(lock.tick, commit):
                return CommitCode.GAP
            self.take(partition, commit)
            return CommitCode.OK
        if not self.has(partition, commit):
            return CommitCode.GAP
        if commit.rows and not self.is_that(self.follows(partition, commit.previous), commit.rows[0]):
            return CommitCode.GAP
        if commit.sends and commit.sends.after != lock.last_message:
            return CommitCode.GAP
        if commit.sends and len(lock.messages) >= commit.sends.limit:
            return CommitCode.OUTBOX
        if commit.rows and 0 < self.acked_limit <= sum(1 for each in lock.log if each.rows):
            return CommitCode.FULL
        self.take(partition, commit)
        self.trim(partition, commit.new)
        return CommitCode.OK

    def is_next(self, done: int, commit: Commit) -> bool:
        """Return whether a timer's commit goes on from the planned time up to which the timer is done."""
        return done == commit.tick_before

    def has(self, partition: int, commit: Commit) -> bool:
        """Return whether the last record of a commit exists: a failover may lose one that was read."""
        found = self.follows(partition, commit.new - 1)
        if not commit.rows:
            return found is not None and found.id == commit.new
        return self.is_that(found, commit.rows[-1])

    def is_that(self, found: Record | None, read: Record) -> bool:
        """Return whether a record is the one that was read, and in the same entry.

        Its number stands for the content's tag: after a failover both ids may come again for others.
        """
        return found == read

    def follows(self, partition: int, after: int) -> Record | None:
        """Return the first source record after an id."""
        events = self.locks[partition].events
        place = bisect_right(events, after, key=_id_of)
        return events[place] if place < len(events) else None

    def take(self, partition: int, commit: Commit) -> None:
        """Put a commit into the acked log and move the checkpoint."""
        lock = self.locks[partition]
        lock.log.append(commit)
        lock.checkpoint, lock.tick = commit.new, commit.tick or lock.tick
        lock.aside = tuple(each for each in lock.aside if each > commit.new)
        lock.dead += [record.number for record in commit.rows if record.id in commit.aside]
        if commit.sends:
            self.put(partition, commit.sends)
        self.on_commit(partition, commit)

    def trim(self, partition: int, up_to: int) -> None:
        """Delete source entries all records of which are up to an id, and older than the retention."""
        lock = self.locks[partition]
        if self.retention_ms:
            up_to = min(up_to, self.lock_ms - self._start_ms - self.retention_ms)
        del lock.events[: bisect_right(lock.events, up_to, key=_end_of)]

    # -- restarts and failovers ----------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return a copy of all data, for ``lose_suffix``: the data of a replica."""
        return copy.deepcopy((self.stored, self.extension))

    def restart(self) -> None:
        """Restart with all data: connections end, and client ids lose their meaning."""
        self.run += 1
        self.connections.clear()

    def lose_suffix(self, snapshot: Snapshot) -> None:
        """Fail over to a replica that lacks the latest writes."""
        self.restart()
        self.losses += 1
        self.stored, self.extension = snapshot

    def lose_taken(self, snapshot: Snapshot) -> None:
        """Let the server of the targets fail over alone."""
        self.losses += 1
        self.stored.taken = snapshot[0].taken

    def flush(self) -> None:
        """Restart without data; the next acquire creates each lock again."""
        self.restart()
        self.losses += 1
        self.stored = Stored([Lock(log_id="") for _ in self.locks])
        self.empty_store()

    def empty_store(self) -> None:
        """Delete what the protocol keeps besides the document and the locks."""
        self.extension = self._extend()
        self.stored.is_declared = False

    # -- effects -------------------------------------------------------------------------------

    def perform(self, effect: ev.Effect, lost: Callable[[], bool] = lambda: False) -> ev.Event:
        """Perform an effect of a core and return the answer.

        ``lost`` returns whether the next command of a pipeline, or its reply, is lost.
        """
        operation = OPERATIONS.get(type(effect))
        if operation is not None:
            return operation(self, effect, lost)
        event = None if self.extension is None else self.extension.perform(self, effect, self._clock())
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
    calls.ReadDocument: lambda model, _effect, _lost: model.read(),
    calls.ChangeDocument: lambda model, effect, _lost: model.change(effect),
    calls.MendDocument: lambda model, effect, _lost: model.mend(effect),
    calls.ProbePeers: lambda model, effect, _lost: model.probe(effect.connections),
    calls.ReadLoads: lambda model, _effect, _lost: model.read_loads(),
    ev.AcquireLocks: _acquire,
    ev.ReleaseLocks: _release,
}
