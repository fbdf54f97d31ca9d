"""What a partition asks of its owner."""

import pytest
from hypothesis import given
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


@pytest.mark.parametrize(
    "steps, loads",
    [
        pytest.param([(300, 5, 0)], [300], id="the share of the time at work, in thousandths"),
        pytest.param([(1_000, 1, 0)], [1_000], id="all of the time"),
        pytest.param([(1_000, 500, 900), (1_000, 500, 400)], [1_000] * 2, id="a backlog that shrinks"),
        pytest.param([(1_000, 0, 50), (1_000, 0, 90)], [1_000] * 2, id="a handler that does not come back"),
        pytest.param([(100, 1, 0), (900, 1, 0), (100, 1, 0)], [100, 300, 250], id="one slow look: a fourth"),
        pytest.param([(0, 1, 0), *[(1_000, 1, 0)] * 8], [900], id="a change that stays: 90 % in eight looks"),
        pytest.param([(1_000, 1, 0), *[(0, 0, 0)] * 40], [0], id="an average can fall to nothing"),
    ],
)
def test_the_load_is_an_average_of_the_share_of_the_time_at_work(
    steps: list[tuple[int, int, int]], loads: list[int]
) -> None:
    """Whoever works a backlog off has no more time than it has; nothing is divided by zero."""
    assert looks(*steps)[-len(loads) :] == loads
    assert looks(*steps, every_ms=2_000)[0] == looks(*steps)[0] // 2


@pytest.mark.parametrize(
    "before, counters, load",
    [
        pytest.param(100, Counters(1, 1_000, 600, 40, 120), 900, id="half as much came on top"),
        pytest.param(
            0, Counters(1, 1_000, 500, 1, 1_000_000), 500 * GROWTH_MOST, id="a flood: so much, no more"
        ),
        pytest.param(None, Counters(1, 1_000, 500, 10, 70), 500, id="unknown, as after an XDEL: nothing"),
    ],
)
def test_a_backlog_that_grows_counts_as_the_work_that_it_would_have_been(
    before: int | None, counters: Counters, load: int
) -> None:
    """Up to a limit, or one partition would be all that there is to see."""
    meter = LoadMeter()
    meter.look({0: Counters(1, 0, 0, 0, before)})
    assert meter.look({0: counters}) == {0: load}


def test_a_partition_that_came_back_is_measured_anew() -> None:
    """Its counters began with its acquisition; so do its looks."""
    meter = LoadMeter()
    assert looks((900, 1, 0), meter=meter) == [900]
    assert meter.look({0: Counters(2, 5_000, 10, 0, 0)}) == {}
    assert meter.look({0: Counters(2, 6_000, 110, 0, 0)}) == {0: 100}


@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 100), st.integers(0, 1_000)), min_size=1))
def test_a_load_is_never_negative_and_never_more_than_the_limit(steps: list[tuple[int, int, int]]) -> None:
    """Whatever the counters do."""
    assert all(0 <= load <= 1_000 * GROWTH_MOST for load in looks(*steps))
