"""Figures of a group's change, computed from its commits and locks. Pure.

A commit shows which worker wrote an entry of an acked log, and when; a lock shows when it was acquired.
All times are the server's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of an acked log."""

    at_ms: int
    first_ms: int
    """When its first record was sent."""
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Held:
    """A partition's lock at one moment."""

    owner: str
    """Name of the worker; empty if it is free."""
    epoch: int
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a group, and its cost."""

    what: str
    """``join``, ``leave`` or ``death``."""
    protocol: str
    workers: int
    """Number of workers before the change."""
    partitions: int
    moves: int
    """Number of lock acquisitions."""
    least: int
    """The fewest moves after which the shares differ by at most one."""
    spread: int
    """Difference between the largest and the smallest share at the end."""
    balance_ms: int | None
    """Time until the last lock was acquired; None if there was no balance in time."""
    handover_p50_ms: int | None
    handover_p99_ms: int | None
    """Time from the message about the change to the acquisition of a moved partition's lock; None without
    such messages."""
    pause_moved_ms: int | None
    """The longest time in which records of a moved partition waited and none was committed."""
    pause_unmoved_ms: int | None
    """The same for partitions that did not move."""
    pause_before_ms: int | None
    """The same for all partitions before the change: the pauses that this machine causes itself."""
    commands: int | None = None
    """Commands of all workers until there was balance, without those that idle workers send."""


def least_moves(before: Iterable[str], live: Sequence[str]) -> int:
    """Return the fewest moves after which the shares of the live workers differ by at most one.

    Examples
    --------
    >>> least_moves(["a", "a", "a", "b", "b", "b"], ["a", "b", "c"])
    2
    """
    owners = list(before)
    sizes = Counter(owner for owner in owners if owner in set(live))
    share, larger = divmod(len(owners), len(live))
    kept = 0
    for rank, worker in enumerate(sorted(live, key=lambda each: -sizes[each])):
        kept += min(sizes[worker], share + (rank < larger))
    return len(owners) - kept


def spread(owners: Iterable[str], live: Sequence[str]) -> int:
    """Return the difference between the largest and the smallest share."""
    sizes = Counter(owners)
    return max(sizes[each] for each in live) - min(sizes[each] for each in live)


def longest_pause_ms(commits: Sequence[Commit], since_ms: int, until_ms: int) -> int:
    """Return the longest time in a window in which records waited and none was committed.

    Examples
    --------
    >>> commits = [Commit(100, 95, "a", 1), Commit(400, 200, "b", 2), Commit(405, 300, "b", 2)]
    >>> longest_pause_ms(commits, 100, 500)
    200
    """
    longest = 0
    for before, after in pairwise(commits):
        if since_ms < after.at_ms <= until_ms:
            longest = max(longest, after.at_ms - max(before.at_ms, after.first_ms))
    return longest


def longest_of(
    commits: Mapping[int, Sequence[Commit]], partitions: Iterable[int], since_ms: int, until_ms: int
) -> int | None:
    """Return the longest pause of some partitions; None if they have no commits."""
    pauses = [longest_pause_ms(commits[p], since_ms, until_ms) for p in partitions if commits.get(p)]
    return max(pauses, default=None)


def all_committed_ms(commits: Mapping[int, Sequence[Commit]], since_ms: int) -> int | None:
    """Return when the last partition got its first commit since a time; None if one has none yet.

    Examples
    --------
    >>> commits = {0: [Commit(100, 95, "a", 1), Commit(400, 200, "b", 2)], 1: [Commit(310, 305, "a", 1)]}
    >>> all_committed_ms(commits, 300), all_committed_ms(commits, 350)
    (400, None)
    """
    firsts = [next((each.at_ms for each in log if each.at_ms >= since_ms), None) for log in commits.values()]
    found = [at_ms for at_ms in firsts if at_ms is not None]
    return max(found, default=None) if len(found) == len(firsts) else None


def percentile(values: Sequence[int], percent: int) -> int | None:
    """Return a percentile of the values; None if there are none.

    Examples
    --------
    >>> percentile([5, 1, 9], 50)
    5
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else None
