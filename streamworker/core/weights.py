"""How heavy partitions are and what members can carry: the figures under a weighted assignment.

A **weight** is what a partition asks of its owner, in thousandths of the time of a worker of
capacity 1 (``load``). A member's **level** is the sum of its weights for each unit of its
capacity: two members are balanced when they stand at the same level. All are whole numbers, so
that every machine works out the same.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

LEVEL = 1_000
"""Levels are counted in this part of a weight for each unit of capacity."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What is known of a group's partitions and members.

    Examples
    --------
    >>> weights = Weights((300, 0, 100), {"strong": 2})
    >>> weights.known()
    (300, 200, 100)
    >>> weights.capacity("strong"), weights.capacity("other")
    (2, 1)
    """

    partitions: tuple[int, ...] = ()
    """By partition; 0 where it is not known, and empty where none is."""
    capacities: Mapping[str, int] = field(default_factory=dict)
    """A member that is not named has 1."""

    def capacity(self, member: str) -> int:
        """Return what a member can carry, beside others."""
        return self.capacities.get(member, 1)

    def known(self, count: int | None = None) -> tuple[int, ...]:
        """Return the weights with the mean of the known ones where one is not known."""
        weights = self.partitions or (0,) * (count or 0)
        known = [weight for weight in weights if weight]
        mean = max(1, sum(known) // len(known)) if known else 1
        return tuple(weight or mean for weight in weights)


class Scales:
    """Members with their partitions, and the levels that follow as partitions are moved.

    Parameters
    ----------
    members
        In join order: among equals the earlier one is meant.
    owners
        Partition to member; a partition of anybody else is nobody's.
    weights
        As many as there are owners, or none.
    """

    def __init__(self, members: Sequence[str], owners: Sequence[str | None], weights: Weights) -> None:
        self.members = tuple(members)
        self.weight = weights.known(len(owners))
        self.load = dict.fromkeys(members, 0)
        self.capacity = {member: weights.capacity(member) for member in members}
        self._had: dict[str, list[tuple[int, int]]] = {member: [] for member in members}
        self.free: list[int] = []
        """Partitions that are nobody's."""
        for partition, owner in enumerate(owners):
            if owner in self.load:
                self.load[owner] += self.weight[partition]
                self._had[owner].append((self.weight[partition], -partition))
            else:
                self.free.append(partition)
        for had in self._had.values():
            had.sort()

    def has(self, member: str) -> int:
        """Return how many partitions a member has."""
        return len(self._had[member])

    def level(self, member: str, more: int = 0) -> int:
        """Return a member's level, as it is or with so much more load."""
        return (self.load[member] + more) * LEVEL // self.capacity[member]

    def mean(self, members: Iterable[str]) -> int:
        """Return the level at which some members would all stand if load could be split at will."""
        chosen = tuple(members)
        return sum(self.load[m] for m in chosen) * LEVEL // sum(self.capacity[m] for m in chosen)

    def heaviest(self, member: str, most: int) -> int | None:
        """Return a member's heaviest partition of ``most`` weight or less."""
        had = self._had[member]
        place = bisect_right(had, (most, 0))
        return -had[place - 1][1] if place else None

    def sum_up_to(self, member: str, most: int) -> int:
        """Return what a member's partitions of ``most`` weight or less weigh together."""
        had = self._had[member]
        return sum(weight for weight, _ in had[: bisect_right(had, (most, 0))])

    def lightest(self, member: str) -> int | None:
        """Return a member's lightest partition."""
        had = self._had[member]
        return -had[0][1] if had else None

    def taker(self, weight: int, members: Iterable[str]) -> str:
        """Return who stands lowest with so much more; the first of equals."""
        return min(members, key=lambda member: self.level(member, weight))

    def move(self, partition: int, giver: str | None, taker: str) -> None:
        """Give a partition to another member."""
        weight = self.weight[partition]
        if giver is not None:
            self.load[giver] -= weight
            self._had[giver].remove((weight, -partition))
        self.load[taker] += weight
        insort(self._had[taker], (weight, -partition))

    def owners(self) -> tuple[str | None, ...]:
        """Return who has each partition now."""
        owners: list[str | None] = [None] * len(self.weight)
        for member, had in self._had.items():
            for _, negative in had:
                owners[-negative] = member
        return tuple(owners)
