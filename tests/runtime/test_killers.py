"""Records that kill their process, several of them close together: each is found, and no other is blamed."""

from collections.abc import Callable, Iterable
from typing import Any

import anyio
import msgspec
import pytest

from streamworker import Context, DeadLetter, ProcessDied, Skip
from streamworker.core.data.entries import EntryId
from streamworker.core.data.placement import Placement
from streamworker.redisio.data import streams
from streamworker.redisio.data.dead import list_dead
from streamworker.redisio.group import locks
from streamworker.redisio.group.requests import make_request
from streamworker.runtime.run.committer import Committer
from tests.helpers import wait_for_async
from tests.runtime.workbench import (
    MODES,
    OVERLAPPING,
    Bench,
    Order,
    Priced,
    Running,
    bench,
    start,
)

pytestmark = pytest.mark.anyio

ASYNC = [*(mode for mode in MODES if mode != "thread"), OVERLAPPING]
OWNERS_MAX = 30


class Code:
    """A codec of the program, which may end the process."""

    name = "code"

    def __init__(self) -> None:
        self.meets: Callable[[int], None] = lambda _: None

    def encode(self, order: Order) -> bytes:
        return msgspec.json.encode(order)

    def decode(self, payload: bytes) -> Order:
        order = msgspec.json.decode(payload, type=Order)
        self.meets(order.number)
        return order


class Deaths:
    """Owners that die one after the other until all is committed.

    They die at once when a deadly record is called, or decoded: what is not on its way to Redis is lost.
    """

    def __init__(self, desk: Bench, deadly: Iterable[int], *, decodes: bool = False) -> None:
        self.desk, self.deadly, self.decodes = desk, set(deadly), decodes
        self.drains_at = -1
        """The record in whose call the owner is to give the partition away."""
        self.calls: list[int] = []
        self.owners: list[Running] = []

    async def each(self, order: Order, _: Context) -> Priced:
        if not self.decodes:
            self.meets(order.number)
        if order.number == self.drains_at:
            self.owners[-1].runner.drain()
        if self.owners[-1].scope.cancel_called:
            await anyio.sleep_forever()
        return Priced(order.number, 1.0)

    def meets(self, number: int) -> None:
        """Die if the record is deadly, unless the owner is dead already."""
        if not self.owners or self.owners[-1].scope.cancel_called:
            return
        self.calls.append(number)
        if number in self.deadly:
            self.desk.committer._queues.clear()
            for send in self.desk.committer._sends:
                send.cancel()
            self.owners[-1].scope.cancel()

    async def lives(self, mode: str, count: int, **given: Any) -> Running:
        """Run an owner until it dies, halts, or has committed so many records."""
        desk = self.desk
        desk.committer = Committer(desk.backend, desk.keys, desk.settings, desk.rng)
        desk.tasks.start_soon(desk.committer.run)
        running = await start(desk, mode, self.each, owner=f"w{len(self.owners)}", **given)
        self.owners.append(running)

        async def over() -> bool:
            return running.ended.is_set() or bool(running.halted) or await self.desk.committed() >= count

        await wait_for_async(over, "an owner dies, halts, or has committed all")
        return running

    async def until_committed(self, mode: str, count: int, **given: Any) -> None:
        for _ in range(OWNERS_MAX):
            running = await self.lives(mode, count, **given)
            if not running.ended.is_set():
                await running.drained()
                return
        raise AssertionError(f"{OWNERS_MAX} owners died: {[self.calls.count(each) for each in self.deadly]}")

    def most(self) -> int:
        """How many owners the deadliest record has ended."""
        return max(self.calls.count(number) for number in self.deadly)


@pytest.mark.parametrize("mode", ASYNC)
@pytest.mark.parametrize("deadly", [(1, 2), (12, 13, 14, 15), (5, 7)], ids=str)
async def test_of_records_that_kill_close_together_each_is_set_aside(
    redis_url: str, mode: str, deadly: tuple[int, ...]
) -> None:
    """The removal of one is committed before the next one is called, or it would die with its owner."""
    async with bench(redis_url) as desk:
        await desk.send(range(20), keys=20)
        deaths = Deaths(desk, deadly)
        await deaths.until_committed(mode, 20, errors=DeadLetter())
        ids = await desk.ids()
        assert [letter[b"id"].decode() for letter in await desk.dead()] == [ids[n] for n in deadly]
        assert deaths.most() <= 4
        rows = [row["number"] for row in await desk.rows() if row["price"]]
        assert rows == [number for number in range(20) if number not in deadly]


