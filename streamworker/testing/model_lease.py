"""The operations of the lease protocol on plain values, as redisio's scripts do them.

The contract tests bring the same effects to this model and to real servers, and compare.
"""

from collections.abc import Callable

from streamworker.core.control import ControlMessage, LeaseChallenged, LeaseEnded
from streamworker.core.events import Effect, Event
from streamworker.core.lease_events import (
    Challenge,
    ChallengeLeases,
    LeaseRaced,
    LeasesChallenged,
    LeasesUpdated,
    RaceForLease,
    UpdateLeases,
)

Lease = tuple[int, str]
"""Generation of the win, and the node."""


class ModelLeases:
    """The two hashes of one group.

    Parameters
    ----------
    post
        Puts a message on the control stream.
    """

    def __init__(self, post: Callable[[ControlMessage], None]) -> None:
        self._post = post
        self.grab: dict[int, Lease] = {}
        self.allocation: dict[int, Lease] = {}
        self.last = 0
        """The newest generation."""

    def perform(self, effect: Effect, server_ms: int) -> Event | None:
        """Do an effect at a time of the server; None if it is not one of this protocol's."""
        match effect:
            case ChallengeLeases():
                return self._challenge(effect, server_ms)
            case RaceForLease():
                return self._race(effect, server_ms)
            case UpdateLeases():
                return self._update(effect, server_ms)
            case _:
                return None

    def flush(self) -> None:
        """Lose everything, as after FLUSHALL or a restart without data."""
        self.grab.clear()
        self.allocation.clear()
        self.last = 0

    def _challenge(self, effect: ChallengeLeases, server_ms: int) -> LeasesChallenged:
        signalled: list[int] = []
        for partition, how in effect.challenges.items():
            if how is Challenge.OVERDUE:
                self.grab.pop(partition, None)
                self.allocation.pop(partition, None)
            is_free = partition not in self.grab
            if how is Challenge.FREE:
                is_free &= partition not in self.allocation
            if is_free:
                signalled.append(partition)
        if signalled:
            self._post(LeaseChallenged(tuple(signalled), effect.owner, server_ms))
        return LeasesChallenged(tuple(effect.challenges), frozenset(signalled))

    def _race(self, effect: RaceForLease, server_ms: int) -> LeaseRaced:
        partition = effect.partition
        if partition not in self.grab:
            self.last = max(self.last + 1, server_ms)
            self.grab[partition] = (self.last, effect.owner)
        generation, winner = self.grab[partition]
        allocated = self.allocation.get(partition, (0, ""))[1]
        return LeaseRaced(partition, winner, generation, allocated)

    def _update(self, effect: UpdateLeases, server_ms: int) -> LeasesUpdated:
        for partition, generation in effect.allocate.items():
            if self.allocation.get(partition, (0, ""))[0] <= generation:
                self.allocation[partition] = (generation, effect.owner)
        for partition in effect.end:
            if self.allocation.get(partition, (0, ""))[1] == effect.owner:
                del self.allocation[partition]
        for partition, generation in effect.clear.items():
            if self.grab.get(partition) == (generation, effect.owner):
                del self.grab[partition]
        if effect.end:
            self._post(LeaseEnded(effect.end, effect.owner, server_ms))
        return LeasesUpdated(done=True)
