"""Chooses the partition that a worker claims next, if any: the balancing of the claim protocol.

With P partitions and N workers, each worker owns P / N or one more, and only P % N workers own one more. A
worker computes this by itself: N is the number of owners in the list, including itself.

The document says in one passage that a worker claims while it owns "<= P/N", and in another that "only P % N
hosts can own (P/N) + 1". The first rule alone lets three of four workers take 5 of 18 partitions, and leaves
3 for the last. This module keeps both rules: a worker that owns P / N takes one more only while fewer than P
% N workers own more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Choice:
    """A partition to claim."""

    partition: int
    victim: str
    """The owner that it is stolen from; empty if nobody owned it."""


def choose(active: range, owners: Mapping[int, str], me: str, jitter: Callable[[int], int]) -> Choice | None:
    """Return what ``me`` claims next; None if it has its share, or no partition can be claimed.

    ``active`` are the partitions that the group works on: all others count for nothing. ``owners`` has the
    owner by partition, without expired entries.

    >>> first = lambda most: 0
    >>> choose(range(5), {}, "a", first)
    Choice(partition=0, victim='')
    >>> choose(range(5), dict.fromkeys(range(5), "a"), "b", first)
    Choice(partition=0, victim='a')
    >>> choose(range(5), dict(enumerate("abcde")), "f", first) is None
    True
    >>> choose(range(5, 6), dict.fromkeys(range(5), "a"), "a", first)
    Choice(partition=5, victim='')
    """
    owners = {p: owner for p, owner in owners.items() if p in active}
    counts = {me: 0}
    for owner in owners.values():
        counts[owner] = counts.get(owner, 0) + 1
    mine = counts[me]
    least, more = divmod(len(active), len(counts))
    with_more = sum(1 for count in counts.values() if count > least)
    has_room = mine < least or (mine == least and with_more < more)
    unclaimed = [p for p in active if p not in owners]
    if unclaimed:
        return Choice(_any(unclaimed, jitter), "") if has_room else None
    most = max((count for owner, count in counts.items() if owner != me), default=0)
    # A worker below its share takes from the worker that owns most; at its share, only from one that owns
    # too many.
    if not has_room or most - mine < 2:
        return None
    victim = _any([owner for owner, count in sorted(counts.items()) if count == most and owner != me], jitter)
    return Choice(_any([p for p, owner in sorted(owners.items()) if owner == victim], jitter), victim)


def _any(choices: Sequence[T], jitter: Callable[[int], int]) -> T:
    return choices[jitter(len(choices) - 1)]
