"""Batches, reads and the search for poison are arithmetic, and right for all small cases."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.batching import (
    BatchLimits,
    Candidate,
    Candidates,
    Halving,
    ReadPlan,
    SizeEstimate,
    plan_read,
    prefix_within,
    spacing_us,
)
from streamworker.errors import InternalError


def search(count: int, poison: set[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[int]]:
    halving = Halving(count)
    tried: list[tuple[int, int]] = []
    good: list[tuple[int, int]] = []
    while (part := halving.next()) is not None:
        tried.append(part)
        if any(part[0] <= index < part[1] for index in poison):
            halving.failed()
        else:
            good.append(part)
            halving.succeeded()
    return tried, good, halving.poison


@given(st.data())
def test_halving_finds_exactly_the_poison_and_handles_the_rest_once_in_order(data: st.DataObject) -> None:
    """Whatever is poison: the slices that succeed are the rest, each once, in order."""
    count = data.draw(st.integers(1, 70))
    poison = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    _, good, found = search(count, poison)
    assert found == sorted(poison)
    handled = [index for start, end in good for index in range(start, end)]
    assert handled == [index for index in range(count) if index not in poison]


@given(st.integers(1, 300), st.data())
def test_one_poison_record_costs_about_log2_calls(count: int, data: st.DataObject) -> None:
    """A single poison record among n is found with at most one call more than twice log2(n)."""
    tried, _, _ = search(count, {data.draw(st.integers(0, count - 1))})
    assert len(tried) <= 2 * max(1, (count - 1).bit_length()) + 1


def test_halving_skips_what_must_fail() -> None:
    """Where the first half succeeds, the second is not tried as a whole."""
    tried, _, found = search(8, {7})
    assert found == [7]
    assert tried == [(0, 4), (4, 6), (6, 7), (7, 8)]


def test_an_answer_about_no_slice_is_a_bug() -> None:
    """Saying how a slice went that was never named raises an internal error."""
    halving = Halving(2)
    with pytest.raises(InternalError):
        halving.failed()


def test_a_batch_is_ready_when_it_is_large_or_old_or_cannot_grow() -> None:
    """Each of the limits suffices, and nothing is never ready."""
    limits = BatchLimits(records=10, bytes=1_000, within_ms=50)
    assert not limits.is_ready(0, 0, 99, no_more=True)
    assert not limits.is_ready(9, 999, 49)
    assert limits.is_ready(10, 0, 0)
    assert limits.is_ready(1, 1_000, 0)
    assert limits.is_ready(1, 0, 50)
    assert limits.is_ready(1, 0, 0, no_more=True)


@given(st.lists(st.integers(1, 100)), st.integers(1, 20), st.integers(1, 300))
def test_a_batch_keeps_its_limits_but_for_one_large_entry(sizes: list[int], records: int, most: int) -> None:
    """The prefix fits, one more would not, and there is at least one."""
    count = prefix_within(sizes, records, most)
    assert count <= records
    assert count >= min(1, len(sizes))
    assert count <= 1 or sum(sizes[:count]) <= most
    if count < min(records, len(sizes)):
        assert sum(sizes[: count + 1]) > most


def test_a_jump_in_sizes_is_believed_at_once() -> None:
    """After one read of large entries the estimate is at least their size."""
    estimate = SizeEstimate()
    assert estimate.bytes_per_entry == SizeEstimate.FIRST_BYTES
    for _ in range(20):
        estimate.observe(100 * 50, 50)
    assert estimate.bytes_per_entry < 120
    estimate.observe(10_000 * 5, 5)
    assert estimate.bytes_per_entry >= 10_000
    for _ in range(80):
        estimate.observe(100 * 50, 50)
    assert estimate.bytes_per_entry < 200


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        partition=st.integers(0, 10_000),
        room_bytes=st.integers(1, 100_000),
        room_entries=st.integers(1, 2_000),
        estimate_bytes=st.integers(1, 50_000),
        starved=st.booleans(),
        most_entries=st.integers(1, 2_000),
    ),
    max_size=40,
    unique_by=lambda candidate: candidate.partition,
)


BEHIND = st.sets(st.integers(0, 10_000), max_size=40)


@given(CANDIDATES, st.integers(0, 1_000_000), st.integers(1, 1_000), st.integers(0, 100), BEHIND)
def test_a_read_fits_the_budget_or_is_one_entry_for_a_partition_without_work(
    candidates: list[Candidate], free: int, most: int, turn: int, behind: set[int]
) -> None:
    """By the estimates a read never exceeds the free bytes, and nobody without work is forgotten."""
    plan = plan_read(candidates, free_bytes=free, count_max=most, turn=turn, behind=behind)
    sizes = {candidate.partition: candidate.estimate_bytes for candidate in candidates}
    if plan is None:
        assert not any(c.starved or c.estimate_bytes <= free for c in candidates)
        return
    assert 1 <= plan.count <= most
    need = sum(sizes[partition] for partition in plan.partitions) * plan.count
    starved = {candidate.partition for candidate in candidates if candidate.starved}
    assert need <= free or (plan.count == 1 and len(plan.partitions) == 1 and starved >= set(plan.partitions))


@given(CANDIDATES, st.integers(0, 1_000_000), st.integers(0, 100), BEHIND)
def test_each_partition_without_work_has_its_turn(
    candidates: list[Candidate], free: int, first: int, behind: set[int]
) -> None:
    """However little is free, and whatever else could be read; and no read without it waits for long."""
    starved = {candidate.partition for candidate in candidates if candidate.starved}
    asked: set[int] = set()
    for turn in range(first, first + 2 * len(candidates) + 2):
        plan = plan_read(candidates, free_bytes=free, count_max=100, turn=turn, behind=behind)
        assert plan is not None or not starved
        if plan is not None:
            asked |= set(plan.partitions)
            assert plan.is_partial or starved <= set(plan.partitions)
    assert starved <= asked


@given(
    st.lists(CANDIDATES, min_size=1, max_size=6),
    st.lists(st.integers(0, 10_000), max_size=40),
    st.sampled_from([0, 1_000, 100_000, 10**9]),
    st.integers(1, 1_000),
    BEHIND,
)
def test_a_plan_that_is_kept_is_the_one_that_would_be_made_anew(
    changes: list[list[Candidate]], dropped: list[int], free: int, most: int, behind: set[int]
) -> None:
    """Partitions come, change and go; what a read asks for depends on those of now only."""
    candidates = Candidates()
    for turn, its in enumerate(changes):
        for each in its:
            candidates.put(replace(each, most_entries=max(each.most_entries, each.entries)))
        for partition in dropped[turn :: len(changes)]:
            candidates.drop(partition)
        how = {"free_bytes": free, "count_max": most, "turn": turn}
        kept = candidates.plan(**how, behind=behind)
        anew = plan_read(list(candidates.known.values()), **how, behind=behind)
        assert (kept is None) == (anew is None)
        if kept is not None and anew is not None:
            kept, anew = (replace(plan, partitions=tuple(sorted(plan.partitions))) for plan in (kept, anew))
            assert kept == anew


@given(st.integers(1, 2_000), st.data())
def test_reads_that_bring_little_for_each_partition_are_spaced(asked: int, data: st.DataObject) -> None:
    """Asking and waking cost a bounded part of the time, and what a full read leaves is read at once."""
    answered = data.draw(st.integers(0, asked))
    entries = data.draw(st.integers(answered, 10 * answered))
    found = spacing_us(asked, answered, entries)
    assert found >= 50 * asked or entries >= asked
    assert found >= min(200 * answered, 2_000) or entries >= 4 * answered
    assert found <= max(50 * asked, 2_000)
    assert found == 0 or entries < 4 * asked


def test_partitions_that_do_not_all_fit_take_turns() -> None:
    """With room for one entry, each of the partitions is asked in its turn."""
    candidates = [Candidate(p, 1_000, 10, 1_000, starved=False) for p in range(4)]
    asked = [plan_read(candidates, free_bytes=1_000, count_max=10, turn=turn) for turn in range(4)]
    assert [plan.partitions for plan in asked if plan] == [(0,), (1,), (2,), (3,)]


def test_a_partition_that_is_nearly_full_does_not_slow_down_the_others() -> None:
    """It is left out of a read that would have to be tiny for it."""
    nearly_full = Candidate(0, 100, 10, 100, starved=False)
    empty = Candidate(1, 1_000_000, 2_000, 100, starved=True)
    plan = plan_read([nearly_full, empty], free_bytes=10_000_000, count_max=1_000, turn=0)
    assert plan is not None
    assert plan.partitions == (1,)
    assert plan.count == 1_000


def test_partitions_of_full_and_of_single_entries_are_both_read_ahead() -> None:
    """Neither is left out until it is empty, nor read by the other's few entries only."""
    full = Candidate(0, 10_000_000, 1, 500_000, starved=False, most_entries=2)
    single = Candidate(1, 10_000_000, 1_500, 500, starved=False, most_entries=2_000)

    def read(turn: int, behind: set[int], *candidates: Candidate) -> ReadPlan | None:
        return plan_read(candidates, free_bytes=32_000_000, count_max=1_000, turn=turn, behind=behind)

    assert read(0, {0, 1}, full, single) == ReadPlan((0, 1), 1)
    assert read(1, {0, 1}, full, single) == ReadPlan((1,), 1_000)
    assert read(1, {0}, full, single) == ReadPlan((1, 0), 1)
    assert read(1, {1}, replace(full, starved=True), single) == ReadPlan((1,), 1_000, is_partial=True)
