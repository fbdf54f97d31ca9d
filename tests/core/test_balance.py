"""When load makes partitions move: never to and fro, never much at a time, never for nothing.

``Looks`` is a group of the balancer's: a document, loads by a function of the test, and a clock.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from streamworker.core.protocols.membership.balance import Balancer, plan
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.core.protocols.membership.events import LoadsRead, ReadLoads
from streamworker.core.protocols.membership.settings import BalanceRules
from streamworker.core.protocols.membership.weights import Scales
from tests.helpers import drawn

RULES = BalanceRules()
Load = Callable[[int, int], int]
"""Of a partition at a look."""


def document(owners: list[int], capacities: list[int], generation: int = 1) -> Membership:
    """Return a group of as many members as there are capacities; owners are their ranks."""
    members = tuple(
        Member(f"w{rank}", f"w{rank}", "host", 1, rank, capacity=capacity)
        for rank, capacity in enumerate(capacities)
    )
    return Membership(generation, len(owners), "weighted", members, tuple(f"w{rank}" for rank in owners))


class Looks:
    """Look after look at one group."""

    def __init__(self, membership: Membership, load: Load, rules: BalanceRules = RULES) -> None:
        self.membership, self.load, self.rules = membership, load, rules
        self.balancer = Balancer(rules)
        self.now_ms = self.turn = 0
        self.moves: list[tuple[int, int]] = []
        """When, and how many."""
        self.states = [membership.owners]
        self.changes = 0

    def run(self, count: int) -> int:
        """Look so often; return how many partitions moved."""
        before = sum(moved for _, moved in self.moves)
        for _ in range(count):
            self._look()
        return sum(moved for _, moved in self.moves) - before

    def _look(self) -> None:
        self.balancer.advance(self.now_ms, is_our_turn=True)
        self.now_ms += self.rules.interval_ms
        assert self.balancer.advance(self.now_ms, is_our_turn=True) == [ReadLoads()]
        loads: dict[str, dict[int, int]] = {each: {} for each in self.membership.ids}
        for partition, owner in enumerate(self.membership.owners):
            assert owner is not None
            loads[owner][partition] = self.load(partition, self.turn)
        self.turn += 1
        verdict = self.balancer.seen(LoadsRead(loads, self.now_ms), self.membership, "w0")
        if verdict is None:
            return
        assert verdict.after.generation == self.membership.generation
        moved = self.membership.moved(verdict.after)
        assert (verdict.cause == "balance") == bool(moved)
        self.membership = replace(verdict.after, generation=self.membership.generation + 1)
        self.changes += 1
        if moved:
            self.moves.append((self.now_ms, len(moved)))
            self.states.append(self.membership.owners)

    def levels(self) -> list[float]:
        """Return the level of each member by the loads of the last look."""
        load: Counter[str] = Counter()
        for partition, owner in enumerate(self.membership.owners):
            load[owner or ""] += self.load(partition, max(0, self.turn - 1))
        return [load[each.id] / each.capacity for each in self.membership.members]


@st.composite
def groups(draw: st.DrawFn) -> tuple[Membership, list[int]]:
    """Up to 8 members and 60 partitions, some hot, unevenly owned."""
    n, count = draw(st.integers(2, 8)), draw(st.integers(1, 60))
    rng = draw(st.randoms(use_true_random=False))
    heavy = [rng.choice([1, 10, rng.randint(1, 100), rng.randint(1, 1_000)]) for _ in range(count)]
    capacities = [rng.choice([1, 1, 1, 2, 4]) for _ in range(n)]
    return document([rng.randrange(n) for _ in range(count)], capacities), heavy


def scales(membership: Membership, heavy: Sequence[int]) -> Scales:
    """Return a group's scales when its partitions weigh so much."""
    weights = replace(membership.weights, partitions=tuple(heavy))
    return Scales(membership.ids, membership.owners, weights)


# -- one plan --------------------------------------------------------------------------------


@given(groups(), st.integers(0, 12))
def test_each_move_leaves_the_taker_lower_than_the_giver_was(
    group: tuple[Membership, list[int]], most: int
) -> None:
    """By the threshold. So no plan raises the highest level, and none is longer than it may be."""
    membership, heavy = group
    before, after = scales(membership, heavy), scales(membership, heavy)
    given_away = plan(after, RULES, most)
    assert len(given_away) <= most
    for partition, taker in given_away.items():
        giver = membership.owners[partition]
        limit = before.level(giver or "") * (100 - RULES.threshold_percent)
        assert before.level(taker, before.weight[partition]) * 100 <= limit
        before.move(partition, giver, taker)
    assert before.owners() == after.owners()


