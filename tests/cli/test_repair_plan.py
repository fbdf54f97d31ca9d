"""What `repair` plans: in doubt somebody lives, and who lives is left alone."""

from dataclasses import replace

import pytest
from msgspec import structs

from streamworker.cli.doctor.repair_plan import in_doubt, plan_group, plan_undeclared
from streamworker.core.data.entries import ZERO
from streamworker.core.protocols.membership.document import Member, Membership
from streamworker.errors import CoordinationError
from streamworker.redisio.admin.repair import Facts
from streamworker.redisio.group.locks import LockView
from streamworker.redisio.keys import GroupKeys
from streamworker.settings import Settings

NOW_MS = 1_000_000
SETTINGS = Settings(session_timeout_ms=10_000, slow_after_ms=60_000)
LOCK = LockView("w1.a", 5, ZERO, 0, 0, "L", 1, "running", "", 0, 0)


def member(name: str, state: str = "active") -> Member:
    """A member that joined long ago."""
    return Member(f"{name}.a", name, "host", 1, 1, state)  # type: ignore[arg-type]


def beat(age_ms: int, client_id: int, run_id: str = "run") -> str:
    """A heartbeat as it is stored."""
    return f"{NOW_MS - age_ms}|{client_id}|{run_id}|0"


def dead() -> Facts:
    """A group of two that were killed: silent, and not connected."""
    return Facts(
        keys=GroupKeys("shop", "orders", "price"),
        partitions=1,
        now_ms=NOW_MS,
        run_id="run",
        membership=Membership(7, 1, "range", (member("w1"), member("w2")), ("w1.a",)),
        beats={"w1.a": beat(20_000, 3), "w2.a": beat(30_000, 4)},
        connections=frozenset(),
        names=frozenset({"shop:cli"}),
        locks={0: LOCK},
        readers={},
    )


def actions(facts: Facts) -> list[str]:
    """What would be done."""
    return [step.action for step in plan_group(facts, SETTINGS)]


def test_the_dead_are_removed_and_their_locks_released() -> None:
    """All that the other cases differ from."""
    steps = plan_group(dead(), SETTINGS)
    assert [(step.action, step.names, step.partitions) for step in steps] == [
        ("remove members", ("w1.a", "w2.a"), ()),
        ("release locks", (), (0,)),
    ]


ALIVE = {
    "one has just sent a heartbeat": {"beats": {"w1.a": beat(20_000, 3), "w2.a": beat(500, 4)}},
    "one is silent and connected": {"connections": frozenset({4})},
    "one has joined and has sent none yet": {
        "membership": Membership(
            7, 1, "range", (member("w1"), structs.replace(member("w2"), joined_ms=NOW_MS - 5)), ("w1.a",)
        ),
        "beats": {"w1.a": beat(20_000, 3)},
    },
    "nobody tells who is connected, and they may be slow": {"connections": None},
}


@pytest.mark.parametrize("case", ALIVE)
def test_a_group_of_which_one_lives_is_left_alone(case: str) -> None:
    """Its members tidy up by themselves; also behind the one that is dead."""
    facts = replace(dead(), **ALIVE[case])  # type: ignore[arg-type]
    assert actions(facts) == []
    told = in_doubt(facts, SETTINGS)
    match case:
        case "one is silent and connected":
            assert told == ["Member w2 of price is silent, and is connected: it may live, and stays."]
        case "nobody tells who is connected, and they may be slow":
            assert "Member w1, w2 of price is silent, and may be connected, which the server hides" in told[0]
        case _:
            assert told == []


def test_a_connection_of_a_server_that_has_started_anew_says_nothing() -> None:
    """Client ids begin again with it: the same number is somebody else's."""
    beats = {"w1.a": beat(20_000, 3, "before"), "w2.a": beat(30_000, 4, "before")}
    assert actions(replace(dead(), beats=beats, connections=frozenset({3, 4}))) != []


def test_without_a_list_of_connections_patience_is_longer_and_no_lock_is_released() -> None:
    """A lock whose owner might live is for the next worker to take, who asks the group."""
    beats = {"w1.a": beat(70_000, 3), "w2.a": beat(80_000, 4)}
    assert actions(replace(dead(), beats=beats, connections=None, names=None)) == ["remove members"]


@pytest.mark.parametrize("name", ["w1", "w1:heartbeat"])
def test_a_lock_stays_while_a_connection_bears_its_owners_name(name: str) -> None:
    """It may have been removed by its peers, and not know that yet."""
    without = Membership(8, 1, "range", (), (None,))
    facts = replace(dead(), membership=without, names=frozenset({name}))
    assert actions(facts) == []
    (told,) = in_doubt(facts, SETTINGS)
    assert told == "price has no member w1.a, which holds partitions 0, and may live."
    assert actions(replace(dead(), membership=without)) == ["release locks"]


def test_the_place_that_is_kept_for_a_member_stays() -> None:
    """It comes back under the same static id, or its hold is over; the others see to that."""
    kept = Membership(7, 1, "range", (member("w1", "held"),), ("w1.a",))
    assert actions(replace(dead(), membership=kept, beats={})) == []


def test_a_leftover_that_somebody_runs_is_not_removed() -> None:
    """The error names who; also where the group keeps no list of members."""
    assert plan_undeclared(dead(), SETTINGS).action == "forget group"
    with pytest.raises(CoordinationError, match="is run by w2"):
        plan_undeclared(replace(dead(), connections=frozenset({4})), SETTINGS)
    with pytest.raises(CoordinationError, match=r"is run by w1\.a"):
        plan_undeclared(replace(dead(), membership=None, names=frozenset({"w1"})), SETTINGS)
