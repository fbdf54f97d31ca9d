"""The fetcher keeps buffers filled within the budget, wakes quickly and never dies."""

import asyncio
import re
import time
from typing import Any, cast

import anyio
import pytest

from streamworker.core.data.batching import ENTRY_OVERHEAD_BYTES, BatchLimits
from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.errors import BackendUnavailable
from streamworker.redisio.data.streams import Append, append_many
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.read import streamwatch
from streamworker.runtime.read.buffer import ByteBudget, PartitionBuffer
from streamworker.runtime.read.streamwatch import StreamWatch, regression
from tests.chaos.proxy import proxied
from tests.helpers import wait_for_async
from tests.runtime.workbench import Bench, Order, bench

pytestmark = pytest.mark.anyio

ANY = BatchLimits(1, 1, 0)
"""What makes a batch of the first entry that comes."""


NEVER_OVER_MS = 300_000
"""How long a read blocks: one that leaves a partition out does so for longer than a test waits."""


def take(buffer: PartitionBuffer, records: int) -> int:
    """Take entries and give their bytes back, as when they are committed; return how many there were."""
    taken = buffer.take(records, 10_000_000)
    buffer.release(len(taken), sum(entry.size for entry in taken))
    return len(taken)


async def waits_at_the_server(desk: Bench) -> None:
    """Wait until a read is blocked."""

    async def blocked() -> bool:
        clients = (await desk.backend.execute("INFO", "clients")).decode()
        return "blocked_clients:1" in clients

    await wait_for_async(blocked, "the fetcher's read waits at the server")


# -- wake-ups ----------------------------------------------------------------------------------


async def test_one_blocking_read_serves_all_partitions(redis_url: str) -> None:
    """Four hundred idle ones cost no polling; the read that waits at the server brings what comes.

    What a first entry may cost is a guess, and no reason to leave partitions out of a read.
    """
    limits: dict[str, Any] = {"prefetch_bytes": 2 * 1024 * 1024, "fetch_block_ms": NEVER_OVER_MS}
    async with bench(redis_url, partitions=400, **limits) as desk:
        buffers = [desk.fetcher.add(p, ZERO) for p in range(400)]
        await waits_at_the_server(desk)
        before = desk.fetcher.reads
        await desk.backend.execute("XADD", desk.stream_keys.events(41), "*", "v", "x")
        await wait_for_async(lambda: buffers[41].waiting == 1, "the entry is there")
        assert desk.fetcher.reads <= before + 1


async def test_a_partition_that_is_added_does_not_wait_for_the_read_under_way(redis_url: str) -> None:
    """The read that blocks on other partitions is woken, long before its time is over."""
    async with bench(redis_url, partitions=2, fetch_block_ms=30_000) as desk:
        desk.fetcher.add(0, ZERO)
        await waits_at_the_server(desk)
        await desk.backend.execute("XADD", desk.stream_keys.events(1), "*", "v", "x")
        began = time.perf_counter()
        buffer = desk.fetcher.add(1, ZERO)
        await buffer.wait_ready(ANY)
        assert time.perf_counter() - began < 20


async def test_a_partition_that_gets_room_again_is_read_again(redis_url: str) -> None:
    """A full buffer is left out of reads; taking from it interrupts the read that goes on without it."""
    async with bench(redis_url, partitions=2, fetch_block_ms=30_000, fetch_count=10) as desk:
        for n in range(100):
            await desk.backend.execute("XADD", desk.stream_keys.events(0), "*", "v", str(n))
        buffer = desk.fetcher.add(0, ZERO)
        desk.fetcher.add(1, ZERO)
        got = 0
        with anyio.fail_after(10):
            while got < 100:
                await buffer.wait_ready(ANY)
                got += take(buffer, 5)
        assert buffer.waiting == 0


async def test_a_partition_that_is_removed_gets_nothing_any_more(redis_url: str) -> None:
    """What a read brings for it is dropped, and its bytes are given back."""
    async with bench(redis_url) as desk:
        buffer = desk.fetcher.add(0, ZERO)
        await waits_at_the_server(desk)
        desk.fetcher.remove(0)
        await desk.backend.execute("XADD", desk.stream_keys.events(0), "*", "v", "x")
        second = desk.fetcher.add(0, ZERO)
        await wait_for_async(lambda: second.waiting == 1, "the new buffer has it")
        assert buffer.waiting == 0 and buffer.closed
        desk.fetcher.remove(0)
        assert desk.budget.used == 0


