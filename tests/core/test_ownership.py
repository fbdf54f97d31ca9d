"""From what is assigned to what is owned: calls, timers and every order of events."""

from collections.abc import Mapping

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamworker.core import events as ev
from streamworker.core.control import PartitionsAcquired, PartitionsReleased, RequestMade
from streamworker.core.ownership.lifecycle import HANDLING, State
from streamworker.core.ownership.locks import AcquireReply, Held, Refused, Stale
from streamworker.core.ownership.partitions import Ownership
from tests.core.workbench import lock

OWNER = "w1.1"
LIVE = (OWNER, "w2.1")
GRACE_MS = 8_000
RETRY_MS = 200
HELD = Held("w2.1", 0)


class Desk:
    """The ownership of one member on a clock that the test moves."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.ownership = Ownership(OWNER, GRACE_MS, lambda: RETRY_MS + RETRY_MS // 4)

    def assign(self, *partitions: int, generation: int = 5) -> list[ev.Effect]:
        effects = self.ownership.assign(dict.fromkeys(partitions, generation), generation, self.now_ms)
        return effects + self.advance()

    def asking(self, *partitions: int) -> "Desk":
        self.assign(*partitions)
        return self

    def advance(self, ms: int = 0) -> list[ev.Effect]:
        self.now_ms += ms
        return self.ownership.advance(self.now_ms, LIVE)

    def answer(self, asked: tuple[int, ...], replies: Mapping[int, AcquireReply]) -> list[ev.Effect]:
        """Answer ``AcquireLocks``; without any reply the call has no answer."""
        event = ev.LocksAnswered(OWNER, asked, replies)
        lost = ev.Unanswered(ev.AcquireLocks(asked, OWNER, 5, LIVE))
        return self.ownership.handle(event if replies else lost, self.now_ms) + self.advance()

    def released(self, asked: tuple[int, ...], *done: int) -> list[ev.Effect]:
        """Answer ``ReleaseLocks``; if none is released the call has no answer."""
        event = ev.LocksReleased(OWNER, asked, frozenset(done))
        lost = ev.Unanswered(ev.ReleaseLocks(OWNER, dict.fromkeys(asked, 1)))
        return self.ownership.handle(event if done else lost, self.now_ms) + self.advance()

    def stopped(self, partition: int, epoch: int) -> list[ev.Effect]:
        self.ownership.handle(ev.RunnerStopped(partition, epoch), self.now_ms)
        return self.advance()

    def told(self, *partitions: int) -> list[ev.Effect]:
        message = PartitionsReleased(partitions, "w2.1", 5)
        return self.ownership.handle(ev.ControlReceived((message,)), self.now_ms) + self.advance()

    def requested(self, partition: int, version: int) -> list[ev.Effect]:
        """Tell of an operator's request."""
        told = ev.ControlReceived((RequestMade("pause", (partition,), (version,), "ann", ""),))
        return self.ownership.handle(told, self.now_ms) + self.advance()

    def seen(self, versions: Mapping[int, int]) -> list[ev.Effect]:
        """Look at the orders in the locks."""
        return self.ownership.handle(ev.RequestsSeen(versions), self.now_ms) + self.advance()

    def paused(self, partition: int) -> "Desk":
        """Acquire a partition on whose lock a pause stands, given as order 7."""
        self.asking(partition).answer((partition,), {partition: lock(101, requested=7, is_paused=True)})
        return self

    def running(self, *partitions: int) -> "Desk":
        """Acquire and run these, partition p with epoch 100 + p."""
        self.assign(*partitions)
        self.answer(partitions, {p: lock(100 + p) for p in partitions})
        return self


def ask(*partitions: int, generation: int = 5) -> ev.AcquireLocks:
    """Return the effect that asks for these."""
    return ev.AcquireLocks(partitions, OWNER, generation, LIVE)


