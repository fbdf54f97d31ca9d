"""Known mistakes, each put into the model, around the core or in the queues of outboxes on purpose.

A checker that has never caught anything is not trusted. Each of these is a mistake that somebody
made or could make: in the scripts, in the runtime, in the protocol. The tests switch each on and
require that the simulator finds it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from streamworker.core import events as ev
from streamworker.core.control import ControlMessage, GroupChanged
from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import (
    ForwardCode,
    ForwardReply,
    Message,
    OutboxPosition,
    OutboxQueue,
    Standing,
)
from streamworker.core.ownership.locks import Acquired, AcquireReply, Held, Stale
from streamworker.core.protocols.membership import events as membership_events
from streamworker.errors import ConfigurationError
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.data.outbox import OutboxWrite
from tests.core.groups import Around
from tests.simulator.server.model import RedisModel
from tests.simulator.server.stored import Commit, Lock, Record
from tests.simulator.simulation import Plant

PLANTS: dict[str, Plant] = {}
"""All mistakes by name."""


def _model(name: str, faults: str = "all") -> Callable[[type[RedisModel]], type[RedisModel]]:
    def add(model: type[RedisModel]) -> type[RedisModel]:
        PLANTS[name] = Plant(name, model=model, faults=faults)
        return model

    return add


def _core(name: str, faults: str = "all") -> Callable[[type[Around]], type[Around]]:
    def add(wrap: type[Around]) -> type[Around]:
        PLANTS[name] = Plant(name, wrap=wrap, faults=faults)
        return wrap

    return add


def _queue(name: str, faults: str = "all") -> Callable[[type[OutboxQueue]], type[OutboxQueue]]:
    def add(queue: type[OutboxQueue]) -> type[OutboxQueue]:
        PLANTS[name] = Plant(name, queue=queue, faults=faults)
        return queue

    return add


# -- commits -----------------------------------------------------------------------------------


@_model("no epoch check: anybody may commit")
class _NoFence(RedisModel):
    def is_fenced(self, owner: str, epoch: int, commit: Commit) -> bool:
        return False


@_model("a commit is fenced by its owner only, not by the epoch", "lost,flap")
class _OwnerOnly(RedisModel):
    def is_fenced(self, owner: str, epoch: int, commit: Commit) -> bool:
        return owner != commit.owner


@_model("a commit is fenced by the epoch only, which a failover gives twice", "failover,flap")
class _EpochOnly(RedisModel):
    def is_fenced(self, owner: str, epoch: int, commit: Commit) -> bool:
        return epoch != commit.epoch


@_model("a retried commit is written again")
class _RetryTwice(RedisModel):
    def commit(self, partition: int, commit: Commit) -> CommitCode:
        lock = self.locks[partition]
        if (lock.owner, lock.epoch) == (commit.owner, commit.epoch) and lock.checkpoint == commit.new:
            self.take(partition, commit)
            return CommitCode.OK
        return super().commit(partition, commit)


@_model("the checkpoint before is not compared")
class _NoPrevious(RedisModel):
    def commit(self, partition: int, commit: Commit) -> CommitCode:
        lock = self.locks[partition]
        if (lock.owner, lock.epoch) == (commit.owner, commit.epoch) and lock.checkpoint != commit.new:
            self.take(partition, commit)
            self.trim(partition, commit.new)
            return CommitCode.OK
        return super().commit(partition, commit)


@_model("entries are committed that the server has lost", "failover,lost")
class _LostEntries(RedisModel):
    def has(self, partition: int, commit: Commit) -> bool:
        return True


@_model("ids made again with other contents are committed", "failover,pause")
class _ContentsNotCompared(RedisModel):
    def is_that(self, found: Record | None, read: Record) -> bool:
        return found is not None and (found.id, found.end) == (read.id, read.end)


@_model("a commit creates a lock anew that was lost, as runnel's renewal does", "flush")
class _CreatesLock(RedisModel):
    def commit(self, partition: int, commit: Commit) -> CommitCode:
        lock = self.locks[partition]
        if not lock.owner and not lock.log:
            lock.owner, lock.epoch, lock.checkpoint = commit.owner, commit.epoch, commit.previous
        return super().commit(partition, commit)


@_model("the checkpoint moves and the rows are not written", "kill")
class _TornCommit(RedisModel):
    def take(self, partition: int, commit: Commit) -> None:
        if commit.new % 50 == 0:
            self.locks[partition].checkpoint = commit.new
        else:
            super().take(partition, commit)


@_model("the source is trimmed up to what was read, not what was committed", "kill,stop")
class _TrimsTooMuch(RedisModel):
    def trim(self, partition: int, up_to: int) -> None:
        super().trim(partition, self.locks[partition].last_event)


@_model("a limit of retention drops what the group has not read", "kill,stop")
class _LimitDropsUnread(RedisModel):
    def trim(self, partition: int, up_to: int) -> None:
        super().trim(partition, max(up_to, self.lock_ms - self._start_ms - 300))


@_model("the commit of a timer is not fenced", "kill,lost,flap,stop")
class _TickNotFenced(RedisModel):
    def is_fenced(self, owner: str, epoch: int, commit: Commit) -> bool:
        return not commit.tick and super().is_fenced(owner, epoch, commit)


@_model("the commit of a timer does not compare the time before, so a late try is done again", "lost")
class _LateTick(RedisModel):
    def is_next(self, done: int, commit: Commit) -> bool:
        return True


@_model("a timer's state is written outside of its commit", "kill,lost,flap,stop")
class _StateOutsideOfCommit(RedisModel):
    def commit(self, partition: int, commit: Commit) -> CommitCode:
        code, lock = super().commit(partition, commit), self.locks[partition]
        lock.tick = max(lock.tick, commit.tick)
        return code


# -- chains ------------------------------------------------------------------------------------


@_model("a message is forwarded without comparing its number", "lost,kill,stop")
class _NumberNotCompared(RedisModel):
    def goes_on(self, stands: OutboxPosition, message: Message) -> bool:
        return True


@_model("a message is forwarded before its batch is committed", "kill,lost,flap,pause")
class _ForwardsBeforeCommit(RedisModel):
    def commit(self, partition: int, commit: Commit) -> CommitCode:
        for message in commit.sends.messages if commit.sends else ():
            self.forward(partition, message)
        return super().commit(partition, commit)


@_model("a message is written to the outbox outside of the commit", "kill,lost,flap,pause")
class _SendsOutsideOfCommit(RedisModel):
    def commit(self, partition: int, commit: Commit) -> CommitCode:
        code = super().commit(partition, commit)
        if commit.sends and code in (CommitCode.FENCED, CommitCode.GAP):
            super().put(partition, commit.sends)
        return code


@_model("a message is deleted when the next one is committed, taken or not", "lost,kill,stop")
class _DeletesUntaken(RedisModel):
    def put(self, partition: int, write: OutboxWrite) -> None:
        self.locks[partition].messages.clear()
        super().put(partition, write)


@_model("a message is compared by its number only, not by the digest", "failover,flap")
class _DigestNotCompared(RedisModel):
    def forward(self, partition: int, message: Message) -> ForwardReply:
        known = self.taken(message.to, partition)
        if known.position.records == message.through.records:
            return ForwardReply(ForwardCode.TAKEN)
        return super().forward(partition, message)

    def goes_on(self, stands: OutboxPosition, message: Message) -> bool:
        return stands.records == message.since.records


@_queue("a queue is forwarded by two round trips at once", "none")
class _TwoRoundTrips(OutboxQueue):
    def begin(self, most: int) -> list[Message]:
        self.is_busy = False
        return super().begin(most)


@_queue("what a target has lost is passed over, and nobody is told", "failover,flap")
class _TellsNoLoss(OutboxQueue):
    def compared(
        self, stands: OutboxPosition, chain: Sequence[Message], head: OutboxPosition | None, through: int
    ) -> tuple[list[EntryId], Standing]:
        taken, why = super().compared(stands, chain, head, through)
        if why is Standing.TARGET_WENT_BACK:
            self.accept(stands)
            return taken, Standing.GOES_ON
        return taken, why


# -- ids and entries ---------------------------------------------------------------------------


@_model("ids are compared as text", "none")
class _TextIds(RedisModel):
    def read_events(self, partition: int, after: int, count: int) -> list[Record]:
        events = self.locks[partition].events
        return [record for record in events if str(record.end) > str(after)][:count]


@_model("a read behind a record within an entry skips the rest of the entry", "kill,stop")
class _SkipsTheRest(RedisModel):
    def read_events(self, partition: int, after: int, count: int) -> list[Record]:
        read = super().read_events(partition, after, count)
        cut = {record.end for record in read if record.id <= after}
        return [record for record in read if record.end not in cut]


@_model("a trim drops an entry whose last records are not committed", "none")
class _TrimsPartOfAnEntry(RedisModel):
    def trim(self, partition: int, up_to: int) -> None:
        ends = [record.end for record in self.locks[partition].events if record.id <= up_to]
        super().trim(partition, max([up_to, *ends]))


@_model("a repeated send is appended again", "lost")
class _SendsTwice(RedisModel):
    def append(self, partition: int, number: int, count: int = 1) -> None:
        self.locks[partition].last_number = 0
        super().append(partition, number, count)


@_model("an acquired lock says a checkpoint one entry too far", "kill,stop")
class _CheckpointTooFar(RedisModel):
    def acquire(self, partition: int, owner: str, generation: int, live: Sequence[str]) -> AcquireReply:
        reply = super().acquire(partition, owner, generation, live)
        events = self.locks[partition].events
        if isinstance(reply, Acquired) and events:
            self.locks[partition].checkpoint = events[0].id
            return replace(reply, checkpoint=reply.checkpoint._replace(ms=events[0].id))
        return reply


# -- locks -------------------------------------------------------------------------------------


@_model("a lock is released by somebody who does not own it")
class _ReleasesOthers(RedisModel):
    def release(self, partition: int, owner: str, epoch: int) -> bool:
        lock = self.locks[partition]
        before = (lock.owner, lock.epoch, lock.generation)
        lock.owner, lock.wanted_since = "", None
        self._changed(partition, "release", owner, before)
        return True


@_model("epochs go up by one, whatever was lost", "failover,flap")
class _SmallEpochs(RedisModel):
    def raised(self, epoch: int) -> int:
        return epoch + 1


@_model("an epoch is the server's time, whatever the last one was", "failover,flap")
class _EpochsOfTheClock(RedisModel):
    def raised(self, epoch: int) -> int:
        return self.lock_ms


@_model("an epoch is not raised when a lock is taken", "kill,stop")
class _EpochStays(RedisModel):
    def raised(self, epoch: int) -> int:
        return epoch


@_model("a stale view of the group displaces a newer owner", "churn,lost,silence,pause")
class _NoStaleCheck(RedisModel):
    def acquire(self, partition: int, owner: str, generation: int, live: Sequence[str]) -> AcquireReply:
        lock = self.locks[partition]
        newest = lock.generation
        lock.generation = min(newest, generation)
        reply = super().acquire(partition, owner, generation, live)
        if not isinstance(reply, Acquired):
            lock.generation = newest
        return reply


@_model("the drain deadline is ignored: a stuck owner keeps its lock", "stuck,start,stop")
class _NoDrainDeadline(RedisModel):
    @staticmethod
    def _wait(lock: Lock, now_ms: int, generation: int) -> int:
        return 0


@_model("members are removed and their locks are not free", "kill")
class _LocksOfTheDead(RedisModel):
    def acquire(self, partition: int, owner: str, generation: int, live: Sequence[str]) -> AcquireReply:
        holder = self.locks[partition].owner
        if holder not in ("", owner, *live):
            return Held(holder, 0)
        return super().acquire(partition, owner, generation, live)


@_model("a commit that was done is answered as one that was refused")
class _FencesWhatIsDone(RedisModel):
    def commit(self, partition: int, commit: Commit) -> CommitCode:
        code = super().commit(partition, commit)
        return CommitCode.FENCED if code is CommitCode.OK and commit.new % 10 == 0 else code


# -- operators' requests -------------------------------------------------------------------------


@_core("a worker goes on with a partition that an operator has paused", "operator")
class _IgnoresPause(Around):
    def before(self, event: ev.Event) -> ev.Event | None:
        if isinstance(event, ev.LocksAnswered):
            runs = {
                p: replace(r, is_paused=False) if isinstance(r, Acquired) else r
                for p, r in event.replies.items()
            }
            return replace(event, replies=runs)
        return event


@_model("a pause is lost when its partition gets another owner", "operator,stop,start")
class _LosesPause(RedisModel):
    def acquire(self, partition: int, owner: str, generation: int, live: Sequence[str]) -> AcquireReply:
        if owner != self.locks[partition].owner:
            self.locks[partition].is_paused = False
        return super().acquire(partition, owner, generation, live)


@_core("a request of which no message tells is never obeyed", "operator,silence")
class _NeverLooks(Around):
    def before(self, event: ev.Event) -> ev.Event | None:
        return None if isinstance(event, ev.RequestsSeen) else event


@_model("each owner that learns of it sets a record aside, outside of commits", "operator,kill,stop")
class _PutsAtOnce(RedisModel):
    def acquire(self, partition: int, owner: str, generation: int, live: Sequence[str]) -> AcquireReply:
        reply, lock = super().acquire(partition, owner, generation, live), self.locks[partition]
        if isinstance(reply, Acquired):
            lock.dead += [record.number for record in lock.events if record.id in lock.aside]
        return reply

    def take(self, partition: int, commit: Commit) -> None:
        dead = [*self.locks[partition].dead]
        super().take(partition, commit)
        self.locks[partition].dead = dead


@_model("a record is not set aside if its partition gets another owner", "operator,kill,stop")
class _LosesPut(RedisModel):
    def acquire(self, partition: int, owner: str, generation: int, live: Sequence[str]) -> AcquireReply:
        if owner != self.locks[partition].owner:
            self.locks[partition].aside = ()
        return super().acquire(partition, owner, generation, live)


# -- members -----------------------------------------------------------------------------------


@_model("a heartbeat brings a removed member back")
class _BeatReturns(RedisModel):
    def heartbeat(self, member: str, *arguments: Any, **named: Any) -> membership_events.HeartbeatDone:
        self.beats.setdefault(member, membership_events.Beat(0, 0, "", 0))
        return super().heartbeat(member, *arguments, **named)


@_model("generations go up by one, whatever was lost", "failover,start,stop,disconnect")
class _SmallGenerations(RedisModel):
    def change(self, effect: membership_events.ChangeDocument) -> ev.Event:
        clock = self._clock
        self._clock = clock if self.stored.document is None else lambda: 0
        try:
            return super().change(effect)
        finally:
            self._clock = clock


@_model("the comparison of generations is left out", "herd,start,stop")
class _NoCompare(RedisModel):
    def change(self, effect: membership_events.ChangeDocument) -> ev.Event:
        return super().change(replace(effect, expected=self._generation()))


@_model("heartbeats of those whom a repaired document does not know go on", "damage,herd,start")
class _KeepsStrangersBeats(RedisModel):
    def mend(self, effect: membership_events.MendDocument) -> ev.Event:
        beats = dict(self.beats)
        event = super().mend(effect)
        self.stored.beats.update(beats)
        return event


@_model("heartbeats begin anew with one member alone", "damage,herd,start")
class _ForgetsOthersBeats(RedisModel):
    def heartbeat(self, member: str, *arguments: Any, **named: Any) -> membership_events.HeartbeatDone:
        was_foreign = self.stored.no_beats
        event = super().heartbeat(member, *arguments, **named)
        if was_foreign and not self.stored.no_beats and member in self.beats:
            self.stored.beats = {member: self.beats[member]}
        return event


@_model("heartbeats that were written over are left as they are", "damage,herd,kill")
class _LeavesBeats(RedisModel):
    def _has_beats(self) -> bool:
        return not self.stored.no_beats


class _NoReconcile(Around):
    """Heartbeats that do not say that the group has changed."""

    def before(self, event: ev.Event) -> ev.Event | None:
        if isinstance(event, membership_events.HeartbeatDone) and not event.lost:
            known = getattr(self.core, "membership").generation  # noqa: B009
            return replace(event, generation=known, fingerprint="")
        return event


@_core("a lost message is never made up for", "silence,start,stop,kill")
class _LostMessage(_NoReconcile):
    pass


@_core("the notice of a death never arrives, as in runnel", "kill")
class _NoDeathNotice(_NoReconcile):
    def before(self, event: ev.Event) -> ev.Event | None:
        if isinstance(event, ev.ControlReceived):
            kept: tuple[ControlMessage, ...] = tuple(
                message
                for message in event.messages
                if not (isinstance(message, GroupChanged) and message.cause == "death")
            )
            return ev.ControlReceived(kept)
        return super().before(event)


@_core("a document that went back behind a lock is left as it is", "failover,flap")
class _LeavesRollback(Around):
    def before(self, event: ev.Event) -> ev.Event | None:
        if isinstance(event, ev.LocksAnswered):
            forgets = {p: Stale(0) if isinstance(r, Stale) else r for p, r in event.replies.items()}
            return replace(event, replies=forgets)
        return event


@_core("a damaged document is left alone", "damage,start")
class _LeavesDamage(Around):
    def after(self, effects: list[ev.Effect]) -> list[ev.Effect]:
        return [
            membership_events.ReadDocument() if isinstance(effect, membership_events.MendDocument) else effect
            for effect in effects
        ]


@_core("a leaver is removed before it has drained", "stop,start")
class _LeavesAtOnce(Around):
    def after(self, effects: list[ev.Effect]) -> list[ev.Effect]:
        changed: list[ev.Effect] = []
        for effect in effects:
            if isinstance(effect, membership_events.ChangeDocument) and effect.message.cause == "leave":
                leaving = [each.id for each in effect.membership.members if each.state == "leaving"]
                after = effect.membership.without(leaving)
                changed.append(replace(effect, membership=after, removed=tuple(leaving)))
            else:
                changed.append(effect)
        return changed


@_core("a revoked partition is released before its batch is done", "start,stop")
class _ReleasesEarly(Around):
    def after(self, effects: list[ev.Effect]) -> list[ev.Effect]:
        drained = [effect for effect in effects if isinstance(effect, ev.DrainRunner)]
        for effect in drained:
            effects += self.core.handle(ev.RunnerStopped(effect.partition, effect.epoch), 0)
        return effects


@_core("a worker that is refused for its number of partitions goes on", "repartition")
class _GoesOn(Around):
    def handle(self, event: ev.Event, now_ms: int) -> list[ev.Effect]:
        try:
            return super().handle(event, now_ms)
        except ConfigurationError:
            return []


@_core("a dead peer is never removed", "kill")
class _NobodyReaps(Around):
    def before(self, event: ev.Event) -> ev.Event | None:
        return replace(event, connected=None) if isinstance(event, membership_events.PeersProbed) else event

    def after(self, effects: list[ev.Effect]) -> list[ev.Effect]:
        return [effect for effect in effects if not isinstance(effect, membership_events.ProbePeers)]
