"""Heartbeats of a worker whose groups are at several nodes."""

import asyncio
import os
import signal

import pytest

from streamworker.core.protocols.membership.events import HeartbeatDone
from streamworker.dev.cluster import EmbeddedCluster
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime.watch.keeper import Keeper
from streamworker.settings import Settings
from tests.cluster.support import primary_of
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio


async def test_a_node_that_hangs_delays_the_heartbeats_of_its_groups_only(nodes: EmbeddedCluster) -> None:
    """The others are renewed at their pace meanwhile; those of the node again when it answers."""
    settings = Settings(
        redis_url=nodes.url,
        heartbeat_interval_ms=200,
        call_timeout_ms=500,
        dead_after_ms=600,
        session_timeout_ms=1_500,
        slow_after_ms=2_000,
    )
    groups = [GroupKeys("shop", "orders", f"p{n}") for n in range(12)]
    here = groups[0]
    hanging = primary_of(nodes, here.members)
    there = next(keys for keys in groups if primary_of(nodes, keys.members) is not hanging)
    beats: dict[str, list[HeartbeatDone]] = {here.group: [], there.group: []}
    keeper = Keeper(settings, "w1")
    keeper.start()
    try:
        for keys in (here, there):
            keeper.keep(keys, "w1.a", beats[keys.group].append)
        await wait_for_async(lambda: all(len(each) > 2 for each in beats.values()), "both groups are renewed")
        run_ids = {beats[keys.group][-1].run_id for keys in (here, there)}
        assert len(run_ids) == 2, "each is renewed at its own server"
        os.kill(hanging.pid, signal.SIGSTOP)
        before = {name: len(each) for name, each in beats.items()}
        await asyncio.sleep(1.0)
        hung = {name: len(each) - before[name] for name, each in beats.items()}
        os.kill(hanging.pid, signal.SIGCONT)
        assert hung[here.group] <= 1
        assert hung[there.group] >= 3
        count = len(beats[here.group])
        await wait_for_async(lambda: len(beats[here.group]) > count + 1, "it is renewed again")
    finally:
        os.kill(hanging.pid, signal.SIGCONT)
        await asyncio.to_thread(keeper.stop)
