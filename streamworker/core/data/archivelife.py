"""The life of an archive: what is wrong with a chain, which segments may go, and what it costs a day.

``data/archives.py`` has the footers and names.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from streamworker.core.data.archives import Footer
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.words import counted

DAY_MS = 86_400_000
LATE_INTERVALS = 3
"""How many times ``every`` the oldest record may wait before the archive counts as late."""

FaultKind = Literal[
    "identity", "missing", "overlap", "object", "count", "ids", "checkpoint", "records", "stray"
]


class Fault(NamedTuple):
    """Something that is wrong with an archive."""

    kind: FaultKind
    text: str
    partition: int | None = None
    """None if it concerns the whole archive."""

    @property
    def line(self) -> str:
        """It as one line."""
        return self.text if self.partition is None else f"Partition {self.partition}: {self.text}"


def faults_in(links: Sequence[Footer], partition: int) -> list[Fault]:
    """Return what is wrong with the footers of some segments, in the order of their names.

    >>> one = Footer(EntryId(0, 0), EntryId(1, 0), EntryId(5, 0), 2, 2, "", 0)
    >>> [fault.kind for fault in faults_in([one, one._replace(after=EntryId(7, 0), first=EntryId(8, 0),
    ...     last=EntryId(9, 0), total=4)], 0)]
    ['missing']
    """
    found: list[Fault] = []
    end: Footer | None = None
    for link in links:
        name = f"the segment after {link.after}"
        if not link.after < link.first <= link.last:
            text = f"{name} says that it goes from {link.first} to {link.last}."
            found.append(Fault("object", text, partition))
        if end is not None and link.after < end.last:
            text = f"{name} begins within the one after {end.after}, which goes to {end.last}."
            found.append(Fault("overlap", text, partition))
            continue
        if end is not None and link.after > end.last:
            text = f"there is no segment after {end.last}; the next one begins after {link.after}."
            found.append(Fault("missing", text, partition))
        elif end is not None and link.total < end.total + link.records + link.erased:
            has = counted(link.records + link.erased, "record")
            text = f"{name} has {has}, and the count goes from {end.total} to {link.total}."
            found.append(Fault("count", text, partition))
        end = link
    return found


def beyond_end(checkpoint: EntryId, end: EntryId | None, partition: int) -> Fault | None:
    """Return the fault of an archive that ends before what Redis takes for archived.

    >>> beyond_end(EntryId(5, 0), EntryId(4, 0), 0).kind, beyond_end(EntryId(5, 0), EntryId(5, 0), 0)
    ('checkpoint', None)
    """
    if checkpoint <= (end or ZERO):
        return None
    has = "has no segment" if end is None else f"ends with {end}"
    text = f"Redis takes all up to {checkpoint} for archived, and the archive {has}."
    return Fault("checkpoint", text, partition)


def expired(newest_ms: Sequence[int], before_ms: int) -> int:
    """Return how many segments may go from the old end, given the time of the last record of each, in order.

    The last segment stays: the name of the next one follows from it.

    >>> expired([10, 20, 30], 25), expired([10, 20], 25), expired([30, 10, 40], 25)
    (2, 1, 0)
    """
    old = 0
    while old < len(newest_ms) - 1 and newest_ms[old] < before_ms:
        old += 1
    return old


def objects_a_day(partitions: int, every_ms: int) -> int:
    """Return how many segments a day some partitions write that always have records and never fill ``size``.

    >>> objects_a_day(16, 600_000)
    2304
    """
    return partitions * -(-DAY_MS // every_ms)


def is_late(waits_ms: int, every_ms: int, after_ms: int) -> bool:
    """Return whether the oldest record that is not archived has waited for too long."""
    return waits_ms > LATE_INTERVALS * every_ms + after_ms
