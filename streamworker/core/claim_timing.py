"""The two time spans of the claim protocol: how often, and how long without a word."""

from dataclasses import dataclass

from streamworker.errors import ConfigurationError

CYCLES_IN_EXPIRY = 2
"""One cycle may fail without that its worker stops, or that anybody takes its partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTiming:
    """The document's x and y, in ms; see ``Settings`` for why they are what they are.

    Raises
    ------
    ConfigurationError
        If ``expiry_ms`` is less than two cycles.
    """

    cycle_ms: int = 1_000
    """x: a worker renews what it owns, and claims at most one partition more, once in this time."""
    expiry_ms: int = 10_000
    """y: an entry that was not changed for this long is nobody's."""

    def __post_init__(self) -> None:
        if self.cycle_ms < 1:
            raise ConfigurationError(
                f"The claim protocol's cycle_ms is {self.cycle_ms}.", remedy="It must be greater than 0."
            )
        least = CYCLES_IN_EXPIRY * self.cycle_ms
        if self.expiry_ms < least:
            raise ConfigurationError(
                f"The claim protocol's expiry_ms is {self.expiry_ms}, and must be >= {CYCLES_IN_EXPIRY} x "
                f"cycle_ms ({least}).",
                remedy=f"Raise expiry_ms to {least} or more, or lower cycle_ms.",
            )

    @property
    def pause_after_ms(self) -> int:
        """How long we may fail to renew before we start no batch: one cycle less than peers wait."""
        return self.expiry_ms - self.cycle_ms
