"""Which members are dead, and which are only slow.

A member that stopped sending heartbeats may have been killed, or may be on a machine so busy
that its heartbeats are late. To remove the first is right; to remove the second makes
everything worse, since its load goes to others who then get slow as well (the warning at the
head of the lease-grab race, seeds/000). The two look the same from outside but for one thing:
a dead process has no connection. So each heartbeat carries the client id of its connection,
and a silent member is judged by whether the server still has that connection:

=====================================  ==========================================
its connection                         it is removed after
=====================================  ==========================================
is gone                                ``dead_after_ms``
is there                               ``slow_after_ms``
cannot be asked for, or was made to    ``session_timeout_ms``
the server before its last restart
=====================================  ==========================================

Silence is measured by our own heartbeats: a peer has been silent for the time in which ours
got through and its did not change, and for as long as its last one was old when we first saw it, which
is within the same time. Our own sleep is thereby not held against others: a worker
that wakes after a minute, or is the first to find the server again after an outage, counts none
of that time, and everybody else has ``dead_after_ms`` from then on to beat as well.

A peer's time may be over between two of our heartbeats. So that nobody waits for the next one, it is sent
then: a dead worker's partitions would else stand still for half an interval more, on average.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamworker.core.events import Beat, Effect, SendHeartbeat

RANKS_MAX = 8
"""Beyond this rank peers no longer wait longer for each other."""


@dataclass(slots=True)
class _Silence:
    beat: Beat | None
    silent_ms: int = 0


class PeerWatch:
    """Counts the silence of each peer, and says whom to probe and whom to remove.

    Parameters
    ----------
    interval_ms
        Pace of the heartbeats.
    dead_after_ms, session_timeout_ms, slow_after_ms
        See the module; ascending.
    """

    def __init__(
        self, *, interval_ms: int, dead_after_ms: int, session_timeout_ms: int, slow_after_ms: int
    ) -> None:
        self._interval_ms = interval_ms
        self._dead_after_ms = dead_after_ms
        self._session_timeout_ms = session_timeout_ms
        self._slow_after_ms = slow_after_ms
        self._peers: dict[str, _Silence] = {}
        self._run_id = ""
        self._rank = 0
        self._last_ms: int | None = None
        self._has_looked = False

    def observe(
        self, me: str, members: Sequence[str], beats: Mapping[str, Beat], run_id: str, now_ms: int
    ) -> tuple[int, ...]:
        """Take the answer of one of our heartbeats; return the connections to ask about."""
        gap_ms = 0 if self._last_ms is None else now_ms - self._last_ms
        # Who was late enough to be thought dead itself judges nobody by that time.
        passed_ms = min(gap_ms, self._interval_ms) if gap_ms < self._dead_after_ms else 0
        self._last_ms, self._has_looked = now_ms, False
        self._run_id = run_id
        mine = beats.get(me)
        peers: dict[str, _Silence] = {}
        for member in members:
            if member == me:
                continue
            beat = beats.get(member)
            known = self._peers.get(member)
            if known is None or known.beat != beat:
                # What our clock says bounds what the server's does: that one may be set.
                peers[member] = _Silence(beat, min(passed_ms, _age_ms(beat, mine)))
            else:
                peers[member] = _Silence(beat, known.silent_ms + passed_ms)
        self._peers = peers
        # The first live member in join order removes the dead at once, and each later one waits a
        # little longer, so that one change is made and not one a member.
        before = members[: members.index(me)] if me in members else members
        self._rank = sum(1 for member in before if not self._is_suspect(peers[member]))
        return tuple(s.beat.connection for s in peers.values() if s.beat is not None and self._is_suspect(s))

    def keep(self, members: Sequence[str]) -> None:
        """Forget who is no member any more."""
        self._peers = {member: self._peers[member] for member in members if member in self._peers}

    def check(self, now_ms: int) -> list[Effect]:
        """See who is still silent when it is time to; asked once, and again after an answer."""
        at_ms = self.next_deadline_ms()
        if at_ms is None or now_ms < at_ms:
            return []
        self._has_looked = True
        return [SendHeartbeat()]

    def next_deadline_ms(self) -> int | None:
        """Return when ``check`` has something to do: a peer's time ends before our next heartbeat."""
        if self._last_ms is None or self._has_looked:
            return None
        spans = (self._dead_after_ms, self._session_timeout_ms, self._slow_after_ms)
        left_ms = (
            span_ms + self._patience_ms - silence.silent_ms
            for silence in self._peers.values()
            for span_ms in spans
        )
        # The last of them: those who died together are removed together.
        latest_ms = max((left for left in left_ms if 0 < left < self._interval_ms), default=0)
        return self._last_ms + latest_ms if latest_ms else None

    @property
    def suspects(self) -> tuple[str, ...]:
        """Return the members that have missed their heartbeats, in join order."""
        return tuple(member for member, silence in self._peers.items() if self._is_suspect(silence))

    def judge(self, asked: Sequence[int], connected: frozenset[int] | None) -> tuple[str, ...]:
        """Return the members to remove, given which connections the server still has.

        Nothing is known of a connection that was not asked about: its member fell silent, or
        connected anew, while the question was under way, and the next one is about it too.
        """
        return tuple(
            member
            for member, silence in self._peers.items()
            if (silence.beat is None or silence.beat.connection in asked)
            and silence.silent_ms >= self._limit_ms(silence.beat, connected) + self._patience_ms
        )

    @property
    def _patience_ms(self) -> int:
        """How much longer than a peer's time we wait for those who act before us."""
        return min(self._rank, RANKS_MAX) * self._interval_ms // 2

    def _is_suspect(self, silence: _Silence) -> bool:
        return silence.silent_ms >= self._dead_after_ms

    def _limit_ms(self, beat: Beat | None, connected: frozenset[int] | None) -> int:
        if connected is None or beat is None or beat.run_id != self._run_id:
            return self._session_timeout_ms
        return self._slow_after_ms if beat.connection in connected else self._dead_after_ms


def _age_ms(beat: Beat | None, mine: Beat | None) -> int:
    """Return how old a heartbeat was when the server took ours."""
    return 0 if beat is None or mine is None else max(0, mine.server_ms - beat.server_ms)
