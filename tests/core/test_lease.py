"""The lease-grab race, step by step: one test a sentence of its author, by events and effects.

The numbers of the steps are those of docs/protocols/lease.md.
"""

from collections.abc import Mapping

import pytest

from streamworker.core import events as ev
from streamworker.core.control import ControlMessage
from streamworker.core.data.entries import ZERO
from streamworker.core.ownership.locks import Acquired, Stale
from streamworker.core.protocols.lease.events import (
    Challenge,
    ChallengeLeases,
    LeaseChallenged,
    LeaseEnded,
    LeaseRaced,
    LeasesChallenged,
    LeasesUpdated,
    RaceForLease,
    UpdateLeases,
)
from streamworker.core.protocols.lease.protocol import LeaseCore
from streamworker.core.protocols.lease.settings import Lease
from streamworker.core.protocols.lease.state import Outbox
from streamworker.core.protocols.lease.timing import UNIT, race_delay_ms
from streamworker.errors import ConfigurationError, InternalError
from streamworker.settings import Settings
from tests.core.workbench import Node, setup_of

ME, OTHER = "w1.a", "w2.b"
NORMAL, MOST, SHUTDOWN, GRAB, DELAY = 5_000, 20_000, 10_000, 4_000, 100
FREE, DUE, OVERDUE = Challenge.FREE, Challenge.DUE, Challenge.OVERDUE


class LeaseNode(Node[LeaseCore]):
    """One core, a clock, and what it wants done that was not answered yet."""

    def __init__(self, partitions: int = 4) -> None:
        timing = Lease(
            normal_ms=NORMAL,
            max_ms=MOST,
            max_shutdown_ms=SHUTDOWN,
            min_grab_ms=GRAB,
            held_delay_ms=DELAY,
        )
        super().__init__(LeaseCore(setup_of(timing, partitions)))
        self.effects: list[ev.Effect] = []

    def send(self, event: ev.Event, *, after_ms: int = 0) -> list[ev.Effect]:
        now = super().send(event, after_ms=after_ms)
        self.effects += now
        return now

    def control(self, *messages: ControlMessage) -> list[ev.Effect]:
        return self.send(ev.ControlReceived(messages))

    @classmethod
    def started(cls, partitions: int = 4) -> "LeaseNode":
        """Return a node that has started, where other nodes have everything."""
        node = cls(partitions)
        (ask,) = node.send(ev.Started())
        assert isinstance(ask, ChallengeLeases)
        node.send(LeasesChallenged(tuple(ask.challenges), frozenset()))
        return node

    @classmethod
    def owner(cls) -> "LeaseNode":
        """Return a node that processes the only partition."""
        node = cls.started(1)
        node.own(0)
        return node

    @classmethod
    def racing(cls) -> "LeaseNode":
        """Return a node that races for the only partition."""
        node = cls.started(1)
        node.control(challenged(0))
        assert node.wait(DELAY) == [RaceForLease(ME, 0)]
        return node

    def own(self, *partitions: int) -> None:
        """Win some partitions that nobody has, and process them."""
        for partition in partitions:
            self.control(challenged(partition))
            assert RaceForLease(ME, partition) in self.wait(NORMAL - 1)
            self.send(LeaseRaced(partition, ME, self.now_ms))
            self.send(granted(partition))
            self.send(LeasesUpdated())
            self.wait(GRAB)
            self.send(LeasesUpdated())
        assert self.core.owned >= set(partitions)


def challenged(*partitions: int) -> LeaseChallenged:
    return LeaseChallenged(partitions, OTHER, 1)


def granted(partition: int, epoch: int = 1) -> ev.LocksAnswered:
    return ev.LocksAnswered(ME, (partition,), {partition: Acquired(epoch, ZERO, 0, 0, "log")})


def asked(effects: list[ev.Effect]) -> Mapping[int, Challenge]:
    return {p: how for e in effects if isinstance(e, ChallengeLeases) for p, how in e.challenges.items()}


# -- 1: challenge ----------------------------------------------------------------------------


def test_once_a_normal_lease_a_node_challenges_what_it_does_not_own() -> None:
    """Step 1a: and not what it owns."""
    node = LeaseNode.started(2)
    node.own(0)
    assert asked(node.effects[1:]) == {1: DUE}
    node.send(LeasesChallenged((1,), frozenset({1})))
    assert asked(node.wait(NORMAL - 1)) == {}
    assert asked(node.wait(1)) == {1: DUE}


def test_hearing_a_challenge_starts_the_lease_anew() -> None:
    """Step 2: "the timer for this publication is reset", so that few nodes send it."""
    node = LeaseNode.started(1)
    node.wait(190)
    node.control(challenged(0))
    node.wait(DELAY)
    node.send(LeaseRaced(0, OTHER, 5))
    assert asked(node.wait(NORMAL - DELAY - 1)) == {}
    assert asked(node.wait(1)) == {0: DUE}


