"""The archiver of one processor's acked logs: the owner of a partition archives its log.

It is a reader of the log named ``archive``, so trimming waits for it, and its position moves only after a
segment is in the store. A segment is put only if none begins at the same row, so it does not matter who else
believes to own the partition, or whether an answer was lost: whoever finds the name taken compares what is
there with the log, and goes on behind it.

A failure stops no record. It is logged, stays with the reader's position until it is over, and the partition
is tried again.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio
from structlog.stdlib import BoundLogger

from streamworker.archive.chain import Chain
from streamworker.archive.logs import OF_COMMIT, Commit, check_log, commits_in, table_of
from streamworker.archive.segments import opened, whole_of
from streamworker.archive.store import store_at
from streamworker.core.data.archives import GROUP, Archive, Footer, name_of
from streamworker.core.data.entries import EntryId
from streamworker.core.data.readers import ReaderPosition, read_position
from streamworker.core.events import StartRunner
from streamworker.core.pauses import Pauses
from streamworker.core.text import in_words
from streamworker.declaring.specs import ProcessorSpec
from streamworker.errors import ArchiveConflict, ArchiveUnavailable, StreamworkerError
from streamworker.redisio.data.streams import set_field
from streamworker.redisio.keys import GroupKeys, whole
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.info import ms_of
from streamworker.runtime.archive.identities import verified
from streamworker.runtime.archive.rows import End, Log, LogRows
from streamworker.runtime.archive.turns import in_thread, turn
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.telling import warn
from streamworker.settings import Settings

LOOK_MS = 5_000
"""How often a worker looks at most whether a segment is due."""
SEEN_MS = 20_000
"""How often the reader's position says that the archiver lives, though it does not move."""
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 1_000, 60_000
"""Between the tries of a partition that fails."""
FAILURE_LENGTH = 500

Owners = Mapping[int, StartRunner | None]
"""The partitions to archive; None for one that nobody owns any more."""


async def archive_log(
    backend: Backend,
    keys: GroupKeys,
    spec: ProcessorSpec,
    settings: Settings,
    rng: random.Random,
    log: BoundLogger,
    running: Callable[[], Mapping[int, Any]],
    unowned: Callable[[], Iterable[int]],
) -> None:
    """Archive the acked logs of a worker's partitions, and of those that nobody owns any more, for ever."""
    archive = spec.options.archive_of_log
    assert archive is not None
    its = archive, spec.stream.codec_name, settings.acked_entries_max // 2
    archiver = LogArchiver(backend, keys, *its, rng, log)

    def owners() -> Owners:
        return {**dict.fromkeys(unowned()), **{p: its.commits.start for p, its in running().items()}}

    await archiver.run(owners)


