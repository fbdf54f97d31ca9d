"""Event time never goes back, and whether a record is late depends on the records before it alone."""

from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.time.eventtime import NO_TIME_MS, EventTime, passed

AHEAD_MS = 100
TIMES = st.integers(-1_000, 1_000)
RECORDS = st.lists(st.tuples(TIMES, st.integers(0, 1_000)), max_size=30)
"""The time that each tells, and when it arrived; the server's clock may have gone back."""
STEPS = st.lists(st.tuples(st.booleans(), TIMES, st.integers(0, 1_000)), max_size=30)
"""Whether it is a tick of the clock; else the time that a record tells; the time of the server."""


def after(steps: list[tuple[bool, int, int]]) -> EventTime:
    """Return the event time after some records and ticks of the clock."""
    now = EventTime()
    for is_tick, at_ms, server_ms in steps:
        now = now.ticked(server_ms) if is_tick else now.after(at_ms, server_ms, AHEAD_MS)
    return now


@given(steps=STEPS)
def test_it_never_goes_back(steps: list[tuple[bool, int, int]]) -> None:
    times = [after(steps[:n]).now_ms for n in range(len(steps) + 1)]
    assert times == sorted(times)


@given(steps=STEPS, at_ms=TIMES, arrived_ms=st.integers(0, 1_000))
def test_a_record_moves_it_to_its_own_time_and_not_far_beyond_its_arrival(
    steps: list[tuple[bool, int, int]], at_ms: int, arrived_ms: int
) -> None:
    before = after(steps)
    now = before.after(at_ms, arrived_ms, AHEAD_MS)
    assert now.now_ms == max(before.now_ms, min(at_ms, arrived_ms + AHEAD_MS))


@given(
    steps=STEPS,
    records=RECORDS,
    cuts=st.lists(st.integers(0, 30), max_size=5).map(sorted),
)
def test_lateness_does_not_depend_on_batches(
    steps: list[tuple[bool, int, int]], records: list[tuple[int, int]], cuts: list[int]
) -> None:
    """Each record is compared with the event time before it, however the records are cut into batches."""
    start = now = after(steps)
    befores: list[int] = []
    for first, last in zip([0, *cuts], [*cuts, len(records)], strict=True):
        batch = records[first:last]
        times, now = passed(now, [at for at, _ in batch], [arrived for _, arrived in batch], AHEAD_MS)
        befores += times
        now = EventTime.decode(now.encode())
    for number, before_ms in enumerate(befores):
        one_by_one = start
        for at_ms, arrived_ms in records[:number]:
            one_by_one = one_by_one.after(at_ms, arrived_ms, AHEAD_MS)
        assert before_ms == one_by_one.now_ms
    whole = passed(start, [at for at, _ in records], [arrived for _, arrived in records], AHEAD_MS)
    assert whole == (befores, now)


@given(steps=STEPS, at_ms=TIMES)
def test_the_clock_reaches_a_time_when_it_says_so(steps: list[tuple[bool, int, int]], at_ms: int) -> None:
    """Neither a millisecond before, unless it was there already, nor after."""
    now = after(steps)
    server_ms = now.reaches_ms(at_ms)
    if server_ms is None:
        assert now.newest_ms == NO_TIME_MS
        assert now.ticked(10_000) == now, "without a record it stands still"
        return
    assert now.ticked(max(server_ms, now.since_ms)).now_ms >= at_ms
    if now.now_ms < at_ms:
        assert now.ticked(server_ms - 1).now_ms < at_ms


@given(one=STEPS, other=STEPS)
def test_of_two_partitions_the_later_goes_on(
    one: list[tuple[bool, int, int]], other: list[tuple[bool, int, int]]
) -> None:
    """No window is open that one of them has closed."""
    joined = after(one).joined(after(other))
    assert joined.now_ms == max(after(one).now_ms, after(other).now_ms)
    assert joined in (after(one), after(other))