def test_what_stays_won_for_the_maximum_lease_is_cleared_and_challenged() -> None:
    """Step 1b: its winner died between steps 3 and 6."""
    node = LeaseNode.started(1)
    begun_ms = node.now_ms
    seen: list[tuple[int, Challenge]] = []
    while not seen or seen[-1][1] is not OVERDUE:
        assert node.now_ms < begun_ms + 2 * MOST
        for effect in node.wait(50):
            if isinstance(effect, ChallengeLeases):
                seen.append((node.now_ms - begun_ms, effect.challenges[0]))
                node.send(LeasesChallenged((0,), frozenset()))
    assert [how for _, how in seen[:-1]] == [DUE] * (len(seen) - 1)
    assert MOST <= seen[-1][0] <= MOST + 50


def test_a_node_that_slept_calls_nobody_overdue() -> None:
    """It did not hear the challenges: it looks first, as after any lease."""
    node = LeaseNode.started(1)
    node.now_ms += 10 * MOST
    assert asked(node.send(ev.DeadlinePassed())) == {0: DUE}


def test_a_challenge_without_an_answer_is_asked_for_again() -> None:
    """Nobody knows whether it was signalled; twice does no harm."""
    node = LeaseNode(1)
    node.send(ev.Started())
    node.send(ev.Unanswered(ChallengeLeases(ME, {0: FREE})))
    assert asked(node.wait(200)) == {0: FREE}


# -- 2: wait ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "active, is_processing, wait_ms",
    [(1, True, 0), (2, True, 100), (5, True, 400), (0, False, 50), (1, False, 150), (5, False, 550)],
)
def test_the_owner_waits_for_each_other_partition_that_it_has_and_another_half_a_delay_longer(
    active: int, is_processing: bool, wait_ms: int
) -> None:
    """Step 2a: (active - 1) x delay. Step 2b: (active + 1/2) x delay."""
    assert race_delay_ms(active * UNIT, DELAY, is_processing=is_processing) == wait_ms


@pytest.mark.parametrize("theirs", range(6))
@pytest.mark.parametrize("owners", range(1, 7))
def test_a_partition_moves_only_if_that_makes_the_load_more_even(owners: int, theirs: int) -> None:
    """Whoever waits less wins, by half a delay at least: that is what makes it sticky."""
    stays = race_delay_ms(owners * UNIT, DELAY, is_processing=True)
    goes = race_delay_ms(theirs * UNIT, DELAY, is_processing=False)
    assert abs(stays - goes) >= DELAY // 2
    assert (goes < stays) == (owners - theirs >= 2)


def test_of_many_partitions_that_are_challenged_at_once_each_one_makes_it_slower() -> None:
    """The wait goes by what a node has when it ends: or whoever has least would take them all."""
    node = LeaseNode.started(3)
    node.control(challenged(0, 1, 2))
    first_ms = node.now_ms
    tries: list[int] = []
    while len(tries) < 3:
        for effect in node.wait(10):
            if isinstance(effect, RaceForLease):
                tries.append(node.now_ms - first_ms)
                node.send(LeaseRaced(effect.partition, ME, node.now_ms))
    assert tries == [50, 150, 250]


# -- 3: race ---------------------------------------------------------------------------------


def test_an_owner_that_was_not_first_shuts_down_then_ends_its_allocation_and_says_so() -> None:
    """Step 3a, 3b: in this order; and it skips the other steps."""
    node = LeaseNode.owner()
    node.control(challenged(0))
    drained = node.send(LeaseRaced(0, OTHER, 99, ME))
    assert ev.DrainRunner(0, 1) in drained
    assert not any(isinstance(effect, UpdateLeases | ev.ReleaseLocks) for effect in drained)
    assert node.send(ev.RunnerStopped(0, 1)) == [ev.ReleaseLocks(ME, {0: 1})]
    assert node.send(ev.LocksReleased(ME, (0,), frozenset({0}))) == [UpdateLeases(ME, {}, (0,), {})]
    assert node.core.owned == frozenset()


def test_a_race_without_an_answer_is_run_again() -> None:
    """It may have been won; asking again tells."""
    node = LeaseNode.racing()
    node.send(ev.Unanswered(RaceForLease(ME, 0)))
    assert node.wait(200) == [RaceForLease(ME, 0)]


# -- 4, 5, 6: wait for the former owner, start, open to challenges ------------------------------


