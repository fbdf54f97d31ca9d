"""What a worker asks of its server does not grow with its partitions."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import redis
from structlog.testing import capture_logs

from benchmarks.rebalances.command_count import CommandCount
from streamworker import App
from streamworker.core.data.batching import SPACING_US, BatchLimits, SizeEstimate
from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.records.entries import sizes_of
from streamworker.redisio.group.requests import read_versions
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime import group
from streamworker.runtime.read.buffer import ByteBudget, PartitionBuffer
from streamworker.testing import local_worker
from tests.conftest import SpawnWorker
from tests.helpers import PATIENCE_S, wait_for_async
from tests.runtime.workbench import bench

pytestmark = pytest.mark.anyio


class Event(msgspec.Struct):
    key: str
    number: int


async def test_a_worker_with_many_partitions_opens_few_connections_and_logs_its_start_in_few_lines(
    redis_url: str,
) -> None:
    """Eight at most, though all partitions start and commit at once; each call has its turn. And one line for
    each processor: a fleet that restarts would log a thousand.
    """
    app = App("shop", redis_url=redis_url)
    events = app.stream("events", Event, key="key", partitions=128)

    @app.processor(events)
    async def take(event: Event) -> None: ...

    with capture_logs() as logs:
        async with local_worker(app, url=redis_url, name="guest") as worker:
            await events.send_many([Event(f"k{n}", n) for n in range(1_000)])
            await worker.until_drained()
            with redis.Redis.from_url(redis_url) as client:
                # Those that are not needed now stay open for a while.
                names = [each["name"] for each in client.client_list()]

            def has_told() -> bool:
                return any(log["event"] == "partitions_started" for log in logs)

            await wait_for_async(has_told, "the line comes a moment later")
    ours = [name for name in names if name.startswith("guest.")]
    assert any(":heartbeat:" in name for name in ours)
    assert 4 <= len(ours) <= 8, names
    assert [log["partitions"] for log in logs if log["event"] == "partitions_started"] == ["0-127"]
    assert sum(log["log_level"] == "info" for log in logs) < 10


async def test_reads_that_ask_much_and_bring_little_are_spaced(redis_url: str) -> None:
    """Each of 400 partitions is named in a read, so an entry now and then must not cost one read each."""
    count = 400
    async with bench(redis_url, partitions=count) as desk:
        keys = [desk.stream_keys.events(p) for p in range(count)]
        buffers = [desk.fetcher.add(p, ZERO) for p in range(count)]
        # Then their entries' size is known, and no read is careful any more.
        first = SizeEstimate.SEEN_MIN
        await desk.backend.pipeline([("XADD", key, "*", "v", "x") for key in keys for _ in range(first)])
        await wait_for_async(lambda: all(b.waiting == first for b in buffers), "all entries were read")
        reads, began = desk.fetcher.reads, time.monotonic()
        for key in keys[:100]:
            await desk.backend.execute("XADD", key, "*", "v", "x")
            await asyncio.sleep(0.001)
        wanted = first * count + 100
        await wait_for_async(lambda: sum(b.waiting for b in buffers) == wanted, "these were read too")
        spacing_s = count * SPACING_US / 1e6
        assert desk.fetcher.reads - reads <= (time.monotonic() - began) / spacing_s + 3


async def test_requests_are_looked_for_in_a_few_locks_at_a_time_and_in_the_end_in_all(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message tells of each request at once; a look is for those that were lost."""
    app = App("shop", redis_url=redis_url)
    events = app.stream("events", Event, key="key", partitions=100)

    @app.processor(events)
    async def take(event: Event) -> None: ...

    looks: list[list[int]] = []

    async def seen(backend: Backend, keys: GroupKeys, partitions: Sequence[int]) -> dict[int, int]:
        looks.append(list(partitions))
        return await read_versions(backend, keys, partitions)

    monkeypatch.setattr(group, "REQUESTS_LOOK_S", 0.02)
    monkeypatch.setattr(group, "read_versions", seen)
    async with local_worker(app, url=redis_url) as worker:
        await worker.until(lambda now: len(now.processors["take"].partitions) == 100)
        await wait_for_async(
            lambda: {p for look in looks for p in look} == set(range(100)), "it has looked into all"
        )
    assert max(map(len, looks)) <= group.REQUESTS_LOOKS


IDLE = """
import msgspec
from streamworker import App

class Event(msgspec.Struct):
    key: str

app = App("shop")
events = app.stream("events", Event, key="key", partitions=1024)

@app.processor(events)
async def take(event: Event) -> None: ...
"""


