"""The operations of the lease protocol, on real servers; test_model.py holds the model to the same."""

from itertools import pairwise
from typing import cast

import pytest

from streamworker.core.control import ControlMessage
from streamworker.core.data.entries import ZERO
from streamworker.core.protocols.lease.events import (
    Challenge,
    ChallengeLeases,
    LeaseChallenged,
    LeaseEnded,
    LeaseRaced,
    LeasesChallenged,
    LeasesUpdated,
    RaceForLease,
    UpdateLeases,
)
from streamworker.core.protocols.registry import from_fields
from streamworker.errors import BackendRefused
from streamworker.redisio import snapshot
from streamworker.redisio.group import control
from tests.contract.support import GROUP, Group, Raw

pytestmark = pytest.mark.anyio

FREE, DUE, OVERDUE = Challenge.FREE, Challenge.DUE, Challenge.OVERDUE


async def race(group: Group, owner: str, partition: int = 3) -> LeaseRaced:
    return cast(LeaseRaced, await group.do(RaceForLease(owner, partition)))


async def challenge(group: Group, owner: str, **how: Challenge) -> frozenset[int]:
    """Challenge partitions, named p0, p1 and so on; return which were."""
    wanted = {int(name[1:]): each for name, each in how.items()}
    answer = cast(LeasesChallenged, await group.do(ChallengeLeases(owner, wanted)))
    assert answer.asked == tuple(wanted)
    assert answer.signalled is not None
    return answer.signalled


async def messages(group: Group) -> list[ControlMessage | None]:
    connection = group.backend.blocking(GROUP.control)
    entries = await control.read_control(connection, {GROUP: ZERO}, 5)
    await connection.aclose()
    return [from_fields(fields) for _, _, fields in entries]


async def test_whoever_is_first_wins_and_the_others_learn_who_it_was(group: Group) -> None:
    """HSETNX with a number that begins with the server's clock; it is won once, however often it is run."""
    before = await group.backend.time_ms()
    first, second = await race(group, "w1.a"), await race(group, "w2.b")
    assert first.winner == second.winner == "w1.a"
    assert first.generation == second.generation >= before
    assert await race(group, "w1.a") == first


async def test_each_win_has_a_later_generation_even_within_a_millisecond(group: Group) -> None:
    """Over all partitions, so that the locks tell an older winner from a newer one."""
    wins = [(await race(group, "w1.a", partition)).generation for partition in range(20)]
    assert all(later > earlier for earlier, later in pairwise(wins))


async def test_a_partition_with_a_winner_is_not_challenged(group: Group) -> None:
    """Unless the winner is overdue; then nothing is left of it."""
    won = await race(group, "w1.a")
    await group.do(UpdateLeases("w1.a", {3: won.generation}, (), {}))
    assert await challenge(group, "w2.b", p3=DUE, p4=DUE) == {4}
    assert await challenge(group, "w2.b", p3=OVERDUE) == {3}
    again = await race(group, "w2.b")
    assert (again.winner, again.allocated) == ("w2.b", "")
    assert again.generation > won.generation


async def test_a_challenge_and_an_end_are_said_on_the_control_stream(group: Group) -> None:
    """Two kinds of message, for the two channels; nothing is said where nothing was challenged."""
    await challenge(group, "w1.a", p3=FREE, p4=FREE)
    await race(group, "w1.a")
    await challenge(group, "w1.a", p3=FREE)
    await group.do(UpdateLeases("w1.a", {}, (3, 4), {}))
    challenged, ended = await messages(group)
    assert isinstance(challenged, LeaseChallenged)
    assert (challenged.partitions, challenged.owner) == ((3, 4), "w1.a")
    assert isinstance(ended, LeaseEnded)
    assert (ended.partitions, ended.owner) == ((3, 4), "w1.a")


async def test_leases_move_when_memory_is_full(group: Group, full_memory: Raw) -> None:
    """Ownership must be able to move then, or nothing would ever be trimmed again."""
    await race(group, "w1.a", 1)
    full_memory.config_set("maxmemory", 1)
    assert await challenge(group, "w1.a", p3=FREE) == {3}
    won = await race(group, "w1.a")
    assert won.winner == "w1.a"
    done = await group.do(UpdateLeases("w1.a", {3: won.generation}, (1,), {3: won.generation}))
    assert done == LeasesUpdated(done=True)


async def test_a_key_of_another_program_is_named(group: Group, raw: Raw) -> None:
    raw.set(GROUP.of_group("grab"), "mine")
    with pytest.raises(BackendRefused, match="grab"):
        await race(group, "w1.a")


async def test_a_group_without_a_membership_shows_who_holds_its_locks(group: Group) -> None:
    """There is no document and no heartbeat: the owners of locks are the members."""
    await group.backend.execute("HSET", group.stream.meta, "partitions", 3)
    await group.own("w1.a", 0)
    await group.own("w2.b", 2)
    taken = await snapshot.take_snapshot(group.backend, "shop", "orders", "price")
    assert [(member.name, member.state, member.partitions) for member in taken.members] == [
        ("w1", "active", (0,)),
        ("w2", "active", (2,)),
    ]
    assert [view.state for view in taken.partitions] == ["running", "unowned", "running"]
