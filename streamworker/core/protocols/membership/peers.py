"""Decides which members are dead, and which are only slow.

A member that stopped sending heartbeats may have been killed, or may run on a machine so busy that its
heartbeats are late. Removing a killed member is right. Removing a slow one makes everything worse, since its
load moves to other members, which then get slow as well (the warning at the head of the lease-grab race,
seeds/000). From outside the two differ in one thing only: a dead process has no connection. So each heartbeat
carries the client id of its connection, and a silent member is judged by whether the server still has that
connection:

=====================================  ==========================================
the member's connection                the member is removed after
=====================================  ==========================================
is closed                              ``dead_after_ms``
is open                                ``slow_after_ms``
cannot be looked up, or was made to    ``session_timeout_ms``
the server before its last restart
=====================================  ==========================================

A worker measures silence by its own heartbeats: a peer has been silent for the time in which this worker's
heartbeats got through and the peer's last heartbeat did not change. When the worker first sees a peer's
latest heartbeat, that heartbeat is already some time old by the server's clock. This age counts too, but at
most as much of it as has passed by the worker's own clock since the previous answer. So a worker's own sleep
does not count against others: a worker that wakes after a minute, or is the first to find the server again
after an outage, counts none of that time, and every peer has ``dead_after_ms`` from then on to send a
heartbeat.

A peer's limit may be reached between two of this worker's heartbeats. The worker then sends a heartbeat at
that time instead of waiting for the next one. Otherwise a dead worker's partitions would stay unhandled for
half an interval more, on average.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamworker.core.events import Effect
from streamworker.core.protocols.membership.events import Beat, SendHeartbeat
from streamworker.core.protocols.setup import Timing

AHEAD_MAX = 8
"""Peers with this many or more members before them all wait equally long, and send no heartbeat early.
Otherwise one slow peer would make the heartbeats of a large group coincide."""
SOON = 0.9
"""A limit that is reached after more than this part of the interval waits for the heartbeat that is due then.
A peer whose heartbeats arrive just after this worker's is now and then unchanged in an answer, and would
otherwise delay the removal of a dead one."""


@dataclass(slots=True)
class _Silence:
    beat: Beat | None
    silent_ms: int = 0


class PeerWatch:
    """Counts the silence of each peer, and says which peers to probe and which to remove."""

    def __init__(self, timing: Timing) -> None:
        self._interval_ms = timing.heartbeat_interval_ms
        self._dead_after_ms = timing.dead_after_ms
        self._session_timeout_ms = timing.session_timeout_ms
        self._slow_after_ms = timing.slow_after_ms
        self._peers: dict[str, _Silence] = {}
        self._run_id = ""
        self._rank = 0
        self._before: Sequence[str] = ()
        self._last_ms: int | None = None
        self._last_server_ms: int | None = None
        self._deadline_ms: int | None = None

    def observe(
        self, me: str, members: Sequence[str], beats: Mapping[str, Beat], run_id: str, now_ms: int
    ) -> tuple[int, ...]:
        """Handle the answer to a heartbeat of this worker; return the connections to ask about."""
        mine = beats.get(me)
        passed_ms = self._passed_ms(mine, now_ms)
        self._last_ms, self._last_server_ms = now_ms, mine.server_ms if mine else None
        self._run_id = run_id
        peers: dict[str, _Silence] = {}
        for member in members:
            if member == me:
                continue
            beat = beats.get(member)
            known = self._peers.get(member)
            if known is None or known.beat != beat:
                # This worker's clock limits the age by the server's clock, which an operator may set.
                peers[member] = _Silence(beat, min(passed_ms, _age_ms(beat, mine)))
            else:
                peers[member] = _Silence(beat, known.silent_ms + passed_ms)
        self._peers = peers
        # The first live member in join order removes the dead at once, and each later one waits a little
        # longer, so that the group makes one change and not one change per member.
        self._before = members[: members.index(me)] if me in members else members
        self._rank = sum(1 for member in self._before if not self._is_suspect(peers[member]))
        self._deadline_ms = self._next_end_ms()
        return tuple(s.beat.connection for s in peers.values() if s.beat is not None and self._is_suspect(s))

    def keep(self, members: Sequence[str]) -> None:
        """Forget the peers that are no longer members."""
        self._peers = {member: self._peers[member] for member in members if member in self._peers}
        if self._deadline_ms is not None:
            self._deadline_ms = self._next_end_ms()

    def check(self, now_ms: int) -> list[Effect]:
        """Send a heartbeat when a peer reaches its limit; the answer tells whether it is still silent.

        This happens once; the next time is computed when there is an answer.
        """
        if self._deadline_ms is None or now_ms < self._deadline_ms:
            return []
        self._deadline_ms = None
        return [SendHeartbeat()]

    def next_deadline_ms(self) -> int | None:
        """Return when ``check`` has something to do: a peer reaches its limit before the next heartbeat."""
        return self._deadline_ms

    @property
    def suspects(self) -> tuple[str, ...]:
        """Return the members that have missed their heartbeats, in join order."""
        return tuple(member for member, silence in self._peers.items() if self._is_suspect(silence))

    def judge(self, asked: Sequence[int], connected: frozenset[int] | None) -> tuple[str, ...]:
        """Return the members to remove, given which connections the server still has.

        Nothing is known of a connection that was not asked about: its member fell silent or reconnected while
        the question was under way, and the next question includes it.
        """
        return tuple(
            member
            for member, silence in self._peers.items()
            if (silence.beat is None or silence.beat.connection in asked)
            and silence.silent_ms >= self._limit_ms(silence.beat, connected) + self._patience_ms(self._rank)
        )

    def _passed_ms(self, mine: Beat | None, now_ms: int) -> int:
        """Return how much silence this answer shows: the time since the last one, unless it was late."""
        gap_ms = 0 if self._last_ms is None else now_ms - self._last_ms
        # A worker that was late enough to be thought dead itself judges no peer by that time.
        passed_ms = min(gap_ms, self._interval_ms) if gap_ms < self._dead_after_ms else 0
        if mine is None or self._last_server_ms is None:
            return passed_ms
        # An answer may arrive late. It shows the state at the time when the server took the heartbeat.
        return min(passed_ms, max(0, mine.server_ms - self._last_server_ms))

    def _next_end_ms(self) -> int | None:
        """Return the last time before the next heartbeat at which a peer reaches its limit.

        By the last time, so that members that died together are removed together, in one change.
        """
        assert self._last_ms is not None
        soon_ms = int(SOON * self._interval_ms)
        spans_ms = (self._dead_after_ms, self._session_timeout_ms, self._slow_after_ms)
        ends_ms = [
            end_ms
            for silence in self._peers.values()
            if silence.silent_ms + soon_ms > self._dead_after_ms
            and (ahead := self._ahead(silence)) < AHEAD_MAX
            for span_ms in spans_ms
            if 0 < (end_ms := span_ms + self._patience_ms(ahead) - silence.silent_ms) < soon_ms
        ]
        return self._last_ms + max(ends_ms) if ends_ms else None

    def _ahead(self, silence: _Silence) -> int:
        """Return how many members act before this one when a peer reaches its limit.

        These are older members that were heard of since that peer.
        """
        count = 0
        for member in self._before:
            peer = self._peers.get(member)
            if peer is not None and peer.silent_ms < silence.silent_ms and (count := count + 1) == AHEAD_MAX:
                break
        return count

    def _patience_ms(self, ahead: int) -> int:
        """Return how much longer than a peer's limit this worker waits for the members before it."""
        return min(ahead, AHEAD_MAX) * self._interval_ms // 2

    def _is_suspect(self, silence: _Silence) -> bool:
        return silence.silent_ms >= self._dead_after_ms

    def _limit_ms(self, beat: Beat | None, connected: frozenset[int] | None) -> int:
        if connected is None or beat is None or beat.run_id != self._run_id:
            return self._session_timeout_ms
        return self._slow_after_ms if beat.connection in connected else self._dead_after_ms


def _age_ms(beat: Beat | None, mine: Beat | None) -> int:
    """Return the age of a heartbeat when the server took this worker's own."""
    return 0 if beat is None or mine is None else max(0, mine.server_ms - beat.server_ms)
