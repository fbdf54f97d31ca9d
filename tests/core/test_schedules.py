"""The planned times of timers, and which of them are due, are functions of times that are passed in."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.rules import check_values
from streamworker.core.time.schedules import (
    CHOICES,
    LATE_MS,
    Cron,
    Every,
    Missed,
    PlannedTimes,
    cron,
    due,
    every,
)
from streamworker.errors import ConfigurationError

PARIS = ZoneInfo("Europe/Paris")
SCHEDULES: list[PlannedTimes] = [
    Every(100), Every(7_000), Every(3_600_000), Cron("*/5 * * * *", PARIS), Cron("0 6 * * mon", PARIS),
    Cron("30 2 * * *", PARIS), Cron("*/10 * * * * *", ZoneInfo("UTC")),
]  # fmt: skip
TIMES = st.integers(min_value=1_700_000_000_000, max_value=1_900_000_000_000)


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@given(ms=TIMES)
def test_before_and_after_name_the_planned_times_around_any_time(schedule: PlannedTimes, ms: int) -> None:
    before, after = schedule.upto(ms), schedule.after(ms)
    assert before <= ms < after
    assert schedule.after(before) == after
    assert schedule.after(before - 1) == before
    assert schedule.upto(after) == after
    assert schedule.upto(after - 1) == before


@pytest.mark.parametrize("schedule", [each for each in SCHEDULES if isinstance(each, Cron)], ids=str)
@pytest.mark.parametrize("day", ["2029-10-28", "2029-03-25"])
def test_each_second_around_a_change_of_summer_time_has_its_planned_times(schedule: Cron, day: str) -> None:
    """In autumn 02:59:59 is followed by 02:00:00; what was planned is neither lost nor repeated."""
    start_ms = _ms(f"{day}T00:00")
    for ms in range(start_ms - 1_000, start_ms + 2 * 3_600_000, 599_000):
        for at in (ms, (ms // 3_600_000 + 1) * 3_600_000 - 1_000):
            before, after = schedule.upto(at), schedule.after(at)
            assert before <= at < after
            assert schedule.after(before) == after
            assert schedule.upto(after - 1) == before


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
@given(start=TIMES, waits=st.lists(st.integers(0, 40_000), max_size=30))
def test_no_planned_time_is_due_twice_and_all_runs_each(start: int, missed: Missed, waits: list[int]) -> None:
    schedule, last, now, ran = Every(7_000), start, start, []
    for wait in waits:
        now += wait
        while (found := due(schedule, missed, last, now)) is not None:
            assert last < found.at_ms <= now
            last = found.at_ms
            ran += [last] if found.runs else []
    assert ran == sorted(set(ran))
    if missed == "all":
        assert ran == list(range(schedule.after(start), now + 1, 7_000))


def test_a_time_is_skipped_once_a_later_one_has_come_or_it_is_a_minute_old() -> None:
    hourly = Every(3_600_000)
    assert due(hourly, "skip", 0, 3_600_000 + LATE_MS - 1) == (3_600_000, True)
    assert due(hourly, "skip", 0, 3_600_000 + LATE_MS) == (3_600_000, False)
    assert due(hourly, "skip", 0, 3 * 3_600_000 + 5) == (3 * 3_600_000, True)
    assert due(hourly, "once", 0, 3 * 3_600_000 + LATE_MS) == (3 * 3_600_000, True)
    assert due(hourly, "skip", 3_600_000, 2 * 3_600_000 - 1) is None


def test_a_cron_time_that_the_zone_skips_runs_after_the_gap_and_one_that_comes_twice_runs_once() -> None:
    nightly = Cron("30 2 * * *", PARIS)
    assert nightly.after(_ms("2026-03-28T12:00")) == _ms("2026-03-29T01:00"), "3:00 summer time"
    twice = [nightly.after(_ms("2026-10-24T12:00"))]
    twice.append(nightly.after(twice[0]))
    assert twice == [_ms("2026-10-25T00:30"), _ms("2026-10-26T01:30")]


def test_a_planned_time_is_given_in_the_zone_of_the_timer() -> None:
    monday = Cron("0 6 * * mon", PARIS)
    assert str(monday.moment(monday.upto(_ms("2026-11-02T10:00")))) == "2026-11-02 06:00:00+01:00"


def test_a_schedule_is_named_as_people_say_it() -> None:
    assert [str(every(period, "t")) for period in ("1 hour", 30, 0.25, "2 days")] == [
        "every hour", "every 30 seconds", "every 250 ms", "every 2 days",
    ]  # fmt: skip


def test_what_is_no_schedule_is_refused_with_the_timer_and_an_example() -> None:
    for wrong in ("", "61 * * * *", "* * * *", "0 0 31 2 *"):
        with pytest.raises(ConfigurationError, match=r"Timer 'sweep' has the cron expression"):
            cron(wrong, "UTC", "sweep")
    with pytest.raises(ConfigurationError, match="Timer 'sweep' has tz='Europe/Pari'"):
        cron("* * * * *", "Europe/Pari", "sweep")
    with pytest.raises(ConfigurationError, match=r"sweep: every=.* is too short"):
        every(0.01, "sweep")
    with pytest.raises(ConfigurationError, match="Timer 'sweep' has missed="):
        check_values({"missed": "never"}, CHOICES, "Timer 'sweep'")
