"""``python -m benchmarks rebalance``: what is made of some rounds, and that a round leaves nothing behind."""

from dataclasses import replace

import pytest

from benchmarks.contest import Contest
from benchmarks.measuring.ground import open_ground
from benchmarks.measuring.programs import BenchFailed
from benchmarks.rebalances.changes import Story
from benchmarks.rebalances.facts import Change
from benchmarks.scenes.rebalance import rebalance, rows_of

JOIN = Change(
    what="join", protocol="membership", workers=4, partitions=64, moves=30, least=12, spread=1,
    balance_ms=400, handover_p50_ms=20, handover_p99_ms=80, pause_moved_ms=90, pause_unmoved_ms=30,
    pause_before_ms=15,
)  # fmt: skip


def story(**join: int | None) -> Story:
    """Return a round whose join was like this."""
    first = replace(JOIN, **join)  # type: ignore[arg-type]
    changes = (first, replace(JOIN, what="leave"), replace(JOIN, what="death", balance_ms=3_000))
    return Story("membership", "range", 4, 64, 500, 1.0, changes, {}, ())


def test_rounds_of_a_rebalance_become_medians_against_what_they_may_take() -> None:
    """A limit where one is promised; else the fewest moves, and what the machine did before."""
    rows = {row.scene: row for row in rows_of([story(balance_ms=300), story(balance_ms=900), story()])}
    assert rows["rebalance-join"].ours.median == 400
    assert rows["rebalance-join"].is_met and rows["rebalance-death"].is_met
    assert rows["rebalance-join-moves"].ratio == 2.5
    assert rows["rebalance-leave-handover-p99"].ours.median == 80
    assert rows["rebalance-death-pause-moved"].ratio == 6
    slow = {row.scene: row for row in rows_of([story(handover_p99_ms=150)])}
    assert slow["rebalance-join-handover-p99"].is_met is False


def test_a_machine_that_paused_nobody_before_is_no_division_by_nothing() -> None:
    """The server's clock tells milliseconds."""
    rows = {row.scene: row for row in rows_of([story(pause_before_ms=0)])}
    assert rows["rebalance-join-pause-moved"].ratio == 90


def test_a_round_without_balance_has_no_figure() -> None:
    """None is made up."""
    with pytest.raises(BenchFailed, match="join: a round has no balance_ms"):
        rows_of([story(), story(balance_ms=None)])


@pytest.mark.soak
@pytest.mark.anyio
async def test_a_rebalance_is_measured_on_the_server_of_the_bench(redis_url: str) -> None:
    """All keys are the bench's, and are gone in the end."""
    async with open_ground(redis_url) as ground:
        rows = await rebalance(Contest(ground, runs=1), workers=3, partitions=8)
        assert await ground.backend.execute("DBSIZE") == 0
    assert len(rows) == 18
    assert all(row.ours.median >= 0 for row in rows)
