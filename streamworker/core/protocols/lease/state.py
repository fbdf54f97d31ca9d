"""What a node knows of each partition's lease, and the updates that it has not yet sent to Redis."""

from collections.abc import Callable
from dataclasses import dataclass

from streamworker.core.events import Effect
from streamworker.core.protocols.lease.events import Challenge, UpdateLeases
from streamworker.errors import InternalError


@dataclass(slots=True)
class LeaseState:
    """What a node knows about one partition."""

    heard_ms: int
    """When it was last challenged, as far as the node knows."""
    check_ms: int | None
    """When the node next checks whether to challenge it; None while it asks."""
    mode: Challenge = Challenge.FREE
    raced_from_ms: int | None = None
    """When the node heard the challenge in which it still waits."""
    retry_ms: int = 0
    """The node does not try again to grab it before this time."""
    racing: bool = False
    """The node's try to grab it is under way."""
    ended_by: str = ""
    """The node that ended it since: the answer to the try may be older than that."""
    won: int = 0
    """Generation of this node's win, while it is in the grab hash."""
    generation: int = 0
    """Generation of the win by which this node owns it."""
    wait_for: str = ""
    wait_until_ms: int | None = None
    """The node that has to shut it down first, and until when this node waits for it at most."""
    clear_ms: int | None = None
    """When the node's win is removed from the grab hash."""
    is_dropped: bool = False
    """The group no longer works on it: it is neither challenged nor raced for."""


class Outbox:
    """A node's pending updates of the hashes: collected, sent in one call, sent again if unanswered.

    ``retry_ms`` returns the pause before a call is repeated.
    """

    def __init__(self, owner: str, retry_ms: Callable[[], int]) -> None:
        self.allocate: dict[int, int] = {}
        """The partitions that the node processes now, and the generations at which it won them."""
        self.end: set[int] = set()
        """The partitions that it no longer processes."""
        self.clear: dict[int, int] = {}
        """Wins that may be challenged."""
        self._owner = owner
        self._retry_ms = retry_ms
        self._update: UpdateLeases | None = None
        self._from_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether every update is sent and no call is under way."""
        return self._update is None and not (self.allocate or self.end or self.clear)

    def advance(self, now_ms: int) -> list[Effect]:
        """Send the pending updates, if no call is under way."""
        if self.is_empty or self._update is not None:
            return []
        if self._from_ms is not None and now_ms < self._from_ms:
            return []
        self._update = UpdateLeases(self._owner, self.allocate, tuple(sorted(self.end)), self.clear)
        self._from_ms, self.allocate, self.end, self.clear = None, {}, set(), {}
        return [self._update]

    def answered(self, now_ms: int, *, done: bool) -> None:
        """Handle the answer; without one, send the updates again, except for what has changed since."""
        if self._update is None:
            raise InternalError("An update of leases was answered that was not asked for.")
        update, self._update = self._update, None
        if done:
            return
        self._from_ms = now_ms + self._retry_ms()
        self.allocate = {p: g for p, g in update.allocate.items() if p not in self.end} | self.allocate
        self.end = self.end.union(p for p in update.end if p not in self.allocate)
        self.clear = dict(update.clear) | self.clear

    def next_deadline_ms(self) -> int | None:
        """Return when ``advance`` has something to do next."""
        return None if self._update is not None or self.is_empty else self._from_ms
