"""An archive in an S3 that is slow, away, or does not answer what it has done."""

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from tests.archive.shop import KEYS, Shop, all_archived, all_trimmed, ends, exact, ids_in
from tests.chaos.proxy import Proxy
from tests.helpers import wait_for_async
from tests.stage.moto import moto_server, variables

pytestmark = [pytest.mark.anyio, pytest.mark.full("starts an S3")]

BUCKETS = itertools.count()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture
async def line(s3: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    """The line to the S3 that this process's stores take."""
    proxy = Proxy(s3)
    await proxy.start()
    for name, value in variables(
        f"http://127.0.0.1:{proxy.url.rpartition(':')[2].partition('/')[0]}"
    ).items():
        monkeypatch.setenv(name, value)
    yield proxy
    await proxy.stop()


@pytest.fixture
def lake() -> str:
    return f"s3://lake/orders-{next(BUCKETS)}"


async def read_again(raw: Any, url: str, lake: str) -> list[int]:
    """Return what a late group reads."""
    shop = Shop(url, lake)
    late = shop.late()
    async with shop.works() as worker:
        await wait_for_async(ends(raw, 4, "late"), "all is read")
        return sorted(row["n"] for row in await worker.rows(late))


async def test_a_put_whose_answer_is_lost_is_found_to_be_ones_own(
    redis_url: str, line: Proxy, lake: str
) -> None:
    with exact(redis_url) as raw:
        shop = Shop(redis_url, lake)
        async with shop.works():
            await shop.send(range(100))
            await all_archived(raw, 4)
            line.only_after, line.lose = b"PUT /lake/", 6
            for n in range(100, 1000, 100):
                await shop.send(range(n, n + 100))
                await all_archived(raw, 4)
            await all_trimmed(raw, 4)
        assert line.lost >= 4
        ids = await anyio.to_thread.run_sync(ids_in, lake, 4)
        assert len(ids) == len(set(ids)) == 1000
        assert await read_again(raw, redis_url, lake) == [*range(1000)]


async def test_while_an_s3_is_away_redis_keeps_all_and_late_groups_wait(
    redis_url: str, line: Proxy, lake: str
) -> None:
    """And the other groups go on. Afterwards everything is archived, and read."""
    with exact(redis_url) as raw:
        shop = Shop(redis_url, lake)
        live = shop.late("live")
        async with shop.works() as worker:
            await shop.send(range(500))
            await all_trimmed(raw, 4)
            line.refuse = True
            line.reset()
            await shop.send(range(500, 1000))
            await wait_for_async(lambda: b"did not answer" in why(raw), "a lock says why", 90)
            await wait_for_async(ends(raw, 4, "live"), "the others go on")
            line.heal()
            await all_trimmed(raw, 4)
            assert sorted(row["n"] for row in await worker.rows(live)) == [*range(1000)]
        assert await read_again(raw, redis_url, lake) == [*range(1000)]


def why(raw: Any) -> bytes:
    return b" ".join(raw.hget(KEYS.lock(p), "reason") or b"" for p in range(4))


async def test_a_slow_s3_delays_and_loses_nothing(redis_url: str, line: Proxy, lake: str) -> None:
    line.delay_ms, line.bandwidth = 100.0, 50_000
    with exact(redis_url) as raw:
        shop = Shop(redis_url, lake)
        async with shop.works():
            for n in range(0, 1000, 100):
                await shop.send(range(n, n + 100))
            await all_trimmed(raw, 4)
        line.heal()
        assert await read_again(raw, redis_url, lake) == [*range(1000)]
