"""The fetcher on a Cluster: what is asked of it on one server holds where nothing waits at the server."""

import asyncio
import time

import anyio
import pytest

from streamworker.core.data.batching import BatchLimits
from streamworker.core.data.entries import ZERO
from streamworker.redisio.wire.client import Backend
from tests.chaos.slots import OneSlot
from tests.helpers import wait_for_async
from tests.runtime.test_fetcher import (
    test_a_deleted_stream_is_noticed,
    test_a_key_of_another_type_stops_only_its_partition,
    test_a_partition_that_is_stuck_does_not_starve_the_others,
    test_a_partition_whose_entries_were_large_is_still_read_while_another_is_stuck,
    test_an_old_runner_that_ends_late_does_not_stop_the_new_one,
    test_memory_stays_within_the_budget_with_many_partitions,
)
from tests.runtime.workbench import bench
from tests.stage.cluster import Cluster

__all__ = [
    "test_a_deleted_stream_is_noticed",
    "test_a_key_of_another_type_stops_only_its_partition",
    "test_a_partition_that_is_stuck_does_not_starve_the_others",
    "test_a_partition_whose_entries_were_large_is_still_read_while_another_is_stuck",
    "test_an_old_runner_that_ends_late_does_not_stop_the_new_one",
    "test_memory_stays_within_the_budget_with_many_partitions",
]

pytestmark = pytest.mark.anyio

ANY = BatchLimits(1, 1, 0)


async def test_idle_partitions_are_asked_ten_times_a_second_at_each_node(redis_url: str) -> None:
    """However many they are; and an entry is found by the next round."""
    async with bench(redis_url, partitions=24) as desk:
        buffers = [desk.fetcher.add(p, ZERO) for p in range(24)]
        await anyio.sleep(0.5)  # The pauses have grown by then.
        before, began = desk.fetcher.reads, time.monotonic()
        await anyio.sleep(1.0)
        a_second = (desk.fetcher.reads - before) / (time.monotonic() - began)
        assert a_second <= 35, f"{a_second:.0f} rounds a second at three nodes"
        await desk.add_raw(b"x", partition=17)
        await wait_for_async(lambda: buffers[17].waiting == 1, "the entry is there", 1)


async def test_a_partition_that_is_added_is_read_at_once(redis_url: str) -> None:
    """The pause of its node, which is long by now, ends."""
    async with bench(redis_url, partitions=8) as desk:
        for p in range(4):
            desk.fetcher.add(p, ZERO)
        await desk.add_raw(b"x", partition=7)
        await anyio.sleep(0.5)
        times = []
        for _ in range(5):
            began = time.monotonic()
            buffer = desk.fetcher.add(7, ZERO)
            with anyio.fail_after(5):
                await buffer.wait_ready(ANY)
            times.append(time.monotonic() - began)
            await anyio.sleep(0.3)
        assert sorted(times)[1] < 0.05, times


async def test_a_backlog_is_read_without_pauses(redis_url: str) -> None:
    """A partition that brought as much as was asked for is asked again at once, and so when it has room."""
    async with bench(redis_url, partitions=2, fetch_count=10) as desk:
        await desk.backend.pipeline([("XADD", desk.stream_keys.events(0), "*", "v", "x")] * 600)
        buffer = desk.fetcher.add(0, ZERO)
        got, began = 0, time.monotonic()
        with anyio.fail_after(10):
            while got < 600:
                await buffer.wait_ready(ANY)
                taken = buffer.take(5, 10_000)
                buffer.release(len(taken), sum(entry.size for entry in taken))
                got += len(taken)
        assert time.monotonic() - began < 3, "sixty rounds, and no pause between them"


async def test_entries_of_a_partition_that_moves_are_read_once(nodes: Cluster, redis_url: str) -> None:
    """Its old node sends the read on to the new one, which is asked by itself meanwhile."""
    watch = OneSlot()
    with nodes.through_proxies(watch) as lines:
        lines.disturb(delay_ms=40)  # So that reads are under way when one is sent on.
        async with (
            bench(lines.url, partitions=12, fetch_count=10_000) as desk,
            Backend.open(redis_url, name="near") as near,
        ):
            key = desk.stream_keys.events(0)
            buffers = [desk.fetcher.add(p, ZERO) for p in range(12)]
            sent: list[str] = []
            for _ in range(6):
                source = nodes.primary_of(key)
                target = nodes.another_primary(source)
                await asyncio.to_thread(nodes.move_slot_whole, key, target)
                for _ in range(10):
                    sent.append((await near.execute("XADD", key, "*", "v", "x")).decode())
                    await asyncio.sleep(0.01)
            await wait_for_async(lambda: buffers[0].waiting >= len(sent), "all is read")
            await asyncio.sleep(0.3)
            assert [str(entry.id) for entry in buffers[0].each_waiting()] == sent
    assert watch.sent_on["MOVED"] > 0, "no read was sent on"