def test_what_is_assigned_is_asked_for_in_one_call_and_what_stays_assigned_is_not_touched() -> None:
    """A worker that gets a hundred partitions makes one round trip; what it has it keeps."""
    desk = Desk()
    assert desk.assign(3, 1, 2) == [ask(1, 2, 3)]
    assert [desk.ownership.state(p) for p in (1, 2, 3)] == [State.ACQUIRING] * 3
    desk = Desk().running(1, 2, 3)
    assert desk.assign(1, 2, 3, generation=6) == []
    assert desk.assign(1, 2, 3, 4, generation=7) == [ask(4, generation=7)]


def test_a_call_that_answers_for_some_starts_those() -> None:
    """One runs, one is held, one got no answer."""
    desk = Desk().asking(1, 2, 3)
    effects = desk.answer((1, 2, 3), {1: lock(101), 2: HELD})
    assert effects == [
        ev.StartRunner(1, OWNER, lock(101)),
        ev.PostControl(PartitionsAcquired((1,), OWNER, 5)),
    ]
    assert desk.advance(RETRY_MS + RETRY_MS // 4) == [ask(2, 3)]


@pytest.mark.parametrize("reply", [HELD, Stale(9), None])
def test_a_lock_that_was_not_granted_is_asked_for_after_a_pause_with_jitter(
    reply: AcquireReply | None,
) -> None:
    """Not before; and there is a deadline for it. Once it is granted it is worked on."""
    desk = Desk().asking(1)
    assert desk.answer((1,), {} if reply is None else {1: reply}) == []
    assert desk.ownership.next_deadline_ms() == RETRY_MS + RETRY_MS // 4
    assert desk.advance(RETRY_MS + RETRY_MS // 4 - 1) == []
    assert desk.advance(1) == [ask(1)]
    assert desk.ownership.next_deadline_ms() is None
    assert ev.StartRunner(1, OWNER, lock(101)) in desk.answer((1,), {1: lock(101)})


def test_a_question_that_redis_refuses_is_asked_ever_more_seldom_and_ends_when_it_is_taken_away() -> None:
    """A person gives the right that is missing; and a worker that leaves does not wait for that."""
    desk, once_ms = Desk().asking(1), RETRY_MS + RETRY_MS // 4
    for pause in (2, 4, 8, 16, 32, 32):
        assert desk.answer((1,), {1: Refused()}) == []
        assert desk.advance(pause * once_ms - 1) == []
        assert desk.advance(1) == [ask(1)]
    desk.answer((1,), {1: HELD})
    assert desk.advance(once_ms) == [ask(1)]
    assert desk.assign() == []
    assert desk.answer((1,), {1: Refused()}) == []
    assert desk.ownership.is_idle


def test_only_a_stale_answer_says_that_the_view_is_old() -> None:
    """The caller reads the document then."""
    for reply, stale in ((HELD, False), (Stale(9), True)):
        desk = Desk()
        desk.assign(1)
        desk.answer((1,), {1: reply})
        assert desk.ownership.looks_stale() is stale


@pytest.mark.parametrize("replies", [{1: HELD, 2: HELD}, {}], ids=["held", "no answer"])
def test_a_release_that_is_heard_of_while_waiting_ends_the_pause(replies: dict[int, AcquireReply]) -> None:
    """Ask at once, for what was released and is waited for."""
    desk = Desk().asking(1, 2)
    desk.answer((1, 2), replies)
    assert desk.told(2, 7) == [ask(2)]


def test_a_release_that_is_heard_of_while_asking_is_not_forgotten() -> None:
    """The question may have been answered just before the release: ask again at once."""
    desk = Desk().asking(1, 2)
    assert desk.told(2) == []
    assert desk.answer((1, 2), {1: HELD, 2: HELD}) == [ask(2)]
    assert desk.answer((2,), {2: HELD}) == []


def test_a_partition_that_is_taken_away_before_it_is_asked_for_is_forgotten() -> None:
    """In the moment in which it was assigned, or while it waits to be asked for again."""
    desk = Desk()
    for desired in (frozenset({1}), frozenset[int]()):
        desk.ownership.assign(dict.fromkeys(desired, 5), 5, desk.now_ms)
    assert desk.ownership.is_idle
    assert desk.advance() == []
    desk.asking(1).answer((1,), {1: HELD})
    assert desk.assign() == []
    assert desk.ownership.is_idle


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_lock_that_is_answered_for_after_it_was_taken_away_is_given_back_if_it_was_granted(
    is_paused: bool,
) -> None:
    """No runner is started for it, paused or not; where it was refused there is nothing to give back."""
    desk = Desk().asking(1, 2)
    assert desk.assign() == []
    granted = lock(101, requested=7 * is_paused, is_paused=is_paused)
    assert desk.answer((1, 2), {1: granted, 2: HELD}) == [ev.ReleaseLocks(OWNER, {1: 101})]
    assert desk.ownership.state(2) is State.IDLE
    assert desk.released((1,), 1) == [ev.PostControl(PartitionsReleased((1,), OWNER, 5))]
    assert desk.ownership.is_idle
    assert desk.ownership.next_deadline_ms() is None


def test_an_acquire_without_an_answer_is_asked_again_even_if_it_was_taken_away() -> None:
    """It may have been granted: only an answer tells the epoch that is to be released."""
    desk = Desk().asking(1)
    desk.assign()
    assert desk.answer((1,), {}) == []
    assert not desk.ownership.is_idle
    assert desk.advance(RETRY_MS + RETRY_MS // 4) == [ask(1)]
    assert desk.answer((1,), {1: lock(101)}) == [ev.ReleaseLocks(OWNER, {1: 101})]


def test_a_partition_that_is_taken_away_after_a_call_without_an_answer_is_not_forgotten() -> None:
    """Else its lock may be ours without our knowing, and its next owner waits for the drain deadline.

    It is asked for in the generation that gave it to us: in a later one its next owner would be taken for
    somebody who has just begun to wait (simulator, seed 1038565).
    """
    desk = Desk().asking(1, 2)
    assert desk.answer((1,), {}) == []
    assert desk.answer((2,), {}) == []
    desk.assign(2, generation=6)
    assert not desk.ownership.is_idle
    later = [ask(1, generation=5), ask(2, generation=6)]
    assert desk.advance(RETRY_MS + RETRY_MS // 4) == later
    assert desk.answer((1,), {1: lock(101)}) == [ev.ReleaseLocks(OWNER, {1: 101})]


def test_a_partition_that_comes_back_while_it_is_withdrawn_runs_when_granted() -> None:
    """The question that is under way will do."""
    desk = Desk().asking(1)
    desk.assign(generation=6)
    assert desk.assign(1, generation=7) == []
    assert ev.StartRunner(1, OWNER, lock(101)) in desk.answer((1,), {1: lock(101)})


def test_a_revoked_partition_drains_shows_it_and_is_released_when_it_stopped() -> None:
    """In this order."""
    desk = Desk().running(1, 2)
    assert desk.assign(1, generation=6) == [
        ev.DrainRunner(2, 102),
        ev.MarkLock(2, OWNER, 102, "draining", ""),
    ]
    assert desk.ownership.next_deadline_ms() == GRACE_MS
    assert desk.stopped(2, 102) == [ev.ReleaseLocks(OWNER, {2: 102})]
    assert desk.ownership.next_deadline_ms() is None
    assert desk.released((2,), 2) == [ev.PostControl(PartitionsReleased((2,), OWNER, 6))]
    assert desk.ownership.state(2) is State.IDLE


def test_a_release_without_an_answer_is_repeated_until_there_is_one() -> None:
    """Nobody is told before it is certain."""
    desk = Desk().running(1)
    desk.assign()
    desk.stopped(1, 101)
    for _ in range(3):
        assert desk.released((1,)) == []
        assert desk.advance(RETRY_MS + RETRY_MS // 4) == [ev.ReleaseLocks(OWNER, {1: 101})]
    assert desk.released((1,), 1) == [ev.PostControl(PartitionsReleased((1,), OWNER, 5))]


def test_a_partition_that_comes_back_while_it_is_released_is_asked_for_at_once() -> None:
    """When the release is done, with the newest generation."""
    desk = Desk().running(1)
    desk.assign(generation=6)
    desk.stopped(1, 101)
    assert desk.assign(1, generation=7) == []
    assert desk.released((1,), 1) == [
        ev.PostControl(PartitionsReleased((1,), OWNER, 7)),
        ask(1, generation=7),
    ]


@pytest.mark.parametrize("stays", [True, False])
def test_a_fenced_partition_is_asked_for_again_only_if_it_is_assigned(stays: bool) -> None:
    """Without a release, which is not ours to make."""
    desk = Desk().running(1)
    if not stays:
        desk.assign()
    effects = desk.ownership.handle(ev.RunnerFenced(1, 101), desk.now_ms)
    assert effects == [ev.Note("partition_fenced", {"partition": 1, "epoch": 101})]
    assert desk.ownership.looks_stale()
    assert desk.advance(GRACE_MS) == ([ask(1)] if stays else [])


@pytest.mark.parametrize("is_taken_away", [True, False])
@pytest.mark.parametrize("is_halted", [True, False])
def test_a_fenced_partition_runs_again_when_its_lock_is_granted_anew_or_is_forgotten(
    is_halted: bool, is_taken_away: bool
) -> None:
    """After a pause, or when we hear of a release. A halted one, too: others may have got past it.

    One that is taken away is somebody else's: there is nothing to give back.
    """
    desk = Desk().running(1)
    if is_halted:
        desk.ownership.handle(ev.RunnerHalted(1, 101, "poison"), desk.now_ms)
    desk.ownership.handle(ev.RunnerFenced(1, 101), desk.now_ms)
    if is_taken_away:
        desk.assign(generation=6)
        assert desk.ownership.is_idle
        return
    assert desk.advance(RETRY_MS - 1) == []
    assert desk.told(1) == [ask(1)]
    assert ev.StartRunner(1, OWNER, lock(102)) in desk.answer((1,), {1: lock(102)})


def test_what_a_fenced_runner_says_later_is_passed_over() -> None:
    """Its lock is somebody else's, whatever we do about it meanwhile."""
    desk = Desk().running(1)
    desk.ownership.handle(ev.RunnerFenced(1, 101), desk.now_ms)
    ask_again, take_away = (lambda: desk.advance(2 * RETRY_MS)), (lambda: desk.assign(generation=6))
    for state, go_on in ((State.WAITING, ask_again), (State.ACQUIRING, take_away), (State.WITHDRAWING, list)):
        assert desk.ownership.state(1) is state
        assert desk.ownership.handle(ev.RunnerFenced(1, 101), desk.now_ms) == []
        assert desk.ownership.handle(ev.RunnerHalted(1, 101, "poison"), desk.now_ms) == []
        assert desk.stopped(1, 101) == []
        go_on()
    assert desk.ownership.drop() == []


def test_a_runner_that_halts_is_shown_with_its_newest_reason_and_keeps_its_partition() -> None:
    """Nothing is released and nothing is asked. Several records may fail; it drains when it is revoked."""
    desk = Desk().running(1)
    for reason in ("poison", "more poison"):
        effects = desk.ownership.handle(ev.RunnerHalted(1, 101, reason), desk.now_ms)
        assert effects == [ev.MarkLock(1, OWNER, 101, "halted", reason)]
        assert desk.advance(60_000) == []
        assert desk.ownership.state(1) is State.HALTED
    assert ev.DrainRunner(1, 101) in desk.assign(generation=6)


def test_a_runner_that_halts_while_it_drains_still_has_to_stop() -> None:
    """Its grace period goes on."""
    desk = Desk().running(1)
    desk.assign()
    desk.ownership.handle(ev.RunnerHalted(1, 101, "poison"), desk.now_ms)
    assert desk.ownership.state(1) is State.DRAINING
    assert desk.advance(GRACE_MS) == [ev.CancelRunner(1, 101)]


def test_what_concerns_an_earlier_epoch_or_a_former_self_is_passed_over() -> None:
    """Runners end in their own time, a new one may run already; locks of who is no member are free."""
    desk = Desk().running(1)
    desk.assign(1, 2)
    assert desk.stopped(1, 100) == []
    assert desk.ownership.handle(ev.RunnerFenced(1, 100), 0) == []
    assert desk.ownership.handle(ev.RunnerHalted(1, 100, "poison"), desk.now_ms) == []
    assert desk.ownership.state(1) is State.RUNNING
    assert desk.ownership.handle(ev.LocksAnswered("w1.0", (2, 3), {2: lock(9)}), 0) == []
    assert desk.ownership.handle(ev.LocksReleased("w1.0", (2, 3), frozenset({2})), 0) == []
    assert desk.ownership.state(2) is State.ACQUIRING


def test_dropping_stops_what_runs_and_nothing_else() -> None:
    """Acquiring, releasing and paused partitions have no runner; one that stops for an order still has."""
    desk = Desk().running(1, 2, 3, 5)
    desk.requested(5, 7)
    desk.assign(1, 2, 4, 5)
    desk.stopped(3, 103)
    desk.assign(1, 4, 5)
    assert desk.ownership.drop() == [ev.DropRunner(p, 100 + p) for p in (1, 2, 5)]
    assert desk.ownership.is_idle
    assert Desk().paused(1).ownership.drop() == []


# -- operators' requests -----------------------------------------------------------------------------


def test_an_order_ends_what_is_in_hand_and_asks_for_the_lock_again() -> None:
    """Whatever it is: the answer about the lock says what the operator wants."""
    desk = Desk().running(1)
    assert desk.requested(1, 7) == [ev.DrainRunner(1, 101)]
    assert desk.ownership.state(1) is State.STOPPING
    assert desk.requested(1, 8) == []
    assert desk.stopped(1, 101) == [ask(1)]
    acquired = ev.PostControl(PartitionsAcquired((1,), OWNER, 5))
    assert desk.answer((1,), {1: lock(101, requested=8, is_paused=True)}) == [acquired]
    assert desk.ownership.state(1) is State.PAUSED
    assert desk.requested(1, 8) == []
    assert desk.requested(1, 9) == [ask(1)]
    resumed = lock(101, requested=9)
    assert desk.answer((1,), {1: resumed}) == [ev.StartRunner(1, OWNER, resumed), acquired]


def test_an_order_ends_a_halt() -> None:
    """No restart is needed to try again; what the runner says of the halt while it stops is not shown."""
    desk = Desk().running(1)
    desk.ownership.handle(ev.RunnerHalted(1, 101, "poison"), 0)
    assert desk.ownership.state(1) is State.HALTED
    assert desk.requested(1, 7) == [ev.DrainRunner(1, 101)]
    assert desk.ownership.handle(ev.RunnerHalted(1, 101, "poison"), 0) == []
    assert desk.ownership.state(1) is State.STOPPING
    assert desk.stopped(1, 101) == [ask(1)]


def test_a_call_under_way_may_have_missed_an_order() -> None:
    """It was given after the lock had answered, before the answer was here: the worker asks again, once."""
    for first in (lock(101), lock(101, requested=6, is_paused=True)):
        desk = Desk().asking(1)
        assert desk.requested(1, 7) == []
        effects = desk.answer((1,), {1: first})
        if first.is_paused:
            assert ask(1) in effects
        else:
            assert ev.DrainRunner(1, 101) in effects
            assert desk.stopped(1, 101) == [ask(1)]
        # A failover may have lost the order; it is not waited for.
        assert ev.StartRunner(1, OWNER, lock(101)) in desk.answer((1,), {1: lock(101)})


def test_an_order_of_which_no_message_told_is_seen_in_the_lock() -> None:
    """Also if a failover lost one that was obeyed: then the version in the lock is lower."""
    desk = Desk().running(1)
    assert desk.seen({1: 0, 4: 9}) == []
    assert desk.seen({1: 7}) == [ev.DrainRunner(1, 101)]
    assert desk.stopped(1, 101) == [ask(1)]
    assert desk.seen({1: 8}) == []
    desk = Desk().paused(1)
    assert desk.seen({1: 7}) == []
    assert desk.seen({1: 0}) == [ask(1)]


def test_a_paused_partition_is_given_back_like_any_other() -> None:
    """It has no runner to wait for; and while one stops for an order, the drain is that of a revoked one."""
    desk = Desk().paused(1)
    assert desk.ownership.held == [1]
    assert desk.assign(generation=6) == [ev.ReleaseLocks(OWNER, {1: 101})]
    assert desk.ownership.held == []
    desk.released((1,), 1)
    assert desk.ownership.is_idle
    desk = Desk().running(1)
    desk.requested(1, 7)
    mark = ev.MarkLock(1, OWNER, 101, "draining", "")
    assert desk.assign(generation=6) == [ev.DrainRunner(1, 101), mark]
    assert desk.advance(GRACE_MS) == [ev.CancelRunner(1, 101)]
    assert desk.stopped(1, 101) == [ev.ReleaseLocks(OWNER, {1: 101})]


def test_a_lock_that_is_held_is_given_back_if_the_assignment_changes_before_it_is_asked_for() -> None:
    """In the moment between the end of a runner, or an order, and the question about the lock."""
    stopping, paused = Desk().running(1), Desk().paused(1)
    stopping.requested(1, 8)
    for desk, event in ((stopping, ev.RunnerStopped(1, 101)), (paused, ev.RequestsSeen({1: 8}))):
        desk.ownership.handle(event, desk.now_ms)
        assert desk.assign(generation=6) == [ask(1)]
        assert desk.answer((1,), {1: lock(101, requested=8)}) == [ev.ReleaseLocks(OWNER, {1: 101})]


def test_a_runner_that_is_fenced_while_it_stops_asks_later() -> None:
    desk = Desk().running(1)
    desk.requested(1, 7)
    desk.ownership.handle(ev.RunnerFenced(1, 101), desk.now_ms)
    assert desk.ownership.state(1) is State.WAITING
    assert desk.ownership.looks_stale()
    assert desk.advance() == []
    assert desk.advance(RETRY_MS + RETRY_MS // 4) == [ask(1)]


class EveryOrder(RuleBasedStateMachine):
    """Any assignment at any time, answers of any kind in any order, runners that end as they like.

    The machine keeps its own books of what is under way, and never a copy of the states.
    """

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.desired: frozenset[int] = frozenset()
        self.generation = 0
        self.epoch = 100
        self.calling: set[int] = set()
        self.runners: dict[int, int] = {}
        self.ending: set[int] = set()
        self.acquiring: list[ev.AcquireLocks] = []
        self.releasing: list[ev.ReleaseLocks] = []
        self.requested: dict[int, int] = {}
        """The newest order of each partition; an odd one is a pause."""

    def do(self, effects: list[ev.Effect]) -> None:
        """Take effects as the runtime does, and judge them."""
        for effect in effects:
            match effect:
                case ev.AcquireLocks(partitions):
                    assert not self.calling & set(partitions)
                    assert not set(self.runners) & set(partitions)
                    self.calling |= set(partitions)
                    self.acquiring.append(effect)
                case ev.ReleaseLocks(_, epochs):
                    assert not self.calling & set(epochs)
                    assert not set(self.runners) & set(epochs)
                    self.calling |= set(epochs)
                    self.releasing.append(effect)
                case ev.StartRunner(partition, _, granted):
                    assert partition in self.desired
                    assert partition not in self.runners
                    self.runners[partition] = granted.epoch
                case ev.DrainRunner(partition, epoch):
                    assert partition not in self.desired or partition in self.requested
                    assert self.runners[partition] == epoch
                    self.ending.add(partition)
                case ev.CancelRunner(partition, epoch):
                    assert partition in self.ending
                    assert self.runners[partition] == epoch

    @rule(desired=st.frozensets(st.integers(0, 3)))
    def assign(self, desired: frozenset[int]) -> None:
        self.desired = desired
        self.generation += 1
        self.do(self.desk.assign(*desired, generation=self.generation))

    @rule(
        replies=st.lists(
            st.sampled_from(["granted", "held", "stale", "refused", "lost"]), min_size=4, max_size=4
        )
    )
    def answer_acquire(self, replies: list[str]) -> None:
        if not self.acquiring:
            return
        asked = self.acquiring.pop(len(replies[0]) % len(self.acquiring)).partitions
        answers: dict[int, AcquireReply] = {}
        for partition, reply in zip(asked, replies, strict=False):
            self.epoch += 1
            if reply != "lost":
                refusals: dict[str, AcquireReply] = {"held": HELD, "refused": Refused(), "stale": Stale(99)}
                order = self.requested.get(partition, 0)
                granted = lock(self.epoch, requested=order, is_paused=order % 2 == 1)
                answers[partition] = granted if reply == "granted" else refusals[reply]
        self.calling -= set(asked)
        self.do(self.desk.answer(asked, answers))

    @rule(lost=st.frozensets(st.integers(0, 3)))
    def answer_release(self, lost: frozenset[int]) -> None:
        if self.releasing:
            asked = tuple(self.releasing.pop(0).epochs)
            self.calling -= set(asked)
            self.do(self.desk.released(asked, *(set(asked) - lost)))

    @rule(partition=st.integers(0, 3), how=st.sampled_from(["stopped", "fenced", "halted"]))
    def runner_event(self, partition: int, how: str) -> None:
        epoch = self.runners.get(partition)
        if epoch is None or (how == "stopped" and partition not in self.ending):
            return
        if how == "halted":
            self.do(self.desk.ownership.handle(ev.RunnerHalted(partition, epoch, "poison"), self.desk.now_ms))
            return
        del self.runners[partition]
        self.ending.discard(partition)
        if how == "fenced":
            self.do(
                self.desk.ownership.handle(ev.RunnerFenced(partition, epoch), self.desk.now_ms)
                + self.desk.advance()
            )
        else:
            self.do(self.desk.stopped(partition, epoch))

    @rule(partition=st.integers(0, 3), is_heard=st.booleans())
    def order(self, partition: int, is_heard: bool) -> None:
        self.requested[partition] = self.requested.get(partition, 0) + 1
        if is_heard:
            self.do(self.desk.requested(partition, self.requested[partition]))
        else:
            self.do(self.desk.seen({partition: self.requested[partition]}))

    @rule(partitions=st.frozensets(st.integers(0, 5)))
    def told(self, partitions: frozenset[int]) -> None:
        self.do(self.desk.told(*partitions))

    @rule(ms=st.sampled_from([1, RETRY_MS, GRACE_MS]))
    def time_passes(self, ms: int) -> None:
        self.do(self.desk.advance(ms))

    @invariant()
    def a_runner_exists_exactly_where_the_state_says(self) -> None:
        """What handles records is what the table calls handling."""
        states = {p: self.desk.ownership.state(p) for p in range(4)}
        assert {p for p, state in states.items() if state in HANDLING} == set(self.runners)

    @invariant()
    def something_will_happen_to_whatever_is_not_at_rest(self) -> None:
        """A partition waits for a call, for its runner or for a timer that lies ahead."""
        deadline_ms = self.desk.ownership.next_deadline_ms()
        assert deadline_ms is None or deadline_ms > self.desk.now_ms
        for p in range(4):
            if self.desk.ownership.state(p) not in (State.IDLE, State.PAUSED, *HANDLING):
                assert p in self.calling or deadline_ms is not None
            if p in self.desired:
                assert self.desk.ownership.state(p) is not State.IDLE

    def teardown(self) -> None:
        """In the end all is taken away, everything is answered, and nothing is left."""
        self.assign(frozenset())
        for _ in range(5):
            for partition in sorted(self.ending):
                self.runner_event(partition, "stopped")
            while self.acquiring:
                self.answer_acquire(["held"] * 4)
            while self.releasing:
                self.answer_release(frozenset())
            self.time_passes(2 * RETRY_MS)
        assert self.desk.ownership.is_idle


TestEveryOrder = EveryOrder.TestCase
