"""Each moment is in its windows and in no other, whatever clocks do; sessions are the same in any order."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.time.windows import (
    DAY_MS,
    FIRST_MS,
    LAST_MS,
    Days,
    Grid,
    Lengths,
    Months,
    Windows,
    near,
)
from streamworker.core.units import moment
from tests.helpers import drawn

ZONES = {
    # The lengths, in hours, of its days from 2023 to 2026.
    "Europe/Paris": {23, 24, 25},
    "America/New_York": {23, 24, 25},
    "America/Havana": {23, 24, 25},
    "Africa/Cairo": {23, 24, 25},
    "Asia/Beirut": {23, 24, 25},
    "America/Santiago": {23, 24, 25},
    "Pacific/Apia": {24},
    "Australia/Lord_Howe": {23.5, 24, 24.5},
    "UTC": {24},
}
FIRST, LAST = datetime(2023, 1, 1, tzinfo=UTC), datetime(2026, 12, 31, tzinfo=UTC)
HALF_HOURS = range(round(FIRST.timestamp()) * 1000, round(LAST.timestamp()) * 1000, 1_800_000)
ANY_MS = st.integers(-5_000 * DAY_MS, 40_000 * DAY_MS)
GRIDS: list[Grid] = [
    Lengths(1),
    Lengths(7_000),
    Lengths(3_600_000),
    *(grid for zone in map(ZoneInfo, ZONES) for grid in (Days(1, zone), Days(7, zone), Days(10, zone))),
    *(Months(months, ZoneInfo(zone)) for zone in ZONES for months in (1, 3, 12)),
]


def named(grid: Grid) -> str:
    """Return a grid in a word."""
    return "-".join(str(value) for value in vars(grid).values())


@pytest.mark.parametrize("zone", ZONES)
def test_each_half_hour_of_four_years_is_in_one_day_of_a_zone(zone: str) -> None:
    """Days follow each other, begin at midnight, or when the clocks skip it, and are as long as these say."""
    windows, last, lengths = Windows(Days(1, ZoneInfo(zone))), None, set[float]()
    for at_ms in HALF_HOURS:
        [day] = windows.of(at_ms)
        assert day.start_ms <= at_ms < day.end_ms
        if last is not None and day != last:
            assert day.start_ms == last.end_ms
            lengths.add((day.end_ms - day.start_ms) / 3_600_000)
            start = moment(day.start_ms).astimezone(ZoneInfo(zone))
            before = moment(day.start_ms - 1).astimezone(ZoneInfo(zone))
            assert start.date() == before.date() + timedelta(days=1)
        last = day
    assert lengths == ZONES[zone]


@pytest.mark.parametrize("grid", GRIDS, ids=named)
@given(at_ms=ANY_MS)
@drawn(40)
def test_each_moment_is_in_one_step_and_steps_follow_each_other(grid: Grid, at_ms: int) -> None:
    step = grid.step_at(at_ms)
    start_ms, end_ms = grid.start_of(step), grid.start_of(step + 1)
    assert start_ms <= at_ms < end_ms
    assert grid.step_at(start_ms) == step == grid.step_at(end_ms - 1)
    assert grid.step_at(start_ms - 1) == step - 1
    assert grid.step_at(end_ms) == step + 1


@pytest.mark.parametrize("zone", ZONES)
def test_weeks_begin_on_monday_and_months_on_the_first(zone: str) -> None:
    for at_ms in HALF_HOURS[:: 48 * 5]:
        week, month = (
            Windows(Days(7, ZoneInfo(zone))).of(at_ms)[0],
            Windows(Months(1, ZoneInfo(zone))).of(at_ms)[0],
        )
        assert moment(week.start_ms).astimezone(ZoneInfo(zone)).weekday() == 0
        assert moment(month.start_ms).astimezone(ZoneInfo(zone)).day == 1
        assert 28 <= round((month.end_ms - month.start_ms) / DAY_MS) <= 31


@pytest.mark.parametrize("grid", GRIDS[1:], ids=named)
@given(times=st.lists(ANY_MS, min_size=1, max_size=6), steps=st.integers(1, 9))
@drawn(20)
def test_each_moment_is_in_as_many_windows_as_these_have_steps(
    grid: Grid, times: list[int], steps: int
) -> None:
    """One begins at each step; what was asked before does not matter."""
    windows = Windows(grid, steps)
    for at_ms in times:
        found = windows.of(at_ms)
        assert found == Windows(grid, steps).of(at_ms)
        assert len(set(found)) == steps
        assert list(found) == sorted(found)
        for span in found:
            assert span.start_ms <= at_ms < span.end_ms == windows.ends_ms(span.start_ms)
            assert grid.step_at(span.end_ms) - grid.step_at(span.start_ms) == steps
        later = windows.of(found[-1].end_ms)
        assert not any(span.start_ms <= at_ms for span in later)


def test_the_first_and_the_last_time_that_windows_have_are_in_one() -> None:
    """Of two years at most, in each calendar."""
    for grid in (*GRIDS, Months(24, ZoneInfo("Europe/Paris"))):
        for at_ms in (FIRST_MS, LAST_MS):
            [span] = Windows(grid).of(at_ms)
            assert span.start_ms <= at_ms < span.end_ms


class Session:
    """A session, by the times of its events."""

    def __init__(self, events: list[int]) -> None:
        self.events = events
        self.start_ms, self.end_ms = min(events), max(events)


def folded(events: list[int], gap_ms: int, over_ms: int) -> list[list[int]]:
    """Return sessions as they come out when events are added one by one."""
    sessions: list[Session] = []
    for at_ms in events:
        joins = near(sessions, at_ms, gap_ms, over_ms)
        joined = Session([at_ms, *(event for each in joins for event in each.events)])
        sessions = [*(each for each in sessions if each not in joins), joined]
    return sorted(sorted(each.events) for each in sessions)


def cut(events: list[int], gap_ms: int) -> list[list[int]]:
    """Return sessions as a look at all events in order finds them."""
    found: list[list[int]] = []
    for at_ms in sorted(events):
        if not found or at_ms - found[-1][-1] >= gap_ms:
            found.append([])
        found[-1].append(at_ms)
    return found


@given(events=st.lists(st.integers(0, 100), max_size=30), gap_ms=st.integers(1, 20), data=st.data())
@drawn(300)
def test_sessions_come_out_the_same_in_any_order(events: list[int], gap_ms: int, data: st.DataObject) -> None:
    """They are those of all events in order, cut where nothing happens for the gap."""
    assert folded(data.draw(st.permutations(events)), gap_ms, -1) == cut(events, gap_ms)


@given(events=st.lists(st.integers(0, 100), max_size=20), gap_ms=st.integers(1, 20), data=st.data())
def test_a_session_that_is_over_is_never_joined(events: list[int], gap_ms: int, data: st.DataObject) -> None:
    """Its last event is not after a time; those of others are."""
    sessions = [Session(each) for each in cut(events, gap_ms)]
    over_ms, at_ms = data.draw(st.integers(-1, 101)), data.draw(st.integers(-20, 120))
    joins = near(sessions, at_ms, gap_ms, over_ms)
    for each in sessions:
        distance = max(each.start_ms - at_ms, at_ms - each.end_ms, 0)
        assert (each in joins) == (distance < gap_ms and each.end_ms > over_ms)
    assert len(joins) <= 2
