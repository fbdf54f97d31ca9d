"""Rebalances by each protocol, with real workers."""

from collections import Counter
from collections.abc import Mapping

import pytest

from tests.chaos.times import CLAIM, LEASE, STEADY
from tests.chaos.yard import Yard, scene, sized

pytestmark = pytest.mark.timeout(240)
full = pytest.mark.full("sessions and holds run out, and how long partitions stand still is measured")

STICKY = {**STEADY, "ASSIGNMENT": "sticky"}


@full
@sized(small_sticky={"environ": STICKY}, small_claim={"environ": CLAIM}, small_lease={"environ": LEASE})
async def test_partitions_follow_joins_a_leave_and_a_death_and_nothing_is_lost_or_repeated_in_the_log(
    yard: Yard, *, environ: Mapping[str, str]
) -> None:
    """Two join, one leaves, one is killed. Sticky workers keep what they have; by range: rows F1 and F2."""
    async with yard.group("moves", partitions=8, environ=environ) as team:
        async with team.load(per_second=400):
            for name in ("w1", "w2", "w3"):
                await team.hired(name)
            before = await team.held_by("w3")
            leaving = team.ask_to_leave("w1")
            assert await team.ended(leaving) == 0, leaving.log()
            await team.settled()
            team.kill("w2")
            await team.settled()
            after = await team.held_by("w3")
        await team.finished()
        if environ is STICKY:
            causes = ("join", "join", "join", "leave", "left", "death")
            assert await team.moved() == list(zip(causes, (8, 4, 2, 3, 0, 4), strict=True))
            assert {p: after[p] for p in before} == before, "a partition that stayed was released meanwhile"


@sized(
    small_claim={"environ": CLAIM, "left": {"claims": [b"last"]}},
    small_lease={"environ": LEASE, "left": {"allocation": [], "grab": [b"last"]}},
)
async def test_a_worker_that_leaves_gives_up_its_entries(
    yard: Yard, *, environ: Mapping[str, str], left: Mapping[str, list[bytes]]
) -> None:
    """SIGTERM: others need not wait until they expire; only the newest ETag or generation stays."""
    async with yard.group("leaves", environ=environ) as team:
        await team.hired("w1")
        first = team.keys.of_group(next(iter(left)))

        async def has_entries() -> bool:
            # With leases a worker that has the lock enters its allocation afterwards.
            return await team.raw.hlen(first) >= team.partitions

        await team.until("it has its entries", has_entries)
        leaving = team.ask_to_leave("w1")
        assert await team.ended(leaving) == 0, leaving.log()
        assert {name: await team.raw.hkeys(team.keys.of_group(name)) for name in left} == left
        assert {lock.owner for lock in await team.locks()} == {""}


@full
@scene
async def test_a_thief_waits_for_the_batch_in_hand_and_nothing_runs_twice(yard: Yard) -> None:
    """The worker that was stolen from notices on its next cycle, drains and releases."""
    async with yard.group("thief", environ=CLAIM, ledger=True) as team:
        await team.hired("w1", ROWS_HANDLER_S="0.3", ROWS_BATCH="5")
        async with team.load(per_second=200):
            await team.until("it is busy", lambda: next(team.calls(), None))
            await team.hired("w2")
        await team.finished()
        times = Counter(n for call in team.calls() for n in call["n"])
        assert times == Counter(team.sends.confirmed.keys()), "a record was executed twice or never"


@full
@scene
async def test_workers_claim_anew_after_the_database_was_emptied(yard: Yard) -> None:
    """FLUSHALL: the entries come back in one cycle, and new records are handled."""
    async with yard.group("emptied", environ=CLAIM, ledger=True) as team:
        await team.hired("w1", "w2")
        await team.raw.flushall()

        async def all_is_claimed() -> bool:
            return await team.raw.hlen(team.keys.of_group("claims")) == team.partitions + 1

        await team.until("all is claimed again", all_is_claimed)
        await team.send(200)
        await team.settled()
        await team.drained()
        assert {n for call in team.calls() for n in call["n"]} == team.sends.confirmed.keys()
