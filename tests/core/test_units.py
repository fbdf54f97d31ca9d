"""Durations and sizes are read in one way wherever a user gives one."""

from datetime import timedelta

import pytest

from streamworker.core.units import duration_ms, size_bytes
from streamworker.errors import ConfigurationError


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0), (10, 10_000), (0.25, 250), (timedelta(minutes=2), 120_000), ("10 seconds", 10_000),
        ("1 second", 1_000), ("200 milliseconds", 200), ("5ms", 5), ("1.5 hours", 5_400_000),
        ("2 min", 120_000), ("1_000 s", 1_000_000), ("7 days", 604_800_000), ("2 weeks", 1_209_600_000),
    ],
)  # fmt: skip
def test_a_duration_is_seconds_a_timedelta_or_text(value: float | timedelta | str, ms: int) -> None:
    assert duration_ms(value, "within") == ms


@pytest.mark.parametrize(
    "value",
    ["10 m", "1 month", "soon", "", "10", "-1 s", "1 s 2", -1, float("nan"), float("inf"), True, None],
)
def test_what_is_no_duration_is_refused_by_the_name_of_its_argument(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"within=.* is no duration"):
        duration_ms(value, "within")  # type: ignore[arg-type]


def test_a_duration_below_the_least_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="every='1 ms' is too short"):
        duration_ms("1 ms", "every", least_ms=100)


@pytest.mark.parametrize("value", [1e300, 1e308, timedelta.max, "9" * 400 + " days", 10**10])
def test_a_duration_that_no_clock_can_count_is_refused(value: float | timedelta | str) -> None:
    with pytest.raises(ConfigurationError, match="too long"):
        duration_ms(value, "within")


@pytest.mark.parametrize(
    ("value", "size"),
    [(1, 1), ("512 B", 512), ("64 KiB", 65_536), ("1 kB", 1_000), ("1.5 MB", 1_500_000), ("10 GB", 10**10)],
)
def test_a_size_is_bytes_or_text(value: int | str, size: int) -> None:
    assert size_bytes(value, "retention") == size


@pytest.mark.parametrize(
    "value", ["10", "10 gb", "10 G", "", 0, -1, True, None, "0 B", 1.5, float("nan"), float("inf")]
)
def test_what_is_no_size_is_refused_by_the_name_of_its_argument(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"retention=.* is no size"):
        size_bytes(value, "retention")  # type: ignore[arg-type]
