"""The arithmetic on positions, for every input: nothing is lost, repeated or shared out twice."""

from collections.abc import Mapping
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.placement import Placement
from streamworker.errors import ConfigurationError
from streamworker.spark.source import offsets
from streamworker.spark.source.offsets import START, Position, Slice

rows = st.integers(0, 10**12)
partitions = st.integers(0, 30)
positions = st.builds(Position, rows, st.sampled_from(["", "a", "b"]), st.sampled_from(["", "5-0"]))
any_offset = st.dictionaries(partitions, positions, max_size=8)


@st.composite
def growing(draw: st.DrawFn) -> tuple[dict[int, Position], dict[int, Position]]:
    """A position, and logs that have grown since; some partitions are new."""
    start = draw(st.dictionaries(partitions, st.builds(Position, rows, st.just("a")), max_size=8))
    tails = {p: Position(at.rows + draw(st.integers(0, 10**6)), "a", "9-0") for p, at in start.items()}
    for p in draw(st.sets(partitions, max_size=4)) - set(start):
        tails[p] = Position(draw(st.integers(1, 10**6)), "a", "9-0")
    return start, tails


@given(any_offset)
def test_what_spark_keeps_reads_back_as_it_was(offset: dict[int, Position]) -> None:
    assert offsets.from_json(offsets.to_json(offset)) == offset


def test_equal_offsets_are_equal_text_whatever_the_order() -> None:
    """Spark compares offsets as text to see whether there is anything new."""
    one, two = Position(1, "a"), Position(2, "b")
    assert str(offsets.to_json({2: two, 0: one})) == str(offsets.to_json({0: one, 2: two}))


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        "x",
        {"p": {"0": 1}},
        {"v": 1},
        {"v": 1, "p": {"0": -1}},
        {"v": 1, "p": {"x": 1}},
        {"v": 1, "p": {"0": "12"}},
        {"v": 1, "p": 3},
        {"v": 2, "p": {}},
    ],
)
def test_an_offset_that_is_not_ours_is_refused(document: object) -> None:
    """A checkpoint of another source, or a damaged one, is not taken for position 0."""
    with pytest.raises(ConfigurationError, match=r"checkpoint|version"):
        offsets.from_json(document)


@given(growing(), st.none() | st.integers(1, 10**7))
def test_a_batch_takes_exactly_as_many_rows_as_the_limit_allows(
    logs: tuple[dict[int, Position], dict[int, Position]], limit: int | None
) -> None:
    """The limit of a trigger is exact, and no position goes back or past the end."""
    start, tails = logs
    end = offsets.advance(start, tails, limit)
    waiting = sum(tail.rows - start.get(p, START).rows for p, tail in tails.items())
    taken = sum(at.rows - start.get(p, START).rows for p, at in end.items())
    assert taken == (waiting if limit is None else min(limit, waiting))
    for p, at in end.items():
        assert start.get(p, START).rows <= at.rows <= tails[p].rows


@given(growing())
def test_a_partition_without_new_rows_keeps_its_position_to_the_letter(
    logs: tuple[dict[int, Position], dict[int, Position]],
) -> None:
    """A checkpoint that moved without rows is no new data, so that no empty batch is run."""
    start, tails = logs
    still = {p: Position(at.rows, "a", "99-0") for p, at in start.items()}
    assert offsets.advance(start, still) == start
    assert offsets.advance(tails, tails) == tails


@given(growing(), st.integers(1, 50))
def test_batches_with_a_limit_reach_the_end(
    logs: tuple[dict[int, Position], dict[int, Position]], batches: int
) -> None:
    """Batch by batch, each row is in one batch, and the last one ends where the logs end."""
    position, tails = logs
    limit = sum(tail.rows for tail in tails.values()) // batches + 1
    seen: dict[int, list[Slice]] = {p: [] for p in tails}
    first = position
    for _ in range(batches + 1):
        end = offsets.advance(position, tails, limit)
        for part in offsets.slices(position, end):
            seen[part.partition].append(part)
        position = end
    for p, parts in seen.items():
        edges = [first.get(p, START).rows, *(part.end for part in parts)]
        assert [part.start for part in parts] == edges[:-1]
        assert edges[-1] == tails[p].rows


waiting_rows = st.dictionaries(partitions, st.integers(0, 10**9), max_size=12)


@given(waiting_rows, st.integers(0, 10**9))
def test_a_limit_is_shared_out_to_the_last_row(waiting: Mapping[int, int], limit: int) -> None:
    """The shares add up, none is larger than what waits, and everyone gets one while it lasts."""
    shares = offsets.share(limit, waiting)
    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    assert all(0 < taken <= waiting[p] for p, taken in shares.items())
    busy = [p for p, count in waiting.items() if count]
    assert len(shares) >= min(limit, len(busy))
    by_size = sorted((count, shares.get(p, 0)) for p, count in waiting.items())
    assert all(a[1] <= b[1] + 1 for a, b in pairwise(by_size)), "who has more waiting got less"


slices = st.lists(
    st.builds(lambda p, start, count: Slice(p, "a", start, start + count, "5-0"), partitions, rows,
              st.integers(1, 10**6)),
    max_size=10,
    unique_by=lambda part: part.partition,
)  # fmt: skip