@pytest.mark.parametrize("mode", ASYNC)
@pytest.mark.parametrize("removed", ["skipped", "undecodable", "set aside"])
async def test_what_is_removed_without_a_call_in_front_of_such_a_record_does_not_hide_it(
    redis_url: str, mode: str, removed: str
) -> None:
    """Its removal is committed before the next record is called, too."""
    errors = {ProcessDied: Skip() if removed == "skipped" else DeadLetter(), Exception: DeadLetter()}
    deadly = (1, 2, 3) if removed == "skipped" else (2, 3)
    async with bench(redis_url) as desk:
        await desk.send([0])
        if removed == "undecodable":
            await desk.add_raw(b'{"number": "one"}')
        else:
            await desk.send([1])
        await desk.send(range(2, 10))
        deaths = Deaths(desk, deadly)
        if removed == "set aside":
            await streams.register(desk.backend, desk.keys, Placement(1), "0")
            record = EntryId.parse((await desk.ids())[1])
            await make_request(desk.backend, desk.keys, [0], "put", who="ann", why="a test", record=record)
        await deaths.until_committed(mode, 10, errors=errors)
        assert deaths.most() <= 4
        letters = [str(letter.entry_id) for letter in await list_dead(desk.backend, desk.keys, [0])]
        expected = [] if removed == "skipped" else (await desk.ids())[1:4]
        assert letters == expected


@pytest.mark.parametrize("mode", ASYNC)
async def test_the_partition_halts_at_each_of_them_and_goes_on_behind_it(redis_url: str, mode: str) -> None:
    """An operator sets one aside; the next one halts the partition after three deaths."""
    async with bench(redis_url) as desk:
        await desk.send(range(6))
        deaths, put = Deaths(desk, (1, 2, 4)), list[int]()
        ids = await desk.ids()
        for _ in range(OWNERS_MAX):
            running = await deaths.lives(mode, 6, errors=None)
            if not running.halted and not running.ended.is_set():
                break
            if running.halted:
                number = next(n for n, each in enumerate(ids) if each in running.halted[0])
                put.append(number)
                await running.drained()
                record = EntryId.parse(ids[number])
                await make_request(desk.backend, desk.keys, [0], "put", who="ann", why="x", record=record)
        assert put == [1, 2, 4] and deaths.most() <= 4
        assert await desk.committed() == 6


@pytest.mark.parametrize("mode", ASYNC)
@pytest.mark.parametrize("deadly", [(7,), (0, 1, 2), (19,), (8, 11)], ids=str)
async def test_a_record_that_kills_while_it_is_decoded_is_found_among_those_of_its_entry(
    redis_url: str, mode: str, deadly: tuple[int, ...]
) -> None:
    """After a death the records of an entry are decoded one by one, each after it was named."""
    code = Code()
    async with bench(redis_url, stream={"codec": code}) as desk:
        await desk.send(range(20))
        assert await desk.backend.execute("XLEN", desk.stream_keys.events(0)) == 1
        deaths = Deaths(desk, deadly, decodes=True)
        code.meets = deaths.meets
        await deaths.until_committed(mode, 20, errors=DeadLetter())
        ids = await desk.ids()
        assert [letter[b"id"].decode() for letter in await desk.dead()] == [ids[n] for n in deadly]
        assert deaths.most() <= 4
        rows = [row["number"] for row in await desk.rows() if row["price"]]
        assert rows == [number for number in range(20) if number not in deadly]


async def test_a_record_that_was_set_aside_is_not_decoded_again_with_those_behind_it(
    redis_url: str,
) -> None:
    """The next owner begins within the entry, and a batch may end before a record that is to be set aside."""
    code = Code()
    async with bench(redis_url, stream={"codec": code}) as desk:
        await desk.send(range(20))
        ids = await desk.ids()
        await streams.register(desk.backend, desk.keys, Placement(1), "0")
        deaths = Deaths(desk, (7,), decodes=True)
        code.meets = deaths.meets
        record = EntryId.parse(ids[7])
        await make_request(desk.backend, desk.keys, [0], "put", who="ann", why="a test", record=record)
        running = await deaths.lives("batch", 10, batch=5)
        await running.drained()
        await locks.release_many(desk.backend, desk.keys, {0: running.lock.epoch}, "w0")
        await deaths.until_committed("batch", 20)
        assert deaths.most() == 0


async def test_an_owner_that_gives_the_partition_away_leaves_the_suspicion_to_the_next(
    redis_url: str,
) -> None:
    """A worker that died comes back, and its partitions move to it: each killer still ends four at most."""
    mode, options = "batch", {"errors": DeadLetter()}
    async with bench(redis_url) as desk:
        await desk.send(range(12), keys=12)
        deaths = Deaths(desk, (8,))
        await deaths.lives(mode, 12, **options)
        deaths.drains_at = 3
        running = await deaths.lives(mode, 4, **options)
        await running.drained()
        assert await desk.committed() == 4
        again = await desk.acquire(0, "w1")
        assert again.deaths == 0, "the same owner goes on after an operator's request"
        await locks.release_many(desk.backend, desk.keys, {0: again.epoch}, "w1")
        await deaths.until_committed(mode, 12, **options)
        assert deaths.calls.count(8) == 4
        running = await deaths.lives(mode, 12, **options)
        await desk.send(range(12, 14))
        await desk.until_committed(14)
        await running.drained()
        await locks.release_many(
            desk.backend, desk.keys, {0: running.lock.epoch}, f"w{len(deaths.owners) - 1}"
        )
        assert (await desk.acquire(0, "last")).deaths is None, "what came later is under no suspicion"
