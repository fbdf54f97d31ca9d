"""The mode that calls no function: it puts the records of a partition into the stream's archive.

It reads nothing ahead. When a segment is due, it reads what waits, makes a Parquet object of it in a thread,
puts it under the name that follows in the chain, and commits; of one process one segment at a time, so that
memory has one, however many partitions there are. Nothing younger than ``Archive.after`` is read: what a
failover loses in that time is lost in the archive, too.

The store is the truth, and the checkpoint in the lock follows it: it never is above what was put. So an owner
begins with the end of the chain. If that is above the checkpoint, another owner, a zombie or a put without an
answer has come further: what Redis still has of it is compared, and the checkpoint moves there. A zombie's
put is either the next link, which nobody else has made, or refused by the store.

If both differ in a record, the partition halts and names it: somebody must decide, and nothing is trimmed.
"""

from collections import deque
from typing import Any

import pyarrow as pa

from streamworker.archive.chain import Chain, id_at, missing
from streamworker.archive.columns import columns_for, packing_of, rows_reader
from streamworker.archive.segments import Columns, table_of
from streamworker.archive.store import store_at
from streamworker.core.data.archives import Archive, Footer
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.pauses import Pauses
from streamworker.errors import ArchiveConflict, ArchiveError, BackendError
from streamworker.records.entries import Entries
from streamworker.redisio.group import archiving
from streamworker.runtime.archive.identities import verified
from streamworker.runtime.archive.turns import in_thread, turn
from streamworker.runtime.clock import monotonic_s
from streamworker.runtime.run.commits import Work
from streamworker.runtime.run.failures import describe_error
from streamworker.runtime.run.modes.modes import Mode

LOOK_MIN_S, LOOK_MAX_S = 0.05, 15.0
"""How often a partition looks for what waits: twenty times an interval, within these bounds."""
RATE_MAX = 50_000
"""A partition takes fewer records in a second: it must not be full before the next look."""
LOOKS = 20
"""Of the time ``after`` so many looks are remembered."""
RECORD_BYTES = 200
"""What a record is taken to have before the first segment."""
PAUSE_MAX_MS = 60_000

_known: dict[tuple[str, str, str], str] = {}
"""The ids of the archives of streams that this process has verified, by app, stream and URL."""


