"""Pauses between tries grow, are bounded, and are spread."""

import pytest

from streamworker.core.pauses import Pauses, pause_ms


@pytest.mark.parametrize(
    ("failures", "least", "most"),
    [(0, 50, 100), (1, 50, 100), (2, 100, 200), (3, 200, 400), (4, 300, 600), (10**9, 300, 600)],
)
def test_a_pause_doubles_with_each_failure_and_is_drawn_from_its_upper_half(
    failures: int, least: int, most: int
) -> None:
    """No failure is as good as one, and any number of failures can be counted."""
    found = [
        pause_ms(failures, iter([drawn]).__next__, first_ms=100, max_ms=600) for drawn in (0.0, 0.5, 1.0)
    ]
    assert found == [least, (least + most) // 2, most]


def test_after_a_success_the_shortest_pause_comes_again() -> None:
    """An outage of an hour ago lengthens nothing."""
    pauses = Pauses(lambda: 1.0, first_ms=10, max_ms=1_000)
    assert [pauses.next_ms() for _ in range(3)] == [10, 20, 40]
    pauses.reset()
    assert pauses.next_ms() == 10
