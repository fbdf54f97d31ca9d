"""What one lane hands out, in which order, and what it takes back."""

import pytest

from streamworker.core.data.entries import EntryId
from streamworker.runtime.send.lane import (
    AHEAD_ENTRIES,
    APPEND_ENTRIES_MAX,
    UNDER_WAY_MAX,
    AppendOutcome,
    Batch,
    Lane,
)

pytestmark = pytest.mark.anyio


def lane_with(*counts: int) -> Lane:
    """Return a lane in which sends of so many entries wait: b"0", b"1" and so on."""
    lane, first = Lane(0), 0
    for count in counts:
        lane.add([b"%d" % n for n in range(first, first + count)], count, "wait", count)
        first += count
    return lane


def taken(lane: Lane) -> Batch:
    batch = lane.take()
    assert batch is not None
    return batch


def entries_of(*batches: Batch) -> list[int]:
    return [int(entry) for batch in batches for entry in batch.append("p", 0).entries]  # type: ignore[arg-type]


async def test_two_appends_are_under_way_and_the_second_follows_the_first() -> None:
    """A send that is larger than an append goes on in the next one."""
    lane = lane_with(APPEND_ENTRIES_MAX + 500, 700)
    first, second = taken(lane), taken(lane)
    assert (first.append("p", 0).follows, second.append("p", 0).follows) == (0, first.number)
    assert entries_of(first, second) == list(range(2 * APPEND_ENTRIES_MAX))
    assert [each.is_last for each in (*first.slices, *second.slices)] == [False, True, False]
    assert not lane.is_ready(ahead=True)
    first.end(AppendOutcome.WRITTEN)
    assert lane.is_ready(ahead=True)
    third = taken(lane)
    assert (third.append("p", 0).follows, entries_of(third)) == (second.number, list(range(2_000, 2_200)))


@pytest.mark.parametrize("turned", [False, True], ids=["in order", "the second first"])
async def test_what_is_put_back_stands_where_it_stood(turned: bool) -> None:
    """One send went into both appends; whichever is put back first, all is as before."""
    lane = lane_with(50, APPEND_ENTRIES_MAX, 300)
    both = [taken(lane), taken(lane)]
    lane.add([b"1350"], 1, "wait", 1)
    for batch in reversed(both) if turned else both:
        lane.put_back(batch)
        batch.end(AppendOutcome.NOT_WRITTEN)
    again = [taken(lane), taken(lane)]
    assert entries_of(*again) == list(range(1_351))
    assert [batch.number for batch in again] == [3, 4]


async def test_what_nobody_waits_for_any_more_is_left_out() -> None:
    """In the lane, and of what is put back."""
    lane = lane_with(10, 10, 10)
    first, second, _ = lane.parts
    batch = taken(lane)
    first.done.cancel()
    lane.put_back(batch)
    batch.end(AppendOutcome.NOT_WRITTEN)
    assert lane.parts[0] is second
    second.done.set_result(EntryId(1, 1))
    assert entries_of(taken(lane)) == list(range(20, 30))
    assert lane.take() is None


@pytest.mark.parametrize("outcome", list(AppendOutcome))
async def test_nothing_more_goes_while_what_is_under_way_may_go_back(outcome: AppendOutcome) -> None:
    """The first was not written: what follows the second would overtake what goes back."""
    lane = lane_with(500, 500, 500)
    lane.room = 500
    first, second = taken(lane), taken(lane)
    first.end(outcome)
    assert lane.is_ready(ahead=True) is (outcome is AppendOutcome.WRITTEN)
    second.end(AppendOutcome.NOT_WRITTEN)
    assert lane.is_ready(ahead=True)


async def test_a_second_append_is_not_made_of_little_or_beside_one_without_an_answer() -> None:
    """A hundred entries of one send, or a hundred sends."""
    lane = lane_with(1, AHEAD_ENTRIES - 1)
    lane.room = 1
    first = taken(lane)
    lane.room = APPEND_ENTRIES_MAX
    assert not lane.is_ready(ahead=True)
    for _ in range(AHEAD_ENTRIES - 1):
        lane.add([b"0"], 1, "wait", 1)
    assert lane.is_ready(ahead=True) and not lane.is_ready(ahead=False)
    first.unanswered = True
    assert not lane.is_ready(ahead=True)


async def test_an_append_does_not_hold_on_to_all_that_were_before_it() -> None:
    """Each follows the one before, for as long as a program sends."""
    lane = lane_with(*[APPEND_ENTRIES_MAX] * 5)
    before = taken(lane)
    for _ in range(3):
        batch = taken(lane)
        assert batch.before is before and len(lane.under_way) == UNDER_WAY_MAX
        before.end(AppendOutcome.WRITTEN)
        assert before.before is None
        before = batch
