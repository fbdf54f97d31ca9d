"""The weights of partitions and the capacities of members: the figures for a weighted assignment.

A **weight** is the load of a partition on its owner, in thousandths of the time of a worker of capacity 1
(``load``). A member's **level** is the sum of its weights per unit of its capacity: two members are balanced
when their levels are equal. All figures are whole numbers, so that every machine computes the same result.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

LEVEL = 1_000
"""Levels are counted in this fraction of a weight per unit of capacity."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The known weights of a group's partitions and capacities of its members.

    >>> weights = Weights((300, 0, 100), {"strong": 2})
    >>> weights.known()
    (300, 200, 100)
    >>> weights.capacity("strong"), weights.capacity("other")
    (2, 1)
    """

    partitions: tuple[int, ...] = ()
    """The weight by partition; 0 if it is unknown, and empty if none is known."""
    capacities: Mapping[str, int] = field(default_factory=dict)
    """The capacity by member; a member that is not named has 1."""

    def capacity(self, member: str) -> int:
        """Return a member's capacity, relative to the other members."""
        return self.capacities.get(member, 1)

    def known(self, count: int | None = None) -> tuple[int, ...]:
        """Return the weights, with the mean of the known ones in place of an unknown one."""
        weights = self.partitions or (0,) * (count or 0)
        known = [weight for weight in weights if weight]
        mean = max(1, sum(known) // len(known)) if known else 1
        return tuple(weight or mean for weight in weights)


class Scales:
    """Members with their partitions, and their levels, which change as partitions move.

    Among equal members, the methods choose the earlier one. A partition of an owner that is no member is
    free.
    """

    def __init__(self, members: Sequence[str], owners: Sequence[str | None], weights: Weights) -> None:
        self.members = tuple(members)
        self.weight = weights.known(len(owners))
        self.load = dict.fromkeys(members, 0)
        self.capacity = {member: weights.capacity(member) for member in members}
        self._had: dict[str, list[tuple[int, int]]] = {member: [] for member in members}
        self.free: list[int] = []
        """Partitions without an owner."""
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
        """Return a member's level, as it is or with ``more`` additional load."""
        return (self.load[member] + more) * LEVEL // self.capacity[member]

    def mean(self, members: Iterable[str]) -> int:
        """Return the level that some members would all have if load could be split at will."""
        chosen = tuple(members)
        return sum(self.load[m] for m in chosen) * LEVEL // sum(self.capacity[m] for m in chosen)

    def heaviest(self, member: str, most: int) -> int | None:
        """Return a member's heaviest partition that weighs at most ``most``."""
        had = self._had[member]
        index = bisect_right(had, (most, 0))
        return -had[index - 1][1] if index else None

    def sum_up_to(self, member: str, most: int) -> int:
        """Return the total weight of a member's partitions that weigh at most ``most`` each."""
        had = self._had[member]
        return sum(weight for weight, _ in had[: bisect_right(had, (most, 0))])

    def lightest(self, member: str) -> int | None:
        """Return a member's lightest partition."""
        had = self._had[member]
        return -had[0][1] if had else None

    def taker(self, weight: int, members: Iterable[str]) -> str:
        """Return the member with the lowest level after adding ``weight``; the first of equals."""
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
        """Return the current owner of each partition."""
        owners: list[str | None] = [None] * len(self.weight)
        for member, had in self._had.items():
            for _, negative in had:
                owners[-negative] = member
        return tuple(owners)
