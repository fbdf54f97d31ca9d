"""The five time spans of the lease-grab race, and the wait that decides it.

The author of the algorithm names what must hold between the spans in words; here it is checked
when they are made. The wait is what balances: the more a node has, the longer it waits, and the
more likely another one is first.

The author gives the wait twice, in words and as a formula, and the two differ by half a delay:

===========  ==========================  ============================
node         in words                    "basically", "in fewer words"
===========  ==========================  ============================
processes    (active - 1/2) * delay      (active - 1) * delay
does not     (active + 1) * delay        (active + 1/2) * delay
===========  ==========================  ============================

Either column works, and works the same: a partition moves only if that makes the load more even,
with half a delay of margin. To take one entry from each does not: with (active - 1/2) and
(active + 1/2), the owner of the only partition and a node without any wait equally long. We take
the formulas, which are half a delay faster.
"""

from collections.abc import Callable
from dataclasses import dataclass

from streamworker.errors import ConfigurationError

UNIT = 1_000
"""One partition's worth of load. Loads are whole numbers of thousandths of it."""

LoadMeasure = Callable[[frozenset[int]], int]
"""The load of some partitions, in thousandths of that of a usual one."""


def count_of_partitions(partitions: frozenset[int]) -> int:
    """Return the load of so many partitions that are all alike: the author's own measure."""
    return UNIT * len(partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """The five time spans, in ms; see ``Settings`` for why they are what they are.

    Raises
    ------
    ConfigurationError
        Naming the inequality that does not hold.
    """

    normal_lease_ms: int = 5_000
    """How long a partition is held, as a rule, before it is challenged."""
    max_lease_ms: int = 20_000
    """How long a challenge may remain undecided before it is cleared away."""
    max_shutdown_ms: int = 10_000
    """How long the winner waits for the former owner before it starts anyway."""
    min_grab_ms: int = 4_000
    """How long after its start a winner cannot be challenged."""
    held_delay_ms: int = 100
    """What each active partition adds to the wait."""

    def __post_init__(self) -> None:
        self._require("max_lease_ms", self.max_lease_ms, 2 * self.normal_lease_ms, "2 x normal_lease_ms")
        self._require("max_lease_ms", self.max_lease_ms, 2 * self.max_shutdown_ms, "2 x max_shutdown_ms")
        self._require("normal_lease_ms", self.normal_lease_ms, self.min_grab_ms + 1, "min_grab_ms + 1")
        self._require("min_grab_ms", self.min_grab_ms, 2 * self.held_delay_ms, "2 x held_delay_ms")
        self._require("held_delay_ms", self.held_delay_ms, 1, "1")

    def delay_step_ms(self, partitions: int) -> int:
        """Return the held delay for a stream of so many partitions.

        The longest wait of a race must be over before its winner can be challenged: a node that
        still waits then would win a race that is long decided. So the delay is shortened where
        one node could hold more than ``min_grab_ms / held_delay_ms`` partitions. The shorter it
        is, the sooner ordinary jitter decides.
        """
        return max(1, min(self.held_delay_ms, self.min_grab_ms // (partitions + 1)))

    @staticmethod
    def _require(name: str, mine: int, least: int, what: str) -> None:
        if mine < least:
            raise ConfigurationError(
                f"The lease protocol's {name} is {mine}, and must be >= {what} ({least}).",
                remedy=f"Raise {name} to {least} or more, or lower the other.",
            )


def race_delay_ms(load: int, delay_ms: int, *, is_processing: bool) -> int:
    """Return how long a node waits before it tries to take a challenged partition.

    Parameters
    ----------
    load
        What the node has to do, in thousandths of a partition: its active partitions, or another
        measure in their place.
    delay_ms
        The current leases held delay.
    is_processing
        Whether the node has the challenged partition itself.

    Examples
    --------
    >>> race_delay_ms(3 * UNIT, 100, is_processing=True)
    200
    >>> race_delay_ms(1 * UNIT, 100, is_processing=False)
    150
    """
    measure = load - UNIT if is_processing else load + UNIT // 2
    return max(0, measure * delay_ms // UNIT)
