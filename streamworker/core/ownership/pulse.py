"""Whether this worker's own heartbeats get through, so that its peers consider it alive.

Peers may think a worker dead if its heartbeats are late, and give its partitions away. The server then
refuses the worker's commits, but its handlers' other effects have already happened, and happen again at the
next owner. So a worker starts no batch from the time when a peer might remove it until a heartbeat gets
through.

The time counts from when the worker sent its last successful heartbeat, which is before the server took it.
So the worker stops before any peer that counts from the server's time can have removed it.
"""

from streamworker.core.events import Effect, Note, PauseBatches, ResumeBatches

BEAT_RETRIES = 4
"""A heartbeat without an answer is sent again after this part of the interval. Peers call a member dead that
lost its connection and is silent for two intervals: with one retry per interval, a connection that breaks
just before a heartbeat would leave no margin."""


class Pulse:
    """The heartbeats of one membership.

    The last successful one may be ``limit_ms`` old: the shortest time after which peers remove a member.
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
        """Start counting: joining counts as a successful heartbeat."""
        self._sent_ms = now_ms

    def renewed(self, sent_ms: int, now_ms: int) -> list[Effect]:
        """Note that a heartbeat got through, which may have taken long."""
        self._sent_ms = sent_ms
        return self.end() if now_ms - sent_ms < self._limit_ms else []

    def check(self, now_ms: int) -> list[Effect]:
        """Pause batches when the last successful heartbeat is too old."""
        if self._is_paused or self._sent_ms is None or now_ms - self._sent_ms < self._limit_ms:
            return []
        self._is_paused = True
        return [PauseBatches(), Note("heartbeats_late", {"member": self._member})]

    def end(self) -> list[Effect]:
        """Resume batches if they are paused."""
        was_paused, self._is_paused = self._is_paused, False
        return [ResumeBatches()] if was_paused else []

    def next_deadline_ms(self) -> int | None:
        """Return when ``check`` has something to do next."""
        return None if self._is_paused or self._sent_ms is None else self._sent_ms + self._limit_ms