async def test_an_old_runner_that_ends_late_does_not_stop_the_new_one(redis_url: str) -> None:
    """A partition was lost and taken again while its old handler still cleaned up: reading goes on."""

    async def price(batch: list[Order]) -> None: ...

    async with bench(redis_url) as desk:
        old = await desk.start(desk.spec(price))
        new = await desk.start(desk.spec(price), owner="w2")
        assert old.runner.intake.buffer.closed
        await old.drained()
        desk.fetcher.remove(0)
        await desk.send(range(3))
        await desk.until_committed(3)
        await new.drained()
        desk.fetcher.remove(0)
        assert desk.budget.buffers == 0


# -- budget ------------------------------------------------------------------------------------


async def test_memory_stays_within_the_budget_with_many_partitions(redis_url: str) -> None:
    """Sixty-four partitions full of large entries hold little more than the budget together."""
    budget = 4 * 1024 * 1024
    payload = b"x" * 20_000
    async with bench(redis_url, partitions=64, prefetch_bytes=budget) as desk:
        for partition in range(64):
            await desk.backend.pipeline(
                [("XADD", desk.stream_keys.events(partition), "*", "v", payload)] * 30
            )
        most = 0
        got = [0] * 64
        buffers = [desk.fetcher.add(p, ZERO) for p in range(64)]
        async with asyncio.timeout(30):
            while sum(got) < 64 * 30:
                most = max(most, desk.budget.used)
                moved = [take(buffer, 7) for buffer in buffers]
                got = [before + count for before, count in zip(got, moved, strict=True)]
                await asyncio.sleep(0 if any(moved) else 0.001)
        assert got == [30] * 64
        print(f"most bytes held: {most / budget:.2f} of the budget")
        assert most <= 1.25 * budget
        assert desk.budget.used == 0


async def test_a_partition_that_is_stuck_does_not_starve_the_others(redis_url: str) -> None:
    """One whose handler never ends holds its share, and no more."""
    async with bench(redis_url, partitions=4, prefetch_bytes=2 * 1024 * 1024) as desk:
        for partition in range(4):
            await desk.backend.pipeline(
                [("XADD", desk.stream_keys.events(partition), "*", "v", b"x" * 10_000)] * 400
            )
        buffers = [desk.fetcher.add(p, ZERO) for p in range(4)]
        got = 0
        with anyio.fail_after(20):
            while got < 1_200:
                for buffer in buffers[1:]:
                    got += take(buffer, 10)
                await asyncio.sleep(0)
        assert buffers[0].held <= 1.5 * desk.budget.limit / 4


async def test_a_partition_whose_entries_were_large_is_still_read_while_another_is_stuck(
    redis_url: str,
) -> None:
    """Its next entry is thought to need more than what is free; it is asked for all the same."""
    async with bench(
        redis_url, partitions=3, prefetch_bytes=2 * 1024 * 1024, fetch_block_ms=NEVER_OVER_MS
    ) as desk:
        large, stuck, _ = (desk.fetcher.add(p, ZERO) for p in range(3))
        await desk.add_raw(b"x", partition=1)
        await wait_for_async(lambda: stuck.waiting == 1, "one partition holds an entry that stays")
        await desk.add_raw(b"x" * 3 * 1024 * 1024, partition=0)
        await wait_for_async(lambda: large.waiting == 1, "the large entry came")
        take(large, 1)
        for n in range(10):
            await desk.add_raw(b"small", partition=0)
            await wait_for_async(lambda: large.waiting == 1, f"entry {n} behind the large one came")
            take(large, 1)


async def test_a_partition_of_full_entries_is_read_ahead_beside_one_of_single_entries(redis_url: str) -> None:
    """Few of its entries fit, and many of the other's; it is read before it is empty all the same."""
    async with bench(redis_url, partitions=2, fetch_count=10) as desk:
        appends = [Append(0, "p", n, 0, [b'{"number":1}'] * 500, n - 1, "json") for n in range(1, 21)]
        await append_many(desk.backend, desk.stream_keys, appends)
        full, single = (desk.fetcher.add(p, ZERO) for p in range(2))
        await wait_for_async(lambda: full.waiting > 1, "the first full entries came")
        for n in range(5):
            take(full, full.waiting - 1)
            await desk.add_raw(b"small", partition=1)
            await wait_for_async(lambda: full.waiting > 1, f"entries came beside one that waits, {n}")
        assert single.waiting == 5


def entry(number: int, size: int) -> Entry:
    return Entry(EntryId(number, 0), {b"v": b"x" * (size - 1)}, size)


