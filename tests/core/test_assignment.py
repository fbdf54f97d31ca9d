"""Who should own what."""

import hashlib
from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamworker.core.protocols.membership.assignment import (
    STRATEGIES,
    Owners,
    moves,
    range_assignment,
    sticky_assignment,
    weighted_assignment,
)
from streamworker.core.protocols.membership.weights import Weights
from tests.helpers import drawn

members = st.lists(st.text(min_size=1, max_size=6), unique=True, min_size=1, max_size=30)
partitions = st.integers(min_value=1, max_value=200)
previous = st.lists(st.none() | st.text(max_size=6), max_size=200).map(tuple)
small_ids = st.integers(1, 4).map(lambda n: [f"w{rank}" for rank in range(n)])
small_previous = st.lists(st.sampled_from(["w0", "w1", "w2", "w3", "gone", None]), max_size=6).map(tuple)


@st.composite
def large_histories(draw: st.DrawFn) -> tuple[list[str], int, Owners]:
    """Up to 64 members and 1,024 partitions, whose owners are uneven, gone or unknown."""
    count, n = draw(st.integers(1, 1_024)), draw(st.integers(1, 64))
    rng = draw(st.randoms(use_true_random=False))
    ids = [f"w{rank}" for rank in range(n)]
    pool = [*rng.sample(ids, rng.randint(1, n)), *rng.sample(["gone", "gone too", None], rng.randint(0, 3))]
    weights = [rng.randint(1, 20) for _ in pool]
    rng.shuffle(ids)
    return ids, count, tuple(rng.choices(pool, weights, k=rng.choice([count, count, rng.randint(0, count)])))


def spread(owners: Owners, ids: list[str]) -> int:
    """Return how many partitions the one with the most has more than the one with the fewest."""
    load = Counter(owners)
    return max(load[each] for each in ids) - min(load[each] for each in ids)


def fewest_moves(ids: list[str], count: int, before: Owners) -> int:
    """Return the minimum of moves by a road of its own: the dearest choice of larger shares.

    Which members get the larger share is chosen by a table over the members, in which
    ``best[j]`` is the most that is kept when j of those seen so far have the larger one.
    """
    share, larger = divmod(count, len(ids))
    load = Counter(before[:count])
    best: list[int | None] = [0] + [None] * larger
    for member in ids:
        following: list[int | None] = [None] * (larger + 1)
        for j, known in enumerate(best):
            if known is None:
                continue
            for size, index in ((share, j), (share + 1, j + 1)):
                if index <= larger:
                    following[index] = max(following[index] or 0, known + min(load[member], size))
        best = following
    kept = best[larger]
    assert kept is not None
    return count - kept


@pytest.mark.parametrize("strategy", [range_assignment, sticky_assignment])
@given(ids=members, count=partitions, before=previous)
def test_every_partition_has_an_owner_and_nobody_has_two_more_than_another(
    strategy: Callable[[list[str], int, Owners], Owners], ids: list[str], count: int, before: Owners
) -> None:
    """The load is balanced to one partition."""
    owners = strategy(ids, count, before)
    assert len(owners) == count
    assert set(owners) <= set(ids)
    assert spread(owners, ids) <= 1


@given(members, partitions)
def test_each_member_has_one_contiguous_run_in_join_order(ids: list[str], count: int) -> None:
    """Runs follow each other as the members joined."""
    owners = range_assignment(ids, count, ())
    ranks = [ids.index(owner) for owner in owners if owner is not None]
    assert ranks == sorted(ranks)


@given(members, partitions, previous, previous)
def test_history_does_not_change_a_range_assignment(
    ids: list[str], count: int, before: Owners, other: Owners
) -> None:
    """The same members and partitions give the same answer on every machine."""
    assert range_assignment(ids, count, before) == range_assignment(list(ids), count, other)


def test_a_group_without_members_owns_nothing_and_nothing_has_moved() -> None:
    """A partition that nobody owns afterwards has nobody to wait for."""
    assert range_assignment([], 3, ("a", "a", "a")) == (None, None, None)
    assert moves(("a", "b"), (None, "b")) == ()


@given(members, members, partitions)
def test_moves_are_exactly_the_partitions_with_a_new_owner(
    before_ids: list[str], after_ids: list[str], count: int
) -> None:
    """What keeps its owner is not among them."""
    before, after = (range_assignment(ids, count, ()) for ids in (before_ids, after_ids))
    moved = moves(before, after)
    assert all((p in moved) == (before[p] != after[p]) for p in range(count))


