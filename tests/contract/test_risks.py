"""What runs beside records is named while it runs, and a name that a dead owner left is a death in it."""

import pytest

from streamworker.core.ownership.risks import Risk
from streamworker.redisio.group import risks
from streamworker.redisio.wire.client import Backend
from tests.contract.support import Group

pytestmark = pytest.mark.anyio

NOW = "w9"


async def dies(group: Group, owner: str, place: int = 0, most: int = 2) -> tuple[bool, int]:
    """Let an owner begin a call from which it never returns."""
    return await risks.step(group.backend, group.keys, Risk("timer", "sweep", place), owner, "begin", most)


async def ends(group: Group, owner: str, place: int = 0) -> None:
    await risks.step(group.backend, group.keys, Risk("timer", "sweep", place), owner, "end")


async def counts(group: Group, owner: str, place: int) -> int:
    """Let an owner take a place over, and return the deaths."""
    _, deaths = await risks.step(group.backend, group.keys, Risk("timer", "sweep", place), owner, "count")
    return deaths


async def test_each_owner_that_left_its_name_is_a_death_until_a_call_ends(group: Group) -> None:
    """A call of an owner that lives is none, however often it is begun."""
    for deaths, owner in enumerate(("w1", "w2", "w3")):
        assert await dies(group, owner) == (True, deaths)
        assert await dies(group, owner) == (True, deaths)
    await ends(group, "w1")
    assert await risks.read_deaths(group.backend, group.keys) == {"timer sweep": 2}
    await ends(group, "w3")
    assert await risks.read_deaths(group.backend, group.keys) == {}
    assert await dies(group, NOW) == (True, 0)


async def test_what_killed_too_many_is_not_named(group: Group) -> None:
    """It is not run either, until somebody begins its count anew."""
    for owner in ("w1", "w2", "w3"):
        await dies(group, owner)
    assert [await dies(group, NOW) for _ in range(3)] == [(False, 3)] * 3
    await risks.forget_deaths(group.backend, group.keys, "timer other")
    assert await dies(group, NOW) == (False, 3)
    await risks.forget_deaths(group.backend, group.keys, "timer sweep")
    assert await dies(group, NOW) == (True, 0)


async def test_one_death_in_many_partitions_counts_once(group: Group) -> None:
    """A process that dies takes the calls of all its partitions along."""
    for place in range(4):
        await dies(group, "w1", place)
    assert [await dies(group, "w2", place) for place in range(4)] == [(True, 1)] * 4


async def test_what_kills_in_every_partition_is_found_after_three(group: Group) -> None:
    """Each worker counts what the one before it has left, wherever that was, and begins in another place."""
    for deaths, owner in enumerate(("w1", "w2", "w3")):
        if deaths:
            assert await counts(group, NOW, deaths - 1) == deaths
        assert await dies(group, owner, deaths) == (True, deaths)
    assert await counts(group, NOW, 2) == 3
    assert [await dies(group, NOW, place) for place in range(4)] == [(False, 3)] * 4


async def test_workers_that_died_side_by_side_in_several_partitions_count_once(group: Group) -> None:
    """A lost machine takes along many that run the same timer; so what is taken over runs again."""
    for place, owner in enumerate(("w1", "w2", "w3")):
        await dies(group, owner, place)
    assert [await counts(group, NOW, place) for place in range(3)] == [1, 1, 1]
    assert [await dies(group, NOW, place) for place in range(3)] == [(True, 1)] * 3


async def test_after_a_death_one_owner_at_a_time_has_its_turn(group: Group) -> None:
    """Until its call ends, or its death is counted. Otherwise each death would take all along that run it."""
    await dies(group, "w1")
    assert await dies(group, "w2") == (True, 1)
    assert await dies(group, "w3", 1) == (False, 1)
    assert await counts(group, "w3", 0) == 2
    assert await dies(group, "w3", 1) == (True, 2)
    assert await dies(group, "w4", 2) == (False, 2)
    await ends(group, "w3", 1)
    assert await dies(group, "w4", 2) == (True, 0)


async def test_an_owner_that_only_seemed_dead_ends_the_count(group: Group) -> None:
    await dies(group, "w1")
    await risks.step(group.backend, group.keys, Risk("timer", "sweep", 0), NOW, "look")
    assert await risks.read_deaths(group.backend, group.keys) == {"timer sweep": 1}
    await ends(group, "w1")
    assert await risks.read_deaths(group.backend, group.keys) == {}


async def test_what_kills_in_one_partition_is_found_though_it_ends_in_others(group: Group) -> None:
    for owner in ("w1", "w2", "w3"):
        await dies(group, owner)
        await dies(group, owner, 1)
        await ends(group, owner, 1)
    assert await dies(group, NOW) == (False, 3)
    assert await dies(group, NOW, 1) == (True, 1), "the last owner died, and it has not ended since"


async def test_a_worker_of_the_same_name_elsewhere_does_not_make_a_dead_one_alive(
    group: Group, redis_url: str
) -> None:
    """Connections have the name of the run, too."""
    mine, other = f"{NOW}.5e8c", "w1.77aa"
    async with (
        Backend.open(redis_url, name=mine) as backend,
        Backend.open(redis_url, name=f"{other}:heartbeat") as second,
    ):
        await second.execute("PING")
        for place, owner in enumerate((f"{other}-1", "w1.0b1d-2")):
            await risks.step(backend, group.keys, Risk("timer", f"of-{place}", place), owner, "begin", 2)
        await risks.count_left(backend, group.keys, f"{mine}-1", ())
    assert await risks.read_deaths(group.backend, group.keys) == {"timer of-1": 1}
