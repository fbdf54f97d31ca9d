"""A stream grows under each protocol while workers come, die and fail over, on the Lua that ships."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from streamworker.core.control import GroupChanged
from streamworker.core.protocols.claim.settings import Claim
from streamworker.core.protocols.registry import PROTOCOLS
from tests.core.groups import check, until
from tests.simulator.faults import QUIET, Fault, FaultKind
from tests.simulator.simulation import story
from tests.simulator.world import World

SETTLE_MS = 120_000
"""A worker that claims takes one partition in each second; who was overtaken waits for some seconds more."""

MANY = pytest.mark.full("plays 28 stories in which a stream grows twice")


def grown_story(seed: int, protocol: str, *, failovers: bool = True) -> World:
    """Return a world in which a stream has grown twice, while workers came and went, and Redis failed over.

    At the end it is as it must be: each partition that takes records has one owner, who handles it, and
    nobody has one of the others.
    """
    dice = Random(seed)
    world = World(seed, partitions=dice.randint(1, 6), protocol=protocol)
    for _ in range(dice.randint(1, 4)):
        world.start()
    kinds = [FaultKind.KILL, FaultKind.START, FaultKind.START, FaultKind.STOP, FaultKind.SILENCE]
    kinds += [FaultKind.FAILOVER] * failovers
    for _ in range(2):
        world.clock.run_for(dice.randint(0, 15_000))
        world.grow(world.server.placement.live + dice.randint(1, 6))
        for _ in range(dice.randint(0, 4)):
            world.clock.run_for(dice.randint(0, 4_000))
            world.happen(Fault(0, dice.choice(kinds), dice.randrange(1_000), dice.choice((10, 1_000, 5_000))))
    world.heal()
    if not world.staying:
        world.start()
    took_ms = world.clock.run_until(lambda: is_through(world), SETTLE_MS, step_ms=200)
    assert took_ms is not None, story(world)
    world.senders.stop()
    until(world, lambda: is_caught_up(world), f"all is committed under {protocol}", SETTLE_MS)
    return world


def is_caught_up(world: World) -> bool:
    """Whether all is committed; a failover may still take back what an idle runner has committed."""
    for runner in [runner for worker in world.staying for runner in worker.runners.values()]:
        runner.witness()
    return world.is_caught_up


def is_through(world: World) -> bool:
    """Whether the group works on the newest generation alone.

    A failover may restore a lock of an old partition that was released: nobody waits for that one.
    """
    server, base = world.server, world.server.placement.base
    owners = {worker.owner for worker in world.staying}
    is_free = server.losses or all(server.partitions[p].owner not in owners for p in range(base))
    return bool(is_free) and server.active.start == base and world.is_settled


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 30), marks=MANY)], ids=["few", "many"])
@pytest.mark.parametrize("protocol", list(PROTOCOLS))
def test_a_group_goes_on_to_the_partitions_that_follow_whatever_happens(protocol: str, seeds: range) -> None:
    """Each has one owner at a time and in the end; the old ones are released; nothing is lost or repeated."""
    for seed in seeds:
        world = grown_story(seed, protocol)
        world.checker.judge(world.server)
        check(world)


@pytest.mark.parametrize("is_slow", [False, True], ids=["at once", "one is paused for 9 s"])
@pytest.mark.parametrize("protocol", list(PROTOCOLS))
def test_four_workers_with_five_partitions_each_share_the_25_that_follow(
    protocol: str, is_slow: bool
) -> None:
    """Seed 002, scenario 5: three own six and one seven; and nobody steals twice in a cycle.

    As long as one of the 20 old ones is not done, the group works on all 45.
    """
    world = World(3, partitions=20, protocol=protocol)
    for _ in range(4):
        world.start()
    until(world, lambda: world.is_settled, "each has five", SETTLE_MS)
    assert sorted(shares_of(world).values()) == [5, 5, 5, 5]
    world.usual = world.conditions = replace(QUIET, batch_ms=50)
    if is_slow:
        world.operator_request(7, "pause")
        world.clock.run_for(500)
    world.grow(25)
    if is_slow:
        world.clock.run_for(9_000)
        assert world.server.active == range(45)
        assert running_of(world) >= set(range(20)) - {7}
        world.operator_request(7, "resume")
    until(world, lambda: is_through(world), "the 25 are shared", SETTLE_MS)
    assert sorted(shares_of(world).values()) == [6, 6, 6, 7]
    check(world)
    claims = defaultdict[str, list[int]](list)
    for at_ms, message in world.server.history():
        if isinstance(message, GroupChanged) and message.cause in ("claim", "steal"):
            claims[message.member].append(at_ms)
    assert len(claims) == (4 if protocol == "claim" else 0)
    between = [later - before for times in claims.values() for before, later in pairwise(times)]
    assert all(ms >= Claim().cycle_ms // 2 for ms in between), sorted(between)[:5]


def running_of(world: World) -> set[int]:
    """Return the partitions that some worker handles."""
    return {p for worker in world.staying for p, runner in worker.runners.items() if not runner.ended}


def shares_of(world: World) -> Counter[str]:
    """Return how many partitions that the group works on each worker owns."""
    return Counter(world.server.partitions[p].owner for p in world.server.active)
