"""The hashes of the lease-grab race, on real servers: the same effects, the same answers."""

import pytest

from streamworker.core.events import Effect
from streamworker.core.protocols.lease.events import (
    Challenge,
    ChallengeLeases,
    LeaseRaced,
    LeasesChallenged,
    RaceForLease,
    UpdateLeases,
)
from tests.contract.support import Group

pytestmark = pytest.mark.anyio


async def challenge(group: Group, how: Challenge) -> frozenset[int]:
    answer = await group.do(ChallengeLeases("c.1", {0: how, 1: how, 2: how}))
    assert isinstance(answer, LeasesChallenged)
    return answer.signalled


async def race(group: Group, owner: str, partition: int) -> LeaseRaced:
    answer = await group.do(RaceForLease(owner, partition))
    assert isinstance(answer, LeaseRaced)
    return answer


async def test_the_first_wins_a_race_and_only_what_has_no_winner_is_challenged(group: Group) -> None:
    """A free partition has neither a winner nor a node that processes it; an overdue one loses both."""
    assert await challenge(group, Challenge.FREE) == {0, 1, 2}
    won = await race(group, "a.1", 0)
    assert (await race(group, "b.1", 0)) == won == LeaseRaced(0, "a.1", won.generation)
    assert await challenge(group, Challenge.FREE) == await challenge(group, Challenge.DUE) == {1, 2}
    await group.do(UpdateLeases("a.1", {0: won.generation}, (), {0: won.generation}))
    assert await challenge(group, Challenge.FREE) == {1, 2}
    assert await challenge(group, Challenge.DUE) == {0, 1, 2}
    assert (await race(group, "b.1", 0)).allocated == "a.1"
    assert await challenge(group, Challenge.OVERDUE) == {0, 1, 2}
    assert (await race(group, "c.1", 0)).allocated == ""


async def test_late_updates_of_a_node_change_nothing_of_a_later_winner(group: Group) -> None:
    """Neither its win, nor what the later one processes."""
    old = await race(group, "a.1", 0)
    await challenge(group, Challenge.OVERDUE)
    new = await race(group, "b.1", 0)
    assert new.generation > old.generation
    await group.do(UpdateLeases("b.1", {0: new.generation}, (), {}))
    late: Effect = UpdateLeases("a.1", {0: old.generation}, (0,), {0: old.generation})
    await group.do(late)
    assert await race(group, "c.1", 0) == LeaseRaced(0, "b.1", new.generation, "b.1")