class ArchiveMode(Mode):
    """Archives one partition of a stream."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        stream, archive = self.spec.stream, self.spec.stream.archive
        assert archive is not None
        self._archive: Archive = archive
        self._partition = self.commits.start.partition
        self._columns = columns_for(stream) if archive.columns else None
        self._half = stream.records_max // 2
        self._look_s = max(min(archive.every_ms / 20_000, LOOK_MAX_S, self._half / RATE_MAX), LOOK_MIN_S)
        self._record_bytes = float(RECORD_BYTES)
        self._oldest: EntryId | None = ZERO
        """The oldest record that waits; ZERO before the first look."""
        self._since_ms: int | None = None
        """Since when it waits, as the lock has it: its id may be of a time that is not yet."""
        self._looks: deque[tuple[int, int, EntryId]] = deque()
        """Time of a look, records that there ever were, and ``newest``: the last one that is as old as
        ``after``, and those since."""
        self._chain: Chain | None = None
        """The chain, once its end is where the checkpoint is."""
        self.intake.buffer.close()  # Nothing is read ahead.

    async def run(self) -> str:
        """Archive until draining; return why the partition halts, or an empty text."""
        pauses = Pauses(self.rng.random, first_ms=500, max_ms=PAUSE_MAX_MS)
        while await self.intake.wait_may_start():
            try:
                if self._chain is None:
                    await self._waiting()  # Whatever hinders the archiver: it shows how late it is.
                    self._chain = await self._caught_up()
                has_put = await self._put_due(self._chain)
            except ArchiveConflict as error:
                return describe_error(error)
            except (ArchiveError, BackendError) as error:
                self._chain = None
                wait_ms = pauses.next_ms()
                if self.observer is not None:
                    self.observer.put_failed(self.spec.stream)
                self.log.warning("archive_held_up", error=describe_error(error), retry_in_ms=wait_ms)
                self.activity.retries(describe_error(error), pauses.failures, wait_ms)
                await self.intake.pause(wait_ms)
            else:
                pauses.reset()
                self.activity.recovers()
                if not has_put:
                    self.activity.rests()
                    await self.intake.wait_draining(self._look_s * (0.75 + self.rng.random() / 2))
        return ""

    # -- the end of the chain --------------------------------------------------------------------

    async def _caught_up(self) -> Chain:
        """Return the chain, whose end is the checkpoint now."""
        committer, stream = self.commits.committer, self.spec.stream
        store, committed = store_at(self._archive.url), self.commits.committed
        named = stream.app, stream.name, store.url
        try:
            _known[named] = await verified(
                committer.backend,
                committer.keys,
                store,
                log="",
                codec=stream.codec_name,
                has_archived=committed.checkpoint > ZERO,
                known=_known.get(named, ""),
            )
        except ArchiveConflict as error:  # `archive adopt` ends it, and nobody need retry the partition then.
            raise ArchiveError(error.message, remedy=error.remedy) from None
        chain = Chain(store, self._partition)
        last = await in_thread(chain.last, committed.checkpoint)
        end = ZERO if last is None else last.last
        if end < committed.checkpoint:
            raise missing(self._partition, end, committed.checkpoint)
        if last is not None and committed.checkpoint < end:
            await self._pass(chain, last)
        return chain

    async def _pass(self, chain: Chain, last: Footer) -> None:
        """Move the checkpoint to the end of the chain, which somebody else has made."""
        committer, committed = self.commits.committer, self.commits.committed
        here = committer.backend, committer.keys, self._partition
        mine = await archiving.read_raw(*here, committed.checkpoint, last.last, self._archive.size_bytes)
        compared, position = 0, committed.checkpoint
        while mine:
            table = await in_thread(self._table, mine, None)
            await in_thread(chain.compare, table)
            compared += table.num_rows
            position = mine.id_at(len(mine) - 1)
            mine = await archiving.read_raw(*here, position, last.last, self._archive.size_bytes)
        records = last.total - committed.entries
        first = await in_thread(self._first, chain)
        await archiving.go_on_behind(*here, last.last, total=last.total, before=first.total - first.records)
        self.log.info(
            "archive_passed",
            checkpoint=str(committed.checkpoint),
            end=str(last.last),
            by=last.owner,
            epoch=last.epoch,
            only_archived=max(0, records - compared),
        )
        await self._commit(last.last, records)

    def _first(self, chain: Chain) -> Footer:
        found = chain.footer(chain.segments()[0].after)
        assert found is not None
        return found._replace(records=found.records + found.erased)

    # -- the next link ---------------------------------------------------------------------------

    async def _waiting(self) -> archiving.Unarchived:
        """Return what waits, and note since when."""
        here = self.commits.committer.backend, self.commits.committer.keys, self._partition
        waiting = await archiving.read_waiting(*here, self.commits.committed.checkpoint)
        if waiting.oldest != self._oldest:
            since_ms = None if waiting.oldest is None else min(waiting.oldest.ms, waiting.now_ms)
            await archiving.note_waiting(*here, since_ms)
            self._oldest, self._since_ms = waiting.oldest, since_ms
        return waiting

    def _old(self, waiting: archiving.Unarchived, until_ms: int) -> tuple[int, EntryId]:
        """Return how many records are known to be as old as ``after``, and up to which id they are."""
        looks, now_ms, entries = self._looks, waiting.now_ms, self.commits.committed.entries
        if not (looks and 0 <= now_ms - looks[-1][0] < self._archive.after_ms / LOOKS):
            looks.append((now_ms, entries + waiting.records, waiting.newest))
        while len(looks) > 1 and looks[1][0] <= until_ms:
            looks.popleft()
        at_ms, total, newest = looks[0]
        until = archiving.up_to(until_ms)
        return (total - entries, max(until, newest)) if at_ms <= until_ms else (0, until)

    async def _put_due(self, chain: Chain) -> bool:
        """Put the next segment if one is due; return whether that was done."""
        committer, archive = self.commits.committer, self._archive
        waiting, checkpoint = await self._waiting(), self.commits.committed.checkpoint
        until_ms = waiting.now_ms - archive.after_ms
        old, until = self._old(waiting, until_ms)
        if self._since_ms is None or self._since_ms > until_ms:
            return False
        is_large = old * self._record_bytes >= archive.size_bytes
        # Senders must not wait. What is young may be most of it, and yet segments are not to be tiny.
        is_full = waiting.records >= self._half and until_ms - self._since_ms >= archive.after_ms / LOOKS
        if waiting.now_ms - self._since_ms < archive.every_ms and not is_large and not is_full:
            return False
        async with turn():
            here = committer.backend, committer.keys, self._partition
            entries = await archiving.read_raw(*here, checkpoint, until, archive.size_bytes)
            return bool(entries) and await self._put(chain, entries)

    async def _put(self, chain: Chain, entries: Entries) -> bool:
        committed, start = self.commits.committed, self.commits.start
        size = sum(entries.sizes)
        began_s = monotonic_s()
        table = await in_thread(self._table, entries, self._columns)
        records = table.num_rows
        self._record_bytes = max(1.0, size / records)
        first, last = id_at(table, 0), id_at(table, records - 1)
        total = committed.entries + records
        footer = Footer(
            committed.checkpoint, first, last, records, total, start.owner.partition("/")[0], start.lock.epoch
        )
        stored = await in_thread(chain.put, table, footer)
        if not stored:
            if self.observer is not None:
                self.observer.put_refused(self.spec.stream)
            self._chain = None  # Somebody has made this link, perhaps an earlier try of this owner.
            return True
        if self.observer is not None:
            self.observer.archived(self.spec.stream, monotonic_s() - began_s, records, stored)
        await self._commit(last, records)
        self.log.info(
            "segment_archived",
            after=str(footer.after),
            last=str(last),
            records=records,
            bytes=stored,
            took_ms=round(1000 * (monotonic_s() - began_s)),
        )
        return True

    def _table(self, entries: Entries, columns: Columns | None) -> pa.Table:
        stream = self.spec.stream
        return table_of(entries, packing_of(stream), columns, rows_reader(stream))

    async def _commit(self, last: EntryId, records: int) -> None:
        await self.commits.submit(Work(archived=(last, records)))
        await self.commits.flush()
