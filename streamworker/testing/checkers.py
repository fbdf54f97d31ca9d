"""Judges what a group did by what anybody could have seen of it.

A ``Checker`` sees acked commits, changes of locks, answers, what was sent and what handlers were
called with. It knows nothing of cores, documents or protocols, and shares no code with what it
judges. The promises are those of docs/guarantees.md.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamworker.core.events import HeartbeatDone
from streamworker.testing.model import RedisModel
from streamworker.testing.stored import Code, Commit, LockChange, Record

CAUSE_MS = 15_000
"""A partition that moves may do so because of what happened to workers this long ago: more than
the drain deadline."""
ASKING_GAP_MS = 3_000
"""Whoever wants a lock asks more often than this."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    at_ms: int
    promise: str
    text: str

    def __str__(self) -> str:
        return f"{self.at_ms:>6} ms  {self.promise}: {self.text}"


def worker_of(owner: str) -> str:
    """Return the worker's name of an owner in a lock."""
    return owner.rpartition(".")[0]


class Checker:
    """One observer of one group.

    Parameters
    ----------
    partitions
        How many partitions there are.
    clock
        The time of the simulation.
    """

    def __init__(self, partitions: int, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.violations: list[Violation] = []
        self.sent: list[set[int]] = []
        """Numbers of confirmed entries that no rollback took away."""
        self.executions: Counter[tuple[int, int]] = Counter()
        """How often the handling of an entry was begun, by (partition, number)."""
        self._holder: list[tuple[str, int]] = []
        self._generation: list[int] = []
        self._asked: list[tuple[int, int]] = []
        """From when on somebody was refused each lock, and when that was last."""
        self._checkpoint: list[int] = []
        self._owners: list[dict[int, str]] = []
        self._done: list[set[tuple[str, int, int]]] = []
        self._made: list[dict[int, Commit]] = []
        """The commits themselves that came into the logs, whatever became of the logs."""
        self.figures = Figures(clock)
        self.grow(partitions)

    def grow(self, partitions: int) -> None:
        """Watch so many partitions more."""
        self.sent += [set() for _ in range(partitions)]
        self._holder += [("", 0)] * partitions
        self._generation += [0] * partitions
        self._asked += [(0, 0)] * partitions
        self._checkpoint += [0] * partitions
        self._owners += [{} for _ in range(partitions)]
        self._done += [set() for _ in range(partitions)]
        self._made += [{} for _ in range(partitions)]
        self.figures.grow(partitions)

    def found(self, promise: str, text: str) -> None:
        """Note a broken promise."""
        self.violations.append(Violation(self._clock(), promise, text))

    # -- while it runs -------------------------------------------------------------------------

    def confirmed(self, partition: int, number: int) -> None:
        """A send was confirmed."""
        self.sent[partition].add(number)

    def executed(self, worker: str, partition: int, records: Sequence[Record]) -> None:
        """A handler was called."""
        del worker
        self.executions.update((partition, record.number) for record in records)

    def locked(self, change: LockChange) -> None:
        """A lock changed (I4)."""
        where, epochs = f"partition {change.partition}", self._owners[change.partition]
        before, generation = self._holder[change.partition], self._generation[change.partition]
        if change.epoch < before[1]:
            self.found("I4", f"{where}: the epoch went from {before[1]} to {change.epoch}")
        if change.generation < generation:
            self.found(
                "I4",
                f"{where}: {change.by} displaced {before[0] or 'nobody'} with a view of generation "
                f"{change.generation}, older than the lock's {generation}",
            )
        if change.command == "release" and change.owner_before not in (change.by, ""):
            self.found("I4", f"{where}: {change.by} released the lock of {change.owner_before}")
        if change.owner and epochs.setdefault(change.epoch, change.owner) != change.owner:
            self.found("I4", f"{where}: {epochs[change.epoch]} and {change.owner} both had {change.epoch}")
        self._holder[change.partition] = (change.owner, change.epoch)
        self._generation[change.partition] = change.generation
        if change.owner != change.owner_before:
            self._asked[change.partition] = (0, 0)
            self.figures.owned(change.partition, worker_of(change.owner))

    def held(self, partition: int, deadline_ms: int) -> None:
        """Somebody was refused a lock that another has (I7)."""
        now_ms = self._clock()
        since_ms, last_ms = self._asked[partition]
        if not since_ms or now_ms - last_ms > ASKING_GAP_MS:
            since_ms = now_ms
        self._asked[partition] = (since_ms, now_ms)
        if now_ms - since_ms > deadline_ms + ASKING_GAP_MS:
            self.found(
                "I7", f"partition {partition}: its lock is held {now_ms - since_ms} ms after the asking"
            )

    def committed(self, partition: int, commit: Commit) -> None:
        """Something came into an acked log (I4, I5)."""
        where = f"partition {partition}"
        if self._holder[partition] != (commit.owner, commit.epoch):
            owner, epoch = self._holder[partition]
            self.found(
                "I4",
                f"{where}: {commit.owner} committed with epoch {commit.epoch}, and the lock was "
                f"{owner or 'nobody'}'s with epoch {epoch}",
            )
        if commit.previous != self._checkpoint[partition]:
            self.found(
                "I5",
                f"{where}: a commit follows {commit.previous}, and the one before it ended with "
                f"{self._checkpoint[partition]}",
            )
        self._checkpoint[partition] = commit.new
        self._done[partition].add((commit.owner, commit.epoch, commit.new))
        self._made[partition][id(commit)] = commit

    def answered(self, partition: int, commit: Commit, code: Code, tries: int) -> None:
        """A worker was told what became of its commit (I6)."""
        is_done = (commit.owner, commit.epoch, commit.new) in self._done[partition]
        if code in (Code.OK, Code.DUP) and not is_done:
            self.found("I6", f"partition {partition}: {code.name} for {commit}, which is not in the log")
        # After two failovers one behind the other the same owner may have committed the same entries with
        # the same epoch twice: on a side that was lost, and came back, and on the one that was lost then.
        if code is Code.FENCED and tries == 1 and is_done and id(commit) in self._made[partition]:
            self.found("I6", f"partition {partition}: FENCED for {commit}, which is in the log")

    def beaten(self, done: HeartbeatDone, model: RedisModel) -> None:
        """Judge the answer to a heartbeat (I7): who is lost stops, so nobody is whom the document has."""
        if done.lost and done.member in (model.stored.present() or ()):
            self.found("I7", f"{done.member} is told that it is lost, and the document has it")

    def restarted(self, model: RedisModel) -> None:
        """The server lost something: what it has now is what is judged from here on."""
        self._asked = [(0, 0)] * len(model.locks)
        for partition, lock in enumerate(model.locks):
            kept = {record.number for record in lock.events}
            kept.update(record.number for commit in lock.log for record in commit.rows)
            self.sent[partition] &= kept
            self._holder[partition] = (lock.owner, lock.epoch)
            self._generation[partition] = lock.generation
            self._checkpoint[partition] = lock.checkpoint
            # After a failover an epoch may be given again, to the same owner and for the same entries.
            self._done[partition] = {(each.owner, each.epoch, each.new) for each in lock.log}
            self._owners[partition] = {lock.epoch: lock.owner} if lock.owner else {}

    # -- at the end ----------------------------------------------------------------------------

    def judge(self, model: RedisModel) -> None:
        """Judge the acked logs as a reader finds them (I1, I2, I3)."""
        for partition, lock in enumerate(model.locks):
            rows = [record for commit in lock.log for record in commit.rows]
            numbers = [record.number for record in rows]
            where = f"partition {partition}"
            waiting = (record.number for record in lock.events if record.id > lock.checkpoint)
            missing = self.sent[partition].difference(numbers, waiting)
            if missing:
                self.found(
                    "I1",
                    f"{where}: confirmed entries are neither in the acked log nor waiting: {_few(missing)}",
                )
            repeated = {number for number, times in Counter(numbers).items() if times > 1}
            if repeated:
                self.found("I2", f"{where}: entries are in the acked log twice: {_few(repeated)}")
            ids = [record.id for record in rows]
            if ids != sorted(ids) or numbers != sorted(numbers):
                self.found("I3", f"{where}: the acked log is out of order")

    def judge_calm(self, model: RedisModel) -> None:
        """Judge a run in which workers only came and went: nothing is done twice or refused."""
        repeated = [where for where, times in self.executions.items() if times > 1]
        if repeated:
            self.found("calm", f"entries were handled twice: {repeated[:5]}")
        if model.fenced or model.overtaken:
            self.found("calm", f"{model.fenced} commits were fenced, {model.overtaken} owners overtaken")

    def judge_rest(self, model: RedisModel) -> None:
        """Judge what a settled group keeps (I8)."""
        membership = model.membership
        extra = set(model.beats).difference(() if membership is None else membership.ids)
        if extra:
            self.found("I8", f"heartbeats of those who are no members: {sorted(extra)}")

    def judge_end(self, model: RedisModel) -> None:
        """Judge what is left when all workers have stopped (I8)."""
        for partition, lock in enumerate(model.locks):
            if lock.owner:
                self.found("I8", f"partition {partition}: the lock is still {lock.owner}'s")
        left = set(model.beats).union(() if model.membership is None else model.membership.present_ids)
        if left:
            self.found("I8", f"members are left: {sorted(left)}")


class Figures:
    """What a protocol costs those who wait for their records.

    Parameters
    ----------
    clock
        The time of the simulation.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._partitions = 0
        self._there: set[str] = set()
        self._coming_back: set[str] = set()
        self._last: list[str] = []
        """Who worked on each partition last."""
        self._since: list[int | None] = []
        """From when on nobody has."""
        self._cause_ms = clock()
        self.moves = self.minimum = self.jumps = self.longest_ms = 0
        self.is_over = False
        """Whether nothing counts any more, since all were told to leave."""

    def grow(self, partitions: int) -> None:
        """Count so many partitions more."""
        self._partitions += partitions
        self._last += [""] * partitions
        self._since += [None] * partitions

    def came(self, worker: str) -> None:
        """A worker started."""
        if worker in self._there or worker in self._coming_back:
            self._coming_back.discard(worker)
        elif self._there:
            share = self._partitions // (len(self._there) + 1)
            self.minimum += max(0, share - self._last.count(""))  # what nobody had yet need not move
        else:
            self.minimum += sum(bool(last) for last in self._last)
        self._there.add(worker)
        self.happened()

    def went(self, worker: str, *, at_once: bool, comes_back: bool = False) -> None:
        """A worker was killed or asked to leave; if it comes back, nothing has to move."""
        if worker not in self._there or self.is_over:
            return
        if comes_back:
            self._coming_back.add(worker)
        self._there.discard(worker)
        mine = [p for p, last in enumerate(self._last) if last == worker]
        if self._there and not comes_back:
            self.minimum += len(mine)
        if at_once:
            for partition in mine:
                self._free(partition)
        self.happened()

    def happened(self, lasting_ms: int = 0) -> None:
        """Something happened that gives a reason to move partitions."""
        self._cause_ms = max(self._cause_ms, self._clock() + lasting_ms)

    def owned(self, partition: int, worker: str) -> None:
        """A lock has another owner; nobody if empty."""
        last, since_ms, now_ms = self._last[partition], self._since[partition], self._clock()
        if self.is_over:
            return
        if not worker:
            self._free(partition)
            return
        if last and last != worker:
            self.moves += 1
            if last in self._there and now_ms - self._cause_ms > CAUSE_MS:
                self.jumps += 1
        if since_ms is not None:
            self.longest_ms = max(self.longest_ms, now_ms - since_ms)
        self._last[partition], self._since[partition] = worker, None

    def _free(self, partition: int) -> None:
        if self._since[partition] is None:
            self._since[partition] = self._clock()


def _few(numbers: set[int]) -> str:
    first = ", ".join(map(str, sorted(numbers)[:8]))
    return f"{first} and {len(numbers) - 8} more" if len(numbers) > 8 else first
