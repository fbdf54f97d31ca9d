"""A program that does not know of a stream's archive is refused: it would skip what was trimmed."""

from pathlib import Path

import pytest

from streamworker import App, ConfigurationError
from streamworker.cli.doctor.repair import _plan_undeclared
from streamworker.redisio.admin.repair import do_step
from streamworker.redisio.wire.client import Backend
from streamworker.testing import local_worker
from tests.archive.shop import KEYS, Order, Shop, archive_all, exact

pytestmark = pytest.mark.anyio


def other_release(url: str) -> App:
    app = App("shop", redis_url=url)
    orders = app.stream("orders", Order, key="customer", partitions=4)

    @app.processor(orders)
    async def price(order: Order) -> None: ...

    return app


async def test_a_program_that_does_not_declare_the_archive_is_refused(redis_url: str, tmp_path: Path) -> None:
    """Until the archive has ended, for which its group is forgotten."""
    with exact(redis_url) as raw:
        shop = Shop(redis_url, str(tmp_path / "lake"))
        await archive_all(raw, shop, range(100))
        app = other_release(redis_url)
        with pytest.raises(ConfigurationError, match="which this program does not declare"):
            async with local_worker(app, url=redis_url):
                raise AssertionError("the worker has started")
        async with Backend.open(redis_url, name="repair") as backend:
            assert await _plan_undeclared(backend, shop.app, []) == []
            (step,) = await _plan_undeclared(backend, app, ["archive"])
            await do_step(backend, step, "ann")
        assert not raw.exists(KEYS.lock(0))
        async with local_worker(other_release(redis_url), url=redis_url):
            pass
