"""Decides when to trim a partition: at the interval of the settings, and not if it would drop nothing.

A trim reads the checkpoints of all groups of the stream. Without this, a thousand partitions with little
traffic were trimmed a thousand times a second, with one call each, and mostly nothing was dropped.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import anyio
from structlog.stdlib import BoundLogger

from streamworker.core.data.retention import Retention
from streamworker.core.events import StartRunner
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.errors import BackendError, StreamworkerError
from streamworker.log import get_logger
from streamworker.redisio.data import retention, trimming
from streamworker.redisio.data.statetables import expire_many
from streamworker.redisio.data.trimming import ANY_AGE, TRIM_ENTRIES, Keep, Trimmed
from streamworker.redisio.group import readers
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.provisioning import provision_unread
from streamworker.runtime.telling import warn
from streamworker.settings import Settings

_log = get_logger("streamworker.trims")

LOOK_MS, LOOK_MS_PER_PARTITION = 10_000, 100
"""How often a worker reads the retention, and trims by it: every 10 s, with more than 100 partitions more
seldom. A limit by size or number is of the whole stream, so that it asks for the length of each partition,
owned or not: that is 30 short commands a second at most."""

UNREAD = Retention(ms=86_400_000)
"""What stays of an acked log that nobody reads, if no retention is declared: a day, and of each partition at
most ``acked_entries_max`` entries. A query whose registration a failover lost has a day to register again."""


NODE_ENTRIES, NODE_BYTES = 100, 4096
"""Maximum entries and bytes of a stream node. A trim drops whole nodes, so it drops nothing if less than
this was committed since the last trim."""
LEFT_OUT_MAX = 30
"""How many trims may be skipped in a row: a server may be configured with smaller nodes."""


class Trims:
    """The trims of one partition while one runner has it, at least ``interval_ms`` apart."""

    def __init__(self, interval_ms: int, acked_limit: int = 0) -> None:
        self._interval_ms = interval_ms
        self._acked_limit = acked_limit
        self._at_ms = monotonic_ms()
        self._left_out = 0
        self._entries = self._bytes = 0
        self._total = self._total_bytes = 0
        self._seen = (0, 0)
        self._known: tuple[int, int] | None = None
        self._kept: Keep | None = None
        """What retention keeps; None until it is known, as while a node is away."""
        self.acked_rows = 0
        """Rows of the acked log that every reader has committed, as far as known; 0 trims nothing. Negative
        if retention keeps them."""
        self.acked_limit = acked_limit
        """How many entries of the acked log may wait for its readers; 0 for any number."""

    def committed(self, entries: int, size: int) -> None:
        """Count a confirmed commit."""
        self._entries += entries
        self._bytes += size
        self._total += entries
        self._total_bytes += size

    def with_commit(self) -> bool:
        """Whether the next commit should trim as well."""
        at_ms = monotonic_ms()
        if self._kept is None or self._kept.events_ms is not None:
            return False  # A commit drops whatever is committed, also what retention keeps.
        if at_ms - self._at_ms < self._interval_ms:
            return False
        self._at_ms = at_ms
        in_vain = self._entries < NODE_ENTRIES and self._bytes < NODE_BYTES
        if in_vain and self._left_out < LEFT_OUT_MAX:
            self._left_out += 1
            return False
        self._left_out = self._entries = self._bytes = 0
        return True

    def keep(self, rows: int, keep: Keep, *, is_read: bool) -> None:
        """Note what is kept: ``rows`` were read by every reader of the log, if it has any."""
        self._kept = keep
        self.acked_rows = 0 if not is_read else rows if keep.acked_ms is None else -rows
        self.acked_limit = self._acked_limit if is_read else 0

    def without_commit(self, rows: int) -> bool:
        """Whether to trim without a commit; called once an interval.

        A partition with few commits is trimmed by those commits, so it needs no other trim unless its
        readers have committed further. A partition whose commits have stopped needs one more, and a
        partition with many commits needs more than its commits drop. ``rows`` is how many rows of the acked
        log every reader has committed.
        """
        done = (self._total, self._total_bytes)
        if done == self._seen and self._known == (self._total, rows):
            return False  # A shortcut: with a thousand idle partitions this runs for each every two seconds.
        entries, size = (now - before for now, before in zip(done, self._seen, strict=True))
        self._seen = done
        a_little = 0 < entries < NODE_ENTRIES and size < NODE_BYTES
        known = self._known
        if known is not None and known[1] == rows and (a_little or known[0] == self._total):
            return False
        self._known = (self._total, rows)
        return True


@dataclass(eq=False)
class Trimmer:
    """Decides and does what is trimmed of the partitions of one group's stream and acked log."""

    backend: Backend
    keys: GroupKeys
    stream: StreamSpec
    settings: Settings
    log: BoundLogger
    log_retention: Retention | None = None
    has_log: bool = False

    def __post_init__(self) -> None:
        self._looked_ms: int | None = None
        self._mine = retention.Retentions(self.stream.retention, self.log_retention)
        self._stored = self._mine
        self._told: retention.Retentions | None = None
        self._most: dict[int, tuple[int | None, int | None]] = {}
        self._due: set[int] = set()
        self.rows: dict[int, int] = {}
        """By partition the rows of the acked log that all readers have read, or all rows without a reader."""
        self.is_read = True
        """Whether the acked log has a reader, as far as known."""

    async def look(self) -> None:
        """Read how far the readers are, and after ``LOOK_MS`` the retention and how much is held."""
        count = self.stream.placement.total
        logs = range(count if self.has_log else 0)
        self.rows, self.is_read = await readers.slowest_rows(self.backend, self.keys, logs)
        now_ms, every_ms = monotonic_ms(), max(LOOK_MS, count * LOOK_MS_PER_PARTITION)
        if self._looked_ms is not None and now_ms - self._looked_ms < every_ms:
            return
        self._looked_ms = now_ms
        self._follow(await retention.read(self.backend, self.keys))
        if self._stream or self._acked:
            self._due = set(range(count))
            most = await self._allowed(self._stream, retention.measure_stream)
            most_acked = await self._allowed(self._acked, retention.measure_log)
            self._most = dict(enumerate(zip(most, most_acked, strict=True)))

    @property
    def _stream(self) -> Retention | None:
        kept = self._stored.stream
        return None if kept is None or kept.keeps_nothing else kept

    @property
    def _acked(self) -> Retention | None:
        kept = self._stored.log or (None if self.is_read else UNREAD)
        return None if kept is None or kept.keeps_nothing or not self.has_log else kept

    def _follow(self, found: retention.Retentions) -> None:
        """Follow what Redis has: another program may have declared it later."""
        self._stored = retention.Retentions(found.stream or self._mine.stream, found.log or self._mine.log)
        if self._stored != self._told:
            self._told = self._stored
            names = (f"stream {self.keys.stream}", f"acked log of {self.keys.group}")
            for what, mine, now in zip(names, self._mine, self._stored, strict=True):
                if mine != now:
                    self.log.warning(
                        "retention_differs",
                        of=what,
                        kept=str(now),
                        declared=str(mine or "nothing"),
                        reason="another program declared it later, and what was declared last counts",
                    )

    async def _allowed(
        self, kept: Retention | None, measure: Callable[..., Awaitable[list[retention.Amount]]]
    ) -> list[int | None]:
        """Return how many entries each partition may hold by the limits of size and number; None for any."""
        count = self.stream.placement.total
        if kept is None or not kept.is_of_size:
            return [None] * count
        held = await measure(self.backend, self.keys, count, size=kept.size is not None)
        excess = kept.excess(size=sum(each.size for each in held), records=sum(each.records for each in held))
        return [round(each.entries * (1 - excess)) if excess else None for each in held]

    def take(self, partition: int) -> Keep:
        """Return what to keep of a partition. What is to be dropped by size is returned once."""
        most, most_acked = self._most.pop(partition, (None, None))
        if self._acked is UNREAD:
            most_acked = self.settings.acked_entries_max
        return Keep(_age(self._stream), most, _age(self._acked), most_acked)

    def is_due(self, partition: int) -> bool:
        """Whether to trim a partition although nobody has moved: its entries get older."""
        is_due = partition in self._due
        self._due.discard(partition)
        return is_due

    def trimmed(self, partition: int, done: Trimmed) -> None:
        """Note what a trim dropped: if it dropped all that one trim may, there is more."""
        if max(done.events, done.acked) >= TRIM_ENTRIES // 2:
            self._due.add(partition)


