"""Checks a group's promises by what an outside observer can see.

A ``Checker`` sees commits, changes of locks, answers, sent entries and the calls of handlers. It does not
depend on cores or protocols, and shares no code with the code that it checks. The promises are those of
docs/guarantees.md.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat, takewhile
from operator import attrgetter, eq
from typing import Any

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.outbox import OutboxPosition, Standing
from streamworker.core.protocols.membership.events import HeartbeatDone
from streamworker.redisio.data.commit import CommitCode
from tests.simulator.server.partition import Partition
from tests.simulator.server.server import TABLE, TABLE_KEYS, SimulatedServer
from tests.simulator.server.stored import ENDS, TIMER, Commit, LockChange, Record

_number_of = attrgetter("number")
ANSWERS = {CommitCode.OK, CommitCode.DUP, CommitCode.FENCED, CommitCode.GAP}
"""What a commit may be answered: nothing is full here, and nobody else writes to partitions."""
CAUSE_MS = 15_000
"""A change of the group within this time is a reason for a move; longer than the drain deadline."""
LATE_MS = 1_000
"""Longer than a call for what has ended takes in a group at rest."""
ASKING_GAP_MS = 3_000
"""A contender for a lock asks more often than this."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    at_ms: int
    promise: str
    text: str

    def __str__(self) -> str:
        return f"{self.at_ms:>6} ms  {self.promise}: {self.text}"


def worker_of(owner: str) -> str:
    """Return the worker's name from the owner in a lock."""
    return owner.rpartition(".")[0]


@dataclass(slots=True)
class _Watched:
    """What an observer knows of one partition."""

    sent: set[int] = field(default_factory=set)
    """Numbers of confirmed entries that no failover lost."""
    confirmed_ms: dict[int, int] = field(default_factory=dict)
    """When each was confirmed."""
    holder: tuple[str, int] = ("", 0)
    generation: int = 0
    asked: tuple[int, int, int] = (0, 0, 0)
    """When contenders were first refused the lock and when last, and the latest generation they asked in."""
    checkpoint: EntryId = ZERO
    owners: dict[int, str] = field(default_factory=dict)
    given: set[int] = field(default_factory=set)
    """All epochs that an owner got, even if a failover lost them later."""
    done: set[tuple[object, ...]] = field(default_factory=set)
    is_paused: bool = False
    """Whether its owner knows that an operator has paused it."""
    aside: frozenset[EntryId] = frozenset()
    """The records that an owner was told to set aside when it acquired the lock."""
    made: dict[int, Commit] = field(default_factory=dict)
    """The commits that came into the log, even if a failover lost them later."""
    told: set[Standing] = field(default_factory=set)
    """What its owners were told of the target that they forward to."""
    lost: set[int] = field(default_factory=set)
    """The places in the log of those forwarded records that the target has lost, as its owners were told."""
    foreign: set[int] = field(default_factory=set)
    """Those records that the target had then, and not at their places in the log: it had come elsewhere
    by another history, and nobody can say which it has."""


