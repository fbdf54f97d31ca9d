"""A runner of the simulator, which handles and commits the entries of one partition."""

from bisect import bisect_right
from operator import attrgetter

from streamworker.core import events as ev
from streamworker.core.data.schedules import Due, due
from streamworker.core.ownership.locks import Acquired
from streamworker.redisio.data.commit import CommitCode
from streamworker.sim.process import Process
from streamworker.sim.server.stored import TIMER, Commit, Record

STUCK_MS = 20_000
"""Duration of a stuck batch: longer than the grace period and the drain deadline."""
RETRY_MS = 100
_id_of = attrgetter("id")
TIMER_MS = 50
"""Longest time that a call of a timer takes."""
BATCHES = (1, 2, 3, 5, 100)
"""Maximum sizes of batches; the last one is for a partition with a backlog."""


class SimRunner:
    """Handles the entries of one partition, in batches of random size and duration."""

    def __init__(self, worker: Process, partition: int, owner: str, lock: Acquired) -> None:
        self.worker, self.partition, self.owner, self.epoch = worker, partition, owner, lock.epoch
        self.checkpoint = lock.checkpoint.ms
        self.aside = frozenset(record.ms for record in lock.aside)
        self.tick = worker.world.model.locks[partition].tick
        self.wakes_ms = 0
        """When the timer wakes it."""
        self.ended = self.draining = self.busy = self.stubborn = self.waiting = False
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
        if world.has_timers:
            now_ms = world.model.lock_ms
            found = due(TIMER, "all", self.tick, now_ms) if self.tick else Due(TIMER.upto(now_ms), False)
            if found is not None:
                self.busy, self.waiting = True, False
                at = self.checkpoint
                commit = Commit(self.owner, self.epoch, at, at, tick=found.at_ms, tick_before=self.tick)
                worker.later(1 + int(world.random.random() * TIMER_MS), lambda: self._commit(commit, tries=1))
                return
            if (next_ms := TIMER.after(now_ms)) != self.wakes_ms:
                self.wakes_ms = next_ms
                worker.later(next_ms - now_ms, self.told)
        draw, conditions = world.random.random, world.conditions
        count = BATCHES[int(draw() * len(BATCHES))]
        read = world.model.read_events(self.partition, self.checkpoint, count)
        records = self.behind_checkpoint(read)
        if not records:
            return
        if len(records) > count:  # An entry holds many, and a batch may end within it.
            records = records[: 1 + int(draw() * len(records))]
        self.busy, self.waiting = True, False
        batch_ms = 1 + int(draw() * conditions.batch_ms)
        if conditions.stuck and draw() < conditions.stuck:
            batch_ms, self.stubborn = STUCK_MS, draw() < 0.5
        aside = tuple(record.id for record in records if record.id in self.aside)
        world.checker.executed(self.partition, [record for record in records if record.id not in aside])
        commit = Commit(self.owner, self.epoch, self.checkpoint, records[-1].id, tuple(records), aside)
        worker.later(batch_ms, lambda: self._commit(commit, tries=1))

    def behind_checkpoint(self, read: list[Record]) -> list[Record]:
        """Return the records of a read that this runner has not committed: it may begin within an entry."""
        return read[bisect_right(read, self.checkpoint, key=_id_of) :]

    def told(self) -> None:
        """Read the new entries, if the runner waits for entries."""
        if self.waiting:
            self.waiting = False
            self.worker.soon(self.begin)

    def drain(self) -> None:
        """Finish the current batch and stop."""
        self.draining = True
        if not self.busy and not self.ended:
            self._end(ev.RunnerStopped(self.partition, self.epoch))

    def cancel(self) -> None:
        """Stop at once, unless the handler cannot be cancelled."""
        if not self.ended and not self.stubborn:
            self._end(ev.RunnerStopped(self.partition, self.epoch))

    def _commit(self, commit: Commit, tries: int) -> None:
        self.stubborn = False
        if not self.ended:
            model = self.worker.world.model
            self.worker.request(
                lambda: model.commit(self.partition, commit),
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
        self.checkpoint, self.tick, self.busy = commit.new, commit.tick or self.tick, False
        self.begin()

    def _end(self, event: ev.Event) -> None:
        self.ended = True
        self.worker.later(self.worker.world.random.randint(0, 5), lambda: self.worker.handle(event))
