"""What a worker knows of the retention of its stream and its acked log, and what it makes of it."""

from structlog.stdlib import BoundLogger

from streamworker.core.data.retention import Retention, surplus
from streamworker.processors import ProcessorSpec
from streamworker.redisio.data import retention
from streamworker.redisio.data.streams import ANY_AGE, TRIM_ENTRIES, Keep, Trimmed
from streamworker.redisio.group import readers
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.clock import monotonic_ms
from streamworker.settings import Settings

LOOK_MS, LOOK_MS_PER_PARTITION = 10_000, 100
"""How often a worker reads the retention, and trims by it: every 10 s, with more than 100 partitions more
seldom. A limit by size or number is of the whole stream, so that it asks for the length of each partition,
owned or not: that is 30 short commands a second at most."""

UNREAD = Retention(ms=86_400_000)
"""What stays of an acked log that nobody reads, if no retention is declared: a day, and of each partition at
most ``acked_entries_max`` entries. A query whose registration a failover lost has a day to register again."""


class Keeping:
    """What retention keeps of the partitions of one group's stream and acked log."""

    def __init__(
        self, backend: Backend, keys: GroupKeys, spec: ProcessorSpec, settings: Settings, log: BoundLogger
    ) -> None:
        self.keys = keys
        self._backend = backend
        self._spec = spec
        self._settings = settings
        self._log = log
        self._looked_ms: int | None = None
        self._mine = retention.Retentions(spec.stream.retention, spec.log_retention)
        self._stored = self._mine
        self._told: retention.Retentions | None = None
        self._surplus: dict[int, tuple[int, int]] = {}
        self._due: set[int] = set()
        self.rows: dict[int, int] = {}
        """By partition the rows of the acked log that all readers have read, or all rows without a reader."""
        self.is_read = True
        """Whether the acked log has a reader, as far as known."""

    async def look(self) -> None:
        """Read how far the readers are, and after ``LOOK_MS`` the retention and how much is held."""
        count = self._spec.stream.partitions
        logs = range(count if self._spec.forward else 0)
        self.rows, self.is_read = await readers.slowest_rows(self._backend, self.keys, logs)
        now_ms, every_ms = monotonic_ms(), max(LOOK_MS, count * LOOK_MS_PER_PARTITION)
        if self._looked_ms is not None and now_ms - self._looked_ms < every_ms:
            return
        self._looked_ms = now_ms
        self._follow(await retention.read(self._backend, self.keys))
        if self._stream or self._acked:
            self._due = set(range(count))
            self._surplus = await self._measure()

    @property
    def _stream(self) -> Retention | None:
        kept = self._stored.stream
        return None if kept is None or kept.keeps_nothing else kept

    @property
    def _acked(self) -> Retention | None:
        kept = self._stored.log or (None if self.is_read else UNREAD)
        return None if kept is None or kept.keeps_nothing or not self._spec.forward else kept

    def _follow(self, found: retention.Retentions) -> None:
        """Follow what Redis has: another program may have declared it later."""
        self._stored = retention.Retentions(found.stream or self._mine.stream, found.log or self._mine.log)
        if self._stored != self._told:
            self._told = self._stored
            names = (f"stream {self.keys.stream}", f"acked log of {self.keys.group}")
            for what, mine, now in zip(names, self._mine, self._stored, strict=True):
                if mine != now:
                    self._log.warning(
                        "retention_differs",
                        of=what,
                        kept=str(now),
                        declared=str(mine or "nothing"),
                        reason="another program declared it later, and what was declared last counts",
                    )

    async def _measure(self) -> dict[int, tuple[int, int]]:
        """Return how many entries of each partition are above the limits by size and number."""
        count = self._spec.stream.partitions
        above = above_acked = [0] * count
        if (kept := self._stream) and kept.is_of_size:
            with_size = kept.size is not None
            above = _above(
                kept, await retention.measure_stream(self._backend, self.keys, count, size=with_size)
            )
        if (kept := self._acked) and kept.is_of_size:
            with_size = kept.size is not None
            held = await retention.measure_log(self._backend, self.keys, count, size=with_size)
            above_acked = _above(kept, held)
        return dict(enumerate(zip(above, above_acked, strict=True)))

    def take(self, partition: int) -> Keep:
        """Return what to keep of a partition. What is to be dropped by size is returned once."""
        above, above_acked = self._surplus.pop(partition, (0, 0))
        most = self._settings.acked_entries_max if self._acked is UNREAD else 0
        return Keep(_age(self._stream), above, _age(self._acked), above_acked, most)

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


def _above(kept: Retention, held: list[retention.Amount]) -> list[int]:
    excess = kept.excess(size=sum(each.size for each in held), records=sum(each.records for each in held))
    return [surplus(each.entries, excess) for each in held]
