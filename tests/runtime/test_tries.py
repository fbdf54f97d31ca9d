"""Attempts are counted across the owners of a partition, whether a call fails or takes its process along."""

from typing import Any

import anyio
import pyarrow as pa
import pytest

from streamworker import Context, DeadLetter, Retry
from streamworker.core.data.entries import EntryId
from streamworker.redisio.data.columns import unpacked
from streamworker.redisio.data.dead import list_dead
from streamworker.redisio.group import locks
from streamworker.redisio.group.requests import make_request
from streamworker.runtime.risks import turns
from tests.helpers import wait_for_async
from tests.runtime.test_columnar import columns, send
from tests.runtime.workbench import (
    MODES,
    OVERLAPPING,
    Bench,
    Each,
    Order,
    Priced,
    Running,
    bench,
    handler,
    start,
)

pytestmark = pytest.mark.anyio

ASYNC = [mode for mode in MODES if mode != "thread"]
POISON = 12


def killing() -> tuple[Each, list[int]]:
    """Return a function that never comes back from one number, and the list of its calls' numbers."""
    seen: list[int] = []

    async def each(order: Order, _: Context) -> Priced:
        seen.append(order.number)
        if order.number == POISON:
            await anyio.sleep_forever()
        return Priced(order.number, 1.0)

    return each, seen


async def die_until_committed(desk: Bench, mode: str, count: int, **given: Any) -> list[int]:
    """Let owner after owner die in the call that never ends; return how often each number was called."""
    each, seen = killing()
    for owner in range(20):
        calls, committed = seen.count(POISON), -1
        running = await start(desk, mode, each, owner=f"w{owner}", **given)

        async def done(calls: int = calls, running: Running = running) -> bool:
            nonlocal committed
            # A death counts at the checkpoint, which no commit of the dead owner may move afterwards.
            await running.runner.commits.flush()
            before, committed = committed, await desk.committed()
            waiting = getattr(running.runner.mode, "done_count", 0)  # A mode that groups its commits.
            settled = committed == before and not waiting and not running.runner.commits.is_committing
            return committed == count or (seen.count(POISON) > calls and settled)

        await wait_for_async(done, "it is called, or all is committed")
        if await desk.committed() == count:
            await running.drained()
            return seen
        await running.cancelled()
    raise AssertionError(f"{seen.count(POISON)} owners died")


@pytest.mark.parametrize("mode", [*ASYNC, OVERLAPPING])
@pytest.mark.parametrize("sent_first", [0, POISON], ids=["behind others", "at the checkpoint"])
async def test_a_record_that_kills_its_process_goes_to_the_dead_letters_after_its_attempts(
    redis_url: str, mode: str, sent_first: int
) -> None:
    """Each death counts, and the records around it are handled."""
    async with bench(redis_url) as desk:
        await desk.send(range(sent_first, 30), keys=30)
        seen = await die_until_committed(
            desk, mode, 30 - sent_first, errors=Retry(attempts=3, then=DeadLetter())
        )
        (letter,) = await desk.dead()
        assert letter[b"id"].decode() == (await desk.ids())[POISON - sent_first]
        assert b"ProcessDied: 3 workers died in a row in the call of this record." in letter[b"error"]
        assert seen.count(POISON) == 4, "the first death may be chance, and names no record"
        rows = [row["number"] for row in await desk.rows() if row["price"]]
        assert rows == [number for number in range(sent_first, 30) if number != POISON]


async def test_an_entry_of_columns_that_kills_its_process_is_one_dead_letter(redis_url: str) -> None:
    """Nobody knows which of its rows it was, so none of them is called again."""
    calls: list[int] = []

    async def price(rows: pa.RecordBatch) -> None:
        calls.append(rows["number"].to_pylist()[0])
        if POISON in rows["number"].to_pylist():
            await anyio.sleep_forever()

    async with columns(redis_url) as desk:
        await send(desk, 30)
        spec = desk.spec(price, batch=10, errors=Retry(attempts=2, then=DeadLetter()))
        for owner in range(4):
            running = await desk.start(spec, owner=f"w{owner}")
            await wait_for_async(lambda deaths=owner: calls.count(10) > deaths, "it is called")  # type: ignore[misc]
            await running.cancelled()
        await desk.start(spec, owner="last")
        await desk.until_committed(30)
        assert (calls.count(10), calls.count(20)) == (4, 1)
        (letter,) = await list_dead(desk.backend, desk.keys, [0])
        assert "3 workers died in a row in the call of this record." in letter.error
        assert unpacked(letter.fields)["number"].to_pylist() == list(range(10, 20))


async def test_attempts_that_fail_are_counted_across_owners(redis_url: str) -> None:
    """Each owner makes one call and hands the partition over while the record waits for the next."""
    attempts: list[int] = []
    owners: list[Running] = []

    async def each(order: Order, ctx: Context) -> Priced:
        attempts.append(ctx.attempt)
        if len(attempts) in (2, 4):
            owners[-1].runner.intake.drain()
        raise ConnectionError("not now")

    errors = Retry(attempts=5, backoff=0.01, then=DeadLetter())
    async with bench(redis_url) as desk:
        await desk.send([0])
        for owner in ("w1", "w2"):
            owners.append(await start(desk, "record", each, owner=owner, errors=errors))
            await wait_for_async(lambda: len(attempts) in (2, 4), "two calls have failed")
            await owners[-1].drained()
            await locks.release_many(desk.backend, desk.keys, {0: owners[-1].lock.epoch}, owner)
        await start(desk, "record", each, owner="w3", errors=errors)
        await desk.until_committed(1)
        assert attempts == sorted(attempts) and len(attempts) <= 6
        assert (await desk.dead())[0][b"attempts"] == b"5"


