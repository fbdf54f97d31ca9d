"""What Spark's processes do with a Cluster; without Spark, which only calls it."""

from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from streamworker.dev.cluster import EmbeddedCluster
from streamworker.redisio.data import schemas, streams
from streamworker.redisio.group import readers
from streamworker.redisio.wire.client import Backend
from streamworker.spark.source.logs import AckedLogs
from streamworker.spark.source.offsets import Slice
from streamworker.spark.source.options import parse_options
from tests.cluster.support import is_primary, move_slot, primary_of
from tests.contract.support import GROUP, STREAM, Group, request

pytestmark = pytest.mark.anyio

PARTITIONS = 8


@pytest.fixture
async def backend(redis_url: str) -> AsyncIterator[Backend]:
    async with Backend.open(redis_url, name="spark") as opened:
        yield opened


async def test_logs_on_all_nodes_are_planned_and_read(
    nodes: EmbeddedCluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each log is read where it is, also after its slot has moved; the reader says how far it is."""
    monkeypatch.setenv("STREAMWORKER_CONNECTION_DEFAULT", nodes.url)
    group = Group(backend, STREAM, GROUP)
    await streams.declare(backend, STREAM, PARTITIONS, "json")
    await group.register(PARTITIONS)
    await schemas.declare_schema(backend, GROUP, pa.schema({"n": pa.int64()}))
    for partition in range(PARTITIONS):
        lock = await group.own(partition=partition)
        entries = await group.send(2, partition)
        reply = await group.commit(request(lock, entries, partition=partition, rows=partition + 1))
        assert reply.code.value == "OK"
    logs = AckedLogs(parse_options({"app": "shop", "stream": "orders", "processor": "price", "reader": "q"}))
    tails = logs.tails()
    assert [tails[p].rows for p in range(PARTITIONS)] == [1, 2, 3, 4, 5, 6, 7, 8]
    source = primary_of(nodes, GROUP.acked(3))
    move_slot(nodes, GROUP.acked(3), next(n for n in nodes.nodes if is_primary(n) and n is not source))
    for partition in range(PARTITIONS):
        read = logs.read(Slice(partition, tails[partition].log, 0, tails[partition].rows))
        assert sum(entry.batch.num_rows for entry in read) == partition + 1
    logs.register(tails, 1, retry=False)
    assert list(await readers.positions(backend, GROUP)) == ["q"]
