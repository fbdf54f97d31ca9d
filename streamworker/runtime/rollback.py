"""Notices that Redis has gone back behind what this worker committed, and says what is gone.

A server that comes back from an older file, or a replica that takes over without all of the primary's
writes, has its source, checkpoints and logs of one earlier moment. They fit together, so nothing looks
wrong from there: only somebody who remembers what was later can tell. Each worker remembers what it
committed last in each partition, and compares when it takes a partition, and in all its partitions when
the server has become another one or had been away.

What is wrong is reported with counts and ids, and the partition is taken anew at the checkpoint that
there is: to go on from our own would leave out what comes in between.
"""

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from structlog.stdlib import BoundLogger

from streamworker.core.entries import EntryId
from streamworker.core.locks import Acquired
from streamworker.errors import BackendError
from streamworker.redisio import locks, streams
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.locks import LockView
from streamworker.runtime.pauses import Pauses

if TYPE_CHECKING:
    from streamworker.runtime.runner import PartitionRunner


@dataclass(frozen=True, slots=True)
class Committed:
    """Where a partition stood after its last commit that was confirmed."""

    epoch: int
    checkpoint: EntryId
    entries: int
    """Source entries that the group had committed."""
    rows: int
    """Rows of the acked log."""
    log: str
    """Identity of the acked log."""

    @classmethod
    def at(cls, lock: Acquired) -> "Committed":
        """Return where a partition stands that was acquired."""
        return cls(lock.epoch, lock.checkpoint, lock.entries, lock.rows, lock.log)


@dataclass(frozen=True, slots=True)
class Rollback:
    """What is gone of one partition."""

    entries: int
    """Source entries whose commit is gone."""
    after: EntryId | None
    """The checkpoint that there is now; None if the lock is gone."""
    up_to: EntryId
    """The checkpoint that there was."""
    rows: int
    """Rows of the acked log that are gone."""
    rows_after: int
    is_new_log: bool
    """Whether the lock was lost and made anew, and its log with it."""


def rollback_of(known: Committed, now: Acquired | LockView | None) -> Rollback | None:
    """Compare what was committed with the lock as it is; None if nothing is gone.

    ``reset`` moves a checkpoint back too, but takes no row back, and raises the epoch, as the one
    who takes the lock then does again.

    Examples
    --------
    >>> known = Committed(7, EntryId(9, 0), 90, 30, "a")
    >>> rollback_of(known, Acquired(8, EntryId(9, 0), 90, 30, "a"))
    >>> rollback_of(known, Acquired(9, EntryId(0, 0), 0, 30, "a"))  # after a reset
    >>> lost = rollback_of(known, Acquired(7, EntryId(8, 0), 80, 25, "a"))
    >>> lost.entries, str(lost.after), str(lost.up_to), lost.rows, lost.rows_after
    (10, '8-0', '9-0', 5, 25)
    """
    if now is None or now.log != known.log:
        if known.entries == 0 and known.rows == 0:
            return None  # A place that was never used is made anew like a new one.
        after = None if now is None else now.checkpoint
        return Rollback(known.entries, after, known.checkpoint, known.rows, 0, is_new_log=True)
    back = now.checkpoint < known.checkpoint
    if now.rows >= known.rows and not (back and now.epoch <= known.epoch + 1):
        return None
    return Rollback(
        entries=max(0, known.entries - now.entries),
        after=now.checkpoint,
        up_to=known.checkpoint,
        rows=max(0, known.rows - now.rows),
        rows_after=now.rows,
        is_new_log=False,
    )