def test_every_strategy_is_known_by_the_name_it_has_in_documents() -> None:
    """Names are part of the document's format: they may be added, never changed."""
    assert STRATEGIES["range"] is range_assignment
    assert STRATEGIES["sticky"] is sticky_assignment
    assert STRATEGIES["weighted"] is weighted_assignment


@drawn(100)
@given(small_ids, st.integers(1, 6), small_previous)
def test_sticky_moves_no_more_than_the_best_of_all_balanced_assignments(
    ids: list[str], count: int, before: Owners
) -> None:
    """Compared with every assignment that there is, for up to 4 members and 6 partitions."""
    every = product(ids, repeat=count)
    fewest = min(len(moves(before, each)) for each in every if spread(each, ids) <= 1)
    assert len(moves(before, sticky_assignment(ids, count, before))) == fewest
    assert fewest_moves(ids, count, before) == fewest


@drawn(60)
@given(large_histories())
@example(([f"w{rank}" for rank in range(64)], 1_024, ()))
def test_sticky_moves_the_minimum_for_up_to_64_members_and_1024_partitions(
    history: tuple[list[str], int, Owners],
) -> None:
    """The minimum is known without an assignment, from the sizes alone.

    What is balanced stays as it is, whatever way led there. When a member goes, only what it had moves.
    """
    ids, count, before = history
    after = sticky_assignment(ids, count, before)
    assert len(moves(before, after)) == fewest_moves(ids, count, before)
    assert spread(after, ids) <= 1
    assert sticky_assignment(ids, count, after) == after
    if len(ids) > 1:
        orphans = tuple(p for p, owner in enumerate(after) if owner == ids[0])
        assert moves(after, sticky_assignment(ids[1:], count, after)) == orphans


@given(members, partitions)
def test_without_a_history_sticky_and_range_agree(ids: list[str], count: int) -> None:
    """A group that begins has nothing to keep."""
    assert sticky_assignment(ids, count, ()) == range_assignment(ids, count, ())


@pytest.mark.parametrize(
    ("count", "n", "by_range", "by_sticky"), [(64, 4, 30, 12), (256, 8, 118, 28)], ids=["64 4-5", "256 8-9"]
)
def test_the_moves_of_a_join_that_the_documentation_names(
    count: int, n: int, by_range: int, by_sticky: int
) -> None:
    """The table in docs/assignments.md."""
    ids = [f"w{rank}" for rank in range(n + 1)]
    before = range_assignment(ids[:n], count, ())
    assert len(moves(before, range_assignment(ids, count, before))) == by_range
    assert len(moves(before, sticky_assignment(ids, count, before))) == by_sticky
    assert len(moves(before, weighted_assignment(ids, count, before))) == by_sticky


def test_the_same_history_gives_the_same_answer_on_every_machine() -> None:
    """A known answer: it does not depend on the hashes of names, which differ between processes."""
    ids = [f"worker-{rank}" for rank in range(13)]
    owners = sticky_assignment(ids[:7], 1_000, ())
    for change in (ids, ids[3:], ids[5:9], ids[::-1]):
        owners = sticky_assignment(change, 1_000, owners)
    text = ",".join(owner or "" for owner in owners)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "1e50126d81b0cfa3"


# -- weighted --------------------------------------------------------------------------------


@st.composite
def uneven_groups(draw: st.DrawFn) -> tuple[list[str], int, Weights, Owners]:
    """Members with capacities, and partitions with weights, which some members own, and one who is gone."""
    ids, count = draw(members), draw(partitions)
    rng = draw(st.randoms(use_true_random=False))
    capacities = {each: rng.randint(1, 8) for each in [*ids, "new"]}
    weights = Weights(
        tuple(rng.randint(0, 2_000) for _ in range(count)),
        capacities,
    )
    owners = tuple(rng.choice([*ids, "gone"]) for _ in range(count))
    return [each for each in ids if each in owners], count, weights, owners


def levels(owners: Owners, ids: list[str], weights: Weights) -> dict[str, float]:
    """Return the load of each member for each unit of its capacity."""
    heavy = weights.known(len(owners))
    return {
        each: sum(heavy[p] for p, owner in enumerate(owners) if owner == each) / weights.capacity(each)
        for each in ids
    }


