"""The settings of the lease-grab race: its five time spans.

The author of the algorithm states in words which relations must hold between the spans; ``RULES`` has them.
"""

from dataclasses import dataclass
from typing import ClassVar

from streamworker.core.protocols.settings import Coordination
from streamworker.core.rules import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(Coordination):
    """Workers race for each partition, and a worker with less to do is faster.

    Examples
    --------
    >>> str(Lease(normal_ms=8_000))
    'lease'
    """

    name: ClassVar[str] = "lease"
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("lease_max_ms", ">=", 2, "lease_normal_ms"),
        Rule("lease_max_ms", ">=", 2, "lease_max_shutdown_ms"),
        Rule("lease_max_shutdown_ms", ">=", 1, "grace_period_ms"),
        Rule("lease_normal_ms", ">", 1, "lease_min_grab_ms"),
        Rule("lease_min_grab_ms", ">=", 2, "lease_held_delay_ms"),
    )

    normal_ms: int = 5_000
    """How long a partition is held, as a rule, before it is challenged: the pace at which load is
    balanced. Each challenge costs each worker one call."""
    max_ms: int = 20_000
    """How long a challenge may stay undecided before it is cleared away: a worker that died between
    winning and starting is noticed after this."""
    max_shutdown_ms: int = 10_000
    """How long the winner waits for the former owner's shutdown before it starts anyway; its lock then
    refuses the former owner's commits. A healthy owner is never overtaken."""
    min_grab_ms: int = 4_000
    """How long after its start a winner cannot be challenged. Less than the normal lease, and
    long enough for every worker's wait to be over."""
    held_delay_ms: int = 100
    """How much longer a worker waits for each partition that it has, before it tries to take a
    challenged one. If it is short, jitter decides instead of load; it is shortened for streams of more
    than ``lease_min_grab_ms / lease_held_delay_ms`` partitions."""

    def delay_step_ms(self, partitions: int) -> int:
        """Return the held delay for a stream of this many partitions.

        The longest wait of a race must end before the race's winner can be challenged. Otherwise a node that
        still waits would win a race that was decided long ago. So the delay is shorter if one node could hold
        more than ``min_grab_ms / held_delay_ms`` partitions. The shorter it is, the more often ordinary
        jitter decides.
        """
        return max(1, min(self.held_delay_ms, self.min_grab_ms // (partitions + 1)))
