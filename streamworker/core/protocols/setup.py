"""What every protocol's core is made of: its phases, who the worker is, its time spans and settings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from streamworker.core.protocols.membership.settings import BalanceRules
from streamworker.core.protocols.settings import Coordination


class Phase(Enum):
    """The state of a worker's part in its group."""

    NEW = "new"
    JOINING = "joining"
    """Only a group with a document is joined; elsewhere a worker is active at once."""
    ACTIVE = "active"
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Identity:
    """How a worker appears to others."""

    name: str
    host: str
    pid: int
    static_id: str = ""
    """The id under which the worker returns after a restart; empty if its membership is not held."""
    capacity: int = 1
    """How much load it can carry, relative to the other workers of its group."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The time spans of the protocols; ``Settings`` gives the reasons for the values."""

    heartbeat_interval_ms: int = 1_000
    dead_after_ms: int = 2_000
    session_timeout_ms: int = 10_000
    slow_after_ms: int = 30_000
    grace_period_ms: int = 8_000
    acquire_retry_ms: int = 200
    hold_ms: int = 30_000
    founding_pause_ms: int = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The inputs from which every protocol's core is made."""

    coordination: Coordination
    """The protocol, with its own settings."""
    identity: Identity
    partitions: int
    """How many the stream has when the worker starts, in all generations."""
    assignment: str
    """Name of the assignment, if the protocol has one."""
    timing: Timing
    nonce: Callable[[], str]
    """Returns a new text on each call, which becomes part of the owner's name."""
    jitter: Callable[[int], int]
    """Returns a number from 0 up to its argument; random choices use it too."""
    balance: BalanceRules = field(default_factory=BalanceRules)
    """The rules for moving partitions by load, under the assignment ``weighted``."""
    first: int = 0
    """The first partition that the group works on when the worker starts; see ``PartitionsSeen``."""

    def new_owner(self) -> str:
        """Return a name for locks, which no earlier membership of the worker had."""
        return f"{self.identity.name}.{self.nonce()}"

    def retry_ms(self) -> int:
        """Return the pause before a call is repeated that was refused or got no answer."""
        pause_ms = self.timing.acquire_retry_ms
        return pause_ms + self.jitter(pause_ms // 4)
