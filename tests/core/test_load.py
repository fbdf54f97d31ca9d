"""What a partition asks of its owner."""

from hypothesis import given, settings
from hypothesis import strategies as st

from streamworker.core.data.load import GROWTH_MOST, Counters, LoadMeter


def looks(
    *steps: tuple[int, int, int], every_ms: int = 1_000, meter: LoadMeter | None = None, epoch: int = 1
) -> list[int]:
    """Return the load after each step of (worked ms, entries done, backlog)."""
    meter = meter or LoadMeter()
    worked = done = 0
    meter.look({0: Counters(epoch, 0, 0, 0, steps[0][2])})
    loads = []
    for turn, (more_worked, more_done, lag) in enumerate(steps, start=1):
        worked, done = worked + more_worked, done + more_done
        loads.append(meter.look({0: Counters(epoch, turn * every_ms, worked, done, lag)})[0])
    return loads


def test_the_load_is_the_share_of_the_time_at_work() -> None:
    """In thousandths, whatever the time between two looks."""
    assert looks((300, 5, 0)) == [300]
    assert looks((300, 5, 0), every_ms=2_000) == [150]
    assert looks((1_000, 1, 0)) == [1_000]


def test_a_backlog_that_grows_counts_as_the_work_that_it_would_have_been() -> None:
    """Half as much as was done came on top: half as much load on top."""
    meter = LoadMeter()
    meter.look({0: Counters(1, 0, 0, 0, 100)})
    assert meter.look({0: Counters(1, 1_000, 600, 40, 120)}) == {0: 900}


def test_a_backlog_that_shrinks_makes_nobody_look_idle() -> None:
    """Whoever works it off has no more time than it has."""
    assert looks((1_000, 500, 900), (1_000, 500, 400))[-1] == 1_000


def test_a_flood_counts_for_so_much_and_no_more() -> None:
    """Or one partition would be all that there is to see."""
    meter = LoadMeter()
    meter.look({0: Counters(1, 0, 0, 0, 0)})
    assert meter.look({0: Counters(1, 1_000, 500, 1, 1_000_000)}) == {0: 500 * GROWTH_MOST}


def test_a_handler_that_does_not_come_back_is_at_work() -> None:
    """Nothing is done, and nothing is divided by zero."""
    assert looks((1_000, 0, 50), (1_000, 0, 90)) == [1_000, 1_000]


def test_an_unknown_backlog_counts_for_nothing() -> None:
    """As after an XDEL, when the server has lost count."""
    meter = LoadMeter()
    meter.look({0: Counters(1, 0, 0, 0, None)})
    assert meter.look({0: Counters(1, 1_000, 500, 10, 70)}) == {0: 500}


def test_one_slow_look_changes_the_average_by_a_fourth() -> None:
    """And a change that stays is followed by 90 % in eight looks."""
    assert looks((100, 1, 0), (900, 1, 0), (100, 1, 0)) == [100, 300, 250]
    assert looks((0, 1, 0), *[(1_000, 1, 0)] * 8)[-1] == 900


def test_an_average_can_fall_to_nothing() -> None:
    """The fraction that is kept sees to it."""
    assert looks((1_000, 1, 0), *[(0, 0, 0)] * 40)[-1] == 0


def test_a_partition_that_came_back_is_measured_anew() -> None:
    """Its counters began with its acquisition; so do its looks."""
    meter = LoadMeter()
    assert looks((900, 1, 0), meter=meter) == [900]
    assert meter.look({0: Counters(2, 5_000, 10, 0, 0)}) == {}
    assert meter.look({0: Counters(2, 6_000, 110, 0, 0)}) == {0: 100}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 100), st.integers(0, 1_000)), min_size=1))
def test_a_load_is_never_negative_and_never_more_than_the_limit(steps: list[tuple[int, int, int]]) -> None:
    """Whatever the counters do."""
    assert all(0 <= load <= 1_000 * GROWTH_MOST for load in looks(*steps))