async def test_after_one_death_records_are_called_alone_and_none_loses_an_attempt(redis_url: str) -> None:
    """Until those are done that were there when the owner died; then batches are whole again."""
    calls: list[tuple[int, int]] = []
    is_held = True

    async def price(batch: list[Order], ctx: Context) -> None:
        calls.append((len(batch), ctx.attempt))
        if is_held:
            await anyio.sleep_forever()

    async with bench(redis_url) as desk:
        await desk.send(range(20))
        spec = desk.spec(price, batch=20, errors=Retry(attempts=2, then=DeadLetter()))
        running = await desk.start(spec, owner="w1")
        await wait_for_async(lambda: bool(calls), "the first owner is in its call")
        await running.cancelled()
        is_held = False
        running = await desk.start(spec, owner="w2")
        await desk.until_committed(20)
        await desk.send(range(20, 40))
        await desk.until_committed(40)
        counts = [count for count, _ in calls[1:]]
        assert counts[:20] == [1] * 20 and sum(counts) == 40 and max(counts) > 1
        assert {attempt for _, attempt in calls} == {1}
        await running.cancelled()
        await desk.send(range(40, 60))
        assert (await desk.acquire(0, "w3")).deaths == 0, "it died elsewhere"


async def test_owners_that_die_before_they_call_anything_take_no_attempt(redis_url: str) -> None:
    """A fleet that crashes at its start says nothing about the record at which it does."""
    each, seen = killing()
    async with bench(redis_url) as desk:
        await desk.send([POISON])
        for owner in ("w1", "w2", "w3", "w4"):
            await desk.acquire(0, owner)
        errors = Retry(attempts=3, then=DeadLetter())
        for calls in (1, 2):
            running = await start(desk, "record", each, owner=f"w{calls + 4}", errors=errors)
            await wait_for_async(lambda calls=calls: seen.count(POISON) == calls, "it is called")  # type: ignore[misc]
            await running.cancelled()
        assert await desk.dead() == [] and await desk.committed() == 0


async def test_by_default_the_partition_halts_at_a_record_that_kills_its_process(redis_url: str) -> None:
    """An operator has it called again, and then sets it aside; what is behind it is handled."""
    each, seen = killing()
    async with bench(redis_url) as desk:
        await desk.send(range(POISON, 20), keys=20)

        async def dies(calls: int) -> None:
            running = await start(desk, "record", each, owner=f"w{calls}", errors=None)
            await wait_for_async(lambda: seen.count(POISON) == calls, "it is called")
            await running.cancelled()

        for calls in range(1, 5):
            await dies(calls)
        running = await start(desk, "record", each, owner="w8", errors=None)
        assert "ProcessDied: 3 workers died in a row in the call of this record" in await running.halts()
        await running.drained()
        await make_request(desk.backend, desk.keys, [0], "retry", who="ann", why="put right")
        for calls in range(5, 8):
            await dies(calls)
        running = await start(desk, "record", each, owner="w9", errors=None)
        await running.halts()
        await running.drained()
        poison = EntryId.parse((await desk.ids())[0])
        await make_request(desk.backend, desk.keys, [0], "put", who="ann", why="it kills", record=poison)
        await start(desk, "record", each, owner="w10", errors=None)
        await desk.until_committed(20 - POISON)
        assert seen.count(POISON) == 7
        (letter,) = await desk.dead()
        assert b"it kills" in letter[b"error"]


async def test_a_slow_record_beside_one_that_kills_its_process_is_not_accused(redis_url: str) -> None:
    """A call in each of two partitions is under way at each death, and the process may have died of both."""
    is_called = {0: False, 1: False}

    async def each(order: Order, ctx: Context) -> Priced:
        is_called[ctx.partition] = True
        await wait_for_async(lambda: ctx.partition == 1 and turns().asked, "one of them has its turn")
        is_called[ctx.partition] = False
        return Priced(order.number, 1.0)

    async with bench(redis_url, partitions=2) as desk:
        await desk.add_raw(b'{"number": 0}', 0)
        for number in range(10):
            await desk.add_raw(b'{"number": %d}' % number, 1)
        spec = desk.spec(handler("record", each), errors=None)
        for owner in range(4):
            # Whichever is the first to ask has the first turn.
            both = [await desk.start(spec, (owner + n) % 2, f"w{owner}") for n in range(2)]
            await wait_for_async(lambda: is_called[0], "it is called")
            is_called[0] = False
            for running in both:
                await running.cancelled()
        is_called[1] = False
        slow, deadly = [await desk.start(spec, partition, "w8") for partition in (1, 0)]
        await deadly.halts()
        await wait_for_async(lambda: is_called[1], "the other one goes on")
        assert not slow.halted


async def test_an_owner_that_is_drained_in_the_call_of_a_record_does_not_accuse_it(redis_url: str) -> None:
    """Its call was given up, and its worker lives."""
    each, seen = killing()
    async with bench(redis_url) as desk:
        await desk.send([POISON])
        await desk.acquire(0, "w0")
        for calls in range(1, 6):
            running = await start(desk, "record", each, owner=f"w{calls}", errors=None)
            await wait_for_async(lambda calls=calls: seen.count(POISON) == calls, "it is called")  # type: ignore[misc]
            assert running.lock.deaths == 0
            await running.cancelled()
            await locks.release_many(desk.backend, desk.keys, {0: running.lock.epoch}, f"w{calls}")
