"""One frozen view of a group, which the command line, the TUI, metrics and tests read.

It holds plain values, which ``redisio.snapshot`` reads from Redis in a few pipelined reads. Every time is the
Redis server's, in milliseconds, so that two snapshots can be compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MemberState = Literal["active", "standby", "leaving", "silent", "held"]
PartitionState = Literal[
    "running", "retrying", "draining", "acquiring", "halted", "paused", "pausing", "unowned"
]


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member of the group."""

    id: str
    name: str
    host: str
    pid: int
    joined_ms: int
    beat_age_ms: int | None
    """Time since the last heartbeat; None if there was none."""
    state: MemberState
    """``standby``: alive without partitions. ``silent``: its heartbeats are late. ``held``: it left or died,
    and the group keeps its partitions for it."""
    partitions: tuple[int, ...]
    """The partitions whose locks it holds."""
    load: int = 0
    """The load of these partitions, in thousandths of a worker's time; 0 if it is not measured."""
    capacity: int = 1
    """How much load it can carry, relative to the other members."""


@dataclass(frozen=True, slots=True)
class PauseView:
    """An operator's pause that stands in a partition's lock."""

    at_ms: int
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class RetryView:
    """A record whose calls fail, and that is tried again."""

    attempt: int
    """How many calls have failed."""
    since_ms: int
    next_ms: int
    """When the function is called again."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition and its lock."""

    partition: int
    owner: str | None
    """Member id that holds the lock."""
    assigned: str | None
    """Member id that the assignment names."""
    epoch: int
    state: PartitionState
    reason: str
    """Why the partition is halted or held up; the error, while a record is tried again."""
    checkpoint: str
    records: int
    """Source records committed by this group."""
    gone: int
    """Source records that another program deleted before this group had committed them."""
    lag: int
    """Source records not committed yet."""
    length: int
    """Source records held in Redis."""
    rows: int
    """Rows that the acked log has ever held."""
    acked_length: int
    """Entries now in the acked log."""
    dead: int
    """The number of dead letters."""
    since_ms: int
    """When the owner acquired the lock."""
    retry: RetryView | None = None
    """The oldest record that is tried again, in state ``retrying``."""
    pause: PauseView | None = None
    """The operator's pause that stands, whoever owns the partition; ``pausing`` until the owner obeys it."""
    outbox: int = 0
    """Messages for other streams that these have not taken yet."""
    deaths: int = 0
    """How many workers died in a row in the call of the record that ``reason`` names."""
    timers: Mapping[str, int] = field(default_factory=dict)
    """The last planned time (ms) of each timer that is done."""


@dataclass(frozen=True, slots=True)
class ReaderView:
    """One reader of the acked log: a Spark query."""

    name: str
    positions: Mapping[int, int]
    """The number of committed rows by partition."""
    lag_rows: int
    updated_ms: int
    late_rows: int = 0
    """Rows that were trimmed before it began."""
    failed: str = ""
    """Why its query failed since it read last."""
    failed_ms: int = 0
    """When that was."""
    batch_ms: int = 0
    """From the plan of its last micro-batch with rows to the next plan; 0 if that is not known."""


@dataclass(frozen=True, slots=True)
class TableView:
    """One table of the processor, over all partitions."""

    name: str
    keys: int
    bytes: int | None
    """Memory of its values and of the index of their expiry; None if this user may not ask."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One change of the membership and what it moved."""

    generation: int
    cause: str
    """``join``, ``leave``, ``death``, ``left`` (after a leave, moves nothing), ``return`` (of a static
    member), ``hold-expired``, ``rollback`` (a failover restored an old document, moves nothing),
    ``repaired`` (the document was damaged, moves nothing), ``balance`` (by load), ``weights`` (moves
    nothing); or one that only another protocol has (docs/protocols.md)."""
    member: str
    at_ms: int
    moved: tuple[int, ...]
    ms: int | None
    """The time until every moved partition was acquired again; None while some are not."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One processor's group at one moment."""

    app: str
    stream: str
    processor: str
    generation: int
    taken_ms: int
    members: tuple[MemberView, ...]
    partitions: tuple[PartitionView, ...]
    readers: tuple[ReaderView, ...]
    rebalances: tuple[Rebalance, ...]
    """Oldest first."""
    problems: tuple[str, ...] = ()
    """Keys of the group that another program overwrote; the snapshot lacks their contents."""
    tables: tuple[TableView, ...] = ()

    @property
    def alive(self) -> tuple[MemberView, ...]:
        """The members that send heartbeats."""
        return tuple(member for member in self.members if member.state not in ("silent", "held"))

    @property
    def lag(self) -> int:
        """Source records that the group has not committed yet, over all partitions."""
        return sum(view.lag for view in self.partitions)

    @property
    def retrying(self) -> int:
        """How many partitions try a failing record again."""
        return sum(view.state == "retrying" for view in self.partitions)

    @property
    def committed(self) -> int:
        """Source records that the group has committed, over all partitions."""
        return sum(view.records for view in self.partitions)

    @property
    def outbox(self) -> int:
        """Messages for other streams that these have not taken yet, over all partitions."""
        return sum(view.outbox for view in self.partitions)
