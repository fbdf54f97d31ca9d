"""The chain of an archive is the log in each drawn schedule of faults, and each planted mistake is found."""

import pytest

from streamworker.runtime.run.modes.archive import RECORD_BYTES
from tests.archive.schedules import AFTER_MS, EVERY_MS, World, at_a_rate, quiet_segments, violation
from tests.drawn import is_found, violations
from tests.planting import Plant, each_found_by

SCHEDULES, AT_NIGHT = 40, 10_000
SEARCHED, SEARCHED_IN_FULL = 60, 300
TOLD = ("puts refused", "failovers", "commit GAP", "commit FENCED", "deaths", "store away", "deleted")


def test_the_chain_is_the_log_in_each_schedule() -> None:
    """And all that can happen does."""
    broken, seen = violations(violation, 0, SCHEDULES)
    assert broken == {}
    assert min(seen[name] for name in TOLD) > SCHEDULES / 5
    assert seen["archived"] > 50 * SCHEDULES


def test_nothing_is_archived_that_a_failover_may_still_lose() -> None:
    """However much waits: it must first be as old as ``after`` says."""
    world = World(0)
    assert quiet_segments(world, AFTER_MS - 20) == 0
    assert quiet_segments(world, 2 * EVERY_MS) == 1


def test_segments_at_a_high_rate_are_as_large_as_the_size_says() -> None:
    """Though all the time more waits that is young: what is old enough counts."""
    size = 3_000
    segments, _ = at_a_rate(World(0, {"every": "1 hour", "size": size}), 5_000)
    assert len(segments) > 3
    assert min(segments) >= size / RECORD_BYTES


def test_a_partition_is_archived_before_it_is_full_and_in_segments_that_are_not_tiny() -> None:
    world = World(0, {"every": "1 hour", "size": "64 MB"}, max_records=400)
    segments, most = at_a_rate(world, 3_000)
    assert 200 <= most < 300, "half of it, and what has come since the last look"
    assert min(segments) > 100


def test_records_of_a_time_that_is_not_yet_are_archived_as_old_as_others() -> None:
    """Another program chose an id, or the clock has gone back: ids behind it are of that time, too."""
    world, ahead_ms = World(0, {"size": "64 MB"}), 86_400_000
    key, number = world.archiver.events(0), -1
    words = "XADD", key, f"{world.clock_us // 1000 + ahead_ms}-0", "v", b'{"n":%d}' % number
    world.backend.command(*words)
    segments, most = at_a_rate(world, 3_000)
    assert 5 <= len(segments) <= 3_000 / EVERY_MS, "about one each interval"
    assert sum(segments) + most > world.seen["sent"]
    since = world.backend.store.field(world.archiver.lock(0).encode(), b"waits_since")
    assert 0 <= world.clock_us // 1000 - int(since) <= 2 * EVERY_MS


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_the_chain_is_the_log_in_very_many_schedules() -> None:
    broken, seen = violations(violation, 1_000_000, AT_NIGHT)
    print(dict(seen))
    assert broken == {}


@each_found_by("archive from seed")
def test_a_planted_mistake_breaks_the_chain(plant: Plant) -> None:
    """A check that never fails proves nothing."""
    assert is_found(violation, plant, int(plant.found_by["archive from seed"]), SEARCHED)


@pytest.mark.full("runs hundreds of schedules for each mistake")
@each_found_by("archive in full from seed")
def test_a_mistake_that_is_seldom_seen_breaks_the_chain(plant: Plant) -> None:
    assert is_found(violation, plant, int(plant.found_by["archive in full from seed"]), SEARCHED_IN_FULL)