@dataclass(eq=False)
class LogArchiver:
    """Archives the acked logs of the partitions that a worker owns of one processor."""

    backend: Backend
    keys: GroupKeys
    archive: Archive
    codec: str
    entries_max: int
    """As in ``LogRows``."""
    rng: random.Random
    log: BoundLogger

    def __post_init__(self) -> None:
        self._store = store_at(self.archive.url)
        self._rows = LogRows(self.backend, self.keys, self.archive, self.entries_max)
        self._ends: dict[int, End] = {}
        self._failing: dict[int, str] = {}
        self._pauses: dict[int, tuple[Pauses, int]] = {}
        """Of partitions that fail: until when they wait, by the monotonic clock."""
        self._identity = ""

    async def run(self, owners: Callable[[], Owners]) -> None:
        """Archive what is due, for ever."""
        while True:
            is_more = False
            try:
                is_more = await self.archive_once(owners())
            except StreamworkerError as error:
                warn(self.log, "archive_failed", error)
            if not is_more:
                look_ms = min(self.archive.every_ms, LOOK_MS)
                await anyio.sleep(look_ms * (0.75 + self.rng.random() / 2) / 1000)

    async def archive_once(self, owners: Owners) -> bool:
        """Archive at most a segment of each partition; return whether more may be due."""
        for each in (self._ends, self._failing, self._pauses):
            for gone in each.keys() - owners.keys():
                del each[gone]
        logs, position = await self._rows.look(owners)
        is_more = False
        for log in logs:
            p = log.partition
            if p in self._pauses and monotonic_ms() < self._pauses[p][1]:
                continue
            try:
                is_more |= await self._archive(log, position, owners[p])
            except Exception as error:  # noqa: BLE001 - whatever is damaged ends neither the others nor the worker
                self._fails(p, error)
                if isinstance(error, ArchiveUnavailable):
                    break  # It is away for the others, too, and each call takes its time.
            else:
                self._failing.pop(p, None)
                self._pauses.pop(p, None)
        if logs:
            await self._tell(position, logs[0].now_ms, owners)
        return is_more

    # -- one partition ---------------------------------------------------------------------------

    async def _archive(self, log: Log, position: ReaderPosition, owner: StartRunner | None) -> bool:
        p = log.partition
        end = self._ends.get(p)
        if end is None or end.identity != log.identity:
            self._ends.pop(p, None)
            end = self._ends[p] = await self._begin(log, position)
        if log.rows < end.rows:
            # From here on nothing behind the common rows is trimmed, whoever looks next.
            await self._move(p, log.rows, log.identity, back=True)
            del self._ends[p]
            raise ArchiveConflict(
                f"The acked log of partition {p} was rolled back to row {log.rows}, and the archive "
                f"{self.archive.url} has its rows up to {end.rows}.",
                remedy="Redis lost the end of the log. Restore it, or give log_archive= another URL.",
            )
        if not await self._rows.is_due(log, end):
            return False
        async with turn():
            if not (commits := await self._rows.read(log, end)):
                return False
            last = commits[-1]
            after, first, until = (EntryId(row, 0) for row in (end.rows, end.rows + 1, last.end))
            who = (owner.owner, owner.lock.epoch) if owner else ("", 0)
            rows = last.end - end.rows
            footer = Footer(after, first, until, rows, last.end, *who, log.identity, tail=last.tail)
            size = await in_thread(_put, Chain(self._store, p), commits, footer)
        if not size:
            await self._pass_over(log, end.rows)
            return self._ends[p].rows > end.rows
        self.log.debug("log_archived", partition=p, rows=rows, up_to=last.end, bytes=size)
        await self._move(p, last.end, log.identity)
        self._ends[p] = End(last.end, log.identity, last.tail)
        return True

    async def _begin(self, log: Log, position: ReaderPosition) -> End:
        """Find the end of the archive; what it has behind the reader's position is compared."""
        p, chain = log.partition, Chain(self._store, log.partition)
        if not (self._identity and position.rows):
            self._identity = await verified(
                self.backend,
                self.keys,
                self._store,
                log=self.keys.group,
                codec=self.codec,
                has_archived=bool(position.rows),
                known=self._identity,
            )
        at = position.rows.get(p) if position.logs.get(p) == log.identity else None
        last = await in_thread(chain.last, EntryId(at or 0, 0))
        if last is not None:
            check_log(chain, last, log.identity)
        if at is not None and (last is None or last.last.ms < at):
            has = f"ends at row {last.last.ms}" if last else "is empty"
            raise ArchiveConflict(
                f"The archive {self.archive.url} of partition {p} {has}, and had rows up to {at}.",
                remedy="Restore its objects from the store's versions, or give log_archive= another URL.",
            )
        if last is None:
            return End(await self._rows.first_row(log), log.identity, "")
        if at is not None and at < last.last.ms:
            (segment, *_) = await in_thread(chain.segments, EntryId(at, 0))
            await self._pass_over(log, segment.after.ms)
            return self._ends[p]
        await self._move(p, last.last.ms, log.identity)
        return End(last.last.ms, log.identity, last.tail)

    async def _pass_over(self, log: Log, at: int) -> None:
        """Go on behind segments that are there, whoever put them; raise if they have other rows."""
        p, chain = log.partition, Chain(self._store, log.partition)
        while (footer := await in_thread(chain.footer, EntryId(at, 0))) is not None:
            check_log(chain, footer, log.identity)
            await self._compare(p, footer)
            at = footer.last.ms
            self.log.info("archive_went_on", partition=p, up_to=at, by=footer.owner)
            await self._move(p, at, log.identity)
            self._ends[p] = End(at, log.identity, footer.tail)

    async def _compare(self, partition: int, footer: Footer) -> None:
        """Compare the commits in a segment with those of them that are still in Redis."""
        end = footer.last.ms
        ((log,), _) = await self._rows.look([partition])
        mine = await self._rows.tails(log, footer.after.ms, end)
        if log.rows < end or log.identity != footer.log:
            raise self._rows.other_rows(partition, end)
        if footer.erased or not mine:
            return
        name = name_of(partition, footer.after)
        got = await in_thread(self._store.get, name)
        file, _ = opened(got.body if got else b"", name)
        since = min(mine)
        table = whole_of(file, name, OF_COMMIT)
        theirs = {each.end: each.tail for each in commits_in(table) if each.end >= since}
        if mine != theirs:
            raise self._rows.other_rows(partition, end)

    # -- the reader's position -------------------------------------------------------------------

    async def _move(self, partition: int, rows: int, identity: str, *, back: bool = False) -> None:
        """Note how far a partition is archived; never less than somebody has noted, but for ``back``."""
        now_ms = ms_of(await self.backend.execute("TIME"))

        def moved(position: ReaderPosition) -> ReaderPosition | None:
            its = position.rows.get(partition) if position.logs.get(partition) == identity else None
            if its is not None and (its <= rows if back else its >= rows):
                return None
            return replace(
                position,
                rows={**position.rows, partition: rows},
                logs={**position.logs, partition: identity},
                at_ms=now_ms,
                begins=False,
            )

        await _change(self.backend, self.keys, moved)

    def _fails(self, partition: int, error: Exception) -> None:
        why = error.message if isinstance(error, StreamworkerError) else in_words(error)
        if self._failing.get(partition) != why:
            warn(self.log, "archive_failed", error, partition=partition)
        self._failing[partition] = why
        new = Pauses(self.rng.random, first_ms=FIRST_PAUSE_MS, max_ms=LONGEST_PAUSE_MS)
        pauses, _ = self._pauses.get(partition, (new, 0))
        self._pauses[partition] = pauses, monotonic_ms() + pauses.next_ms()

    async def _tell(self, position: ReaderPosition, now_ms: int, owners: Owners) -> None:
        """Keep with the position why a partition fails and since when, and that the archiver lives."""
        texts = {p: f"partition {p}: {why}"[:FAILURE_LENGTH] for p, why in sorted(self._failing.items())}
        of = whole(position.failed.removeprefix("partition ").partition(":")[0])
        is_over = bool(position.failed) and of in owners and of not in texts
        is_new = bool(texts) and (not position.failed or is_over)
        if not (is_over or is_new or now_ms - position.at_ms > SEEN_MS):
            return

        def told(now: ReaderPosition) -> ReaderPosition | None:
            if now.failed != position.failed:
                return None  # Another worker was faster.
            if is_over or is_new:
                failed = next(iter(texts.values()), "")
                now = replace(now, failed=failed, failed_ms=now_ms if failed else 0)
            return replace(now, at_ms=now_ms)

        await _change(self.backend, self.keys, told)


def _put(chain: Chain, commits: Sequence[Commit], footer: Footer) -> int:
    return chain.put(table_of(chain.partition, commits), footer)


async def _change(
    backend: Backend, keys: GroupKeys, changed: Callable[[ReaderPosition], ReaderPosition | None]
) -> None:
    """Change the position, which workers share, whoever changes it at the same time; None leaves it."""
    while True:
        seen = await backend.execute("HGET", keys.readers, GROUP) or b""
        new = changed(read_position(seen))
        if new is None or await set_field(backend, keys.readers, GROUP, seen, new.text()):
            return
