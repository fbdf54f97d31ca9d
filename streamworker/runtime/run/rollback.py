"""Detects that Redis has lost commits of this worker, and reports what is lost.

A server that restarts from an older file, or a replica that takes over without all writes of the primary,
has the source, checkpoints and logs of one earlier moment. They are consistent, so Redis alone shows no
error: only a client that remembers the later state can detect the loss. Each worker remembers its last
commit in each partition. It compares when it acquires a partition, and compares all its partitions when the
server is a different one or answers again after an outage.

It reports a loss with counts and ids. Then it acquires the partition again at the checkpoint in Redis:
continuing from its own checkpoint would skip the entries in between.
"""

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import anyio
from structlog.stdlib import BoundLogger

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.ownership.locks import Acquired
from streamworker.core.pauses import Pauses
from streamworker.errors import BackendError
from streamworker.redisio.group import locks
from streamworker.redisio.group.control import newest_id
from streamworker.redisio.group.locks import LockView
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.run.runner import PartitionRunner
from streamworker.runtime.telling import CountLost, tell_lost


@dataclass(frozen=True, slots=True)
class Rollback:
    """What one partition has lost."""

    entries: int
    """Source records whose commit is lost."""
    after: EntryId | None
    """The checkpoint in Redis now; None if the lock is gone."""
    up_to: EntryId
    """The checkpoint before the loss."""
    rows: int
    """Lost rows of the acked log."""
    rows_after: int
    is_new_log: bool
    """Whether the lock was lost and created again, and its log with it."""


def rollback_of(known: Acquired, now: Acquired | LockView | None) -> Rollback | None:
    """Compare the last commit with the lock in Redis; None if nothing is lost.

    ``reset`` also moves a checkpoint back. But it removes no rows, and leaves its epoch in the lock.

    >>> known = Acquired(7, EntryId(9, 0), 90, 30, "a")
    >>> rollback_of(known, Acquired(8, EntryId(9, 0), 90, 30, "a"))
    >>> rollback_of(known, Acquired(9, EntryId(0, 0), 0, 30, "a", reset=8))
    >>> lost = rollback_of(known, Acquired(7, EntryId(8, 0), 80, 25, "a"))
    >>> lost.entries, str(lost.after), str(lost.up_to), lost.rows, lost.rows_after
    (10, '8-0', '9-0', 5, 25)
    """
    if now is None or now.log != known.log:
        if known.entries == 0 and known.rows == 0:
            return None  # A lock that was never used and is created again has lost nothing.
        after = None if now is None else now.checkpoint
        return Rollback(known.entries, after, known.checkpoint, known.rows, 0, is_new_log=True)
    back = now.checkpoint < known.checkpoint
    if now.rows >= known.rows and not (back and now.reset <= known.epoch):
        return None
    entries, rows = max(0, known.entries - now.entries), max(0, known.rows - now.rows)
    return Rollback(entries, now.checkpoint, known.checkpoint, rows, now.rows, is_new_log=False)


