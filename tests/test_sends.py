"""The table of docs/sending.md: each error is provoked by each call that raises it."""

from typing import Any
from urllib.parse import urlsplit

import pytest

from streamworker import (
    AuthenticationFailed,
    BackendRefused,
    ConfigurationError,
    ProducerError,
    RecordError,
    StreamFull,
    StreamworkerError,
)
from streamworker.redisio.keys import StreamKeys
from tests import sends
from tests.chaos.proxy import proxied
from tests.raw import opened
from tests.runtime.workbench import full_memory
from tests.sends import CALLS, SENDS, WAYS, Order, Shop

pytestmark = pytest.mark.anyio
ANN = Order("ann")
WRONG: Any = Order(7)  # type: ignore[arg-type]
CALLS_OF = {row.error: row.calls for row in WAYS}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls that are answered at once have time for it, on a busy machine, too."""
    monkeypatch.setattr(sends, "TIMEOUT", 30.0)


def written(redis_url: str) -> int:
    """Return how many records are in the first partition, or are scheduled there."""
    keys = StreamKeys("shop", "orders")
    with opened(redis_url) as redis:
        return int(redis.xlen(keys.events(0))) + int(redis.hlen(keys.delayed(0)))


async def check(
    error: type[StreamworkerError], shop: Shop, given: Any = ANN, match: str = ".", calls: Any = ()
) -> None:
    """Make each call that the table names for an error, and see that it raises this one and no other."""
    async with shop.app:
        for call in calls or CALLS_OF[error]:
            with pytest.raises(error, match=match) as raised:
                await CALLS[call](shop, given)
            assert type(raised.value) is error, call


async def test_a_wrong_record_is_refused_before_it_is_sent(redis_url: str) -> None:
    """So is an id that is empty."""
    await check(RecordError, Shop.of(redis_url), WRONG, calls=SENDS)
    await check(RecordError, Shop.of(redis_url), "", calls=["cancel"])
    assert written(redis_url) == 0


async def test_a_full_partition_takes_nothing(redis_url: str) -> None:
    """Neither records nor, beside them, scheduled ones."""
    shop = Shop.of(redis_url)
    async with shop.app:
        await shop.orders.send_many([ANN, ANN])
        for name in ("1", "2"):
            await shop.orders.schedule(ANN, id=name, after="1 hour")
    await check(StreamFull, shop)
    assert written(redis_url) == 4


async def test_without_an_answer_nobody_knows(redis_url: str) -> None:
    """``committed`` says only that it has not seen the commit."""
    async with proxied(redis_url) as proxy:
        shop = Shop.of(proxy.url, call_timeout_ms=200)
        async with shop.app:
            await shop.orders.send(ANN)
            await shop.orders.schedule(ANN, id="1", after="1 hour")
            proxy.hold()
            await check(ProducerError, shop, match="may or may not")
            assert await CALLS["committed"](shop, ANN) is False
            proxy.let_pass()


async def test_a_server_that_was_never_reached_has_nothing() -> None:
    """The message says so, and why."""
    await check(ProducerError, Shop.of("redis://localhost:1"), match="nothing was written.*refused")


@pytest.mark.usefixtures("patient")
async def test_a_refusal_by_redis_says_what_is_missing(redis_url: str) -> None:
    """Memory, or a right of the user."""
    shop = Shop.of(redis_url)
    async with shop.app:
        with full_memory(redis_url):
            await check(BackendRefused, shop, match="out of memory", calls=SENDS)
    with opened(redis_url) as redis:
        redis.acl_setuser("nobody", enabled=True, passwords=["+x"], commands=["+hello", "+client", "+info"])
        try:
            parts = urlsplit(redis_url)
            url = parts._replace(netloc=f"nobody:x@{parts.netloc.rpartition('@')[2]}").geturl()
            await check(BackendRefused, Shop.of(url), match="right")
        finally:
            redis.acl_deluser("nobody")
    assert written(redis_url) == 0


@pytest.mark.usefixtures("patient")
async def test_a_wrong_password_is_named(redis_url: str) -> None:
    """No call waits for it."""
    parts = urlsplit(redis_url)
    url = parts._replace(netloc=f":wrong@{parts.netloc.rpartition('@')[2]}").geturl()
    await check(AuthenticationFailed, Shop.of(url))


@pytest.mark.usefixtures("patient")
async def test_another_declaration_is_refused(redis_url: str) -> None:
    """And so is an argument that is none."""
    shop = Shop.of(redis_url)
    async with shop.app:
        await shop.orders.send(ANN)
    others = [call for call in CALLS_OF[ConfigurationError] if call != "committed"]
    await check(ConfigurationError, Shop.of(redis_url, partitions=2), match="partitions", calls=others)
    await check(ConfigurationError, shop, "", match="no duration", calls=["committed"])
