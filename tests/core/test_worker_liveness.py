"""Heartbeats, lost memberships and dead peers, as one worker sees them."""

from streamworker.core import events as ev
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.setup import Phase
from tests.core.workbench import ME, TIMING, Bench, beat, group, lock, names, of_type

SECOND_SELF = "w1.2"
INTERVAL_MS = TIMING.heartbeat_interval_ms
LATE_MS = TIMING.dead_after_ms


def silence(bench: Bench, ms: int, **beats: calls.Beat) -> list[ev.Effect]:
    """Let our heartbeats get through for a while in which these beats do not change."""
    effects: list[ev.Effect] = []
    known = {f"{name}.1": each for name, each in beats.items()}
    for _ in range(ms // INTERVAL_MS):
        effects += bench.heartbeat(after_ms=INTERVAL_MS, beats=known)
    return effects


def probed(bench: Bench, *connections: int) -> list[ev.Effect]:
    return bench.send(calls.PeersProbed(frozenset(connections)))


def removals(effects: list[ev.Effect]) -> list[tuple[str, ...]]:
    return [change.removed for change in of_type(effects, calls.ChangeDocument)]


# -- our own heartbeats --------------------------------------------------------------------------


def test_a_worker_that_wakes_starts_no_batch_whatever_it_hears_first() -> None:
    """The first event after a long sleep is a message, and the pause comes with it."""
    bench = Bench.running(ME)
    bench.heartbeat()
    bench.wait_quietly(60_000)
    assert "PauseBatches" in names(bench.send(ev.ControlReceived(())))


# -- a lost membership ---------------------------------------------------------------------------


def test_a_worker_that_the_group_removed_drops_everything_and_joins_under_a_new_id() -> None:
    """Its locks are others' by now. Nothing is drained and nothing is released."""
    bench = Bench.running(ME, "w2.1")
    effects = bench.heartbeat(lost=True)
    assert of_type(effects, ev.DropRunner) == [ev.DropRunner(p, 100 + p) for p in (0, 1, 2, 3)]
    assert names(effects)[4:] == ["StopHeartbeat", "ReadDocument"]
    assert [note.event for note in of_type(effects, ev.Note)] == ["membership_lost"]
    assert (bench.core.member, bench.core.phase) == (SECOND_SELF, Phase.JOINING)

    (change,) = of_type(bench.read(group("w2.1", generation=11)), calls.ChangeDocument)
    assert change.membership.ids == ("w2.1", SECOND_SELF)
    effects = bench.send(calls.DocumentChanged(12))
    assert calls.StartHeartbeat(SECOND_SELF) in effects
    (asked,) = of_type(effects, ev.AcquireLocks)
    assert (asked.owner, asked.live) == (SECOND_SELF, ("w2.1", SECOND_SELF))


def test_a_document_without_us_is_a_lost_membership_too() -> None:
    """Whichever is heard of first."""
    for document in (group("w2.1", generation=11), None):
        bench = Bench.running(ME, "w2.1")
        bench.changed(11)
        effects = bench.read(document)
        assert names(effects) == ["DropRunner"] * 4 + ["StopHeartbeat", "ReadDocument"]


def test_joining_again_removes_the_former_self() -> None:
    """Its heartbeat was refused though the document still has it: nobody else would remove it soon."""
    bench = Bench.running(ME, "w2.1")
    bench.heartbeat(lost=True)
    (change,) = of_type(bench.read(group(ME, "w2.1")), calls.ChangeDocument)
    assert change.membership.ids == ("w2.1", SECOND_SELF)
    assert (change.added, change.removed) == ((SECOND_SELF,), (ME,))


def test_what_concerns_a_former_self_is_passed_over() -> None:
    """Its runners, its answers and its heartbeats are on their way still."""
    bench = Bench.running(ME, "w2.1")
    bench.heartbeat(lost=True)
    bench.read(group("w2.1", generation=11))
    bench.grant(bench.send(calls.DocumentChanged(12)))
    late: list[ev.Event] = [
        ev.RunnerStopped(0, 100),
        ev.RunnerFenced(1, 101),
        ev.RunnerHalted(2, 102, "poison"),
        ev.LocksAnswered(ME, (0, 1), {0: lock(200)}),
        ev.LocksReleased(ME, (2, 3), frozenset({2})),
        calls.HeartbeatDone(ME, True, 0, bench.now_ms, "run", {}),
        calls.HeartbeatDone(ME, False, 99, bench.now_ms, "run", {}),
    ]
    assert [bench.send(event) for event in late] == [[]] * len(late)


# -- peers ---------------------------------------------------------------------------------------


def test_a_peer_that_beats_again_after_a_lost_race_is_not_removed() -> None:
    """The removal was refused for another change; meanwhile the peer is back."""
    bench = Bench.running(ME, "w2.1")
    bench.jitter = 10
    silence(bench, INTERVAL_MS + LATE_MS, w2=beat(1, 7))
    assert removals(probed(bench)) == [("w2.1",)]
    bench.refuse(group(ME, "w2.1", "w3.1", generation=11))
    bench.heartbeat(beats={"w2.1": beat(9_000, 7)})
    assert removals(bench.wait(10)) == []


def test_one_question_about_peers_is_under_way_at_a_time() -> None:
    """Also when it takes long. One that failed removes nobody, and the next heartbeat asks anew."""
    bench = Bench.running(ME, "w2.1")
    assert len(of_type(silence(bench, 60 * INTERVAL_MS, w2=beat(1, 7)), calls.ProbePeers)) == 1
    assert bench.send(ev.Unanswered(calls.ProbePeers((7,)))) == []
    assert len(of_type(silence(bench, 3 * INTERVAL_MS, w2=beat(1, 7)), calls.ProbePeers)) == 1
