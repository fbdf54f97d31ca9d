"""The data of the live view, computed from two snapshots of a group.

This module is pure: it uses no terminal, clock or connection. A rate needs two values of a counter, so
two snapshots; all other data comes from the current one. A worker keeps its letter while it is a member.
"""

import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streamworker.core.snapshot import GroupSnapshot, MemberView, PartitionView, ReaderView, Rebalance

LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
"""Letters in the order in which workers get them; further workers are shown as ``SURPLUS``."""
SURPLUS = "#"
RATE_WINDOW = 6
"""Number of snapshots over which rates are computed: five seconds smooth out single batches."""


@dataclass(frozen=True, slots=True)
class Outage:
    """The last look failed: why, and how old the data on the screen is by the viewer's own clock."""

    problem: str
    data_age_ms: int


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One member, its letter, and the rate over the partitions that it owns."""

    letter: str
    member: MemberView
    per_s: float | None


@dataclass(frozen=True, slots=True)
class PartitionCell:
    """One partition, its workers' letters and its rate."""

    view: PartitionView
    owner: str
    """Letter of the worker that holds the lock; empty for none."""
    wanted: str
    """Letter of the worker that the assignment names; empty for none."""
    per_s: float | None
    """Records committed a second; None until two snapshots exist."""


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """One Spark query that reads the acked log."""

    view: ReaderView
    rows: int
    """Rows that it has read, over all partitions."""
    per_s: float | None


@dataclass(frozen=True, slots=True)
class Model:
    """The data of one frame."""

    snapshot: GroupSnapshot
    workers: tuple[WorkerRow, ...]
    """Every member, ordered by the time of joining."""
    cells: tuple[PartitionCell, ...]
    readers: tuple[ReaderRow, ...]
    committed_per_s: float | None
    arrived_per_s: float | None
    outage: Outage | None
    """None while looks succeed."""
    letters: Mapping[str, str]
    """Letter of each member id: pass it to the next call of :func:`rows`."""

    @property
    def standbys(self) -> tuple[WorkerRow, ...]:
        """Workers without a partition, which take over when another worker leaves or dies."""
        return tuple(worker for worker in self.workers if worker.member.state == "standby")

    @property
    def halted(self) -> tuple[PartitionView, ...]:
        """Partitions that stopped at a record because their processor failed on it."""
        return tuple(cell.view for cell in self.cells if cell.view.state == "halted")

    @property
    def rebalances(self) -> list[Rebalance]:
        """The changes of the membership, newest first."""
        return sorted(self.snapshot.rebalances, key=lambda change: change.at_ms, reverse=True)


def rows(
    previous: GroupSnapshot | None,
    current: GroupSnapshot,
    *,
    letters: Mapping[str, str] | None = None,
    outage: Outage | None = None,
) -> Model:
    """Compute the data of one frame from the snapshot to show.

    Rates need an earlier snapshot of the same group; a distance of a few seconds gives steady rates.
    ``letters`` are those of the last frame's model.
    """
    previous = previous or current  # Without one no time has passed, so there are no rates.
    elapsed_s = (current.taken_ms - previous.taken_ms) / 1000
    members = sorted(current.members, key=lambda member: (member.joined_ms, member.id))
    named = _letters(members, letters or {})
    views = sorted(current.partitions, key=lambda view: view.partition)
    known = [view for view in previous.partitions if view.state != "unknown"]
    committed = {view.partition: view.records for view in known}
    # Only a send increases the sum of committed records and lag.
    arrived = {view.partition: view.records + view.lag for view in known}
    read_before = {view.name: sum(view.positions.values()) for view in previous.readers}
    read = {view.name: sum(view.positions.values()) for view in current.readers}
    per_s = {view.partition: rate(committed.get(view.partition), view.records, elapsed_s) for view in views}
    return Model(
        snapshot=current,
        workers=tuple(
            WorkerRow(named[member.id], member, _total(per_s.get(p) for p in member.partitions))
            for member in members
        ),
        cells=tuple(
            PartitionCell(
                view,
                # An owner that is not a member any more holds the lock until another worker acquires it.
                owner=named.get(view.owner, "?") if view.owner else "",
                wanted=named.get(view.assigned, "?") if view.assigned else "",
                per_s=per_s[view.partition],
            )
            for view in views
        ),
        readers=tuple(
            ReaderRow(view, read[view.name], rate(read_before.get(view.name), read[view.name], elapsed_s))
            for view in sorted(current.readers, key=lambda view: view.name)
        ),
        committed_per_s=_total(per_s.values()),
        arrived_per_s=_total(
            rate(arrived.get(view.partition), view.records + view.lag, elapsed_s) for view in views
        ),
        outage=outage,
        letters=named,
    )


def _letters(members: list[MemberView], known: Mapping[str, str]) -> dict[str, str]:
    """Keep the letters of known members, and give each new member the first free letter."""
    kept = {member.id: known[member.id] for member in members if member.id in known}
    free = iter([letter for letter in LETTERS if letter not in kept.values()])
    return {member.id: kept.get(member.id) or next(free, SURPLUS) for member in members}


def rate(before: int | None, now: int, elapsed_s: float) -> float | None:
    """Return by how much a counter grew in a second; None if two values do not tell."""
    # A counter that fell belongs to a key that was deleted and created again: there is no rate then.
    if before is None or elapsed_s <= 0 or now < before:
        return None
    return (now - before) / elapsed_s


def _total(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
