"""The schemas of an acked log come back while workers run, in whichever order they look."""

from dataclasses import replace

import pyarrow as pa
import pytest
import redis

from streamworker import App
from streamworker.errors import ConfigurationError
from streamworker.redisio.data.ackedlog import schema_fingerprint
from streamworker.redisio.data.schemas import CURRENT, provision_schema
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.testing import local_worker
from tests.helpers import wait_for_async
from tests.runtime.workbench import Order

pytestmark = pytest.mark.anyio

KEYS = GroupKeys("shop", "orders", "price")
OLD = pa.schema({"n": pa.int64()})
NEW = pa.schema({"n": pa.int64(), "note": pa.string()})


@pytest.mark.parametrize("what", ["all", "current", "schema"])
async def test_a_schema_that_was_deleted_comes_back_while_a_worker_runs(redis_url: str, what: str) -> None:
    """Nothing has to be sent or started for it, and what is in the log can be read again."""
    app = App("shop", redis_url=redis_url)
    app.settings = replace(app.settings, trim_interval_ms=20)
    orders = app.stream("orders", Order, partitions=1)

    @app.processor(orders)
    async def price(order: Order) -> Order:
        return order

    with redis.Redis.from_url(redis_url) as raw:
        async with local_worker(app, url=redis_url) as worker:
            await orders.send(Order(1))
            await worker.until_drained()
            before = raw.hgetall(KEYS.schemas)
            if what == "all":
                raw.delete(KEYS.schemas)
            else:
                raw.hdel(KEYS.schemas, CURRENT if what == "current" else before[CURRENT])
            await wait_for_async(lambda: raw.hgetall(KEYS.schemas) == before, "the schema is back")
            assert [row["number"] for row in await worker.rows(price)] == [1]


@pytest.mark.parametrize("first", [OLD, NEW])
async def test_workers_of_two_versions_store_their_schemas_again_in_any_order(
    redis_url: str, first: pa.Schema
) -> None:
    """The newer one is current, and rows of the older one can be read, too."""
    old, new = schema_fingerprint(OLD).encode(), schema_fingerprint(NEW).encode()
    async with Backend.open(redis_url, name="test") as backend:
        for schema in (first, OLD, NEW, OLD):
            await provision_schema(backend, KEYS, schema, again=True)
    with redis.Redis.from_url(redis_url) as raw:
        found = raw.hgetall(KEYS.schemas)
    assert found.keys() == {CURRENT, old, new}
    assert found[CURRENT] == new


async def test_a_worker_that_starts_is_still_refused_a_schema_that_drops_a_field(redis_url: str) -> None:
    """Only what has forwarded rows already is taken without a question."""
    async with Backend.open(redis_url, name="test") as backend:
        await provision_schema(backend, KEYS, NEW)
        with pytest.raises(ConfigurationError, match="rows of another schema"):
            await provision_schema(backend, KEYS, OLD)
