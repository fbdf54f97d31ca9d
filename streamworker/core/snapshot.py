"""One frozen view of a group, which the command line, the TUI, metrics and tests read.

It holds plain values, which ``redisio.snapshot`` reads from Redis in a few pipelined reads. Every time is the
Redis server's, in milliseconds, so that two snapshots can be compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from streamworker.core.ownership.risks import deaths_in_words, remedy_for
from streamworker.core.words import counted, ranges

MemberState = Literal["active", "standby", "leaving", "silent", "held"]
PartitionState = Literal[
    "running", "retrying", "draining", "acquiring", "halted", "paused", "pausing", "unowned", "unknown"
]


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member of the group."""

    id: str
    """Its id in the group, which no other member ever has."""
    name: str
    """The worker's name."""
    host: str
    """The machine that it runs on."""
    pid: int
    """Its process there."""
    joined_ms: int
    """When it joined."""
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
    """Its number, from 0 on."""
    owner: str | None
    """Member id that holds the lock."""
    assigned: str | None
    """Member id that the assignment names."""
    epoch: int
    """The number of this ownership, which grows with each new owner."""
    state: PartitionState
    """What its owner does with it; ``unowned`` if nobody holds its lock. ``unknown``: Redis did not tell, as
    its node of a Cluster is away; all figures are 0, and none of them was read."""
    reason: str
    """Why the partition is halted, held up or unknown; the error, while a record is tried again."""
    checkpoint: str
    """The id of the last entry that the group has committed."""
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
    waits_for: tuple[int, ...] = ()
    """The partitions that the group has to be done with before it handles this one, since the stream grew."""
    is_next: bool = False
    """Whether it waits for those alone, and they go on."""

    @property
    def is_held_up(self) -> bool:
        """Whether it runs and something holds it up; ``reason`` says what."""
        return self.state == "running" and bool(self.reason) and not self.is_next


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
    dropped_rows: int = 0
    """Rows that its query dropped, since they came after its watermark."""


@dataclass(frozen=True, slots=True)
class TableView:
    """One table of the processor, over all partitions."""

    name: str
    keys: int
    bytes: int | None
    """Memory of its values and of the index of their ends; None if this user may not ask."""
    due: int | None = None
    """Values at whose end a function is called, or open windows; None if it has neither."""
    next_ms: int | None = None
    """The first of these ends; that of a window is in the time of its records."""
    overdue: int = 0
    """How many of them have ended more than a minute ago, and wait for their call; 0 for windows."""
    is_of_windows: bool = False
    """Whether they are windows."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One change of the membership and what it moved."""

    generation: int
    cause: str
    """``join``, ``leave``, ``death``, ``left`` (after a leave, moves nothing), ``return`` (of a static
    member), ``hold-expired``, ``rollback`` (a failover restored an old document, moves nothing),
    ``repaired`` (the document was damaged, moves nothing), ``balance`` (by load), ``weights`` (moves
    nothing), ``partitions`` (the group works on others since its stream grew); or one that only another
    protocol has (docs: protocols)."""
    member: str
    at_ms: int
    moved: tuple[int, ...]
    ms: int | None
    """The time until every moved partition was acquired again; None while some are not."""
    superseded: bool = False
    """Whether ``ms`` is None since the partitions that are left moved elsewhere, or back to who had them."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One processor's group at one moment: what ``status``, ``top``, metrics and tests read.

    Times are those of the Redis server, in milliseconds since 1970.

    Examples
    --------
    >>> def furthest_behind(now: GroupSnapshot) -> int:
    ...     return max(now.partitions, key=lambda view: view.lag).partition
    """

    app: str
    """The app's name."""
    stream: str
    """The name of the processor's stream."""
    processor: str
    """The processor's name."""
    generation: int
    """How often the membership has changed."""
    taken_ms: int
    """When the snapshot was taken."""
    members: tuple[MemberView, ...]
    """The workers of the group."""
    partitions: tuple[PartitionView, ...]
    """The partitions that the group works on, in order."""
    readers: tuple[ReaderView, ...]
    """The Spark queries that read the acked log."""
    rebalances: tuple[Rebalance, ...]
    """The last changes of the membership, oldest first."""
    problems: tuple[str, ...] = ()
    """Keys of the group that another program overwrote; the snapshot lacks their contents."""
    tables: tuple[TableView, ...] = ()
    """The tables that the processor writes."""
    died: Mapping[str, int] = field(default_factory=dict)
    """How many workers died in a row in each timer, resource or middleware, such as ``timer sweep``."""
    done: tuple[PartitionView, ...] = ()
    """The partitions that take nothing more since the stream grew, and that the group is done with."""

    @property
    def all_partitions(self) -> tuple[PartitionView, ...]:
        """All partitions of the stream, in order, also those that the group is done with."""
        return (*self.done, *self.partitions)

    @property
    def alive(self) -> tuple[MemberView, ...]:
        """The members that send heartbeats."""
        return tuple(member for member in self.members if member.state not in ("silent", "held"))

    @property
    def unknown(self) -> tuple[str, ...]:
        """Which partitions no figure counts, since Redis did not tell of them, and why; nothing if it did."""
        views = [view for view in self.partitions if view.state == "unknown"]
        if not views:
            return ()
        which = f"{counted(len(views), 'partition')} of {self.processor}"
        return (f"Not in the figures: {which}: {ranges(v.partition for v in views)}. {views[0].reason}",)

    @property
    def lag(self) -> int:
        """Source records that the group has not committed yet, over the partitions that are known."""
        return sum(view.lag for view in self.partitions)

    @property
    def deaths(self) -> tuple[str, ...]:
        """What workers died in beside records, in words with a remedy."""
        return tuple(f"{deaths_in_words(what, n)}. {remedy_for(what)}" for what, n in self.died.items())

    @property
    def retrying(self) -> int:
        """How many partitions try a failing record again."""
        return sum(view.state == "retrying" for view in self.partitions)

    @property
    def committed(self) -> int:
        """Source records that the group has committed, over all partitions."""
        return sum(view.records for view in self.all_partitions)

    @property
    def dead(self) -> int:
        """Dead letters, over all partitions."""
        return sum(view.dead for view in self.all_partitions)

    @property
    def outbox(self) -> int:
        """Messages for other streams that these have not taken yet, over all partitions."""
        return sum(view.outbox for view in self.partitions)
