"""A Redis stream that other programs fill, on a Cluster: its node and those of ours fail over."""

import contextlib
import threading
from collections import defaultdict

import msgspec
import pytest
from anyio import to_thread
from redis.exceptions import ClusterDownError

from streamworker import App
from streamworker.redisio.keys import StreamKeys
from streamworker.testing import local_worker
from tests.helpers import wait_for, wait_for_async
from tests.raw import RawCluster
from tests.stage.cluster import Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180), pytest.mark.full("nodes of a Cluster fail over")]
PLAIN = "legacy-orders"
CUSTOMERS = ("ann", "bob", "cid")


class Order(msgspec.Struct):
    customer: str
    number: int


def hand_over(nodes: Cluster, key: str) -> None:
    """Let the replica of a key's node take its place, by plan: the programs that write lose nothing."""
    replica = nodes.replica_of(nodes.primary_of(key))
    with replica.client() as client, nodes.quick_to_replace():
        client.execute_command("CLUSTER", "FAILOVER")
        wait_for(lambda: replica.is_primary, "the replica takes over")


async def test_a_plain_stream_is_taken_in_once_while_nodes_fail_over(nodes: Cluster, raw: RawCluster) -> None:
    """The plain stream and the partitions lie on different nodes; each entry is taken once, in order."""
    app = App("shop", redis_url=nodes.url, durability="replicas")
    orders = app.stream("orders", Order, key="customer", partitions=6, codec="fields", source=PLAIN)
    seen: dict[str, list[int]] = defaultdict(list)
    written = dict.fromkeys(CUSTOMERS, 0)
    is_over = threading.Event()

    @app.processor(orders)
    async def take(order: Order) -> None:
        seen[order.customer].append(order.number)

    def write() -> None:
        while not is_over.is_set():
            for name in CUSTOMERS:
                # Refused while no replica has been elected yet, which may take a second try: sent again.
                with contextlib.suppress(ClusterDownError):
                    raw.xadd(PLAIN, {"customer": name, "number": written[name]})
                    written[name] += 1

    async def go_on() -> None:
        target = {name: written[name] + 100 for name in CUSTOMERS}
        await wait_for_async(
            lambda: all(len(seen[name]) >= target[name] for name in CUSTOMERS), "more is taken"
        )

    writer = threading.Thread(target=write)
    async with local_worker(app, url=nodes.url) as worker:
        writer.start()
        try:
            await go_on()
            await to_thread.run_sync(hand_over, nodes, PLAIN)
            await go_on()
            there = nodes.primary_of(PLAIN)
            keys = [StreamKeys("shop", "orders").events(partition) for partition in range(6)]
            away = next(node for key in keys if (node := nodes.primary_of(key)) is not there)
            await to_thread.run_sync(nodes.fail_over, away)
            await go_on()
        finally:
            is_over.set()
            await to_thread.run_sync(writer.join)
        await wait_for_async(
            lambda: sum(map(len, seen.values())) >= sum(written.values()), "all entries are taken"
        )
        await worker.until_drained()
    assert seen == {name: list(range(written[name])) for name in CUSTOMERS}
