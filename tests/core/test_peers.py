"""Telling dead peers from slow ones."""

import pytest

from streamworker.core.protocols.membership.events import Beat, SendHeartbeat
from streamworker.core.protocols.membership.peers import AHEAD_MAX, PeerWatch
from tests.core.workbench import TIMING, beat

INTERVAL_MS = TIMING.heartbeat_interval_ms
LATE_MS = TIMING.dead_after_ms
GROUP = ("w1", "w2", "w3")


class Watch:
    """A watch whose heartbeats get through at their pace, unless the test says otherwise."""

    def __init__(self, me: str = "w1", members: tuple[str, ...] = GROUP) -> None:
        self.me, self.members = me, members
        self.now_ms = 0
        self.server_ms = 0
        self.beats: dict[str, Beat] = {}
        self.were_silent: tuple[str, ...] = ()
        self.peers = PeerWatch(TIMING)

    def observe(
        self, *silent: str, gap_ms: int = INTERVAL_MS, run_id: str = "run", **ages_ms: int
    ) -> tuple[int, ...]:
        """Let time pass and one of our heartbeats be answered; all but these members beat at that moment.

        Who has become silent beat for the last time then, or at an age.
        """
        self.now_ms += gap_ms
        self.server_ms += gap_ms
        for rank, member in enumerate(self.members, start=1):
            if member not in silent:
                self.beats[member] = beat(self.server_ms, rank)
            elif member not in self.were_silent:
                self.beats[member] = beat(self.server_ms - ages_ms.get(member, 0), rank)
        self.were_silent = silent
        return self.peers.observe(self.me, self.members, self.beats, run_id, self.now_ms)

    def silence(self, *silent: str, beats: int = 3) -> tuple[int, ...]:
        """Let several heartbeats be answered; the first shows the last beat of the silent."""
        asked: tuple[int, ...] = ()
        for _ in range(beats):
            asked = self.observe(*silent)
        return asked

    def judge(self, asked: tuple[int, ...], *connected: int) -> tuple[str, ...]:
        """Return who is to be removed if the server has these connections."""
        return self.peers.judge(asked, frozenset(connected))


def test_a_peer_is_suspected_when_two_of_our_heartbeats_saw_no_news_of_it() -> None:
    """One may be late, and while all beat there is nothing to ask."""
    watch = Watch()
    assert [watch.observe() for _ in range(50)] == [()] * 50
    assert not watch.peers.suspects
    assert watch.silence("w2", beats=2) == ()
    assert watch.observe("w2") == (2,)
    assert watch.peers.suspects == ("w2",)


def test_a_peer_without_a_connection_is_dead_and_one_with_a_connection_is_slow() -> None:
    """One question tells the silent apart; of who was not asked about its answer says nothing."""
    watch = Watch()
    asked = watch.silence("w2", "w3")
    assert asked == (2, 3)
    assert watch.judge(asked, 3) == ("w2",)
    assert watch.judge(asked[:1]) == ("w2",)
    assert watch.judge(asked) == ("w2", "w3")