@dataclass(eq=False)
class Witness:
    """One worker's memory of the commits in one group's partitions."""

    backend: Backend
    keys: GroupKeys
    runners: Callable[[], Mapping[int, PartitionRunner]]
    rng: random.Random
    log: BoundLogger
    """Gets what was rolled back."""
    count_lost: CountLost | None = None

    def __post_init__(self) -> None:
        self._committed: dict[int, Acquired] = {}
        self._told: dict[int, Acquired] = {}
        """The last commit reported as lost in each partition: several events find it, one is logged."""
        self._run_id = ""
        self._unanswered: dict[int, str] = {}
        """Partitions whose lock could not be read for a comparison, and why."""
        self._asking_again = anyio.Lock()

    def is_another(self, run_id: str) -> bool:
        """Store the server's run id; return whether it differs from the one before."""
        before, self._run_id = self._run_id, run_id or self._run_id
        return before not in ("", self._run_id)

    def note(self, partition: int, committed: Acquired) -> None:
        """Remember the last commit of a partition when its runner ends."""
        self._committed[partition] = committed

    async def acquired(self, partition: int, lock: Acquired) -> None:
        """Compare an acquired lock with the remembered commit, and report a loss."""
        known = self._committed.get(partition)
        self._committed[partition] = lock
        if known is not None and (rollback := rollback_of(known, lock)):
            await self._report(partition, known, rollback)

    async def compare(self, about: int | None = None) -> None:
        """Compare all running partitions with their locks, and stop those that were rolled back.

        It compares each answered lock at once, and reads a lock again while Redis does not answer or
        refuses. If several callers ask for all partitions, one of them reads and the others wait for it.
        A caller that needs to know ``about`` one partition waits only for its lock: the other partitions are
        compared in the next comparison, at the latest when their node is back.
        """
        await self._look(self.runners())
        if about is None:
            async with self._asking_again:
                await self._ask_again(lambda: sorted(self._unanswered))
        else:
            await self._ask_again(lambda: [about] if about in self._unanswered else [])

    async def _ask_again(self, unanswered: Callable[[], Collection[int]]) -> None:
        """Compare some partitions until Redis has answered for each."""
        pauses = Pauses(self.rng.random)
        while partitions := unanswered():
            await anyio.sleep(pauses.next_ms() / 1000)
            await self._look(partitions)

    async def _look(self, partitions: Collection[int]) -> None:
        """Compare those of some partitions that still run, and store which had no answer."""
        runners = {p: runner for p, runner in self.runners().items() if p in partitions}
        # Take the known commits before the locks: a commit in between only moves the lock forward.
        known = {p: runner.commits.committed for p, runner in runners.items()}
        found: Mapping[int, LockView | BackendError | None]
        try:
            found = await locks.read_locks(self.backend, self.keys, list(known))
        except BackendError as error:
            found = dict.fromkeys(known, error)
        unanswered = {p: str(lock) for p, lock in found.items() if isinstance(lock, BackendError)}
        for reason in set(unanswered.values()) - set(self._unanswered.values()):
            about = sorted(p for p in unanswered if unanswered[p] == reason)
            self.log.warning("rollback_unknown", partitions=about, error=reason)
        kept = {p: reason for p, reason in self._unanswered.items() if p not in partitions}
        self._unanswered = kept | unanswered
        gone = {
            p: rollback
            for p, lock in found.items()
            if not isinstance(lock, BackendError) and (rollback := rollback_of(known[p], lock))
        }
        for partition in found.keys() - gone.keys() - unanswered.keys():
            if outbox := runners[partition].commits.outbox:
                outbox.source.look_again()
        for partition in gone:
            runners[partition].ending.abandon("Redis has gone back behind what was committed")
        for partition in found.keys() - gone.keys() - unanswered.keys():
            lock, start = found[partition], runners[partition].commits.start
            holder = (lock.owner, lock.epoch, lock.waits_for) if isinstance(lock, LockView) else None
            if holder != (start.owner, start.lock.epoch, ()):
                # One that has nothing left to commit would not be told by its next commit.
                runners[partition].ending.abandon(
                    "Redis has lost that this worker holds it, or has opened it"
                )
        for partition, rollback in gone.items():
            await self._report(partition, known[partition], rollback)

    async def _report(self, partition: int, known: Acquired, rollback: Rollback) -> None:
        if self._told.get(partition) == known:
            return
        self._told[partition] = known
        tell_lost(
            self.log,
            "partition_rolled_back",
            self.count_lost,
            rollback.entries,
            partition=partition,
            entries=rollback.entries,
            after=str(rollback.after or "nothing"),
            up_to=str(rollback.up_to),
            rows=rollback.rows,
            rows_after=rollback.rows_after,
            log_replaced=rollback.is_new_log,
            source=await self._source(partition, rollback),
            remedy="Redis lost what it had confirmed: it was restored, emptied, or failed over. "
            "`durability` lets it lose less (docs: durability).",
        )

    async def _source(self, partition: int, rollback: Rollback) -> str:
        """Return what happens to the entries whose commits are lost."""
        events = self.keys.events(partition)
        try:
            # Senders go on at once, so what is behind up_to may be new.
            newest = await newest_id(self.backend, events, str(rollback.up_to))
        except BackendError as error:
            return f"unknown: {error}"
        if newest == rollback.up_to:
            return "the entries are there, and are handled again"
        last = "nothing" if newest == ZERO else newest
        return (
            f"went back too: up to {rollback.up_to} its last entry is {last}; what was behind it is gone "
            "unless it is sent again"
        )