def test_a_buffer_gives_entries_in_order_and_keeps_count_of_bytes() -> None:
    """Bytes are charged until they are released; takes respect both limits."""
    budget = ByteBudget(1_000_000)
    buffer = PartitionBuffer(0, ZERO, budget, ahead=100)
    buffer.put([entry(n, 100) for n in range(1, 6)])
    buffer.put([entry(n, 100) for n in range(6, 11)])
    assert buffer.position == EntryId(10, 0)
    assert budget.used == 10 * (100 + ENTRY_OVERHEAD_BYTES)
    assert [e.id.ms for e in buffer.take(3, 10_000)] == [1, 2, 3]
    assert [e.id.ms for e in buffer.take(100, 450)] == [4, 5, 6, 7]
    assert (buffer.waiting, buffer.waiting_bytes) == (3, 300)
    buffer.release(7, 700)
    assert budget.used == buffer.held == 3 * (100 + ENTRY_OVERHEAD_BYTES)
    assert [e.id.ms for e in buffer.take(1, 10)] == [8]
    buffer.close()
    assert budget.used == 0 and buffer.waiting == 0
    buffer.put([entry(11, 100)])
    assert buffer.waiting == 0


# -- trouble -----------------------------------------------------------------------------------


def test_what_two_reads_bring_is_taken_once() -> None:
    """Both began at one place, since each node was asked for a partition that went from one to the other."""
    budget = ByteBudget(10_000)
    buffer = PartitionBuffer(0, ZERO, budget, ahead=100)
    read = [entry(n, 10) for n in range(1, 4)]
    buffer.put(read)
    used = budget.used
    for late in (read, read[:2], [*read, entry(4, 10)]):
        buffer.put(late)
    assert list(buffer.each_waiting()) == read
    assert (buffer.waiting, buffer.position, budget.used) == (3, EntryId(3, 0), used)
    buffer.put([entry(4, 10)])
    assert buffer.waiting == 4


async def test_the_fetcher_goes_on_after_its_connection_was_cut(redis_url: str) -> None:
    """Nothing is lost or read twice when connections end again and again."""
    async with proxied(redis_url) as proxy, bench(proxy.url) as desk:
        buffer = desk.fetcher.add(0, ZERO)
        got: list[bytes] = []
        for n in range(60):
            if n % 6 == 3:
                proxy.only_after, proxy.lose = b"XREAD", 1
            await desk.backend.execute("XADD", desk.stream_keys.events(0), "*", "v", str(n))
            with anyio.fail_after(10):
                while len(got) <= n:
                    await buffer.wait_ready(ANY)
                    got += [entry.fields[b"v"] for entry in buffer.take(100, 10_000)]
        assert got == [str(n).encode() for n in range(60)]
        assert proxy.lost >= 5


