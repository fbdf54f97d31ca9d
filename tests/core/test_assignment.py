"""Who should own what."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.assignment import STRATEGIES, Owners, moves, range_assignment

members = st.lists(st.text(min_size=1, max_size=6), unique=True, min_size=1, max_size=30)
partitions = st.integers(min_value=1, max_value=200)
previous = st.lists(st.none() | st.text(max_size=6), max_size=200).map(tuple)


@given(members, partitions, previous)
def test_every_partition_has_an_owner_and_nobody_has_two_more_than_another(
    ids: list[str], count: int, before: Owners
) -> None:
    """The load is balanced to one partition."""
    owners = range_assignment(ids, count, before)
    assert len(owners) == count
    assert set(owners) <= set(ids)
    load = Counter(owners)
    counts = [load[each] for each in ids]
    assert max(counts) - min(counts) <= 1


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


def test_twenty_four_members_on_sixteen_partitions_leave_eight_standing_by() -> None:
    """More members than partitions is no error: the later ones own nothing."""
    ids = [f"w{rank}" for rank in range(24)]
    owners = range_assignment(ids, 16, ())
    assert owners == tuple(ids[:16])
    assert len(set(ids) - set(owners)) == 8


def test_a_group_without_members_owns_nothing() -> None:
    """The last one that leaves takes nobody's partitions along."""
    assert range_assignment([], 3, ("a", "a", "a")) == (None, None, None)


def test_a_second_worker_takes_the_upper_half() -> None:
    """The example of the rebalance description: 8 partitions, then 4 and 4."""
    before = range_assignment(["w1"], 8, ())
    after = range_assignment(["w1", "w2"], 8, before)
    assert after == ("w1",) * 4 + ("w2",) * 4
    assert moves(before, after) == (4, 5, 6, 7)


@given(members, members, partitions)
def test_moves_are_exactly_the_partitions_with_a_new_owner(
    before_ids: list[str], after_ids: list[str], count: int
) -> None:
    """What keeps its owner is not among them."""
    before, after = (range_assignment(ids, count, ()) for ids in (before_ids, after_ids))
    moved = moves(before, after)
    assert all((p in moved) == (before[p] != after[p]) for p in range(count))


def test_partitions_without_a_new_owner_have_not_moved() -> None:
    """A partition that nobody owns afterwards has nobody to wait for."""
    assert moves(("a", "b"), (None, "b")) == ()


def test_every_strategy_is_known_by_the_name_it_has_in_documents() -> None:
    """Names are part of the document's format: they may be added, never changed."""
    assert STRATEGIES["range"] is range_assignment
