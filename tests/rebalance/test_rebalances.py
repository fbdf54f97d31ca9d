"""What does not move in a rebalance does not pause."""

import asyncio
import time
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from tests.chaos.yard import Yard

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(180),
    pytest.mark.full("sessions and holds run out, and how long partitions stand still is measured"),
    pytest.mark.alone("how long partitions stand still, with sessions of about a second"),
]


def largest_gap(calls: list[dict[str, Any]], since: float, until: float) -> float:
    times: list[float] = sorted(call["end"] for call in calls if since <= call["end"] <= until)
    return max(after - before for before, after in pairwise(times))


async def test_partitions_that_did_not_move_never_pause(yard: Yard) -> None:
    """The largest gap between batches of an unmoved partition is the same with a join and without.

    Three joins, each after a window of the same length.
    """
    window_s = 1.2
    slow = {"ROWS_HANDLER_S": "0.1"}
    async with yard.group("unmoved", partitions=8, ledger=True) as team:
        await team.hired("w0", **slow)
        pid = team.workers["w0"].pid
        windows: list[tuple[float, float, float]] = []
        async with team.load(per_second=1_600):
            await team.until("the worker is busy", lambda: sum(1 for _ in team.calls()) > 200)
            for number in range(3):
                quiet_since = time.monotonic()
                await asyncio.sleep(window_s)
                join_since = time.monotonic()
                team.hire(f"newcomer{number}", **slow)
                await asyncio.sleep(window_s)
                windows.append((quiet_since, join_since, time.monotonic()))
                await team.settled()
                assert set(await team.held_by("w0")) == {0, 1, 2, 3}
                team.ask_to_leave(f"newcomer{number}")
                await team.settled()
        calls = [call for call in team.calls() if call["pid"] == pid]
    by_partition = [[call for call in calls if call["partition"] == p] for p in range(4)]
    ratios = []
    for quiet_since, join_since, until in windows:
        quiet = median(largest_gap(mine, quiet_since, join_since) for mine in by_partition)
        during = median(largest_gap(mine, join_since, until) for mine in by_partition)
        print(f"largest gap of an unmoved partition: {quiet:.3f} s, and {during:.3f} s with a join")
        ratios.append(during / quiet)
    print(f"median ratio {median(ratios):.2f}")
    assert median(ratios) <= 1.5
