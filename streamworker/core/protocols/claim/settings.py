"""The settings of the claim protocol: the cycle and the expiry of an entry."""

from dataclasses import dataclass
from typing import ClassVar

from streamworker.core.protocols.settings import Coordination
from streamworker.core.rules import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Coordination):
    """Workers claim partitions in a store of ownership entries, at most one more in a cycle.

    Examples
    --------
    >>> str(Claim(cycle_ms=500))
    'claim'
    """

    name: ClassVar[str] = "claim"
    RULES: ClassVar[tuple[Rule, ...]] = (
        # One cycle may fail without stopping its worker, and without another worker taking its partitions.
        Rule("claim_expiry_ms", ">=", 2, "claim_cycle_ms"),
        Rule("claim_expiry_ms", ">=", 3, "call_timeout_ms"),
    )

    cycle_ms: int = 1_000
    """A worker renews its claims, and claims at most one partition more, once in this time. The
    shorter, the sooner load is balanced, and the more calls: three or four a worker and cycle."""
    expiry_ms: int = 10_000
    """A claim that was not renewed for this long is nobody's: how long a worker may be slow, and how long
    a dead one is not noticed. One cycle or call may fail."""

    @property
    def pause_after_ms(self) -> int:
        """How long a worker may fail to renew before it pauses: one cycle less than its peers wait."""
        return self.expiry_ms - self.cycle_ms
