"""Assignments with real workers: which partitions move when one joins, leaves or dies."""

import pytest

from tests.chaos.team import Team
from tests.chaos.times import STEADY
from tests.chaos.yard import Yard, scene

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.full("sessions and holds run out, and how long partitions stand still is measured"),
]


@scene
async def test_a_rolling_restart_with_another_assignment_changes_that_of_the_group(yard: Yard) -> None:
    """The group goes on with the assignment of the worker that joined last."""
    async with yard.group("changed", partitions=8, environ=STEADY) as team:
        await team.hired("w1")
        await team.hired("w2", ASSIGNMENT="sticky")
        assert await team.ended(team.ask_to_leave("w1")) == 0
        await team.settled()
        # By range the fourth worker's join would move 3 partitions.
        for name in ("w3", "w4"):
            await team.hired(name, ASSIGNMENT="sticky")
        assert (await team.moved())[-1] == ("join", 2)


async def until_acquired(team: Team, held: set[int], before: dict[int, int]) -> None:
    """Wait until some locks were acquired once more, and the others were not."""

    async def acquired() -> bool:
        locks = await team.locks()
        return {p for p, lock in enumerate(locks) if lock.owner and lock.epoch != before[p]} == held

    await team.until("each has what it had, and nobody has more", acquired)


@scene
async def test_a_rolling_restart_of_static_workers_gives_no_partition_to_another(yard: Yard) -> None:
    """Each partition is acquired once more, by the worker that had it; one worker is killed."""
    async with yard.group("static", partitions=8, environ=STEADY) as team:
        async with team.load(per_second=400):
            names = ("w1", "w2", "w3")
            for name in names:
                team.hire(name, STREAMWORKER_STATIC_ID=name)
            await team.settled()
            held = {name: set(await team.held_by(name)) for name in names}
            seen = len(await team.moved())
            for name in names:
                before = {p: lock.epoch for p, lock in enumerate(await team.locks())}
                if name == "w3":
                    team.kill(name)

                    async def is_missed() -> bool:
                        return (await team.moved())[-1][0] == "death"

                    await team.until("it is missed", is_missed)
                else:
                    leaving = team.ask_to_leave(name)
                    assert await team.ended(leaving) == 0, leaving.log()
                seen_now = await team.snapshot()
                states = {member.name: member.state for member in seen_now.members}
                assert states[name] == "held"
                kept = [view for view in seen_now.partitions if (view.owner or "").startswith(f"{name}.")]
                assert all(view.state == "unowned" and "is away" in view.reason for view in kept)
                assert bool(kept) == (name == "w3"), "who leaves releases its locks"
                team.hire(name, STREAMWORKER_STATIC_ID=name)
                await until_acquired(team, held[name], before)
                assert set(await team.held_by(name)) == held[name]
        await team.finished()
        causes = ("leave", "left", "return", "leave", "left", "return", "death", "return")
        assert (await team.moved())[seen:] == [(cause, 0) for cause in causes]


@scene
async def test_of_two_workers_with_one_static_id_the_earlier_one_ends_and_says_why(yard: Yard) -> None:
    """They would take each other's partitions for ever."""
    async with yard.group("same") as team:
        await team.hired("w1", STREAMWORKER_STATIC_ID="same")
        team.hire("w2", STREAMWORKER_STATIC_ID="same")
        first = team.workers.pop("w1")
        assert await team.ended(first) != 0
        assert "'w2'" in first.log() and "static id of its own" in first.log()
        await team.settled()
