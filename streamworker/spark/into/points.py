"""Where a partition stands within the rows that one pipeline sends to a stream.

A **point** is a batch, the nonce of its decision, and how many rows of the batch the partition has taken. The
partition keeps it as its mark of this source (``forward.lua``). A nonce is drawn when a batch is decided, and
decided rows never change: so a point names the same rows for ever, though the program may encode them
otherwise or cut them into other chunks. What another checkpoint directory decided has other nonces.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from streamworker.errors import DataLoss

START = "0-"
"""Where a partition stands that has taken nothing; ``forward.lua`` says it."""
NONCE = 16
"""Hexadecimal digits of a nonce."""

Stands = Mapping[int, str]
"""By partition, the text of a point; a partition that is not there stands at the start."""


class Point(NamedTuple):
    """How far one partition is within one batch."""

    batch: int
    nonce: str
    rows: int
    """Rows of the batch that the partition has taken."""

    @property
    def text(self) -> str:
        """The mark that the partition keeps.

        >>> Point(7, "0123456789abcdef", 300).text
        '7-0123456789abcdef12c'
        >>> Point.parse(Point(7, "0123456789abcdef", 300).text)
        Point(batch=7, nonce='0123456789abcdef', rows=300)
        """
        return f"{self.batch}-{self.nonce}{self.rows:x}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a mark; None for the start, and for what is no point."""
        batch, _, rest = text.partition("-")
        try:
            return cls(int(batch), rest[:NONCE], int(rest[NONCE:], 16))
        except ValueError:
            return None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the rows of a batch are, and where they go."""

    batch: int
    nonce: str
    counts: tuple[int, ...]
    """The stream's map, by which the rows were routed first."""
    begins: Stands
    """Where each partition stood before the batch."""
    at_ms: int
    """When it was decided, by the clock of the driver."""

    @property
    def rows(self) -> str:
        """The name of the folder with the rows."""
        return rows_of(self.batch, self.nonce)

    def begin(self, partition: int) -> str:
        """Return where a partition stood; one that the stream did not have yet stood at the start."""
        return self.begins.get(partition, START)

    def point(self, rows: int) -> str:
        """Return where a partition stands once it has taken so many rows."""
        return Point(self.batch, self.nonce, rows).text

    def taken(self, stands: str) -> int | None:
        """Return how many rows a partition that stands there has taken; None if it has begun none."""
        point = Point.parse(stands)
        return point.rows if point is not None and point.nonce == self.nonce else None

    def dumped(self) -> bytes:
        """Return the decision as it is stored."""
        return json.dumps(vars(self)).encode()

    @classmethod
    def load(cls, stored: bytes) -> Self:
        """Read a stored decision."""
        fields = json.loads(stored)
        begins = {int(partition): text for partition, text in fields["begins"].items()}
        return cls(**{**fields, "counts": tuple(fields["counts"]), "begins": begins})


def rows_of(batch: int, nonce: str) -> str:
    """Return the name of a folder of rows."""
    return f"{batch:06d}-{nonce}"


def located(decisions: Sequence[Decision], partition: int, stands: str) -> int | None:
    """Return which of some decisions, in order, a partition is at: it has all rows of those before.

    None if it stands at no point of theirs.

    >>> first = Decision(batch=0, nonce="a" * 16, counts=(1,), begins={}, at_ms=0)
    >>> then = Decision(batch=1, nonce="b" * 16, counts=(1,), begins={0: first.point(5)}, at_ms=0)
    >>> [located([first, then], 0, text) for text in (START, first.point(2), first.point(5), then.point(1))]
    [0, 0, 1, 1]
    >>> located([then], 0, first.point(2)) is None
    True
    """
    for index in reversed(range(len(decisions))):
        decision = decisions[index]
        if stands == decision.begin(partition) or decision.taken(stands) is not None:
            return index
    return None


def lost(stream: str, partition: int, stands: str, oldest: Decision, newest: Decision) -> DataLoss:
    """Return the error for a partition that stands at no point that the checkpoint directory knows."""
    point = Point.parse(stands)
    has_gone_back = stands == START or (point is not None and point.batch < oldest.batch)
    why = (
        "The stream was deleted, was put back, or lost more in a failover than the checkpoint directory keeps"
        if has_gone_back
        else "Another checkpoint directory has sent rows under the same name: this one was lost, or is a copy"
    )
    return DataLoss(
        f"Partition {partition} of stream {stream!r} stands at {stands}, and batch {newest.batch} of the "
        f"pipeline begins at {newest.begin(partition)}; the oldest batch that is kept, {oldest.batch}, at "
        f"{oldest.begin(partition)}. {why}.",
        remedy="Nothing was sent. Restore what was lost; or give the pipeline a new name, with "
        "startingOffsets for the rows that it is to send.",
    )