class Witness:
    """What one worker remembers of one group's partitions.

    Parameters
    ----------
    backend, keys
        Where the group is.
    runners
        Returns what runs, by partition.
    rng
        For jitter.
    log
        Where a rollback is reported.
    """

    def __init__(
        self,
        backend: Backend,
        keys: GroupKeys,
        runners: Callable[[], "Mapping[int, PartitionRunner | None]"],
        rng: random.Random,
        log: BoundLogger,
    ) -> None:
        self._backend = backend
        self._keys = keys
        self._runners = runners
        self._rng = rng
        self._log = log
        self._committed: dict[int, Committed] = {}
        self._told: dict[int, Committed] = {}
        """Of each partition, what was reported as gone last: several events lead here, to be told once."""
        self._run_id = ""
        self._unanswered: dict[int, str] = {}
        """Partitions whose lock could not be read when it was to be compared, and why."""
        self._asking_again = anyio.Lock()
        self._askers: dict[object, set[int]] = {}
        """Of each comparison under way, whose runners have been ended."""

    def is_another(self, run_id: str) -> bool:
        """Note the server's run id; say whether it is another one than before."""
        before, self._run_id = self._run_id, run_id or self._run_id
        return before not in ("", self._run_id)

    def note(self, partition: int, committed: Committed) -> None:
        """Remember where a partition stood when its runner ended."""
        self._committed[partition] = committed

    async def acquired(self, partition: int, lock: Acquired) -> None:
        """Compare a lock that was acquired with what is remembered, and report."""
        known = self._committed.get(partition)
        self._committed[partition] = Committed.at(lock)
        if known is not None and (rollback := rollback_of(known, lock)):
            await self._report(partition, known, rollback)

    async def compare(self, about: int | None = None) -> list[int]:
        """Compare all partitions that run with their locks; end the runners of those that have gone back.

        What is answered is judged at once. Who has no answer, or is refused it, is asked again until there
        is one. Of those who want to know of all partitions one asks, while the others wait for that.

        Parameters
        ----------
        about
            The partition that somebody has to know of: it alone is asked again then, and no other is waited
            for. Those are asked with the next comparison, and there is one when their node is back.

        Returns
        -------
        list[int]
            These partitions. They are taken anew.
        """
        asker, ended = object(), set[int]()
        self._askers[asker] = ended
        try:
            await self._look([p for p, runner in self._runners().items() if runner])
            if about is None:
                async with self._asking_again:
                    await self._ask_again(lambda: sorted(self._unanswered))
            else:
                await self._ask_again(lambda: [about] if about in self._unanswered else [])
        finally:
            del self._askers[asker]
        return sorted(ended)

    async def _ask_again(self, unanswered: Callable[[], Collection[int]]) -> None:
        """Ask about some partitions until there is an answer for each."""
        pauses = Pauses(self._rng)
        while partitions := unanswered():
            await anyio.sleep(pauses.next_ms() / 1000)
            await self._look(partitions)

    async def _look(self, partitions: Collection[int]) -> None:
        """Compare some partitions, those of them that still run, and note which had no answer."""
        runners = {p: runner for p, runner in self._runners().items() if runner and p in partitions}
        # What is known is older than the answer: a commit in between only makes the lock later.
        known = {p: runner.committed for p, runner in runners.items()}
        found: Mapping[int, LockView | BackendError | None] = {}
        try:
            found = await locks.read_locks(self._backend, self._keys, list(known))
        except BackendError as error:
            found = dict.fromkeys(known, error)
        errors = {p: lock for p, lock in found.items() if isinstance(lock, BackendError)}
        said = set(self._unanswered.values())
        kept = {p: reason for p, reason in self._unanswered.items() if p not in partitions}
        self._unanswered = kept | {p: str(error) for p, error in errors.items()}
        self._say_unknown(errors, said)
        gone = {
            p: rollback
            for p, lock in found.items()
            if not isinstance(lock, BackendError) and (rollback := rollback_of(known[p], lock))
        }
        for partition in gone:
            runners[partition].abandon("Redis has gone back behind what was committed")
        for ended in self._askers.values():
            ended.update(gone)
        for partition, rollback in gone.items():
            await self._report(partition, known[partition], rollback)

    def _say_unknown(self, errors: Mapping[int, BackendError], said: Collection[str]) -> None:
        """Say once of each reason that it keeps us from knowing."""
        reasons = {
            str(error): sorted(p for p in errors if str(errors[p]) == str(error)) for error in errors.values()
        }
        for reason in reasons.keys() - said:
            self._log.warning("rollback_unknown", partitions=reasons[reason], error=reason)

    async def _report(self, partition: int, known: Committed, rollback: Rollback) -> None:
        if self._told.get(partition) == known:
            return
        self._told[partition] = known
        self._log.error(
            "partition_rolled_back",
            partition=partition,
            entries=rollback.entries,
            after=str(rollback.after or "nothing"),
            up_to=str(rollback.up_to),
            rows=rollback.rows,
            rows_after=rollback.rows_after,
            log_replaced=rollback.is_new_log,
            source=await self._source(partition, rollback),
            remedy="Redis lost what it had confirmed: it was restored, emptied, or failed over. "
            "docs/durability.md says how to lose less.",
        )

    async def _source(self, partition: int, rollback: Rollback) -> str:
        """Say what becomes of the entries whose commits are gone."""
        events = self._keys.events(partition)
        try:
            there = await streams.range_entries(self._backend, events, rollback.up_to, rollback.up_to, 1)
            if there:
                return "the entries are there, and are handled again"
            newest = await self._backend.execute("XREVRANGE", events, "+", "-", "COUNT", 1)
        except BackendError as error:
            return f"unknown: {error}"
        last = newest[0][0].decode() if newest else "nothing"
        return f"went back too: its last entry is {last}; what was behind it is gone unless it is sent again"
