"""The operations of the lease protocol on plain values; they follow redisio's scripts."""

from streamworker.core.events import Effect, Event
from streamworker.core.protocols.lease import events as calls
from streamworker.core.protocols.lease.events import Challenge, LeaseChallenged, LeaseEnded
from tests.simulator.server.documents import Documents

Win = tuple[int, str]
"""Generation of the win, and the node."""


class ModelLeases:
    """The two hashes of one group."""

    def __init__(self) -> None:
        self.grab: dict[int, Win] = {}
        self.allocation: dict[int, Win] = {}
        self.last = 0
        """The latest generation."""

    def perform(self, server: Documents, effect: Effect, server_ms: int) -> Event | None:
        """Perform an effect at a server time; return None if the effect is not the protocol's."""
        match effect:
            case calls.ChallengeLeases():
                return self._challenge(server, effect, server_ms)
            case calls.RaceForLease():
                return self._race(effect, server_ms)
            case calls.UpdateLeases():
                return self._update(server, effect, server_ms)
        return None

    def _challenge(
        self, server: Documents, effect: calls.ChallengeLeases, server_ms: int
    ) -> calls.LeasesChallenged:
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
            server.post(LeaseChallenged(tuple(signalled), effect.owner, server_ms))
        return calls.LeasesChallenged(tuple(effect.challenges), frozenset(signalled))

    def _race(self, effect: calls.RaceForLease, server_ms: int) -> calls.LeaseRaced:
        partition = effect.partition
        if partition not in self.grab:
            self.last = max(self.last + 1, server_ms)
            self.grab[partition] = (self.last, effect.owner)
        generation, winner = self.grab[partition]
        allocated = self.allocation.get(partition, (0, ""))[1]
        return calls.LeaseRaced(partition, winner, generation, allocated)

    def _update(self, server: Documents, effect: calls.UpdateLeases, server_ms: int) -> calls.LeasesUpdated:
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
            server.post(LeaseEnded(effect.end, effect.owner, server_ms))
        return calls.LeasesUpdated()
