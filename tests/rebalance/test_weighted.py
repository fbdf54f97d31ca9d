"""Sharing by load with real workers: what a hot partition makes move, and that it then rests."""

from collections import Counter

import pytest

from tests.chaos.team import Team
from tests.chaos.times import FAST
from tests.chaos.yard import Yard

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(180),
    pytest.mark.full("sessions and holds run out, and how long partitions stand still is measured"),
    pytest.mark.alone("shares by the load that is measured"),
]

WEIGHTED = {
    **FAST,
    "ASSIGNMENT": "weighted",
    "STREAMWORKER_BALANCE_INTERVAL_MS": "500",
    "STREAMWORKER_BALANCE_THRESHOLD_PERCENT": "30",
}
"""Ten times the usual pace, and a threshold for machines on which other things run."""
HOT = {"ROWS_HANDLER_S": "0.002", "ROWS_HOT": "6", "ROWS_HOT_S": "0.2"}
"""Partition 6 takes a worker's whole time, the others a tenth or less."""
REST_MS = 4_000
"""Eight looks."""


async def balanced(team: Team) -> list[int]:
    return [p for each in (await team.snapshot()).rebalances if each.cause == "balance" for p in each.moved]


async def rest_ms(team: Team) -> int:
    snapshot = await team.snapshot()
    return snapshot.taken_ms - max(each.at_ms for each in snapshot.rebalances if each.moved)


async def rests(team: Team, for_ms: int) -> None:
    async def does() -> bool:
        return await rest_ms(team) >= for_ms

    await team.until("nothing moves any more", does)


async def test_what_shares_a_worker_with_a_hot_partition_moves_away_and_then_nothing_moves(
    yard: Yard,
) -> None:
    """The hot one stays where it is, nothing is lost or repeated, and the figures are there to see."""
    environ = {**WEIGHTED, **HOT}
    async with yard.group("hot", partitions=8, environ=environ, ledger=True) as team:
        await team.hired("w1")
        owners = [lock.name for lock in await team.hired("w2")]
        others = {p for p, name in enumerate(owners) if name == owners[6]} - {6}
        async with team.load(per_second=400):
            await team.until("what is beside the hot one moves", lambda: balanced(team))
            await rests(team, REST_MS)
            moved = await balanced(team)
        assert (await team.locks())[6].name == owners[6]
        assert set(moved) <= others, "only what was beside the hot one has moved"
        assert len(moved) == len(set(moved)), "something moved twice"
        loads = [member.load for member in (await team.snapshot()).members]
        print(f"moved {moved} of {sorted(others)}; loads then {sorted(loads)}")
        assert all(load > 0 for load in loads)
        await team.finished()
        times = Counter(n for call in team.calls() for n in call["n"])
        assert times == Counter(team.sends.confirmed.keys())


async def test_a_worker_of_capacity_three_is_given_three_quarters(yard: Yard) -> None:
    """At its join, before anything is measured."""
    async with yard.group("capacity", partitions=8, environ=WEIGHTED) as team:
        await team.hired("w1")
        team.hire("w2", STREAMWORKER_CAPACITY="3")

        async def is_given() -> bool:
            return await team.shares() == {"w1": 2, "w2": 6}

        await team.until("it is given three quarters", is_given)
        members = (await team.snapshot()).members
        assert {member.name: member.capacity for member in members} == {"w1": 1, "w2": 3}
