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
    """Leave the collector as it was, whatever a test does, and spare it what pytest has loaded."""
    enabled, threshold = gc.isenabled(), gc.get_threshold()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    (gc.enable if enabled else gc.disable)()


def test_what_was_loaded_before_is_left_out_and_later_cycles_are_still_found() -> None:
    """The modules that are loaded are left out, and only as long as a worker runs; garbage is not kept."""
    threshold, before = gc.get_threshold(), weakref.ref(Node())
    loaded, frozen = [Node() for _ in range(1_000)], gc.get_freeze_count()
    with rested_collector():
        assert before() is None, "what is garbage at the start is not frozen"
        assert gc.get_freeze_count() >= frozen + len(loaded)
        assert gc.get_threshold() == (YOUNG_MAX, *threshold[1:])
        lost = weakref.ref(Node())
        assert lost() is not None
        kept = [[] for _ in range(12 * YOUNG_MAX)]  # type: ignore[var-annotated]
        assert kept and lost() is None, "nobody has asked for a collection"
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == threshold


def test_a_collector_that_somebody_has_slowed_down_or_turned_off_is_left_alone() -> None:
    """Who has done so has a reason."""
    gc.set_threshold(10 * YOUNG_MAX, 5, 5)
    gc.disable()
    frozen = gc.get_freeze_count()
    with rested_collector():
        assert gc.get_freeze_count() == frozen
        assert gc.get_threshold() == (10 * YOUNG_MAX, 5, 5)
    assert not gc.isenabled()
    gc.enable()
    with rested_collector():
        assert gc.get_threshold() == (10 * YOUNG_MAX, 5, 5)
