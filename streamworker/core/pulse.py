"""Whether our own heartbeats get through: how we look to our peers.

A worker whose heartbeats are late may be thought dead, and its partitions given away. Whatever it
commits then is refused, but what its handlers did besides has happened, and happens again at the
next owner. So it starts no batch from when a peer might remove it until a heartbeat got through.

The time is counted from when the last good heartbeat was sent, which is before the server took it,
so that we stop before any peer that counts from then can have removed us.
"""

from streamworker.core.events import Effect, Note, PauseBatches, ResumeBatches

BEAT_RETRIES = 4
"""A heartbeat without an answer is sent again after this part of the interval. Peers call a member dead
that lost its connection and is silent for two intervals: with one retry an interval, a connection that
breaks just before a heartbeat would leave no margin at all."""


class Pulse:
    """The heartbeats of one membership.

    Parameters
    ----------
    member
        Whose they are.
    limit_ms
        How old the last good one may be: what it takes at least until peers remove a member.
    """

    def __init__(self, member: str, limit_ms: int) -> None:
        self._member = member
        self._limit_ms = limit_ms
        self._sent_ms: int | None = None
        self._is_paused = False

    @property
    def is_started(self) -> bool:
        """Whether heartbeats are sent for this member."""
        return self._sent_ms is not None

    def start(self, now_ms: int) -> None:
        """Begin with a good one: joining counts as a heartbeat."""
        self._sent_ms = now_ms

    def renewed(self, sent_ms: int, now_ms: int) -> list[Effect]:
        """Take a heartbeat that got through; it may have been on its way for long."""
        self._sent_ms = sent_ms
        return self.end() if now_ms - sent_ms < self._limit_ms else []

    def check(self, now_ms: int) -> list[Effect]:
        """Stop starting batches when it is time to."""
        if self._is_paused or self._sent_ms is None or now_ms - self._sent_ms < self._limit_ms:
            return []
        self._is_paused = True
        return [PauseBatches(), Note("heartbeats_late", {"member": self._member})]

    def end(self) -> list[Effect]:
        """Let batches start again, if they may not."""
        was_paused, self._is_paused = self._is_paused, False
        return [ResumeBatches()] if was_paused else []

    def next_deadline_ms(self) -> int | None:
        """Return when ``check`` has something to do next."""
        return None if self._is_paused or self._sent_ms is None else self._sent_ms + self._limit_ms