def winner(allocated: str) -> tuple[LeaseNode, list[ev.Effect]]:
    """Return a node that has just won partition 0, and what it does then."""
    node = LeaseNode.racing()
    return node, node.send(LeaseRaced(0, ME, 77, allocated))


@pytest.mark.parametrize("is_said", [True, False])
def test_a_winner_waits_for_the_former_owner_to_say_that_it_ended_or_the_maximum_shutdown_time(
    is_said: bool,
) -> None:
    """Step 4. Nobody counts as alive for its lock then, so that it is taken and its epoch fences."""
    node, effects = winner(OTHER)
    assert effects == [] == node.wait(SHUTDOWN - 1)
    if is_said:
        assert node.control(LeaseEnded((0,), OTHER, 5)) == [ev.AcquireLocks((0,), ME, 77, ())]
        return
    effects = node.wait(1)
    assert ev.Note("lease_overtaken", {"partition": 0, "owner": OTHER}) in effects
    assert ev.AcquireLocks((0,), ME, 77, ()) in effects


def test_a_start_is_put_into_the_allocation_hash_and_out_of_the_grab_hash_after_the_minimum_grab_time() -> (
    None
):
    """Steps 5 and 6: counted from the start."""
    node, _ = winner("")
    node.wait(1_000)
    effects = node.send(granted(0))
    assert any(isinstance(effect, ev.StartRunner) for effect in effects)
    assert UpdateLeases(ME, {0: 77}, (), {}) in effects
    node.send(LeasesUpdated())
    assert node.wait(GRAB - 1) == []
    assert node.wait(1) == [UpdateLeases(ME, {}, (), {0: 77})]


def test_an_owner_that_wins_again_goes_on_without_a_stop() -> None:
    """Only the number of its win changes."""
    node = LeaseNode.owner()
    assert node.control(challenged(0)) == [RaceForLease(ME, 0)]
    effects = node.send(LeaseRaced(0, ME, node.now_ms, ME))
    assert effects == [UpdateLeases(ME, {0: node.now_ms}, (), {})]


# -- what goes wrong -------------------------------------------------------------------------


def test_what_redis_was_not_told_is_told_again_but_for_what_changed_since() -> None:
    """The start of a partition that was lost meanwhile is not told any more."""
    node, _ = winner("")
    node.send(granted(0))
    node.control(challenged(0))
    node.send(LeaseRaced(0, OTHER, 99, ME))
    node.send(ev.RunnerStopped(0, 1))
    node.send(ev.LocksReleased(ME, (0,), frozenset({0})))
    node.send(ev.Unanswered(UpdateLeases(ME, {0: 77}, (), {})))
    assert node.wait(200) == [UpdateLeases(ME, {}, (0,), {})]


def test_an_answer_that_nobody_waits_for_is_a_bug_of_ours() -> None:
    """It is never passed over."""
    node = LeaseNode.started()
    with pytest.raises(InternalError):
        node.send(LeasesUpdated())


def test_a_fenced_partition_is_given_up() -> None:
    """Somebody started it anyway: it is theirs, until the next race."""
    node = LeaseNode.owner()
    node.send(ev.RunnerFenced(0, 1))
    assert node.core.owned == frozenset()
    assert not [e for e in node.wait(NORMAL - 1) if isinstance(e, ev.AcquireLocks)]


def test_a_winner_that_was_overtaken_by_a_later_one_gives_up() -> None:
    """Its lock was taken at a later generation."""
    node, _ = winner("")
    node.send(ev.LocksAnswered(ME, (0,), {0: Stale(88)}))
    assert node.core.owned == frozenset()
    assert node.effects[-1] == UpdateLeases(ME, {}, (), {0: 77})


# -- leaving ---------------------------------------------------------------------------------


def test_a_node_that_leaves_drains_releases_clears_its_fields_and_has_the_others_race() -> None:
    """In this order; it is finished when all of it is answered."""
    node = LeaseNode.owner()
    assert ev.DrainRunner(0, 1) in node.send(ev.StopRequested())
    assert node.send(ev.RunnerStopped(0, 1)) == [ev.ReleaseLocks(ME, {0: 1})]
    assert node.send(ev.LocksReleased(ME, (0,), frozenset({0}))) == [UpdateLeases(ME, {}, (0,), {})]
    assert node.send(LeasesUpdated()) == [ChallengeLeases(ME, {0: DUE})]
    assert node.send(LeasesChallenged((0,), frozenset({0}))) == [ev.Finished()]
    assert node.core.next_deadline_ms() is None


def test_a_race_that_is_won_while_leaving_is_given_back() -> None:
    """Or its partition would wait for the maximum lease."""
    node = LeaseNode.racing()
    assert node.send(ev.StopRequested()) == []
    assert node.send(LeaseRaced(0, ME, 77)) == [UpdateLeases(ME, {}, (), {0: 77})]
    assert node.send(LeasesUpdated()) == [ev.Finished()]


