"""A producer writes each record once, in order, and says when it cannot."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from streamworker.dev.server import EmbeddedServer
from streamworker.errors import (
    BackendUnavailable,
    ConfigurationError,
    ProducerError,
    RecordError,
    StreamFull,
)
from streamworker.redisio.data import streams
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from tests.chaos.proxy import proxied
from tests.helpers import PATIENCE_S, wait_for_async
from tests.runtime.workbench import Bench, Order, bench

pytestmark = pytest.mark.anyio


async def test_concurrent_sends_share_round_trips_and_each_learns_its_own_id(redis_url: str) -> None:
    """Five hundred sends at once need a few appends, and their ids are those of their records."""
    async with bench(redis_url, run=False) as desk:
        await streams.provision(desk.backend, desk.stream_keys, 1, "json")  # A script that is no append.
        await desk.backend.execute("CONFIG", "RESETSTAT")
        sent = await asyncio.gather(*(desk.producer.send(Order(n)) for n in range(500)))
        stats = (await desk.backend.execute("INFO", "commandstats")).decode()
        assert [str(one.entry_id) for one in sent] == await desk.ids()
        assert await desk.numbers() == list(range(500))
        scripts = [line for line in stats.splitlines() if line.startswith("cmdstat_evalsha:")]
        assert int(scripts[0].partition("calls=")[2].partition(",")[0]) <= 3


async def test_an_endless_source_is_taken_a_bounded_piece_at_a_time(redis_url: str) -> None:
    """The source is asked for little more than what Redis has confirmed."""
    asked = 0

    def endless() -> Iterator[Order]:
        nonlocal asked
        while True:
            asked += 1
            yield Order(asked)

    async with bench(redis_url, run=False, stream={"records_max": 4_500}) as desk:
        with pytest.raises(StreamFull):
            await desk.producer.send_many(endless(), on_full="raise")
        assert asked <= 4_500 + 4 * 2_000
        assert await desk.numbers() == list(range(1, 4_501)), "what fits is sent, and no more"


def failing(orders: Iterable[Order], error: Exception) -> Iterator[Order]:
    """Return an iterable of a program that fails behind these orders."""
    yield from orders
    raise error


ONE: Any = Order(0)
STRANGER: list[Any] = [Order(0), Order(1), "no order", Order(3)]


@pytest.mark.parametrize(
    ("given", "error", "why", "sent"),
    [
        (STRANGER, RecordError, "records of type Order", [0, 1]),
        ([Order(0), Order(1, "x" * 200)], RecordError, r"\d+ bytes, and entry_bytes_max is 100", [0]),
        (failing([Order(0)], TypeError("of the program")), TypeError, "^of the program$", [0]),
        (ONE, RecordError, r"^send_many takes several records\. Use send for one\.$", []),
    ],
    ids=["another type", "too large", "an error of the iterable", "one record"],
)
async def test_what_is_before_a_bad_record_is_sent_and_the_error_says_what_is_wrong(
    redis_url: str, given: Iterable[Order], error: type[Exception], why: str, sent: list[int]
) -> None:
    async with bench(redis_url, run=False, entry_bytes_max=100) as desk:
        with pytest.raises(error, match=why) as raised:
            await desk.producer.send_many(given)
        assert await desk.numbers() == sent
    if sent and error is RecordError:
        assert raised.value.__notes__[0].startswith(f"Redis has confirmed {len(sent)} record")


async def test_a_record_that_cannot_be_appended_does_not_fail_those_beside_it(redis_url: str) -> None:
    """Its error is raised before it is put together with others."""
    many = {f"h{n}": "x" for n in range(5_000)}
    async with bench(redis_url, run=False) as desk:
        sends = [desk.producer.send(Order(n), headers=many if n == 1 else None) for n in range(3)]
        first, second, third = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(second, RecordError) and "5000 headers" in str(second)
        assert not isinstance(first, BaseException) and not isinstance(third, BaseException)
        assert await desk.numbers() == [0, 2]


async def test_nothing_of_a_list_is_sent_later_once_its_send_has_failed(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The iterable fails while two chunks of it wait for room, and the first of them has no more time."""
    monkeypatch.setattr("streamworker.runtime.send.producer.CHUNK_ENTRIES", 3)

    async with bench(redis_url, run=False, stream={"records_max": 10}) as desk:
        await desk.acquire(0, "w1")
        await desk.send(range(10))
        with pytest.raises(StreamFull):
            await desk.producer.send_many(failing(map(Order, range(10, 16)), LookupError()), timeout=0.1)
        await desk.start(desk.spec(ignore))
        desk.tasks.start_soon(desk.fetcher.run)
        desk.tasks.start_soon(desk.committer.run)
        await asyncio.wait_for(desk.producer.send(Order(99)), PATIENCE_S)
        assert not set(range(10, 16)) & set(await desk.numbers())


