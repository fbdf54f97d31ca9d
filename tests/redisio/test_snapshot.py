"""Working out rebalances from control messages."""

from collections.abc import Mapping

import pytest

from streamworker.core.control import GroupChanged, PartitionsAcquired, PartitionsReleased
from streamworker.core.protocols.lease.events import LeaseChallenged
from streamworker.core.snapshot import Rebalance
from streamworker.redisio.snapshot import rebalances

Messages = list[tuple[int, Mapping[str, str]]]


def changed(at_ms: int, generation: int, *moved: int, cause: str = "join") -> tuple[int, Mapping[str, str]]:
    return at_ms, GroupChanged(generation, cause, "w", moved).fields()


def acquired(at_ms: int, generation: int, *partitions: int) -> tuple[int, Mapping[str, str]]:
    return at_ms, PartitionsAcquired(partitions, "w.1", generation).fields()


@pytest.mark.parametrize(
    "messages, took_ms",
    [
        pytest.param(
            [changed(100, 5, 0, 1, 2), acquired(130, 5, 0), acquired(150, 5, 2), acquired(190, 5, 1)],
            {5: 90},
            id="until the last moved partition runs again",
        ),
        pytest.param([changed(100, 5, 0, 1), acquired(130, 5, 0)], {5: None}, id="while one is missing"),
        pytest.param([changed(100, 5, cause="left")], {5: 0}, id="no time where nothing moves"),
        pytest.param(
            [changed(100, 5, 0), changed(110, 6, 0), acquired(120, 5, 0)],
            {5: 20, 6: None},
            id="an acquisition of an earlier generation has to be given up again",
        ),
        pytest.param(
            [changed(100, 5, 0), changed(110, 6, 0), acquired(150, 6, 0)],
            {5: 50, 6: 40},
            id="an acquisition of a later generation ends the earlier rebalance too",
        ),
    ],
)
def test_a_rebalance_lasts_until_the_last_moved_partition_runs_again(
    messages: Messages, took_ms: dict[int, int | None]
) -> None:
    """Whoever acquires them, and in however many steps."""
    assert {each.generation: each.ms for each in rebalances(messages)} == took_ms


@pytest.mark.parametrize(
    ("messages", "settled", "superseded"),
    [
        pytest.param(
            [acquired(90, 4, 0, 1), changed(100, 5, 1), changed(110, 6, 1, cause="leave")],
            {0: "w.1", 1: "w.1"},
            {5, 6},
            id="it came back to an owner that had not released it",
        ),
        pytest.param(
            [changed(100, 5, 1), changed(110, 6, 1, cause="leave")],
            {1: "w.1"},
            {5, 6},
            id="also if that owner acquired it before all that is known",
        ),
        pytest.param([changed(100, 5, 1), changed(110, 6, 1)], {}, {5}, id="the later move is under way"),
        pytest.param(
            [acquired(90, 4, 1), changed(100, 5, 1)],
            {1: "v.1"},
            set(),
            id="the new owner has the lock, and its message is on the way",
        ),
        pytest.param(
            [changed(100, 5, 0, 1), acquired(105, 5, 0), changed(110, 6, 1), acquired(120, 6, 1)],
            {0: "w.1", 1: "w.1"},
            set(),
            id="all that moved runs again",
        ),
        pytest.param([changed(100, 5, 0, 1), changed(110, 6, 1)], {}, set(), id="another one still moves"),
    ],
)
def test_a_rebalance_of_which_nothing_is_left_to_acquire_is_superseded(
    messages: Messages, settled: dict[int, str], superseded: set[int]
) -> None:
    """It would be told as moving for as long as its messages are there."""
    found = rebalances(messages, settled)
    assert {each.generation for each in found if each.superseded} == superseded
    assert all(each.ms is None for each in found if each.superseded)


def test_what_is_not_known_is_passed_over() -> None:
    """Messages of a later release, of other kinds, and broken ones."""
    messages: Messages = [
        (90, {"kind": "of-a-later-release", "generation": "5"}),
        changed(100, 5, 3),
        (110, PartitionsReleased((3,), "v.1", 4).fields()),
        (115, {"kind": "acquired", "generation": "x", "partitions": "3", "owner": "w"}),
        acquired(120, 5, 3, 4),
    ]
    assert rebalances(messages) == (Rebalance(5, "join", "w", 100, (3,), 20),)


def challenged(at_ms: int, *partitions: int) -> tuple[int, Mapping[str, str]]:
    return at_ms, LeaseChallenged(partitions, "v.1", at_ms).fields()


def test_races_that_a_worker_won_within_a_second_are_one_rebalance() -> None:
    """From the first challenge until the last ran; a race much later is another."""
    messages = [
        challenged(100, 0, 1, 2),
        acquired(180, 110, 1),
        challenged(400, 3),
        acquired(470, 410, 3),
        challenged(5_100, 1),
        acquired(5_160, 5_120, 1),
    ]
    assert rebalances(messages) == (
        Rebalance(410, "race", "w", 100, (1, 3), 370),
        Rebalance(5_120, "race", "w", 5_100, (1,), 60),
    )


def test_a_challenge_that_its_owner_wins_is_no_rebalance() -> None:
    """Nothing is acquired by that, and nothing moves."""
    assert rebalances([challenged(100, 0, 1)]) == ()
