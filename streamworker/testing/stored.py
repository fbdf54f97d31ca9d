"""What the model of Redis holds for a group: locks, entries and logs, the document and heartbeats."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from streamworker.core import events as ev
from streamworker.core.control import ControlMessage
from streamworker.core.membership import FORMAT


class Code(Enum):
    """The answer to a commit."""

    OK = "ok"
    DUP = "dup"
    FENCED = "fenced"
    GAP = "gap"
    FULL = "full"


class Record(NamedTuple):
    """One source entry: its id, and which of its producer's entries it is."""

    id: int
    number: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Entries after ``previous`` up to ``new``: a request, and what then stands in the acked log."""

    owner: str
    epoch: int
    previous: int
    new: int
    rows: tuple[Record, ...] = ()


@dataclass(slots=True)
class Lock:
    """All that belongs to one partition: lock hash, source stream, acked log, producer key."""

    owner: str = ""
    epoch: int = 1_000
    generation: int = 0
    wanted_since: int | None = None
    wanted_at: int = 0
    wanted_in: int = 0
    """The latest generation in which somebody waits."""
    checkpoint: int = 0
    log_id: str = "log"
    """Empty: the lock was lost, and the next acquire makes it anew."""
    log: list[Commit] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)
    last_event: int = 0
    last_number: int = 0


@dataclass(frozen=True, slots=True)
class LockChange:
    """A lock has another owner, epoch or generation than before, as MONITOR would show it."""

    partition: int
    command: str
    """``acquire`` or ``release``."""
    by: str
    owner_before: str
    owner: str
    epoch: int
    generation: int


@dataclass(slots=True)
class Stored:
    """What is lost with the server's memory."""

    locks: list[Lock]
    document: bytes | None = None
    foreign: str = ""
    """The type of what stands in place of the document, where that is no string."""
    damaged: bytes | str | None = None
    """What was put aside: a string, or the type of something else."""
    beats: dict[str, ev.Beat] = field(default_factory=dict)
    loads: dict[str, Mapping[int, int]] = field(default_factory=dict)
    no_beats: bool = False
    """Whether a list stands in place of the heartbeats, or of the loads:"""
    no_loads: bool = False
    control: list[tuple[int, ControlMessage]] = field(default_factory=list)

    def present(self) -> list[str] | None:
        """Return whom the document has present; None where it cannot be read."""
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