async def test_a_deleted_stream_is_noticed(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """XREAD would wait for ever; the position is ahead of what Redis has, and that is reported once."""
    monkeypatch.setattr(streamwatch, "REGRESSION_CHECK_MS", 50)
    async with bench(redis_url, partitions=2, fetch_block_ms=100) as desk:
        for partition in range(2):
            await desk.backend.execute("XADD", desk.stream_keys.events(partition), "9-1", "v", "x")
        buffers = [desk.fetcher.add(p, ZERO) for p in range(2)]
        await wait_for_async(lambda: all(b.waiting == 1 for b in buffers), "both are read")
        await desk.backend.execute("DEL", desk.stream_keys.events(0))
        await wait_for_async(lambda: bool(desk.regressed), "it is reported")
        assert desk.regressed == [
            (0, f"stream {desk.stream_keys.events(0)} was deleted; we had read up to 9-1")
        ]
        await desk.backend.execute("DEL", desk.stream_keys.events(1))
        await desk.backend.execute("XADD", desk.stream_keys.events(1), "3-1", "v", "y")
        await wait_for_async(lambda: len(desk.regressed) == 2, "the other one, too")
        assert "its last id is 3-1" in desk.regressed[1][1]


async def test_many_idle_partitions_cost_a_few_commands(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are looked at each time, in turn; one that is gone is noticed at once all the same."""
    monkeypatch.setattr(streamwatch, "REGRESSION_CHECK_MS", 50)
    async with bench(redis_url, partitions=64, fetch_block_ms=100) as desk:
        for partition in range(64):
            await desk.add_raw(b"x", partition)
        buffers = [desk.fetcher.add(p, ZERO) for p in range(64)]
        await wait_for_async(lambda: all(b.waiting == 1 for b in buffers), "all are read")

        async def calls(command: str) -> int:
            stats = (await desk.backend.execute("INFO", "commandstats")).decode()
            found = re.search(rf"cmdstat_{re.escape(command)}:calls=(\d+)", stats)
            return int(found[1]) if found else 0

        rounds, looks = await calls("exists"), await calls("xinfo|stream")

        async def many_rounds() -> bool:
            return await calls("exists") - rounds >= 12

        await wait_for_async(many_rounds, "idle partitions were asked for a dozen times")
        assert await calls("xinfo|stream") - looks <= 8 * (await calls("exists") - rounds)
        await desk.backend.execute("DEL", desk.stream_keys.events(63))
        await wait_for_async(lambda: bool(desk.regressed), "it is reported")
        assert desk.regressed[0][0] == 63


async def test_a_key_of_another_type_stops_only_its_partition(redis_url: str) -> None:
    """The partition is reported with the key's name, once; the others are read on."""
    async with bench(redis_url, partitions=3) as desk:
        await desk.backend.execute("SET", desk.stream_keys.events(1), "x")
        buffers = [desk.fetcher.add(p, ZERO) for p in range(3)]
        await wait_for_async(lambda: bool(desk.unreadable), "it is reported")
        assert desk.unreadable == [
            (1, f"key {desk.stream_keys.events(1)} holds a string and not a stream"),
        ]
        await desk.add_raw(b"x", 2)
        await wait_for_async(lambda: buffers[2].waiting == 1, "another partition is read")
        await desk.add_raw(b"x", 2)
        await wait_for_async(lambda: buffers[2].waiting == 2, "and read on")
        assert len(desk.unreadable) == 1 and not desk.regressed


async def test_a_key_that_was_of_another_type_is_read_on_when_it_is_right(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it had stopped: nothing is skipped, nothing comes twice. Also where it was gone for a moment."""
    monkeypatch.setattr(streamwatch, "LOOK_AGAIN_MS", 500)
    async with bench(redis_url, fetch_block_ms=100) as desk:
        key = desk.stream_keys.events(0)
        spare = f"{key}:spare"
        await desk.backend.execute("XADD", key, "9-1", "v", "1")
        buffer = desk.fetcher.add(0, ZERO)
        await wait_for_async(lambda: buffer.waiting == 1, "it is read")
        await desk.backend.pipeline([("RENAME", key, spare), ("SET", key, "x")])
        await wait_for_async(lambda: len(desk.unreadable) == 1, "it is reported")
        await desk.backend.execute("XADD", spare, "9-2", "v", "2")
        await desk.backend.execute("DEL", key)
        await wait_for_async(
            lambda: desk.fetcher._watch._unreadable == {0: True}, "it was missing for a look"
        )
        await desk.backend.execute("RENAME", spare, key)
        await wait_for_async(lambda: buffer.waiting == 2, "it is read on")
        await desk.backend.execute("XADD", key, "9-3", "v", "3")
        await wait_for_async(lambda: buffer.waiting == 3, "and on")
        assert [entry.fields[b"v"] for entry in buffer.take(9, 9_999)] == [b"1", b"2", b"3"]
        assert desk.unreadable[1:] == [(0, "")] and not desk.regressed


MISSING, OTHER_TYPE = Exception("ERR no such key"), Exception("WRONGTYPE")
BEFORE, ON = ([b"last-generated-id", last] for last in (b"3-1", b"9-2"))


@pytest.mark.parametrize(
    ("answers", "regressed"),
    [
        ([MISSING, OTHER_TYPE, MISSING, ON], ""),
        ([MISSING, BackendUnavailable("no answer"), ON], ""),
        ([MISSING, MISSING], "was deleted; we had read up to 9-1"),
        ([BEFORE], "was recreated: its last id is 3-1, and we had read up to 9-1"),
    ],
    ids=["never missing for two looks", "no answer", "deleted", "made anew"],
)
def test_a_key_that_was_of_another_type_is_judged_by_what_each_look_finds(
    answers: list[Any], regressed: str
) -> None:
    """It goes on if its stream is the one that it was; to go on with another would skip what that holds."""
    told: list[str] = []
    buffer = PartitionBuffer(0, EntryId(9, 1), ByteBudget(10_000), ahead=100)
    keys = StreamKeys("shop", "orders")
    watch = StreamWatch(
        backend=cast(Backend, None),
        keys=keys,
        buffers={0: buffer},
        on_change=lambda _: None,
        on_unreadable=lambda *_: None,
        on_regressed=lambda _, reason: told.append(reason),
    )
    watch.leave_out(0, "string")
    for answer in answers:
        assert watch.left_out == {0}
        watch._judge(buffer, answer)
    assert told == ([f"stream {keys.events(0)} {regressed}"] if regressed else [])
    assert watch.left_out == ({0} if regressed else set())


def test_regression_compares_ids_as_numbers() -> None:
    """9-1 is before 10-0, whatever text comparison says; an empty stream at its start is no loss."""
    assert regression(EntryId(10, 0), [b"length", 1, b"last-generated-id", b"9-1"])
    assert not regression(EntryId(9, 1), [b"length", 1, b"last-generated-id", b"10-0"])
    assert not regression(ZERO, Exception("no such key"))
    assert regression(EntryId(1, 0), Exception("ERR no such key"))
    assert not regression(EntryId(1, 0), Exception("LOADING"))
