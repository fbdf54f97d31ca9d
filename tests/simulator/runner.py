"""A runner of the simulator, which handles and commits the entries of one partition."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter

from streamworker.core import events as ev
from streamworker.core.data.channel import AppendReply
from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import START, Message, OutboxPosition, Standing, Target
from streamworker.core.ownership.locks import Acquired
from streamworker.core.time.schedules import Due, due
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.data.outbox import Heads, OutboxWrite
from tests.simulator.process import Process, T
from tests.simulator.server.server import TARGETS
from tests.simulator.server.stored import ENDS_FIELD, TIMER, TIMER_FIELD, Commit, Record

STUCK_MS = 20_000
"""Duration of a stuck batch: longer than the grace period and the drain deadline."""
RETRY_MS = 100
STEP_MS = 300
"""How often a worker looks whether it can go on with a partition of a stream that has grown."""
_id_of = attrgetter("id")
TIMER_MS = 50
"""Longest time that a call of a timer takes."""
OUTBOX_MAX = 10**6
ROUND_BYTES = 100
"""Bytes that a round trip forwards: several are needed for a backlog."""
DIVERGED_MS = 5_000
"""Until a target is looked at again that waits for a person."""
BATCHES = (1, 2, 3, 5, 100)
"""Maximum sizes of batches; the last one is for a partition with a backlog."""


class SimRunner:
    """Handles the entries of one partition, in batches of random size and duration."""

    def __init__(self, worker: Process, partition: int, owner: str, lock: Acquired) -> None:
        self.worker, self.partition, self.owner, self.epoch = worker, partition, owner, lock.epoch
        self.start = ev.StartRunner(partition, owner, lock)
        self.must_open = bool(lock.waits_for)
        """Whether the group may not be done with the partitions that came before it."""
        self.is_done = False
        """Whether it is noted that the group is done with the partition."""
        self._is_asking = False
        self.checkpoint = lock.checkpoint
        self.aside = frozenset(lock.aside)
        its = worker.world.server.partitions[partition]
        self.ticks = {field: its.tick(field) for field in (TIMER_FIELD, ENDS_FIELD)}
        self.ticked = "", 0
        self.ended_at: tuple[int, EntryId] | None = None
        """When values had ended, and the newest entry that the partition held then."""
        self.wakes_ms = 0
        """When the timer wakes it."""
        self.ended = self.draining = self.busy = self.stubborn = self.waiting = False
        self.outgoing = Outgoing(self) if worker.world.has_chains else None
        worker.soon(self.begin)

    def begin(self) -> None:
        """Handle the next batch, if the runner and its worker may."""
        world, worker = self.worker.world, self.worker
        if self.ended or self.busy:
            return
        if self.draining:
            self._end(ev.RunnerStopped(self.partition, self.epoch))
            return
        self.waiting = True
        if worker.batches_paused:
            return
        if worker.link is None or worker.cut or worker.deaf:
            worker.later(RETRY_MS * 5, self.begin)
            return
        if self.must_open:
            self._ask(lambda: world.server.open(self.start))
            return
        if self.outgoing is not None and not self.outgoing.is_open:
            return
        # Later planned times are those of the partitions that follow; here no call would count.
        if world.has_timers and self.partition >= world.server.placement.base:
            now_ms, tick = world.server.partitions_ms, self.ticks[TIMER_FIELD]
            found = due(TIMER, "all", tick, now_ms) if tick else Due(TIMER.upto(now_ms), False)
            if found is not None:
                self._call(found.at_ms)
                return
            if self._calls_for_ends(now_ms):
                return
            self._wake_at(TIMER.after(now_ms), now_ms)
        draw, conditions = world.random.random, world.conditions
        count = BATCHES[int(draw() * len(BATCHES))]
        read = world.server.read_events(self.partition, self.checkpoint, count)
        # A read may begin within an entry some records of which are committed.
        records = read[bisect_right(read, self.checkpoint, key=_id_of) :]
        if not records:
            if self.partition < world.server.placement.base and not self.is_done:
                self._ask(lambda: world.server.finish(self.start, self.checkpoint))
            return
        if len(records) > count:  # An entry holds many, and a batch may end within it.
            records = records[: 1 + int(draw() * len(records))]
        self.busy, self.waiting = True, False
        batch_ms = 1 + int(draw() * conditions.batch_ms)
        if conditions.stuck and draw() < conditions.stuck:
            batch_ms, self.stubborn = STUCK_MS, draw() < 0.5
        aside = tuple(record.id for record in records if record.id in self.aside)
        handled = [record for record in records if record.id not in aside]
        world.checker.executed(self.partition, handled)
        sends = self.outgoing.write(handled) if self.outgoing and handled else None
        commit = Commit(
            self.owner,
            self.epoch,
            self.checkpoint,
            records[-1].id,
            tuple(records),
            aside,
            ticked=self.ticked,
            sends=sends,
        )
        worker.later(batch_ms, lambda: self._commit(commit, tries=1))

    def _calls_for_ends(self, now_ms: int) -> bool:
        """Call for the values that have ended, once all is committed that the partition held then."""
        its = self.worker.world.server.partitions[self.partition]
        if self.ended_at is None and its.ended(now_ms):
            self.ended_at = now_ms, its.newest
        elif self.ended_at is None and (next_ms := its.next_end_ms()) is not None:
            self._wake_at(next_ms, now_ms)
        if self.ended_at is None or self.checkpoint < self.ended_at[1]:
            return False
        (at_ms, _), self.ended_at = self.ended_at, None
        if called := its.ended(at_ms):
            self._call(max(at_ms, self.ticks[ENDS_FIELD] + 1), called)
        return bool(called)

    def _wake_at(self, at_ms: int, now_ms: int) -> None:
        if at_ms != self.wakes_ms:
            self.wakes_ms = at_ms
            self.worker.later(at_ms - now_ms, self.told)

    def _call(self, tick: int, called: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Call a function by time, and commit that."""
        self.busy, self.waiting = True, False
        before = self.ticks[ENDS_FIELD if called else TIMER_FIELD]
        at, worker = self.checkpoint, self.worker
        ticked = self.ticked
        commit = Commit(
            self.owner, self.epoch, at, at, tick=tick, tick_before=before, ticked=ticked, called=called
        )
        worker.later(1 + int(worker.world.random.random() * TIMER_MS), lambda: self._commit(commit, tries=1))

    def _ask(self, do: Callable[[], bool | None]) -> None:
        """Ask whether a step of a growth is done, until it is."""

        def failed() -> None:
            self._is_asking = False
            self.worker.later(STEP_MS, self.told)

        def heard(is_done: bool | None) -> None:
            self._is_asking = False
            if self.ended or self.busy:
                return
            if is_done is None:
                self._end(ev.RunnerFenced(self.partition, self.epoch))
            elif not is_done:
                self.worker.later(STEP_MS, self.told)
            elif self.must_open:
                self.must_open = False
                self.told()
            else:
                self.is_done = True
                self.worker.look_at_partitions()

        if not self._is_asking:
            self._is_asking = True
            self.worker.request(do, heard, failed)

    def told(self) -> None:
        """Read the new entries, if the runner waits for entries."""
        if self.waiting:
            self.waiting = False
            self.worker.soon(self.begin)

    def witness(self) -> None:
        """End if Redis has gone back behind what was committed or opened, as the runtime's witness tells it.

        A runner that has more to commit hears of it by its next commit.
        """
        its = self.worker.world.server.partitions[self.partition]
        is_closed = its.waits and not self.must_open
        if not (self.ended or self.busy) and (is_closed or self.checkpoint > its.checkpoint):
            self._end(ev.RunnerFenced(self.partition, self.epoch))

    def drain(self) -> None:
        """Finish the current batch and stop."""
        self.draining = True
        self.begin()

    def cancel(self) -> None:
        """Stop at once, unless the handler cannot be cancelled."""
        if not self.ended and not self.stubborn:
            self._end(ev.RunnerStopped(self.partition, self.epoch))

    def _commit(self, commit: Commit, tries: int) -> None:
        self.stubborn = False
        if not self.ended:
            server = self.worker.world.server
            self.worker.request(
                lambda: server.commit(self.partition, commit),
                lambda code: self._committed(code, commit, tries),
                lambda: self.worker.later(RETRY_MS, lambda: self._commit(commit, tries + 1)),
            )

    def _committed(self, code: CommitCode, commit: Commit, tries: int) -> None:
        self.worker.world.checker.answered(self.partition, commit, code, tries)
        if self.ended:
            return
        if code in (CommitCode.FENCED, CommitCode.GAP):
            self._end(ev.RunnerFenced(self.partition, self.epoch))
            return
        if self.outgoing and commit.sends:
            self.outgoing.committed(commit.sends)
        self.checkpoint, self.busy = commit.new, False
        if commit.tick:
            self.ticks[commit.timer], self.ticked = commit.tick, (commit.timer, commit.tick)
        self.begin()

    def _end(self, event: ev.Event) -> None:
        self.ended = True
        self.worker.later(self.worker.world.random.randint(0, 5), lambda: self.worker.handle(event))


