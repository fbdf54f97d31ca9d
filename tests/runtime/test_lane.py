"""What one lane hands out, in which order, and what it takes back."""

import pytest

from streamworker.core.data.entries import EntryId
from streamworker.runtime.send.lane import AHEAD_ENTRIES, APPEND_ENTRIES_MAX, Batch, Lane

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
    assert (first.append("p", 0).since, second.append("p", 0).since) == (0, first.number)
    assert entries_of(first, second) == list(range(2 * APPEND_ENTRIES_MAX))
    assert [each.is_last for each in (*first.parts, *second.parts)] == [False, True, False]
    assert lane.in_flight == [first, second] and not lane.is_ready(ahead=True)
    lane.end(first)
    assert lane.is_ready(ahead=True)
    third = taken(lane)
    assert (third.append("p", 0).since, entries_of(third)) == (second.number, list(range(2_000, 2_200)))


async def test_what_is_put_back_stands_where_it_stood() -> None:
    """One send went into both appends; what follows the first that is put back goes back with it."""
    lane = lane_with(50, APPEND_ENTRIES_MAX, 300)
    both = [taken(lane), taken(lane)]
    lane.add([b"1350"], 1, "wait", 1)
    assert lane.put_back(both[0]) == both
    again = [taken(lane), taken(lane)]
    assert entries_of(*again) == list(range(1_351))
    assert [batch.number for batch in again] == [3, 4]
    assert [batch.follows for batch in again] == [0, 3]


async def test_what_nobody_waits_for_any_more_is_left_out() -> None:
    """In the lane, and of what is put back."""
    lane = lane_with(10, 10, 10)
    first, second, _ = lane.parts
    batch = taken(lane)
    first.done.cancel()
    lane.put_back(batch)
    assert lane.parts[0] is second
    second.done.set_result(EntryId(1, 1))
    assert entries_of(taken(lane)) == list(range(20, 30))
    assert lane.take() is None


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