class Checker:
    """The observer of one group."""

    def __init__(self, partitions: int, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.violations: list[Violation] = []
        self.executions: Counter[tuple[int, int]] = Counter()
        """How often a handler was called with an entry, by (partition, number)."""
        self._watched: list[_Watched] = []
        self.figures = Figures(clock)
        self.grow(partitions)

    def grow(self, partitions: int) -> None:
        """Watch additional partitions."""
        self._watched += [_Watched() for _ in range(partitions)]
        self.figures.grow(partitions)

    def found(self, promise: str, text: str) -> None:
        """Record a violation."""
        self.violations.append(Violation(self._clock(), promise, text))

    # -- while it runs -------------------------------------------------------------------------

    def confirmed(self, partition: int, numbers: range) -> None:
        """A send of some records was confirmed."""
        self._watched[partition].sent.update(numbers)
        self._watched[partition].confirmed_ms.update(dict.fromkeys(numbers, self._clock()))

    def executed(self, partition: int, records: Sequence[Record]) -> None:
        """A handler was called."""
        self.executions.update(zip(repeat(partition), map(_number_of, records), strict=False))

    def locked(self, change: LockChange) -> None:
        """Check a change of a lock (I4)."""
        where, known = f"partition {change.partition}", self._watched[change.partition]
        owner, epoch = known.holder
        if change.epoch < epoch:
            self.found("I4", f"{where}: the epoch went from {epoch} to {change.epoch}")
        if change.generation < known.generation:
            self.found(
                "I4",
                f"{where}: {change.by} displaced {owner or 'nobody'} with a view of generation "
                f"{change.generation}, older than the lock's {known.generation}",
            )
        if change.command == "release" and change.owner_before not in (change.by, ""):
            self.found("I4", f"{where}: {change.by} released the lock of {change.owner_before}")
        if change.owner and (first := known.owners.setdefault(change.epoch, change.owner)) != change.owner:
            self.found("I4", f"{where}: {first} and {change.owner} both had {change.epoch}")
        if change.owner not in ("", change.owner_before):
            if change.epoch in known.given and change.epoch < change.server_ms:
                self.found("I4", f"{where}: the epoch {change.epoch} was given twice, now to {change.owner}")
            known.given.add(change.epoch)
        is_renewed = known.generation < change.generation >= known.asked[2]
        known.holder, known.generation = (change.owner, change.epoch), change.generation
        if change.owner != change.owner_before or is_renewed:
            # Who renews the lock in the generation of the contenders, or a later one, may keep it.
            known.asked = (0, 0, 0)
        if change.owner != change.owner_before:
            self.figures.owned(change.partition, worker_of(change.owner))

    def acquired(self, partition: int, lock: Partition) -> None:
        """An owner learns of the requests: it sets records aside, and in a pause commits nothing (I4)."""
        self._watched[partition].is_paused |= lock.is_paused
        self._watched[partition].aside |= frozenset(lock.aside)

    def resumed(self, partition: int) -> None:
        """An operator resumes a partition."""
        self._watched[partition].is_paused = False

    def held(self, partition: int, generation: int, deadline_ms: int) -> None:
        """Check how long contenders have been refused a lock (I7)."""
        now_ms, known = self._clock(), self._watched[partition]
        since_ms, last_ms, asked_in = known.asked
        if not since_ms or now_ms - last_ms > ASKING_GAP_MS:
            since_ms = now_ms
        known.asked = (since_ms, now_ms, max(asked_in, generation))
        if now_ms - since_ms > deadline_ms + ASKING_GAP_MS:
            self.found(
                "I7", f"partition {partition}: its lock is held {now_ms - since_ms} ms after the asking"
            )

    def committed(self, partition: int, commit: Commit) -> None:
        """Check a commit that came into an acked log (I4, I5)."""
        where, known = f"partition {partition}", self._watched[partition]
        owner, epoch = known.holder
        if (owner, epoch) != (commit.owner, commit.epoch):
            self.found(
                "I4",
                f"{where}: {commit.owner} committed with epoch {commit.epoch}, and the lock was "
                f"{owner or 'nobody'}'s with epoch {epoch}",
            )
        if commit.previous != known.checkpoint:
            self.found(
                "I5",
                f"{where}: a commit follows {commit.previous}, and the one before it ended with "
                f"{known.checkpoint}",
            )
        if known.is_paused:
            self.found("I4", f"{where}: {commit.owner} committed while the partition was paused")
        if kept := {row.id for row in commit.rows if row.id in known.aside}.difference(commit.aside):
            self.found("I4", f"{where}: {commit.owner} did not set aside {_few(kept)}")
        known.checkpoint = commit.new
        known.done.add(commit.known_by)
        known.made[id(commit)] = commit

    def answered(self, partition: int, commit: Commit, code: CommitCode, tries: int) -> None:
        """Check the answer to a worker's commit (I6)."""
        known = self._watched[partition]
        if code not in ANSWERS:
            self.found("crash", f"partition {partition}: {code.name} for {commit}")
        is_done = commit.known_by in known.done
        if code in (CommitCode.OK, CommitCode.DUP) and not is_done:
            self.found("I6", f"partition {partition}: {code.name} for {commit}, which is not in the log")
        # After two failovers the same owner may have committed the same entries with the same epoch twice:
        # once on a server whose data was lost and came back, and once on the server that was lost then.
        if code is CommitCode.FENCED and tries == 1 and is_done and id(commit) in known.made:
            self.found("I6", f"partition {partition}: FENCED for {commit}, which is in the log")

    def told(
        self,
        partition: int,
        why: Standing,
        stands: OutboxPosition,
        since: OutboxPosition,
        server: SimulatedServer,
    ) -> None:
        """An owner was told that a target stands elsewhere than the messages that it has for it."""
        known, its = self._watched[partition], server.partitions[partition]
        known.told.add(why)
        if why is not Standing.TARGET_WENT_BACK:
            return
        sent = (message for commit in its.commits if commit.sends for message in commit.sends.messages)
        if all(message.through != stands for message in sent):
            arrived, rows = server.arrived(partition), its.rows
            expected = [row.number for place, row in enumerate(rows) if place not in known.lost]
            common = sum(takewhile(bool, map(eq, arrived, expected)))
            known.foreign.update(arrived[common:])
            before = enumerate(rows[: stands.records])
            known.lost.update(place for place, row in before if row.number not in arrived[:common])
        known.lost.update(range(stands.records, since.records))

    def has_diverged(self, partition: int) -> bool:
        """Return whether an owner was told that a target has records that the partition has lost."""
        return Standing.DIVERGED in self._watched[partition].told

    def beaten(self, done: HeartbeatDone, server: SimulatedServer) -> None:
        """Check the answer to a heartbeat (I7): a member of the document must not be told that it is lost."""
        document = server.membership
        if done.lost and document is not None and done.member in document.present_ids:
            self.found("I7", f"{done.member} is told that it is lost, and the document has it")

    def restarted(self, server: SimulatedServer) -> None:
        """Take the server's data after a restart or failover as the state to check from now on."""
        for known, lock in zip(self._watched, server.partitions, strict=True):
            kept = {record.number for record in (*lock.events, *lock.rows)}.union(lock.dead)
            known.aside &= frozenset(lock.aside)
            known.sent &= kept
            known.holder, known.generation = (lock.owner, lock.epoch), lock.generation
            known.asked, known.checkpoint = (0, 0, 0), lock.checkpoint
            known.is_paused &= lock.is_paused
            # After a failover to a clock that is behind, the server may assign an epoch again.
            known.done = {each.known_by for each in lock.commits}
            known.owners = {lock.epoch: lock.owner} if lock.owner else {}

    # -- at the end ----------------------------------------------------------------------------

    def judge(self, server: SimulatedServer) -> None:
        """Check the acked logs as a reader finds them, and the timers' results (I1, I2, I3)."""
        for partition, its in enumerate(server.partitions):
            rows, dead, commits = its.rows, its.dead, its.commits
            numbers = [record.number for record in rows]
            where = f"partition {partition}"
            waiting = (record.number for record in its.waiting)
            if missing := self._watched[partition].sent.difference(numbers, waiting, dead):
                self.found(
                    "I1",
                    f"{where}: confirmed entries are neither in the acked log nor waiting: {_few(missing)}",
                )
            if repeated := _repeated([*numbers, *dead]):
                self.found("I2", f"{where}: entries are done twice: {_few(repeated)}")
            ticks = [commit.tick for commit in commits if commit.tick and not commit.called]
            if wrong := {later for tick, later in pairwise(ticks) if later != TIMER.after(tick)}:
                self.found("I2", f"{where}: a timer's planned times are not each done once: {_few(wrong)}")
            ids = [record.id for record in rows]
            if ids != sorted(ids) or numbers != sorted(numbers):
                self.found("I3", f"{where}: the acked log is out of order")
            self._judge_state(partition, numbers, server)
            if "ends" in server.tables:
                self._judge_ends(partition, server)
            if any(commit.sends for commit in commits):
                self._judge_chain(partition, numbers, server)

    def _judge_state(self, partition: int, numbers: list[int], server: SimulatedServer) -> None:
        """Check that state and tables are what the rows of the acked log leave behind (I2)."""
        its = server.partitions[partition]
        last = {b"%d" % (number % TABLE_KEYS): b"%d" % number for number in numbers}
        if numbers and its.state.get(b"last") != b"%d" % numbers[-1]:
            self.found("I2", f"partition {partition}: its state is not that of its last row")
        if (
            TABLE in server.tables
            and {key: value.partition(b" ")[2] for key, value in its.table.items()} != last
        ):
            self.found("I2", f"partition {partition}: its table is not what its rows leave behind")

    def _judge_ends(self, partition: int, server: SimulatedServer) -> None:
        """Check that the end of each value was called for once, after what was there (I2, I3)."""
        where, its = f"partition {partition}", server.partitions[partition]
        left: dict[bytes, tuple[bytes, int]] = {}
        done, known = set[int](), self._watched[partition]
        ahead_ms = server.partitions_ms - self._clock()
        confirmed = {n: ms + ahead_ms for n, ms in known.confirmed_ms.items() if n in known.sent}
        for at_ms, commit in [(each.at_ms, each.commit) for each in its.witnessed]:
            done.update(map(_number_of, commit.rows))
            for row in commit.handled:
                left[b"%d" % (row.number % TABLE_KEYS)] = b" %d" % row.number, at_ms + ENDS.ttl_ms
            for key, value in commit.called:
                kept, end_ms = left.pop(key, (b"", 0))
                if kept != value:
                    self.found("I2", f"{where}: a call for {value!r} of {key!r}, which holds {kept!r}")
                elif end_ms > commit.tick:
                    self.found("I2", f"{where}: a call for {key!r} at {commit.tick}, which ends at {end_ms}")
                # After a failover the clock may be another one.
                elif not server.losses and any(n not in done for n, ms in confirmed.items() if ms < end_ms):
                    self.found("I3", f"{where}: a call for {key!r} comes before records that came before it")
        if dict(its.open.items()) != {key: value for key, (value, _) in left.items()}:
            self.found("I2", f"{where}: values are gone without a call, or are there after it")

    def _judge_chain(self, partition: int, numbers: list[int], server: SimulatedServer) -> None:
        """Check that the target of a partition has each committed record once, in order (I1, I2, I3)."""
        where, known = f"the target of partition {partition}", self._watched[partition]
        arrived = server.arrived(partition)
        own = [number for number in arrived if number not in known.foreign]
        waiting = [
            each for message in server.partitions[partition].messages for each in server.numbers_in(message)
        ]
        if known.told and not server.losses:
            self.found("I6", f"{where}: owners are told of a loss, and no server has lost anything")
        if len(own) != len(set(own)):
            self.found("I2", f"{where} has records twice: {_few(_repeated(own))}")
        elif own != sorted(own):
            self.found("I3", f"{where} has records out of order")
        if self.has_diverged(partition):
            return
        lost = {number for place, number in enumerate(numbers) if place in known.lost}
        if missing := set(numbers).difference(arrived, waiting, lost):
            self.found("I1", f"{where} lacks records, and nobody was told: {_few(missing)}")
        if unknown := set(own).difference(numbers):
            self.found("I2", f"{where} has records that are not committed: {_few(unknown)}")

    def judge_calm(self, server: SimulatedServer) -> None:
        """Check a run in which workers only started and stopped: nothing is handled twice or refused."""
        if repeated := [where for where, times in self.executions.items() if times > 1]:
            self.found("calm", f"entries were handled twice: {repeated[:5]}")
        if server.fenced or server.overtaken:
            self.found("calm", f"{server.fenced} commits were fenced, {server.overtaken} owners overtaken")

    def judge_rest(self, server: SimulatedServer) -> None:
        """Check the heartbeats of a settled group (I8), and that it has called for what has ended (I10)."""
        membership = server.membership
        if extra := set(server.beats).difference(() if membership is None else membership.ids):
            self.found("I8", f"heartbeats of those who are no members: {sorted(extra)}")
        for partition in server.active:
            if late := server.partitions[partition].ended(server.partitions_ms - LATE_MS):
                self.found("I10", f"partition {partition}: nobody is called for what has ended: {late}")

    def judge_end(self, server: SimulatedServer) -> None:
        """Check what is left when all workers have stopped (I8)."""
        for partition in server.active:
            if (lock := server.partitions[partition]).owner:
                self.found("I8", f"partition {partition}: the lock is still {lock.owner}'s")
        membership = server.membership
        if left := set(server.beats).union(() if membership is None else membership.present_ids):
            self.found("I8", f"members are left: {sorted(left)}")


class Figures:
    """Counts the moves of rebalances, and those without a cause."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._there: set[str] = set()
        self._last: list[str] = []
        """The last owner of each partition."""
        self._cause_ms = clock()
        self.moves = self.jumps = 0
        self.is_over = False
        """Whether all workers were asked to leave, so that nothing is counted any more."""

    def grow(self, partitions: int) -> None:
        """Count additional partitions."""
        self._last += [""] * partitions

    def came(self, worker: str) -> None:
        """Record the start of a worker."""
        self._there.add(worker)
        self.happened()

    def went(self, worker: str) -> None:
        """Record that a worker was killed or asked to leave.

        Workers that never ``came``, since their configuration is wrong, do not count.
        """
        if worker in self._there and not self.is_over:
            self._there.discard(worker)
            self.happened()

    def happened(self, lasting_ms: int = 0) -> None:
        """Record a reason to move partitions."""
        self._cause_ms = max(self._cause_ms, self._clock() + lasting_ms)

    def owned(self, partition: int, worker: str) -> None:
        """Record the new owner of a lock; an empty name means that it is free."""
        if self.is_over or not worker:
            return
        last, self._last[partition] = self._last[partition], worker
        if last and last != worker:
            self.moves += 1
            if last in self._there and self._clock() - self._cause_ms > CAUSE_MS:
                self.jumps += 1


def _repeated(numbers: Sequence[int]) -> set[int]:
    return {number for number, times in Counter(numbers).items() if times > 1}


def _few(numbers: Collection[Any]) -> str:
    first = ", ".join(map(str, sorted(numbers)[:8]))
    return f"{first} and {len(numbers) - 8} more" if len(numbers) > 8 else first
