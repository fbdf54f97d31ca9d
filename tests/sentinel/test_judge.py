"""What the judge of failovers believes of sends that were reported as lost and are there again."""

from tests.sentinel.scene import ZOMBIE_MS, what_cannot_come_back

CONFIRMED = [float(at) for at in range(0, 100_000, 100)]


def judged(again: list[float], switches: list[float], unwanted: int = 1) -> str:
    return what_cannot_come_back(again, CONFIRMED, switches, unwanted=unwanted, longest_ms=1_000)


def test_what_a_wanted_switch_took_another_may_bring_back() -> None:
    """It was written shortly before the first, or by the zombie after it."""
    assert judged([19_500.0, 20_000.0 + ZOMBIE_MS], [20_000.0, 60_000.0]) == ""


def test_nothing_comes_back_without_a_switch_that_nobody_wanted() -> None:
    assert "nobody wanted" in judged([19_500.0], [20_000.0, 60_000.0], unwanted=0)
    assert "nobody wanted" in judged([19_500.0], [20_000.0])


def test_what_was_written_far_from_a_switch_or_after_the_last_was_never_gone() -> None:
    for at in (18_000.0, 20_001.0 + ZOMBIE_MS, 60_001.0):
        assert "no switch could take" in judged([at], [20_000.0, 60_000.0], unwanted=9)


def test_a_switch_brings_back_what_one_other_took_and_no_more() -> None:
    switches = [20_000.0, 40_000.0, 60_000.0]
    one = [at for at in CONFIRMED if 19_000 <= at <= 28_000]
    other = [at for at in CONFIRMED if 39_000 <= at <= 48_000]
    assert judged(one, switches) == ""
    assert "more than 1" in judged(one + other, switches)
    assert judged(one + other, switches, unwanted=2) == ""