class Outgoing:
    """Numbers what the batches of a runner send to one target, and forwards it once it is committed."""

    def __init__(self, runner: SimRunner) -> None:
        self._runner, self._worker, self._partition = runner, runner.worker, runner.partition
        self._server = self._worker.world.server
        self._queue = self._worker.world.queue(Target("next", runner.partition % TARGETS))
        self.is_open = False
        self._last, self._number, self._position = "", 0, START
        self._open()

    def _ask(self, do: Callable[[], T], heard: Callable[[T], None], failed: Callable[[], None]) -> None:
        if not self._runner.ended:
            self._worker.request(do, heard, lambda: self._worker.later(RETRY_MS, failed))

    def _open(self) -> None:
        self._ask(lambda: self._server.open_outbox(self._partition), self._opened, self._open)

    def _opened(self, found: tuple[Heads, list[Message]]) -> None:
        heads, messages = found
        for message in messages:
            self._queue.put(message)
        self._last, self._position = heads.last, heads.positions.get(self._queue.to, START)
        self._number = EntryId.parse(heads.last).ms if heads.last else 0
        self.is_open = True
        self._runner.told()
        self._forward()

    def write(self, records: Sequence[Record]) -> OutboxWrite:
        """Return the message of a batch, which follows the one before."""
        data = self._server.message_of(self._partition, [record.number for record in records])
        through = self._position.after(len(records), data)
        message = Message(self._number + 1, self._queue.to, self._position, through, data)
        return OutboxWrite(self._last, [message], OUTBOX_MAX)

    def committed(self, write: OutboxWrite) -> None:
        """Forward the message of a commit that is confirmed."""
        (message,) = write.messages
        self._last, self._number, self._position = str(message.id), message.number, message.through
        self._queue.put(message)
        self._forward()

    def _forward(self) -> None:
        if messages := self._queue.begin(ROUND_BYTES):
            self._ask(
                lambda: [self._server.forward(self._partition, message) for message in messages],
                self._answered,
                self._again,
            )

    def _again(self) -> None:
        self._queue.is_busy = False
        self._forward()

    def _answered(self, replies: Sequence[AppendReply]) -> None:
        taken, stopped = self._queue.answered(replies)
        self._delete(taken)
        if stopped is None:
            self._worker.later(0, self._again)
            return
        stands, through = OutboxPosition.parse(stopped.value), self._number
        self._ask(
            lambda: self._server.open_outbox(self._partition),
            lambda found: self._compared(stands, *found, through),
            self._again,
        )

    def _compared(self, stands: OutboxPosition, heads: Heads, chain: list[Message], through: int) -> None:
        """Compare where a target stands with all that the source still has for it."""
        queue = self._queue
        taken, why = queue.compared(stands, chain, heads.positions.get(queue.to), through)
        self._delete(taken)
        if why is not Standing.GOES_ON:
            since = queue.messages[0].since
            self._worker.world.checker.told(self._partition, why, stands, since, self._server)
        if why is Standing.TARGET_WENT_BACK:
            queue.accept(stands)
        self._worker.later(DIVERGED_MS if why is Standing.DIVERGED else RETRY_MS, self._again)

    def _delete(self, ids: Sequence[EntryId]) -> None:
        """Delete at the source what the target has."""
        if ids:
            self._ask(
                lambda: self._server.delete_messages(self._partition, ids),
                lambda _: None,
                lambda: self._delete(ids),
            )