@given(st.integers(1, 30), partitions, st.lists(st.integers(0, 29), max_size=40))
def test_with_equal_weights_every_history_of_joins_and_leaves_stays_balanced_to_one(
    first: int, count: int, changes: list[int]
) -> None:
    """A join moves as few partitions as sticky does, and a leave only what has lost its owner."""
    ids = [f"w{rank}" for rank in range(first)]
    owners: Owners = ()
    for member in ids:
        owners = weighted_assignment(ids[: ids.index(member) + 1], count, owners)
    for turn, pick in enumerate(changes):
        before, there = owners, set(ids)
        if len(ids) > 1 and pick % 2:
            del ids[pick % len(ids)]
        else:
            ids.append(f"n{turn}")
        owners = weighted_assignment(ids, count, before)
        assert set(owners) <= set(ids)
        assert spread(owners, ids) <= 1
        moved = moves(before, owners)
        if len(ids) < len(there):
            assert all(before[p] not in ids for p in moved)
        else:
            assert (
                len(moved) == count // len(ids) == len(moves(before, sticky_assignment(ids, count, before)))
            )


@given(uneven_groups())
def test_a_leave_moves_only_what_the_member_had(group: tuple[list[str], int, Weights, Owners]) -> None:
    """The others keep what they have, however uneven it is."""
    ids, count, weights, before = group
    if ids:
        after = weighted_assignment(ids, count, before, weights)
        assert moves(before, after) == tuple(p for p, owner in enumerate(before) if owner == "gone")


@given(uneven_groups())
def test_a_newcomer_gets_its_share_at_most_and_stands_lower_than_whoever_gave(
    group: tuple[list[str], int, Weights, Owners],
) -> None:
    """The highest level never rises by a join; all moves are to the newcomer."""
    ids, count, weights, before = group
    if not ids:
        return
    before = weighted_assignment(ids, count, before, weights)
    after = weighted_assignment([*ids, "new"], count, before, weights)
    moved = moves(before, after)
    assert all(after[p] == "new" for p in moved)
    was, now = levels(before, ids, weights), levels(after, [*ids, "new"], weights)
    assert max(now.values()) <= max(was.values())
    share = sum(weights.known(count)) * weights.capacity("new") / sum(map(weights.capacity, [*ids, "new"]))
    assert len(moved) <= 1 or now["new"] * weights.capacity("new") <= share
    for giver in {before[p] for p in moved if before[p]}:
        assert giver is not None and now["new"] < was[giver]


@given(st.integers(1, 100), st.integers(1, 6))
def test_a_worker_of_capacity_two_is_given_twice_the_load(count: int, n: int) -> None:
    """To one partition, when all weigh the same."""
    ids = [f"w{rank}" for rank in range(n)]
    owners: Owners = ()
    weights = Weights(capacities={"strong": 2})
    for rank in range(n):
        owners = weighted_assignment(ids[: rank + 1], count, owners, weights)
    after = weighted_assignment([*ids, "strong"], count, owners, weights)
    share = count * 2 / (n + 2)
    assert share - 1 < Counter(after)["strong"] <= share or (share < 1 and Counter(after)["strong"] <= 1)


def test_surplus_workers_stand_by_and_take_over_when_one_goes() -> None:
    """They own nothing until something is free."""
    ids = [f"w{rank}" for rank in range(6)]
    owners: Owners = ()
    for rank in range(6):
        owners = weighted_assignment(ids[: rank + 1], 4, owners, Weights((900, 10, 10, 10)))
    assert sorted(Counter(owners).values()) == [1, 1, 1, 1]
    busy = [each for each in ids if each in owners]
    rest = [each for each in ids if each != busy[0]]
    after = weighted_assignment(rest, 4, owners, Weights((900, 10, 10, 10)))
    (moved,) = moves(owners, after)
    assert owners[moved] == busy[0] and after[moved] not in busy


def test_a_hot_partition_stays_and_the_others_of_its_owner_go_to_the_newcomer() -> None:
    """What moves is what can be moved without moving the trouble."""
    weights = Weights((1_000, 100, 100, 100, 100, 100, 100, 100))
    after = weighted_assignment(["a", "b"], 8, ("a",) * 8, weights)
    assert after == ("a",) + ("b",) * 7


def test_weighted_gives_the_same_answer_on_every_machine() -> None:
    """A known answer, as for sticky."""
    ids = [f"worker-{rank}" for rank in range(13)]
    weights = Weights(tuple(p * p % 997 for p in range(1_000)), {"worker-3": 3, "worker-7": 2})
    owners: Owners = ()
    for change in (ids[:7], ids, ids[3:], ids[5:9], ids[::-1]):
        owners = weighted_assignment(change, 1_000, owners, weights)
    text = ",".join(owner or "" for owner in owners)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "f0154855b2c3ba2d"
