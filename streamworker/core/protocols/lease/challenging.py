"""Step 1 of the lease-grab race: when this node challenges which partition, and under which condition."""

from collections.abc import Collection, Iterable, Mapping

from streamworker.core.events import Effect
from streamworker.core.protocols.lease.events import Challenge, ChallengeLeases
from streamworker.core.protocols.lease.settings import Lease
from streamworker.core.protocols.lease.state import LeaseState
from streamworker.core.protocols.setup import Setup


class Challenger:
    """The challenges of one node: each partition is checked once per normal lease."""

    def __init__(self, owner: str, leases: Mapping[int, LeaseState], setup: Setup, timing: Lease) -> None:
        self._owner = owner
        self._leases = leases
        self._timing = timing
        self._retry_ms = setup.timing.acquire_retry_ms
        self._jitter = setup.jitter
        self.is_calling = False
        """Whether a challenge is under way."""
        self._check_ms: int | None = None
        """No partition is checked before this time."""

    def start(self, now_ms: int) -> None:
        """Check all partitions at once."""
        for lease in self._leases.values():
            self.begin(lease, now_ms)

    def begin(self, lease: LeaseState, now_ms: int) -> None:
        """Check a partition at once, and challenge it if it is in neither hash."""
        lease.heard_ms, lease.mode = now_ms, Challenge.FREE
        self._check_at(lease, now_ms)

    def heard(self, lease: LeaseState, now_ms: int) -> None:
        """Note that a node challenged a partition: its normal lease begins anew."""
        lease.heard_ms = now_ms
        self._check_later(lease, now_ms)

    def advance(self, mine: frozenset[int], now_ms: int) -> list[Effect]:
        """Challenge the partitions that are due; an owned partition is only checked again later."""
        due_ms = self.next_deadline_ms()
        if due_ms is None or due_ms > now_ms:
            return []
        due: dict[int, Challenge] = {}
        for partition, lease in self._leases.items():
            if lease.check_ms is None or lease.check_ms > now_ms:
                continue
            if partition in mine or lease.won or lease.racing or lease.raced_from_ms is not None:
                self._check_later(lease, now_ms)
            else:
                due[partition], lease.check_ms = lease.mode, None
        checks = (lease.check_ms for lease in self._leases.values() if lease.check_ms is not None)
        self._check_ms = min(checks, default=None)
        return [self._call(due)] if due else []

    def challenge(self, partitions: Iterable[int]) -> Effect:
        """Challenge partitions that this node had, so that no node waits for their leases to end."""
        return self._call(dict.fromkeys(sorted(partitions), Challenge.DUE))

    def _call(self, challenges: Mapping[int, Challenge]) -> Effect:
        self.is_calling = True
        return ChallengeLeases(self._owner, challenges)

    def answered(self, asked: Iterable[int], signalled: Collection[int] | None, now_ms: int) -> None:
        """Say when each partition is checked next, and how; there is no answer if ``signalled`` is None."""
        self.is_calling = False
        for partition in asked:
            lease = self._leases[partition]
            if signalled is None:
                self._check_at(lease, now_ms + self._retry_ms + self._jitter(self._retry_ms))
            elif lease.mode is Challenge.FREE:
                # Each partition has a lease of its own. Races for different partitions should not
                # overlap, since each race depends on the results of the others.
                lease.mode = Challenge.DUE
                self._check_at(lease, now_ms + self._retry_ms + self._jitter(self._timing.normal_ms))
            elif partition not in signalled:
                # A node won it, and has not started or has only just. A node that finds it so, and finds
                # it so again when the maximum lease has ended, calls it overdue. It never does when it
                # finds it so for the first time: it may only have been suspended and missed the signal.
                self._check_later(lease, now_ms)
                overdue_ms = max(lease.heard_ms + self._timing.max_ms, now_ms + self._retry_ms)
                if overdue_ms <= (lease.check_ms or 0):
                    lease.mode = Challenge.OVERDUE
                    self._check_at(lease, overdue_ms + self._jitter(self._retry_ms))
            else:
                self._check_later(lease, now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when ``advance`` has something to do next; None while a challenge is under way."""
        return None if self.is_calling else self._check_ms

    def _check_later(self, lease: LeaseState, now_ms: int) -> None:
        lease.mode = Challenge.DUE
        normal_ms = self._timing.normal_ms
        self._check_at(lease, now_ms + normal_ms + self._jitter(normal_ms // 8))

    def _check_at(self, lease: LeaseState, at_ms: int) -> None:
        if lease.is_dropped:
            return
        lease.check_ms = at_ms
        self._check_ms = at_ms if self._check_ms is None else min(self._check_ms, at_ms)
