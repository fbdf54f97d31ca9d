"""On a Cluster each node waits for replicas of its own, and holds up what is there and no more."""

import asyncio
from typing import Any

import pytest

from streamworker.errors import BackendUnavailable, ProducerError
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.durability import check_durability
from streamworker.settings import Settings
from tests.helpers import wait_for_async
from tests.runtime.workbench import Order, Priced, bench
from tests.stage.cluster import Cluster

pytestmark = pytest.mark.anyio

PARTITIONS = 12
QUICK: dict[str, Any] = {"durability_timeout_ms": 100, "grace_period_ms": 1_000}


async def test_a_replica_that_is_stopped_holds_up_what_its_primary_has(nodes: Cluster) -> None:
    """Sends and commits of other nodes go on; those of this one are confirmed when it goes on."""
    async with bench(nodes.url, partitions=PARTITIONS, durability="replicas", **QUICK) as desk:
        sent = [await desk.producer.send(Order(n, f"c{n}")) for n in range(40)]
        where = {at.partition: f"c{n}" for n, at in enumerate(sent)}
        ports = {p: nodes.primary_of(desk.stream_keys.events(p)).port for p in where}
        stopped = nodes.primary_of(desk.stream_keys.events(0))
        there = next(p for p, port in ports.items() if port == stopped.port)
        elsewhere = next(p for p, port in ports.items() if port != stopped.port)

        async def price(batch: list[Order]) -> list[Priced]:
            return [Priced(order.number, 1.0) for order in batch]

        replica = nodes.replica_of(stopped)
        with replica.paused():
            with pytest.raises(ProducerError, match="0 of 1 replicas had it"):
                await desk.producer.send(Order(100, where[there]), timeout=2)
            await desk.producer.send(Order(101, where[elsewhere]), timeout=5)
            here = await desk.start(desk.spec(price, batch=500), there)
            other = await desk.start(desk.spec(price, batch=500), elsewhere)
            await wait_for_async(lambda: other.runner.commits.records_done, "a commit of another node counts")
            await wait_for_async(lambda: here.states, "one of this node says what it waits for")
            assert not here.runner.commits.records_done and "0 of 1 replicas" in here.states[0]
        await wait_for_async(lambda: here.runner.commits.records_done, "it counts too")
        await desk.producer.send(Order(102, where[there]), timeout=10)
        await asyncio.gather(here.drained(), other.drained())


async def test_who_begins_in_a_failover_is_not_told_that_its_durability_does_not_work(
    nodes: Cluster,
) -> None:
    """The node that it knows of as a primary has become a replica: it asks again, and then its successor."""
    settings = Settings(redis_url=nodes.url, durability="replicas")
    async with Backend.open(nodes.url, name="t") as backend:
        await check_durability(backend, settings)
        old = nodes.primary_of("a")
        new = nodes.replica_of(old)
        with nodes.quick_to_replace():
            new.ask("CLUSTER", "FAILOVER")
            await wait_for_async(lambda: new.is_primary and not old.is_primary, "they have changed places")
        with pytest.raises(BackendUnavailable, match="it is a replica by now"):
            await check_durability(backend, settings)

        async def passes() -> bool:
            try:
                await check_durability(backend, settings)
            except BackendUnavailable:
                return False
            return True

        await wait_for_async(passes, "the successor is asked")
