"""What a worker asks of its server does not grow with its partitions."""

import msgspec
import pytest
import redis

from streamworker import App
from streamworker.testing import local_worker

pytestmark = pytest.mark.anyio


class Event(msgspec.Struct):
    """A record."""

    key: str
    number: int


async def test_a_worker_with_many_partitions_opens_eight_connections_at_most(redis_url: str) -> None:
    """Not even when all partitions start at once, and all commit at once; each call has its turn."""
    app = App("shop", redis_url=redis_url)
    events = app.stream("events", Event, key="key", partitions=128)

    @app.processor(events)
    async def take(event: Event) -> None: ...

    async with local_worker(app, name="guest") as worker:
        await events.send_many([Event(f"k{n}", n) for n in range(1_000)])
        await worker.until_drained()
        with redis.Redis.from_url(redis_url) as client:
            # Those that are not needed now stay open for a while.
            names = [each["name"] for each in client.client_list()]
    ours = [name for name in names if name in ("guest", "guest:heartbeat")]
    assert "guest:heartbeat" in ours
    assert 4 <= len(ours) <= 8, names