@given(slices, st.integers(1, 40), st.integers(1, 40))
def test_tasks_are_as_many_as_asked_for_and_of_much_the_same_size(
    parts: list[Slice], at_least: int, at_most: int
) -> None:
    """At least so many, but where there are fewer rows; at most so many, and none is empty."""
    sizes = [part.rows for part in parts]
    assert not parts or len(offsets.split(parts, at_least)) == max(len(parts), min(at_least, sum(sizes)))
    packed = offsets.pack(parts, at_most)
    assert len(packed) == min(len(parts), at_most)
    assert all(packed)
    assert not parts or max(sum(piece.rows for piece in task) for task in packed) <= (
        sum(sizes) / at_most + max(sizes)
    )


@given(st.integers(0, 10**9), st.integers(1, 64))
def test_small_reads_are_one_task_and_tasks_that_wait_are_large(rows: int, parallelism: int) -> None:
    tasks = offsets.tasks_for(rows, parallelism)
    assert tasks == 1 or rows / tasks >= 10_000
    assert tasks <= parallelism or rows / tasks >= 1_000_000
    assert tasks >= min(parallelism, rows // 10_000), "cores that could read stand idle"


@given(slices, st.none() | st.integers(1, 40), st.integers(1, 40))
def test_splitting_and_packing_lose_no_row_and_keep_order(
    parts: list[Slice], at_least: int | None, at_most: int
) -> None:
    """Each row is in one task, and a task has each partition's rows in order."""
    packed = offsets.pack(offsets.split(parts, at_least), at_most)
    pieces = sorted((piece for task in packed for piece in task), key=lambda s: (s.partition, s.start))
    for part in parts:
        mine = [piece for piece in pieces if piece.partition == part.partition]
        assert mine[0].start == part.start
        assert mine[0].last == part.last
        assert mine[-1].end == part.end
        assert all(a.end == b.start and b.last == "" for a, b in pairwise(mine))
        assert all(piece.rows > 0 for piece in mine)
    for task in packed:
        assert list(task) == sorted(task, key=lambda s: (s.partition, s.start))


@given(any_offset, st.dictionaries(partitions, positions, max_size=8), st.none() | st.integers(1, 1000))
def test_going_on_after_a_loss_always_gives_a_position_that_can_be_read(
    start: dict[int, Position], tails: dict[int, Position], limit: int | None
) -> None:
    """With failOnDataLoss=false no slice is empty or past the end of its log."""
    end = offsets.advance(start, tails, limit)
    for part in offsets.slices(start, end):
        assert part.start < part.end <= tails[part.partition].rows


def test_a_limit_never_passes_the_target_of_available_now() -> None:
    """Rows that come after the query began are left for the next one; so are new partitions."""
    target = {0: Position(10, "a", "1-0")}
    tails = {0: Position(25, "a", "2-0"), 1: Position(5, "b", "1-0")}
    assert offsets.at_most(tails, target) == target
    assert offsets.at_most(tails, None) == tails


def test_a_position_inside_a_log_does_not_claim_a_source_entry() -> None:
    """Only the end of a log is known to go with its group's checkpoint."""
    tails = {0: Position(10, "a", "9-0")}
    assert offsets.advance({}, tails, 4) == {0: Position(4, "a", "")}
    assert offsets.advance({}, tails, 10) == tails


def test_a_reader_that_stands_before_what_it_told_is_found() -> None:
    """In the log that it told of; nothing follows from one that is gone or was replaced."""
    tails = {p: Position(90, "a") for p in (0, 1, 2)} | {3: Position(5, "b"), 4: START}
    told = {p: Position(50, "a") for p in (0, 1, 2, 3, 4)}
    position = {0: Position(49, "a"), 1: Position(50, "a"), 3: Position(0, "b")}
    assert offsets.find_stepped_back(position, told, tails) == {0: told[0], 2: told[2]}
    assert offsets.find_stepped_back(position, {}, tails) == {}


@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=4).map(lambda more: Placement(*accumulate(more))),
    st.lists(st.integers(0, 40), min_size=60, max_size=60),
    st.integers(1, 50),
)
def test_rows_of_a_later_generation_come_in_later_batches(
    placement: Placement, rows: list[int], limit: int
) -> None:
    """Whatever the limit of a batch; and all rows are read in the end."""
    tails = {p: Position(rows[p], f"l{p}") if rows[p] else START for p in placement.all}
    finished = {p: rows[p] for p in range(placement.base)}
    at: Mapping[int, Position] = {0: START}
    while True:
        until = offsets.parents_first(at, tails, placement, finished)
        end = offsets.advance(at, until, limit)
        parts = offsets.slices(at, end)
        for part in parts:
            older = placement.ancestors_of(part.partition)
            assert all(at.get(p, START).rows == rows[p] for p in older)
        if not parts:
            break
        at = end
    assert {p: at.get(p, START).rows for p in placement.all} == {p: rows[p] for p in placement.all}


def test_a_partition_waits_for_a_parent_that_is_not_done() -> None:
    """Its log may get more rows, however many were read."""
    placement, at = Placement(2, 4), {0: Position(3, "a"), 1: Position(3, "b")}
    tails = at | {p: Position(5, f"l{p}") for p in range(2, 6)}
    waits = offsets.parents_first(at, tails, placement, {0: 3})
    assert {p for p in placement.active if waits[p] == START} == {
        p for p in placement.active if placement.parents_of(p) != (0,)
    }
    assert offsets.parents_first(at, tails, placement, {0: 3, 1: 4})[5] == START