def _age(kept: Retention | None) -> int | None:
    return None if kept is None else ANY_AGE if kept.ms is None else kept.ms


async def trim_once(trimmer: Trimmer, partitions: Mapping[int, Trims]) -> None:
    """Trim what every reader has committed and no retention keeps in these partitions.

    It asks Redis only for partitions whose checkpoint or readers have moved, or of which retention may
    have ended for some entries.
    """
    try:
        await trimmer.look()
        keeps = {partition: trimmer.take(partition) for partition in partitions}
        moved: dict[int, int] = {}
        for partition, trims in partitions.items():
            rows = trimmer.rows.get(partition, 0)
            trims.keep(rows, keeps[partition], is_read=trimmer.is_read)
            if trims.without_commit(rows) or trimmer.is_due(partition):
                moved[partition] = rows
        if moved:
            done = await trimming.trim_many(trimmer.backend, trimmer.keys, moved, keeps.__getitem__)
            for partition, trimmed in done.items():
                trimmer.trimmed(partition, trimmed)
                tell_of_deleted(trimmer.log.bind(partition=partition), trimmed.gone)
    except BackendError as error:
        warn(trimmer.log, "trim_failed", error)


async def keep_unread(
    backend: Backend, streams: Sequence[StreamSpec], settings: Settings, has_first: Callable[[], bool]
) -> None:
    """Trim streams that no processor of the app reads, while this worker has a first partition of a group.

    So few workers do. They may do it at the same time, and beside groups of other programs: a trim may be
    repeated, and keeps what any group needs.
    """
    kept = []
    for stream in streams:
        keys = GroupKeys(stream.app, stream.name, stream.name)
        trimmer = Trimmer(backend, keys, stream, settings, _log.bind(stream=stream.name))
        kept.append((trimmer, defaultdict[int, Trims](partial(Trims, settings.trim_interval_ms))))
    while kept:
        await anyio.sleep(settings.trim_interval_ms / 1000)
        if has_first():
            for trimmer, trims in kept:
                try:
                    await provision_unread(backend, trimmer.stream, trimmer.log, again=True)
                except StreamworkerError as error:
                    warn(trimmer.log, "map_unread", error)
                await trim_once(trimmer, {p: trims[p] for p in trimmer.stream.placement.all})


async def expire_once(
    backend: Backend,
    keys: GroupKeys,
    spec: ProcessorSpec,
    starts: Mapping[int, StartRunner],
    log: BoundLogger,
) -> None:
    """Remove values of tables that have expired; partitions that commit do so with each commit, too."""
    tables = {name: its for name, its in spec.lifetimes.items() if not its.is_called}
    try:
        if tables:
            owners = {p: (start.owner, start.lock.epoch) for p, start in starts.items()}
            await expire_many(backend, keys, tables, owners)
    except BackendError as error:
        warn(log, "expire_failed", error)


def tell_of_deleted(log: BoundLogger, entries: int) -> None:
    """Log that another program has deleted entries that the group had not committed."""
    if entries:
        reason = "another program deleted them before they were committed"
        log.error("entries_deleted", entries=entries, reason=reason)