@given(groups())
def test_nothing_moves_from_a_worker_that_stands_less_than_the_threshold_above_the_mean(
    group: tuple[Membership, list[int]],
) -> None:
    """The mean of those who stand lower, for who stands higher may have one hot partition and be left out."""
    membership, heavy = group
    before = scales(membership, heavy)
    given_away = plan(scales(membership, heavy), RULES, 100)
    givers = [membership.owners[partition] or "" for partition in given_away]
    event("somebody gives" if givers else "nobody gives")
    for giver in givers[:1]:  # the levels of the others have changed by then
        lower = [each for each in membership.ids if before.level(each) < before.level(giver)]
        assert before.level(giver) * 100 > before.mean([giver, *lower]) * (100 + RULES.threshold_percent)
    highest = max(map(before.level, membership.ids))
    if highest * 100 <= before.mean(membership.ids) * (100 + RULES.threshold_percent):
        assert given_away == {}


@pytest.mark.parametrize(
    ("owners", "heavy", "moved"),
    [
        pytest.param([0, 0, 0, 1, 1, 1], [900, 200, 200, 50, 50, 50], {1: "w1", 2: "w1"}, id="hot stays"),
        pytest.param([0, 1], [1_000, 10], {}, id="one hot partition alone cannot be helped"),
        pytest.param([0, 0, 0, 0, 1, 1], [1_000, 3, 3, 3, 40, 40], {}, id="not worth a pause"),
        pytest.param([0, 0, 1], [300, 300, 300], {}, id="three of a size for two"),
        pytest.param([0, 0, 0, 1], [3, 2, 2, 1], {}, id="all idle"),
        pytest.param([0, 1, 1], [1_000, 300, 300], {1: "w2"}, id="beside a hot one that cannot be helped"),
    ],
)
def test_what_moves_and_what_does_not(owners: list[int], heavy: list[int], moved: dict[int, str]) -> None:
    """Small cases that people can follow."""
    members = 3 if "w2" in moved.values() else 2
    membership = document(owners, [1] * members)
    assert plan(scales(membership, heavy), replace(RULES, damping_percent=100), 10) == moved


def test_a_step_moves_a_part_of_what_is_too_much() -> None:
    """Of an excess of 400, half at most; the next step sees what that led to."""
    membership = document([0] * 8 + [1] * 8, [1, 1])
    heavy = [100] * 8 + [1] * 8
    half = plan(scales(membership, heavy), RULES, 100)
    whole = plan(scales(membership, heavy), replace(RULES, damping_percent=100), 100)
    assert len(half) == 1
    assert len(whole) == 3


# -- look after look -------------------------------------------------------------------------


@drawn(80)
@given(groups())
def test_under_a_constant_load_it_comes_to_rest_for_ever(group: tuple[Membership, list[int]]) -> None:
    """And then nobody who stands too high could give anything that helps."""
    membership, heavy = group
    looks = Looks(membership, lambda p, _: heavy[p], replace(RULES, moves_per_minute=1_000))
    highest = max(looks.levels())
    looks.run(100)
    assert max(looks.levels()) <= highest
    changes = looks.changes
    assert looks.run(40) == 0
    assert looks.changes == changes
    assert plan(scales(looks.membership, looks.membership.weighed), RULES, 100) == {}


@drawn(60)
@given(groups(), st.integers(0, 11), st.integers(0, 2**32))
def test_noise_of_eleven_percent_never_brings_back_what_was_left(
    group: tuple[Membership, list[int]], percent: int, seed: int
) -> None:
    """The proof in the module, tried: no arrangement is seen twice, so there is a last move."""
    membership, heavy = group
    rng = random.Random(seed)
    scaled = [100 * weight for weight in heavy]  # so that whole numbers are no noise of their own

    def load(partition: int, _turn: int) -> int:
        return scaled[partition] * rng.randint(100 - percent, 100 + percent) // 100

    looks = Looks(membership, load, replace(RULES, looks=1, moves_per_minute=1_000))
    looks.run(80)
    assert len(set(looks.states)) == len(looks.states)


