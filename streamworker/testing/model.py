"""What Redis does for a group, each operation in one step, on plain values.

The simulator's cores act on this in place of a server. It follows the scripts in ``redisio/lua`` line
by line, and is held to real servers by the contract tests: the same sequences of operations give
the same answers and leave the same behind. Entries have plain numbers for ids: milliseconds since
the model was made.

``OPERATIONS`` is the counterpart of ``redisio.operations.OPERATIONS``: from effect to the event
that answers it. A protocol with operations of its own adds a class of them (see ``Extension``).
"""

import copy
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from streamworker.core import events as ev
from streamworker.core.control import ControlMessage
from streamworker.core.entries import EntryId
from streamworker.core.locks import Acquired, AcquireReply, Held, Stale
from streamworker.core.membership import Membership
from streamworker.core.mending import fingerprint
from streamworker.errors import CoordinationError
from streamworker.testing.stored import Code, Commit, Lock, LockChange, Record, Stored

CONTENDER_GAP_MS = 3_000
"""Where nobody asked for this long the wait begins anew: the contender may have slept."""
LOOKS = 3
"""Of how many heartbeats a round the document's fingerprint is made."""
KEPT_BYTES = 65_536
"""Of a damaged document."""
_GENERATION = re.compile(rb'\{"generation":(\d+)')
CONTROL_KEPT = 500
"""Messages that the control stream keeps. Readers are never this far behind, or read a hint less."""


class Extension(Protocol):
    """The operations that a protocol brings beside those of documents and locks."""

    def perform(self, effect: ev.Effect, server_ms: int) -> ev.Event | None:
        """Do an effect at a time of the server; None if it is not one of this protocol's."""

    def flush(self) -> None:
        """Lose everything, as after a restart without data."""


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
        self.stored = Stored([Lock() for _ in range(partitions)])
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
        """The document as it is now; None too for one that nobody can read."""
        try:
            return None if self.stored.document is None else Membership.parse(self.stored.document)
        except CoordinationError:
            return None

    # -- documents -----------------------------------------------------------------------------

    def read(self) -> ev.Event:
        """``GET members``."""
        self.calls += 1
        return ev.DocumentRead(self.stored.document, self._clock(), self.stored.foreign)

    def change(self, effect: ev.ChangeDocument) -> ev.Event:
        """``change_members.lua``."""
        self.calls += 1
        if self.stored.foreign:
            return ev.CallFailed(ev.Call.DOCUMENT)
        current = self._generation()
        if current != effect.expected or (self.stored.document is not None and not current):
            return ev.ChangeRefused(self.stored.document, self._clock())
        if not self._has_beats():
            return ev.CallFailed(ev.Call.DOCUMENT)
        generation = max(current + 1, self._clock(), effect.at_least)
        self._write(effect.membership, generation)
        for member in effect.removed if current else tuple(self.beats):
            self.beats.pop(member, None)
            self.stored.loads.pop(member, None)
        for member in effect.added:
            self.beats[member] = ev.Beat(self._clock(), 0, "", 0)
        self.post(replace(effect.message, generation=generation))
        return ev.DocumentChanged(generation)

    def mend(self, effect: ev.MendDocument) -> ev.Event:
        """``mend_members.lua``."""
        self.calls += 1
        if not effect.seen or effect.seen != self._fingerprint():
            return ev.ChangeRefused(self.stored.document, self._clock(), self.stored.foreign)
        self.stored.damaged = self.stored.foreign or (self.stored.document or b"")[:KEPT_BYTES]
        self.stored.document, self.stored.foreign, self.stored.no_beats = None, "", False
        generation, present = 0, effect.membership.present_ids
        if effect.membership.generation:
            generation = max(self._clock(), effect.at_least)
            self._write(effect.membership, generation)
        self.post(replace(effect.message, generation=generation))
        for member in [each for each in self.beats if each not in present]:
            del self.beats[member]
            self.stored.loads.pop(member, None)
        for member in present:
            self.beats.setdefault(member, ev.Beat(self._clock(), 0, "", 0))
        return ev.DocumentChanged(generation) if generation else ev.DocumentRead(None, self._clock())

    def _fingerprint(self) -> str:
        document = self.stored.document
        return self.stored.foreign if document is None else fingerprint(document)

    def _write(self, membership: Membership, generation: int) -> None:
        self.stored.document = replace(membership, generation=generation).document()
        self.history.append(Membership.parse(self.stored.document))

    def damage(self, document: bytes | None) -> None:
        """Let another program write to the document's key: a string, or a list."""
        self.stored.document, self.stored.foreign = document, "list" if document is None else ""

    def damage_beats(self) -> None:
        """Let another program put a list in place of the heartbeats."""
        self.stored.beats, self.stored.no_beats = {}, True

    def damage_loads(self, *, is_right: bool = False) -> None:
        """Let another program put a list in place of the loads; or let somebody delete that."""
        self.stored.loads, self.stored.no_loads = {}, not is_right

    def _has_beats(self) -> bool:
        """``beats.lua``: whether there are heartbeats, or they could begin anew."""
        present = self.stored.present() if self.stored.no_beats else []
        if present is None:
            return False
        if self.stored.no_beats:
            if self.stored.damaged is None:
                self.stored.damaged = "list"
            self.stored.no_beats = False
            self.stored.beats = {member: ev.Beat(self._clock(), 0, "", 0) for member in present}
        return True

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
        if not self._has_beats():
            seen = self._fingerprint()
            return ev.HeartbeatDone(member, False, self._generation(), sent_ms, self.run_id, {}, seen)
        lost = member not in self.beats
        if not lost:
            self.beats[member] = ev.Beat(self._clock(), connection, self.run_id, load)
            if loads is not None and not self.stored.no_loads:
                self.stored.loads[member] = dict(loads)
        beats = {} if lost else dict(self.beats)
        drawn = not lost and _drawn(f"{member}{self._clock()}") % len(beats) < LOOKS
        seen = self._fingerprint() if drawn else ""
        return ev.HeartbeatDone(member, lost, self._generation(), sent_ms, self.run_id, beats, seen)

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
        found = _GENERATION.match((self.stored.document or b"")[:64])
        return 0 if found is None else int(found[1])

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
        self.stored = Stored([Lock(epoch=0, log_id="", last_event=last_event) for _ in self.locks])
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


def _drawn(text: str) -> int:
    return int(hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:7], 16)


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
    ev.MendDocument: lambda model, effect, _lost: model.mend(effect),
    ev.ProbePeers: lambda model, effect, _lost: model.probe(effect.connections),
    ev.ReadLoads: lambda model, _effect, _lost: model.read_loads(),
    ev.AcquireLocks: _acquire,
    ev.ReleaseLocks: _release,
}
