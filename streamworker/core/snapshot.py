"""One frozen view of a group: what the command line, the TUI, metrics and tests look at.

Plain values, taken from Redis by ``redisio.snapshot`` in a few pipelined reads. Every time is
the Redis server's, in milliseconds, so that two snapshots can be compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MemberState = Literal["active", "standby", "leaving", "silent", "held"]
PartitionState = Literal["running", "draining", "acquiring", "halted", "unowned"]


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member of the group."""

    id: str
    name: str
    host: str
    pid: int
    joined_ms: int
    beat_age_ms: int | None
    """Time since the last heartbeat; None where there was none."""
    state: MemberState
    """``standby``: alive without partitions. ``silent``: heartbeats are late.
    ``held``: gone, and its place is kept."""
    partitions: tuple[int, ...]
    """Partitions whose lock it holds."""
    load: int = 0
    """What they ask of it, in thousandths of a worker's time; 0 if it is not measured."""
    capacity: int = 1
    """What it can carry, beside the others."""


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
    """Why it is halted, else empty."""
    checkpoint: str
    entries: int
    """Source entries committed by this group."""
    lag: int
    """Source entries not committed yet."""
    length: int
    """Source entries held in Redis."""
    rows: int
    """Rows that the acked log has ever held."""
    acked_length: int
    """Entries now in the acked log."""
    dead: int
    """Dead letters."""
    since_ms: int
    """When the lock was taken."""


@dataclass(frozen=True, slots=True)
class ReaderView:
    """One reader of the acked log: a Spark query."""

    name: str
    positions: Mapping[int, int]
    """Partition to rows committed."""
    lag_rows: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One change of the membership and what it moved."""

    generation: int
    cause: str
    """``join``, ``leave``, ``death``, ``left`` (after a leave, moves nothing), ``return`` (of a
    static member), ``hold-expired``, ``rollback`` (a failover took the document back, moves
    nothing), ``mended`` (the document was damaged, moves nothing), ``balance`` (by load),
    ``weights`` (moves nothing). In the protocol claim ``claim`` or ``steal``, one partition each; in
    lease ``race``."""
    member: str
    at_ms: int
    moved: tuple[int, ...]
    ms: int | None
    """Until every moved partition was acquired again; None while it goes on."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """All that can be seen of one processor's group at one moment."""

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
    """Keys of the group that another program wrote over; what they would say is missing here."""

    @property
    def lag(self) -> int:
        """Source entries that no member has committed yet, over all partitions."""
        return sum(view.lag for view in self.partitions)