@pytest.mark.full("counts commands for ten seconds")
async def test_an_idle_worker_with_a_thousand_partitions_sends_twenty_commands_a_second_at_most(
    redis_url: str, spawn: SpawnWorker, write_app: Callable[[str, str], Path]
) -> None:
    """What a client sends counts, for each second that passes: a busy machine makes it fewer."""
    write_app("idle", IDLE)
    spawn("run", "idle:app")
    keys = [GroupKeys("shop", "events", "take").lock(p) for p in range(1024)]
    with redis.Redis.from_url(redis_url) as client:

        def owned() -> int:
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.hexists(key, "owner")
            return sum(pipe.execute())

        await wait_for_async(lambda: owned() == len(keys), "it owns all partitions")
    for _ in range(6):  # On a busy machine the start takes a while, and is followed by trims.
        began = time.monotonic()
        async with CommandCount(redis_url) as count:
            await asyncio.sleep(10)
        if count.total <= 20 * (time.monotonic() - began):
            break
    else:
        pytest.fail(f"It never sends less than {count.by_name} in ten seconds.")


@pytest.mark.parametrize("waiting", [0, 3])
async def test_a_partition_of_few_entries_is_read_and_keeps_no_other_back(
    redis_url: str, waiting: int
) -> None:
    """Its own entries do not tell their size yet, and a careful guess leaves room for a few."""
    async with bench(redis_url, partitions=2, prefetch_bytes=512 * 1024, entry_bytes_max=1024) as desk:
        busy, quiet = desk.stream_keys.events(0), desk.stream_keys.events(1)
        full, few = desk.fetcher.add(0, ZERO), desk.fetcher.add(1, ZERO)
        await desk.backend.pipeline([("XADD", quiet, "*", "v", "x") for _ in range(waiting)])
        await desk.backend.pipeline([("XADD", busy, "*", "v", "x") for _ in range(100)])
        await wait_for_async(lambda: (full.waiting, few.waiting) == (100, waiting), "all were read")
        reads = desk.fetcher.reads
        at_once = "for _ = 1, 300 do redis.call('XADD', KEYS[1], '*', 'v', 'x') end"
        await desk.backend.execute("EVAL", at_once, 1, busy)
        await wait_for_async(lambda: full.waiting == 400, "these were read, too")
        assert desk.fetcher.reads - reads < 20
        await desk.backend.execute("XADD", quiet, "*", "v", "x")
        await wait_for_async(lambda: few.waiting == waiting + 1, "this one was read", timeout_s=10)


async def test_a_partition_that_is_behind_is_read_alone_between_the_reads_of_all(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of 400 brings 20 entries of each at most; the one that has 5,000 does not wait for it.

    The next read of all is seconds away here: on a busy machine it would be due after each of the others.
    """
    monkeypatch.setattr("streamworker.core.data.batching.SPACING_US", 100_000)
    count, entries = 400, 5_000
    async with bench(redis_url, partitions=count) as desk:
        key = desk.stream_keys.events(7)
        await desk.backend.pipeline([("XADD", key, "*", "v", str(n)) for n in range(entries)])
        buffers = [desk.fetcher.add(p, ZERO) for p in range(count)]
        taken = 0
        while taken < entries:
            await asyncio.wait_for(buffers[7].wait_ready(BatchLimits(1, 1, 0)), PATIENCE_S)
            batch = buffers[7].take(1_000, 1_000_000)
            buffers[7].release(len(batch), sum(sizes_of(batch)))
            taken += len(batch)
        assert desk.fetcher.reads < entries / 20 / 2


def entry(number: int) -> Entry:
    return Entry(EntryId(number, 0), {b"v": b""}, 1)


async def test_entries_that_do_not_make_a_batch_wake_nobody() -> None:
    """Who waits is woken once: when the batch is full, or when its first entry has waited enough."""
    buffer = PartitionBuffer(0, ZERO, ByteBudget(1_000_000), ahead=100)
    full = asyncio.create_task(buffer.wait_ready(BatchLimits(3, 1_000, 60_000)))
    for number in (1, 2):
        await asyncio.sleep(0.01)
        buffer.put([entry(number)])
    await asyncio.sleep(0.01)
    assert not full.done()
    buffer.put([entry(3)])
    await asyncio.wait_for(full, PATIENCE_S)

    assert len(buffer.take(3, 1_000)) == 3
    old = asyncio.create_task(buffer.wait_ready(BatchLimits(3, 1_000, 100)))
    await asyncio.sleep(0)
    began = time.monotonic()
    buffer.put([entry(4)])
    await asyncio.wait_for(old, PATIENCE_S)
    assert time.monotonic() - began >= 0.098
    assert buffer.is_ready(BatchLimits(3, 1_000, 100))
