"""The wait that decides the lease-grab race.

The wait is what balances: the more a node has, the longer it waits, and the more likely another node is
first.

The author gives the wait twice, in words and as a formula, and the two differ by half a delay:

===========  ==========================  ============================
node         in words                    "basically", "in fewer words"
===========  ==========================  ============================
processes    (active - 1/2) * delay      (active - 1) * delay
does not     (active + 1) * delay        (active + 1/2) * delay
===========  ==========================  ============================

Each column works, and both work the same: a partition moves only if that makes the load more even, with half
a delay of margin. One entry from each column does not work: with (active - 1/2) and (active + 1/2), the owner
of the only partition and a node without any wait equally long. This module uses the formulas, which are half
a delay faster.
"""

from collections.abc import Callable

UNIT = 1_000
"""The load of one partition. Loads are whole numbers of thousandths of it."""

LoadMeasure = Callable[[frozenset[int]], int]
"""The load of some partitions, in thousandths of that of an ordinary one."""


def count_of_partitions(partitions: frozenset[int]) -> int:
    """Return the load of some partitions that are all alike: the author's own measure."""
    return UNIT * len(partitions)


def race_delay_ms(load: int, delay_ms: int, *, is_processing: bool) -> int:
    """Return how long a node with this load waits before it tries to take a challenged partition.

    The load is in thousandths of a partition, and ``is_processing`` says whether the node has the challenged
    one.

    >>> race_delay_ms(3 * UNIT, 100, is_processing=True)
    200
    >>> race_delay_ms(1 * UNIT, 100, is_processing=False)
    150
    """
    measure = load - UNIT if is_processing else load + UNIT // 2
    return max(0, measure * delay_ms // UNIT)
