"""What is loaded when a worker starts is not looked at again and again for cycles."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from streamworker.runtime.read.collector import YOUNG_MAX, rested_collector


class Node:
    """Something that can point to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave the collector as it was, whatever a test does."""
    enabled, threshold = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    (gc.enable if enabled else gc.disable)()


def test_what_was_loaded_before_is_not_looked_at_and_all_is_as_before_in_the_end() -> None:
    """The modules that are loaded are left out, and only as long as a worker runs."""
    threshold = gc.get_threshold()
    with rested_collector():
        assert gc.get_freeze_count() > 10_000
        assert gc.get_threshold() == (YOUNG_MAX, *threshold[1:])
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == threshold


def test_cycles_that_are_made_while_a_worker_runs_are_found_without_being_asked() -> None:
    """Looking less often still frees what only points to itself."""
    with rested_collector():
        lost = weakref.ref(Node())
        assert lost() is not None
        kept = [[] for _ in range(12 * YOUNG_MAX)]  # type: ignore[var-annotated]
        assert kept and lost() is None


def test_garbage_of_before_is_freed_and_not_kept_for_ever() -> None:
    """What is garbage at the start is not frozen."""
    lost = weakref.ref(Node())
    with rested_collector():
        assert lost() is None


def test_a_collector_that_somebody_has_slowed_down_or_turned_off_is_left_alone() -> None:
    """Who has done so has a reason."""
    gc.set_threshold(10 * YOUNG_MAX, 5, 5)
    with rested_collector():
        assert gc.get_threshold() == (10 * YOUNG_MAX, 5, 5)
    gc.disable()
    with rested_collector():
        assert gc.get_freeze_count() == 0
        assert gc.get_threshold() == (10 * YOUNG_MAX, 5, 5)
    assert not gc.isenabled()