@pytest.mark.parametrize("percent", [5, 9])
def test_noise_moves_nothing_in_a_balanced_group(percent: int) -> None:
    """A thousand looks at 64 partitions on 8 workers: an hour and a half."""
    rng = random.Random(percent)
    looks = Looks(
        document([p % 8 for p in range(64)], [1] * 8),
        lambda _p, _t: 100 + rng.randint(-percent, percent),
    )
    assert looks.run(1_000) == 0


@drawn(40)
@given(groups(), st.integers(0, 2**32), st.integers(1, 6))
def test_whatever_the_load_does_no_minute_has_more_moves_than_the_cap(
    group: tuple[Membership, list[int]], seed: int, cap: int
) -> None:
    """With a load that is another one at each look, and with another balancer every minute."""
    rng = random.Random(seed)
    rules = replace(RULES, looks=1, damping_percent=100, moves_per_minute=cap)
    looks = Looks(group[0], lambda _p, _t: rng.choice([1, 500, 2_000]), rules)
    for _ in range(10):
        looks.run(12)
        looks.balancer = Balancer(rules)
    for at_ms, _ in looks.moves:
        assert sum(moved for then, moved in looks.moves if at_ms - 60_000 < then <= at_ms) <= cap


def test_a_load_that_changes_sides_slowly_is_followed_and_one_that_swings_to_and_fro_is_not() -> None:
    """A day and a night: each side is relieved, and rests. Hot for two looks each: never three in a row."""

    def hot_in_turn(looks_each: int) -> Looks:
        return Looks(
            document([0] * 8 + [1] * 8, [1, 1]),
            lambda p, turn: 100 if (p < 8) == (turn // looks_each % 2 == 0) else 10,
        )

    assert hot_in_turn(2).run(600) == 0
    looks = hot_in_turn(200)
    for _ in ("day", "night"):
        assert looks.run(150) > 0
        assert looks.run(50) == 0
        assert max(looks.levels()) / min(looks.levels()) < 1.5


def test_a_worker_of_capacity_two_ends_with_about_twice_the_load() -> None:
    """Measured load on 60 partitions that were shared evenly."""
    looks = Looks(document([p % 3 for p in range(60)], [2, 1, 1]), lambda _p, _t: 30)
    looks.run(300)
    strong, *others = (level * c for level, c in zip(looks.levels(), [2, 1, 1], strict=True))
    assert all(1.5 <= strong / other <= 2.5 for other in others)


def test_a_surplus_worker_is_given_something_as_soon_as_that_helps() -> None:
    """It stands by with nothing while each other has one, and takes a second one from who has two."""
    looks = Looks(document([0, 1], [1, 1, 1]), lambda _p, _t: 900)
    assert looks.run(50) == 0
    looks = Looks(document([0, 0, 1], [1, 1, 1]), lambda _p, _t: 450)
    assert looks.run(50) == 1
    assert Counter(looks.membership.owners) == {"w0": 1, "w1": 1, "w2": 1}


# -- the balancer ----------------------------------------------------------------------------


def uneven(*, generation: int = 1) -> Membership:
    """Return a group in which w0 has far too much."""
    return document([0, 0, 0, 0, 1, 1], [1, 1], generation)


def loads(membership: Membership, load: int = 200, **other: int) -> LoadsRead:
    """Return what all members measured: ``load`` for w0, and 10 for the others."""
    found: dict[str, dict[int, int]] = {each: {} for each in membership.ids}
    for partition, owner in enumerate(membership.owners):
        assert owner is not None
        found[owner][partition] = load if owner == "w0" else other.get("rest", 10)
    return LoadsRead(found, 1_000_000)


def asked(balancer: Balancer) -> Balancer:
    """Return the balancer with a question under way."""
    balancer.advance(0, is_our_turn=True)
    assert balancer.advance(RULES.interval_ms, is_our_turn=True) == [ReadLoads()]
    return balancer


def test_it_asks_once_an_interval_and_only_when_it_is_its_turn() -> None:
    """At most one question is under way."""
    balancer = Balancer(RULES)
    assert balancer.advance(0, is_our_turn=False) == []
    assert balancer.next_deadline_ms() is None
    assert balancer.advance(100, is_our_turn=True) == []
    assert balancer.next_deadline_ms() == 100 + RULES.interval_ms
    assert balancer.advance(100 + RULES.interval_ms, is_our_turn=True) == [ReadLoads()]
    assert balancer.next_deadline_ms() is None
    assert balancer.advance(100 + 9 * RULES.interval_ms, is_our_turn=True) == []
    balancer.failed()
    assert balancer.advance(100 + 9 * RULES.interval_ms, is_our_turn=True) == [ReadLoads()]


def test_it_counts_looks_at_one_generation_only() -> None:
    """What was measured before a change says little about what is after it."""
    balancer = asked(Balancer(RULES))
    for _ in range(RULES.looks - 1):
        assert balancer.seen(loads(uneven()), uneven(), "w0") is None
    later = uneven(generation=2)
    for _ in range(RULES.looks - 1):
        assert balancer.seen(loads(later), later, "w0") is None
    verdict = balancer.seen(loads(later), later, "w0")
    assert verdict is not None
    assert (verdict.cause, verdict.after.generation) == ("balance", 2)


def test_a_look_without_excess_begins_the_count_anew() -> None:
    """So must a burst last, to be seen."""
    balancer = asked(Balancer(RULES))
    for _ in range(5):
        for _ in range(RULES.looks - 1):
            assert balancer.seen(loads(uneven()), uneven(), "w0") is None
        assert balancer.seen(loads(uneven(), 10, rest=20), uneven(), "w0") is None


def test_nothing_is_decided_while_a_member_with_partitions_has_measured_nothing() -> None:
    """It would be taken for idle."""
    balancer = asked(Balancer(RULES))
    event = loads(uneven())
    silent = LoadsRead({"w0": event.loads["w0"]}, event.server_ms)
    for _ in range(2 * RULES.looks):
        assert balancer.seen(silent, uneven(), "w0") is None


def test_a_partition_that_was_not_measured_weighs_what_the_document_says() -> None:
    """It has just been given to its owner."""
    group = uneven().with_weights((400, 50, 50, 50, 10, 10))
    balancer = asked(Balancer(RULES))
    event = LoadsRead({"w0": {1: 50, 2: 50, 3: 50}, "w1": {4: 10, 5: 10}}, 1_000_000)
    verdicts = [balancer.seen(event, group, "w0") for _ in range(RULES.looks)]
    assert verdicts[-1] is not None
    assert verdicts[-1].after.weighed == (400, 50, 50, 50, 10, 10)
    assert verdicts[-1].after.owned_by("w1") == {1, 2, 4, 5}, "half of the excess"


def test_what_was_measured_comes_into_the_document_though_nothing_moves() -> None:
    """The next join or death goes by it. Once: then it says what is."""
    looks = Looks(document([0, 1, 0, 1], [1, 1]), lambda p, _t: [800, 800, 100, 100][p])
    assert looks.run(RULES.looks) == 0
    assert looks.membership.weighed == (800, 800, 100, 100)
    assert looks.changes == 1
    looks.run(50)
    assert looks.changes == 1


def test_weights_alone_are_renewed_once_a_minute_at_most() -> None:
    """A change of the document is read by everybody."""
    looks = Looks(document([0, 1], [1, 1]), lambda _p, turn: 900 if turn // 3 % 2 else 90)
    assert looks.run(120) == 0
    assert 5 <= looks.changes <= 10, "in ten minutes"


def test_moves_of_the_last_minute_are_in_the_document_and_older_ones_are_not() -> None:
    """Whoever is the balancer next goes by it."""
    group = uneven().with_moves({0: "w1"}, 100_000).with_moves({1: "w1", 2: "w1"}, 150_000)
    assert group.moves_in_minute(150_000) == 3
    assert group.moves_in_minute(160_000) == 2
    assert group.moves_in_minute(99_999) == 0, "the server's clock was set back"
    assert group.with_moves({3: "w1"}, 200_000).balanced == ((150_000, 2), (200_000, 1))


def test_without_its_turn_or_under_another_assignment_nothing_is_wanted() -> None:
    """An answer may come when things have changed."""
    balancer = asked(Balancer(replace(RULES, looks=1)))
    assert balancer.seen(loads(uneven()), replace(uneven(), strategy="sticky"), "w0") is None
    balancer = asked(Balancer(replace(RULES, looks=1)))
    balancer.advance(RULES.interval_ms, is_our_turn=False)
    assert balancer.seen(loads(uneven()), uneven(), "w0") is None
