"""The data of the Redis model for a group: locks, entries, logs, the document and heartbeats."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from streamworker.core.control import ControlMessage
from streamworker.core.data.outbox import Message, OutboxPosition, Target
from streamworker.core.data.schedules import Every
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.membership.document import FORMAT
from streamworker.redisio.data.outbox import OutboxWrite

TIMER = Every(1_000)
"""When the timer of each partition runs, if the group has timers; it leaves no planned time out."""


class Record(NamedTuple):
    """One source record: its id, its number among the records of its producer, and its entry."""

    id: int
    number: int
    end: int
    """The id of its entry, which is that of the last record in it."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


@dataclass(frozen=True, slots=True)
class Commit:
    """Records after ``previous`` up to ``new``: a commit request, which the acked log then stores."""

    owner: str
    epoch: int
    previous: int
    new: int
    rows: tuple[Record, ...] = ()
    aside: tuple[int, ...] = ()
    """Ids of those rows that are set aside: they are dead letters, and not in the acked log."""
    tick: int = 0
    """The planned time of a timer whose results this stores; there are no rows then. 0 for records."""
    tick_before: int = 0
    sends: OutboxWrite | None = None
    """What it adds to the outbox; None if it sends nothing."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


@dataclass(slots=True)
class Lock:
    """All data of one partition: lock hash, source stream, acked log, producer key."""

    owner: str = ""
    epoch: int = 0
    from_epoch: int = 0
    """The epoch at which its owner acquired it."""
    generation: int = 0
    wanted_since: int | None = None
    wanted_at: int = 0
    wanted_in: int = 0
    """The latest generation in which a contender waits."""
    checkpoint: int = 0
    log_id: str = "log"
    """Empty if the lock was lost; the next acquire creates it again."""
    log: list[Commit] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)
    last_event: int = 0
    last_number: int = 0
    requested: int = 0
    obeyed: int = 0
    is_paused: bool = False
    aside: tuple[int, ...] = ()
    """Ids of the records that an operator wants set aside."""
    dead: list[int] = field(default_factory=list)
    """Numbers of the records that were set aside."""
    tick: int = 0
    """The planned time up to which the partition's timer is done."""
    died_at: int | None = None
    """The checkpoint at which an owner died last; the model's owners name no record."""
    messages: list[Message] = field(default_factory=list)
    """The outbox."""
    last_message: str = ""
    """Id of the last message; empty if there was none."""
    positions: dict[Target, OutboxPosition] = field(default_factory=dict)
    """How far the history of each target has come."""


class Taken(NamedTuple):
    """What one target has taken of one partition."""

    position: OutboxPosition
    data: tuple[bytes, ...] = ()
    """The content of the messages."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


@dataclass(frozen=True, slots=True)
class LockChange:
    """A change of a lock's owner, epoch or generation, as an observer with MONITOR would see it."""

    partition: int
    command: str
    """``acquire`` or ``release``."""
    by: str
    owner_before: str
    owner: str
    epoch: int
    generation: int
    server_ms: int


@dataclass(slots=True)
class Stored:
    """All data that a restart without data loses."""

    locks: list[Lock]
    document: bytes | None = None
    foreign: str = ""
    """The type of the value in place of the document, if it is no string."""
    damaged: bytes | str | None = None
    """The value that a repair moved aside: a string, or the type of another value."""
    beats: dict[str, calls.Beat] = field(default_factory=dict)
    loads: dict[str, Mapping[int, int]] = field(default_factory=dict)
    no_beats: bool = False
    """Whether a list is in place of the heartbeats."""
    no_loads: bool = False
    """Whether a list is in place of the loads."""
    control: list[tuple[int, ControlMessage]] = field(default_factory=list)
    taken: dict[tuple[Target, int], Taken] = field(default_factory=dict)
    """By target and source. Another server may hold it than the rest."""
    is_declared: bool = True
    """Whether the server knows the number of partitions; each worker declares it at its start."""

    def present(self) -> list[str] | None:
        """Return the ids of the members that the document has as present; None if it cannot be parsed."""
        if self.document is None:
            return None if self.foreign else []
        try:
            fields = json.loads(self.document)
            ids = [each["id"] for each in fields["members"]]
            is_one = fields["v"] == FORMAT and len(set(ids)) == len(ids)
        except (ValueError, LookupError, TypeError):
            return None
        if not is_one or not all(isinstance(each, str) for each in ids):
            return None
        return [each["id"] for each in fields["members"] if each.get("state") != "held"]
