"""What follows from a row of snapshots of a group."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.snapshot import Rebalance
from streamworker.core.trends import Looks, Trends
from tests.helpers import drawn
from tests.tui.groups import group

FIRST_MS = 1_763_700_000_000
"""The time of the checkpoints of these groups."""


def test_a_look_that_lacks_a_partition_changes_nothing() -> None:
    """Its figures are 0 since nobody told them, and not since the group began anew."""
    trends = Trends()
    for at_ms in (FIRST_MS, FIRST_MS + 900_000):
        known = trends.follow(group(partitions=2, workers=1, at_ms=at_ms, lag=5))
    whole = group(partitions=2, workers=1, at_ms=FIRST_MS + 960_000, lag=5)
    away = replace(whole.partitions[1], state="unknown", records=0, lag=0, checkpoint="0-0", owner=None)
    assert known.oldest_ms == 900_000
    assert trends.follow(replace(whole, partitions=(whole.partitions[0], away))) == known
    assert trends.follow(whole).oldest_ms == 960_000


def test_nothing_waits_where_all_is_committed() -> None:
    """However old the last record is."""
    trends = Trends()
    for at_ms in range(FIRST_MS, FIRST_MS + 3_600_000, 60_000):
        assert trends.follow(group(partitions=2, workers=1, at_ms=at_ms)).oldest_ms == 0


def test_a_record_that_arrives_after_a_quiet_hour_is_not_an_hour_old() -> None:
    """Its age is at most the time since the last look that found nothing waiting."""
    trends, now_ms = Trends(), FIRST_MS + 3_600_000
    trends.follow(group(partitions=2, workers=1, at_ms=now_ms))
    assert trends.follow(group(partitions=2, workers=1, at_ms=now_ms + 15_000, lag=1)).oldest_ms == 15_000
    assert trends.follow(group(partitions=2, workers=1, at_ms=now_ms + 30_000, lag=9)).oldest_ms == 30_000


def test_an_exporter_that_starts_late_knows_how_long_a_halted_partition_waits() -> None:
    """By the last record that it committed."""
    halted = group(partitions=1, workers=1, at_ms=FIRST_MS + 900_000, lag=5)
    assert Trends().follow(halted).oldest_ms == 900_000


def test_a_group_that_has_committed_nothing_waits_since_the_first_look() -> None:
    trends = Trends()
    for at_ms, waits_ms in ((1_000, 0), (61_000, 60_000)):
        now = group(partitions=1, workers=1, at_ms=at_ms, lag=5)
        now = replace(now, partitions=(replace(now.partitions[0], checkpoint="0-0", records=0),))
        assert trends.follow(now).oldest_ms == waits_ms


@drawn(200)
@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(0, 40), st.integers(0, 40)), min_size=2, max_size=200)
)
def test_what_waits_is_never_said_to_be_younger_than_it_is(steps: list[tuple[int, int, int]]) -> None:
    """Nor older by more than the time between the two looks around its arrival."""
    looks, now_s, arrivals, done = Looks(), 0, list[int](), 0
    noted: list[tuple[int, int]] = []
    for passed, sent, worked in steps:
        arrivals += [now_s + passed] * sent
        now_s += passed
        done = min(len(arrivals), done + worked)
        looks.note(now_s, (len(arrivals),))
        noted.append((now_s, len(arrivals)))
        waits, is_most = looks.waits_ms(now_s, (done,))
        oldest = arrivals[done] if done < len(arrivals) else now_s
        assert waits >= now_s - oldest or not is_most
        if is_most and len(noted) < 60:
            before = max((at for at, count in noted if count <= done), default=0)
            assert waits == now_s - before


def test_the_lag_of_a_reader_in_seconds_is_the_age_of_the_oldest_row_that_it_has_not_read() -> None:
    trends = Trends()
    for seconds in range(0, 100, 10):
        now = group(partitions=1, workers=1, at_ms=seconds * 1_000, committed=seconds)
        reader = replace(now.readers[0], positions={0: 1_000 + max(0, seconds - 30)})
        told = trends.follow(replace(now, readers=(reader,)))
    assert told.readers_ms == {"lake": 30_000}


def test_counts_of_rebalances_never_fall_although_their_history_is_short() -> None:
    """What stood there at the first look happened before, and what drops out stays counted."""
    trends, counts = Trends(), []
    for number in range(20):
        latest = range(max(0, number - 2), number + 1)
        changes = tuple(Rebalance(n, "death" if n % 2 else "join", "w1", n, (), 0) for n in latest)
        now = replace(group(partitions=1, workers=1, at_ms=number), rebalances=changes)
        counts.append(trends.follow(now).rebalances)
    assert counts[0] == {"join": 0, "leave": 0, "death": 0}
    assert counts[-1] == {"join": 9, "leave": 0, "death": 10}
