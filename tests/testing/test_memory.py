"""The server in memory: how long it lives, who uses it, and what is said where it is not."""

import sys
from typing import Any

import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from streamworker import App, Stream
from streamworker.errors import BackendUnavailable, ConfigurationError
from streamworker.redisio.wire.client import Backend
from streamworker.testing import MemoryServer, local_worker

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    """What is sent."""

    amount: int


def shop(**settings: Any) -> tuple[App, Stream[Order]]:
    """An app with a processor that forwards its records, on a server that is not there."""
    app = App("shop", redis_url="redis://localhost:1", **settings)
    orders = app.stream("orders", Order, partitions=2)

    @app.processor(orders)
    async def keep(order: Order) -> Order:
        return order

    return app, orders


async def test_each_block_begins_with_an_empty_server_and_leaves_the_app_as_it_was() -> None:
    """The app's own server is not asked for anything."""
    app, orders = shop()
    for _ in range(2):
        async with local_worker(app) as worker:
            await orders.send(Order(1))
            await worker.until_drained()
            assert await worker.rows("keep") == [{"amount": 1}]
    assert app.settings.redis_url == "redis://localhost:1"


def test_a_test_without_an_event_loop_has_a_worker_in_a_thread() -> None:
    """As with the test client of a web framework, whose service runs on a loop of its own."""
    app, orders = shop()
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(local_worker(app)) as worker:
        for amount in range(10):
            orders.sync.send(Order(amount))
        portal.call(worker.until_drained)
        assert len(portal.call(worker.rows, "keep")) == 10


async def test_two_apps_in_memory_do_not_meet_unless_they_share_a_server() -> None:
    """Though they have one name."""
    (one, orders), (other, _) = shop(), shop()
    async with local_worker(one), local_worker(other) as apart:
        await orders.send(Order(1))
        assert (await apart.snapshot()).processors["keep"].committed == 0
        assert await apart.sent(other.registry.streams["orders"]) == []
    with MemoryServer() as server:
        async with local_worker(one, url=server.url):
            await orders.send(Order(2))
        async with local_worker(other, url=server.url) as worker:
            await worker.until_drained()
            assert await worker.rows("keep") == [{"amount": 2}]


async def test_an_app_that_asks_for_a_disk_or_replicas_runs_in_memory() -> None:
    """Nothing is lost there: there is nothing to wait for."""
    app, orders = shop(durability="aof")
    async with local_worker(app) as worker:
        await orders.send(Order(1))
        await worker.until_drained()
    assert app.settings.durability == "aof"


@pytest.mark.parametrize(("settings", "trims_ms"), [({}, 600_000), ({"trim_interval_ms": 100}, 100)])
async def test_what_was_sent_a_moment_ago_is_still_there_on_a_slow_machine(
    settings: dict[str, int], trims_ms: int
) -> None:
    """Without retention it is trimmed within four seconds otherwise, and the test finds nothing."""
    app, _ = shop(**settings)
    before = app.settings
    async with local_worker(app):
        assert app.settings.trim_interval_ms == trims_ms
    assert app.settings == before


async def test_a_server_that_has_ended_is_away_and_says_so() -> None:
    """For connections that are open, too."""
    with MemoryServer() as server:
        backend = Backend.open(server.url, name="late")
        assert await backend.execute("PING") == b"PONG"
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="the server in memory has ended"):
            await backend.execute("PING")
    await backend.aclose()


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
async def test_without_its_extra_the_kit_names_it_and_works_on_a_real_server(
    missing: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/test_layers.py shows that importing the kit needs neither."""
    monkeypatch.delitem(sys.modules, "streamworker.testing.fake", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError, match="needs fakeredis with Lua") as raised:
        MemoryServer()
    assert "pip install 'streamworker[testing]'" in raised.value.remedy
    async with local_worker(shop()[0], url=redis_url) as worker:
        assert worker.name