def test_a_slow_peer_is_removed_after_the_long_time() -> None:
    """For ever would be too long: its partitions stand still."""
    watch = Watch()
    asked = watch.silence("w2", beats=TIMING.slow_after_ms // INTERVAL_MS)
    assert watch.judge(asked, 2) == ()
    assert watch.judge(watch.observe("w2"), 2) == ("w2",)


@pytest.mark.parametrize("why", ["not told", "another server"])
def test_where_connections_say_nothing_the_session_timeout_decides(why: str) -> None:
    """CLIENT LIST is forbidden, or the server restarted and client ids mean something else."""
    watch = Watch()
    run_id = "run" if why == "not told" else "another run"
    connected: frozenset[int] | None = None if why == "not told" else frozenset()
    for _ in range(TIMING.session_timeout_ms // INTERVAL_MS):
        asked = watch.observe("w2", run_id=run_id)
        assert watch.peers.judge(asked, connected) == ()
    assert watch.peers.judge(watch.observe("w2", run_id=run_id), connected) == ("w2",)


def test_a_member_that_never_beat_is_given_the_session_timeout() -> None:
    """It has just joined, or the hash of heartbeats was deleted."""
    watch = Watch(members=("w1", "w2"))
    for n in range(TIMING.session_timeout_ms // INTERVAL_MS):
        watch.peers.observe("w1", ("w1", "w2"), {}, "run", n * INTERVAL_MS)
        assert watch.peers.judge((), frozenset()) == ()
    watch.peers.observe("w1", ("w1", "w2"), {}, "run", TIMING.session_timeout_ms)
    assert watch.peers.judge((), frozenset()) == ("w2",)


def test_our_own_sleep_is_not_held_against_peers() -> None:
    """A minute without our heartbeats says nothing about theirs; two more of ours do."""
    watch = Watch()
    watch.observe("w2", "w3")
    assert watch.observe("w2", "w3", gap_ms=60_000) == ()
    assert watch.observe("w2", "w3") == ()
    assert watch.observe("w2", "w3") == (2, 3)


def test_the_first_live_member_removes_the_dead_at_once_and_later_ones_wait() -> None:
    """One change, not one from each member. If the first one fails or is dead, the next does it."""
    first, second = Watch("w1"), Watch("w2")
    assert first.judge(first.silence("w3")) == ("w3",)
    assert second.judge(second.silence("w3")) == ()
    assert second.judge(second.observe("w3")) == ("w3",)
    second = Watch("w2")
    assert second.judge(second.silence("w1")) == ("w1",)


def test_nobody_waits_longer_than_a_few_heartbeats_for_those_before() -> None:
    """The last of a hundred members may be the only one whose network works."""
    members = tuple(f"w{n}" for n in range(100))
    watch = Watch(members[-1], members)
    patience_beats = AHEAD_MAX // 2
    assert watch.judge(watch.silence("w0", beats=2 + patience_beats)) == ()
    assert watch.judge(watch.observe("w0")) == ("w0",)


# -- between our heartbeats -----------------------------------------------------------------------


def watched(age_ms: int, me: str = "w1") -> Watch:
    """Return a watch that saw the last beat of ``w2`` when it was this old, and that it beat no more."""
    watch = Watch(me)
    watch.observe()
    watch.observe("w2", w2=age_ms)
    watch.observe("w2")
    return watch


def test_a_peer_is_looked_at_when_its_time_is_over_and_not_only_at_our_next_heartbeat() -> None:
    """Its last beat was 400 ms old when we saw it, so its two seconds end between two of ours."""
    watch = watched(400)
    at_ms = watch.now_ms + 600
    assert watch.peers.next_deadline_ms() == at_ms
    assert watch.peers.check(at_ms - 1) == []
    assert watch.peers.check(at_ms) == [SendHeartbeat()]
    assert watch.observe("w2", gap_ms=600) == (2,)
    assert watch.judge((2,)) == ("w2",)


@pytest.mark.parametrize("rank, looks", [(AHEAD_MAX, True), (AHEAD_MAX + 1, False), (40, False)])
def test_in_a_large_group_few_look_early_at_one_that_is_slow(rank: int, looks: bool) -> None:
    """All the others would else do so at one moment, and at the same moments from then on."""
    members = tuple(f"w{n}" for n in range(50))
    watch = Watch(members[rank], members)
    watch.observe()
    watch.observe("w0", w0=400)
    early = 0
    for _ in range(TIMING.session_timeout_ms // INTERVAL_MS):
        watch.observe("w0")
        early += watch.peers.next_deadline_ms() is not None
    assert (early > 0) == looks


def test_an_answer_that_we_hear_of_late_shows_no_more_silence_than_the_server_saw() -> None:
    """Two of ours came 300 ms apart, and our event loop stood still for 700 before it took the second."""
    watch = Watch()
    watch.observe()
    watch.observe("w2", w2=0)
    watch.observe("w2")
    watch.now_ms += 700
    watch.observe("w2", gap_ms=300)
    assert watch.peers.suspects == ()
    assert watch.observe("w2", gap_ms=700) == (2,)


def test_a_look_without_an_answer_is_not_repeated() -> None:
    """The heartbeats have a pace of their own for that."""
    watch = watched(400)
    assert watch.peers.check(watch.now_ms + 600) == [SendHeartbeat()]
    assert watch.peers.next_deadline_ms() is None
    assert watch.peers.check(watch.now_ms + 5_000) == []


def test_a_living_peer_whose_beats_come_just_after_or_before_ours_is_not_looked_at_early() -> None:
    """Nor does it hold up others whose time is over: it is unchanged in one answer, or an interval old."""
    watch = Watch()
    watch.observe()
    watch.observe("w2", "w3", w2=400, w3=1)
    watch.observe("w2", "w3")
    assert watch.peers.next_deadline_ms() == watch.now_ms + 600
    assert watched(1).peers.next_deadline_ms() is None
    watch = Watch()
    for _ in range(50):
        watch.observe("w2", w2=INTERVAL_MS - 1)
        watch.were_silent = ()
        assert watch.peers.next_deadline_ms() is None


def test_those_who_act_later_look_later_and_not_at_all_once_the_dead_is_removed() -> None:
    """Half an interval for each that lives before them."""
    watch = watched(400, me="w3")
    assert watch.peers.next_deadline_ms() is None
    watch.observe("w2", gap_ms=600)
    assert watch.peers.next_deadline_ms() == watch.now_ms + INTERVAL_MS // 2
    watch.peers.keep(("w1", "w3"))
    assert watch.peers.next_deadline_ms() is None
    assert watch.peers.suspects == ()