def test_a_node_that_never_began_is_finished_at_once() -> None:
    """It has nothing to give back."""
    assert LeaseNode().send(ev.StopRequested()) == [ev.Finished()]


# -- the five time spans ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, name",
    [
        ({"max_ms": 2 * NORMAL - 1, "max_shutdown_ms": 1_000}, "lease_max_ms"),
        ({"normal_ms": 4_000}, "lease_normal_ms is 4000"),
        ({"max_shutdown_ms": 10_001}, "max_shutdown_ms"),
        ({"min_grab_ms": NORMAL}, "min_grab_ms"),
        ({"held_delay_ms": 2_001}, "held_delay_ms"),
        ({"held_delay_ms": 0}, "held_delay_ms"),
    ],
)
def test_spans_that_contradict_each_other_are_refused(wrong: dict[str, int], name: str) -> None:
    """With the inequality that does not hold."""
    with pytest.raises(ConfigurationError, match=name):
        Lease(**wrong)


@pytest.mark.parametrize("partitions, step_ms", [(1, 100), (39, 100), (40, 97), (255, 15), (100_000, 1)])
def test_the_longest_wait_ends_before_the_winner_can_be_challenged(partitions: int, step_ms: int) -> None:
    """The delay is shortened where one node could hold very many partitions."""
    timing = Lease()
    assert timing.delay_step_ms(partitions) == step_ms
    if step_ms > 1:
        longest_ms = race_delay_ms(partitions * UNIT, step_ms, is_processing=False)
        assert longest_ms < timing.min_grab_ms


def test_a_winner_waits_at_least_as_long_as_a_healthy_owner_may_drain() -> None:
    """The rule names a setting of the protocol and one of all; it binds no app with another protocol."""
    with pytest.raises(ConfigurationError, match=r"lease_max_shutdown_ms is 7999, .* grace_period_ms"):
        Settings(coordination=Lease(max_shutdown_ms=7_999))
    Settings(grace_period_ms=11_000)


def test_an_outbox_that_has_nothing_more_to_tell_waits_for_nothing() -> None:
    """What was to be told again may be withdrawn meanwhile; its deadline must not stay in the past."""
    outbox = Outbox("w1", lambda: 200)
    outbox.allocate[3] = 7
    assert outbox.advance(0)
    outbox.answered(50, done=False)
    assert outbox.next_deadline_ms() == 250
    outbox.allocate.clear()
    assert outbox.next_deadline_ms() is None


# -- the stream grows --------------------------------------------------------------------------


def test_a_node_challenges_partitions_that_are_new_and_leaves_out_those_before_the_first() -> None:
    """At once, if nobody has them; a node that does not know them yet does not race for them."""
    node = LeaseNode.started(2)
    node.control(challenged(2))
    assert not [each for each in node.wait(2 * DELAY) if isinstance(each, RaceForLease)]
    node.send(LeasesChallenged((0, 1), frozenset()))
    assert asked(node.send(ev.PartitionsSeen(1, 4))) == {2: FREE, 3: FREE}
    assert asked(node.send(ev.PartitionsSeen(1, 4))) == {}
    node.send(LeasesChallenged((2, 3), frozenset({2, 3})))
    assert asked(node.wait(2 * NORMAL)).keys() == {2, 3}
    node.control(challenged(0), challenged(3))
    assert [each.partition for each in node.wait(DELAY) if isinstance(each, RaceForLease)] == [3]


def test_a_node_ends_the_partitions_that_are_dropped_and_takes_them_up_again() -> None:
    """As one that another node has won; a try that was under way is taken back."""
    node = LeaseNode.started(3)
    node.own(0)
    node.control(challenged(1))
    assert RaceForLease(ME, 1) in node.wait(2 * DELAY)
    assert ev.DrainRunner(0, 1) in node.send(ev.PartitionsSeen(2, 3))
    assert node.core.owned == frozenset()
    assert UpdateLeases(ME, {}, (), {1: 77}) in node.send(LeaseRaced(1, ME, 77))
    node.send(LeasesUpdated())
    node.send(ev.RunnerStopped(0, 1))
    ended = node.send(ev.LocksReleased(ME, (0,), frozenset({0})))
    assert UpdateLeases(ME, {}, (0,), {}) in ended
    node.send(LeasesUpdated())
    node.send(LeasesChallenged((1, 2), frozenset()))
    assert asked(node.wait(2 * NORMAL)) == {2: DUE}
    node.send(LeasesChallenged((2,), frozenset()))
    assert asked(node.send(ev.PartitionsSeen(0, 3))) == {0: FREE, 1: FREE}