async def ignore(batch: list[Order]) -> None:
    """Do nothing."""


@pytest.mark.parametrize("id", [None, "once"])
async def test_a_timeout_before_the_first_connection_says_that_nothing_was_written(
    id: str | None, redis_url: str
) -> None:
    """That stays true: what others wait for is sent later, in order, without the record that was given up."""
    async with proxied(redis_url) as proxy:
        url = proxy.url
        proxy._port = urlsplit(url).port or 0  # It listens there again later.
        await proxy.stop()
        async with bench(url, run=False) as desk:
            first = asyncio.create_task(desk.producer.send(Order(0)))
            given_up = asyncio.create_task(desk.producer.send(Order(1), id=id, timeout=0.2))
            await asyncio.sleep(0)
            second = asyncio.create_task(desk.producer.send(Order(2)))
            with pytest.raises(ProducerError, match="nothing was written"):
                await given_up
            declaration = desk.producer._lanes.declaration
            await wait_for_async(lambda: declaration.trouble, "the port was found closed")
            with pytest.raises(ProducerError, match=r"nothing was written\. .*Connection refused"):
                await desk.producer.send(Order(1), id=id, timeout=0.2)
            assert not first.done() and not second.done()
            await proxy.start()
            await asyncio.wait_for(asyncio.gather(first, second), PATIENCE_S)
            await desk.producer.send(Order(3))
            assert await desk.numbers() == [0, 2, 3]


async def test_a_cancelled_send_does_not_disturb_the_others(redis_url: str) -> None:
    """Of many concurrent sends some are cancelled; the others are there in order."""
    async with bench(redis_url, run=False) as desk:
        tasks = [asyncio.create_task(desk.producer.send(Order(n))) for n in range(200)]
        for task in tasks[::5]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        found = await desk.numbers()
        assert found == sorted(found)
        assert {n for n in range(200) if n % 5} <= set(found)


@pytest.mark.parametrize("id", [None, "once"])
async def test_a_refused_connection_after_a_try_without_an_answer_is_no_no_either(
    id: str | None, own_server: EmbeddedServer
) -> None:
    """The server has another password by then."""
    async with proxied(own_server.url) as proxy, bench(proxy.url, run=False, call_timeout_ms=200) as desk:
        await desk.producer.send(Order(0))
        with redis.Redis.from_url(own_server.url) as direct:
            proxy.strand()
            direct.config_set("requirepass", "another")
            with pytest.raises(ProducerError, match=r"may or may not.*password"):
                await desk.producer.send(Order(1), id=id)


async def test_a_full_partition_after_a_try_without_an_answer_is_no_no_either(redis_url: str) -> None:
    """The first try of a send with an id may still come, and find room."""
    limits: dict[str, Any] = {"stream": {"records_max": 1}, "call_timeout_ms": 200}
    async with proxied(redis_url) as proxy, bench(proxy.url, run=False, **limits) as desk:
        await desk.producer.send(Order(0))
        proxy.strand()
        with pytest.raises(ProducerError, match="may or may not") as raised:
            await desk.producer.send(Order(1), id="once", timeout=1.5)
        assert "limit of 1 records" in str(raised.value) and not isinstance(raised.value, StreamFull)


async def test_a_stream_that_is_declared_otherwise_is_named_after_an_outage_too(redis_url: str) -> None:
    """Nothing was sent before it was declared, so nothing of it can be on its way."""
    async with proxied(redis_url) as proxy, bench(proxy.url, run=False) as desk:
        proxy.refuse = True
        proxy.reset()
        sending = asyncio.create_task(desk.producer.send(Order(1)))
        await wait_for_async(lambda: _was_refused(desk), "a try found nobody")
        async with Backend.open(redis_url, name="t") as direct:
            await streams.provision(direct, StreamKeys("shop", "orders"), 4, "json")
        proxy.heal()
        with pytest.raises(ConfigurationError, match="4"):
            await asyncio.wait_for(sending, PATIENCE_S)


async def _was_refused(desk: Bench) -> bool:
    try:
        await desk.backend.execute("PING")
    except BackendUnavailable:
        return True
    return False


async def test_nothing_is_sent_after_the_close(redis_url: str) -> None:
    """Closing sends what waits; a later send is an error."""
    async with bench(redis_url, run=False) as desk:
        waiting = asyncio.create_task(desk.producer.send(Order(1)))
        await asyncio.sleep(0)
        await desk.producer.aclose()
        await wait_for_async(waiting.done, "the send that was waiting is done")
        with pytest.raises(ProducerError, match="closed"):
            await desk.producer.send(Order(2))
        assert await desk.numbers() == [1]
