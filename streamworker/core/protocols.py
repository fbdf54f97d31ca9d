"""The rebalance protocols behind one interface, and the table that names them.

A protocol is a pure object: ``handle(event, now_ms)`` returns effects, ``next_deadline_ms()`` says
when time itself is the next event. The runtime and the simulator drive any of them and name none.
A new one is a module with a core, operations for the effects that it brings (``redisio.operations``
and, for the simulator, ``testing.model``) and a line in ``PROTOCOLS``.

Whatever the protocol, ownership is a lock with an owner and an epoch, and commits are fenced by
both: a protocol decides who works where, never whether what was done is true.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from streamworker.core.balance import BalanceRules
from streamworker.core.claim import ClaimCore
from streamworker.core.claim_timing import ClaimTiming
from streamworker.core.events import Effect, Event
from streamworker.core.lease import LeaseCore
from streamworker.core.lease_timing import LeaseTiming
from streamworker.core.worker import Identity, Timing, WorkerCore
from streamworker.errors import ConfigurationError


class Coordinator(Protocol):
    """What drives a worker's part in one group."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event; return what is to be done, in this order."""

    def next_deadline_ms(self) -> int | None:
        """Return when to bring ``DeadlinePassed`` if nothing else happens before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every protocol is made from."""

    identity: Identity
    partitions: int
    assignment: str
    """Name of the assignment, where the protocol has one."""
    timing: Timing
    nonce: Callable[[], str]
    """Returns a text that is new each time; part of the owner's name."""
    jitter: Callable[[int], int]
    """Returns a number from 0 up to its argument, which is also how random choices are made."""
    lease: LeaseTiming = field(default_factory=LeaseTiming)
    """The time spans of the protocol ``lease``."""
    claim: ClaimTiming = field(default_factory=ClaimTiming)
    """The time spans of the protocol ``claim``."""
    balance: BalanceRules = field(default_factory=BalanceRules)
    """When load makes partitions move, under the assignment ``weighted``."""


def membership(setup: Setup) -> Coordinator:
    """Make the default protocol: a document of members, an assignment, locks."""
    return WorkerCore(
        setup.identity,
        partitions=setup.partitions,
        strategy=setup.assignment,
        timing=setup.timing,
        nonce=setup.nonce,
        jitter=setup.jitter,
        balance=setup.balance,
    )


def claim(setup: Setup) -> Coordinator:
    """Make the Event Processor's protocol: a store of ownership entries, one new claim a cycle."""
    return ClaimCore(
        f"{setup.identity.name}.{setup.nonce()}",
        name=setup.identity.name,
        partitions=setup.partitions,
        timing=setup.claim,
        grace_period_ms=setup.timing.grace_period_ms,
        retry_ms=setup.timing.acquire_retry_ms,
        jitter=setup.jitter,
    )


def lease(setup: Setup) -> Coordinator:
    """Make the lease-grab race: whoever has less to do takes a challenged partition."""
    return LeaseCore(
        f"{setup.identity.name}.{setup.nonce()}",
        partitions=setup.partitions,
        timing=setup.lease,
        grace_period_ms=setup.timing.grace_period_ms,
        retry_ms=setup.timing.acquire_retry_ms,
        jitter=setup.jitter,
    )


PROTOCOLS: dict[str, Callable[[Setup], Coordinator]] = {
    "membership": membership,
    "claim": claim,
    "lease": lease,
}


def make_coordinator(name: str, setup: Setup) -> Coordinator:
    """Make a worker's core by the name of its protocol.

    Raises
    ------
    ConfigurationError
        For a name that is not in the table.
    """
    make = PROTOCOLS.get(name)
    if make is None:
        raise ConfigurationError(
            f"There is no coordination {name!r}.", remedy=f"Use one of: {', '.join(sorted(PROTOCOLS))}."
        )
    return make(setup)
