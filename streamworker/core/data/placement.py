"""Which partitions a stream has, and which of them has a key.

A stream begins with one *generation* of partitions. A stream that grows gets a further one: the partitions it
had take nothing more, and the new ones are numbered behind them. ``8+12`` means partitions 0 to 7, which are
old, and 8 to 19, which are *active*. A key is in one partition of each generation.

The rule, which a program in any language can follow, is that of slots on a line. With ``first`` partitions in
the first generation the line has ``first * width`` slots, ``width`` being the larger of 16 and 65,536 divided
by ``first``, rounded up. ``crc32(key) mod slots`` is a key's slot. Slots that are equal modulo ``first`` are
neighbours on the line, so that the first generation is ``crc32(key) mod first``. Each further generation cuts
the line into equal ranges.

So a partition has one or two *parents*, the partitions of the generation before that share keys with it, and
they have lower numbers. Parents never change, since no partition of an old generation takes anything.
"""

import zlib
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

SLOTS_MIN = 65_536
WIDTH_MIN = 16


class Placement:
    """The partitions of one stream, generation after generation.

    >>> grown = Placement(8, 12)
    >>> grown.partition_of(b"ann"), grown.active, grown.parents_of(9), str(grown)
    (13, range(8, 20), (0, 1), '8+12')
    """

    def __init__(self, *counts: int) -> None:
        self.counts = counts
        """How many partitions each generation has."""
        self.live = counts[-1]
        """How many partitions take records."""
        self.total = sum(counts)
        self.base = self.total - self.live
        """Number of the first partition that takes records; 0 for a stream that never grew."""
        self.active = range(self.base, self.total)
        self.all = range(self.total)
        self._slots = counts[0] * max(WIDTH_MIN, -(-SLOTS_MIN // counts[0]))

    def __str__(self) -> str:
        return "+".join(map(str, self.counts))

    def partition_of(self, key: bytes) -> int:
        """Return the partition of a canonical key.

        >>> Placement(16).partition_of(b"ann")
        3
        """
        crc = zlib.crc32(key)
        return self._active_of[crc % self._slots] if self.base else crc % self.live

    def partitions_of_texts(self, keys: Sequence[Any]) -> list[int] | None:
        """Return the partition of each key, if all are text that UTF-8 can hold; else None.

        This takes a third of the time of ``canonical_key`` and :meth:`partition_of` for each.

        >>> Placement(16).partitions_of_texts(["ann", "bob"]), Placement(16).partitions_of_texts(["ann", 7])
        ([3, 0], None)
        """
        if set(map(type, keys)) != {str}:
            return None
        try:
            if self.live == 1:
                "".join(keys).encode()
                return [self.base] * len(keys)
            crcs = map(zlib.crc32, map(str.encode, keys))
            if not self.base:
                live = self.live
                return [crc % live for crc in crcs]
            active_of, slots = self._active_of, self._slots
            return [active_of[crc % slots] for crc in crcs]
        except UnicodeEncodeError:
            return None

    @cached_property
    def _active_of(self) -> list[int]:
        """The active partition of each slot."""
        first, width = self.counts[0], self._slots // self.counts[0]
        return [
            self.base + (slot % first * width + slot // first) * self.live // self._slots
            for slot in range(self._slots)
        ]

    # -- generations ---------------------------------------------------------------------------

    def parents_of(self, partition: int) -> tuple[int, ...]:
        """Return the one or two partitions of the generation before that share keys with a partition."""
        return self._parents[partition]

    def ancestors_of(self, partition: int) -> frozenset[int]:
        """Return the parents of a partition, their parents, and so on."""
        parents = self.parents_of(partition)
        return frozenset(parents).union(*map(self.ancestors_of, parents))

    @cached_property
    def _parents(self) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = [()] * self.counts[0]
        for base, (older, newer) in zip((0, *accumulate(self.counts)), pairwise(self.counts), strict=False):
            old = self._begins(older)
            for low, high in pairwise(self._begins(newer)):
                its = range(bisect_right(old, low) - 1, bisect_right(old, high - 1))
                found.append(tuple(base + parent for parent in its))
        return found

    def _begins(self, count: int) -> list[int]:
        """Return where on the line each partition of a generation begins, and the end of the line."""
        return [-(-self._slots * partition // count) for partition in range(count + 1)]
