"""A record may have an id: then it is sent once, or later and once."""

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from streamworker import App, ConfigurationError, RecordError, Stream
from streamworker.redisio.keys import StreamKeys
from streamworker.testing import local_worker
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    customer: str
    number: int


def shop(redis_url: str, key: str | None = "customer") -> tuple[App, Stream[Order]]:
    app = App("shop", redis_url=redis_url, trim_interval_ms=100)
    return app, app.stream("orders", Order, key=key, partitions=4, id_window="1 hour")


async def test_the_second_send_of_an_id_is_answered_with_the_first_ones_entry(redis_url: str) -> None:
    """A request that a browser repeats orders once, also while both are under way."""
    app, orders = shop(redis_url)
    async with app:
        first = await orders.send(Order("ann", 1), id="key-1", headers={"from": "web"})
        assert not first.duplicate
        again = await orders.send(Order("ann", 2), id="key-1")
        assert again == (first.partition, first.entry_id, True)
        both = await asyncio.gather(*(orders.send(Order("bob", n), id="key-2") for n in range(20)))
        assert len({each.entry_id for each in both}) == 1
        assert [each.duplicate for each in both].count(False) == 1


async def test_an_id_is_one_record_of_its_key(redis_url: str) -> None:
    """Ann's number 1 is not Bob's, though both are in one partition, and not the empty key's."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    async with app:
        sent = [await orders.send(Order(customer, 1), id="1") for customer in ("ann", "bob", "")]
        assert not any(each.duplicate for each in sent)


async def test_a_record_without_a_key_goes_where_its_id_leads(redis_url: str) -> None:
    """Else the second one would come to another partition, and not be known there."""
    app, orders = shop(redis_url, key=None)
    async with app:
        for number in range(10):
            assert not (await orders.send(Order("ann", number), id=f"id-{number}")).duplicate
        for number in range(10):
            assert (await orders.send(Order("bob", number), id=f"id-{number}")).duplicate


async def test_a_scheduled_record_is_sent_when_it_is_due_and_once(redis_url: str) -> None:
    """Two processors read the stream, so two owners look for it; each of them gets it once, in order."""
    app, orders = shop(redis_url)
    seen: dict[str, list[int]] = {"one": [], "two": []}

    @app.processor(orders)
    async def one(order: Order) -> None:
        seen["one"].append(order.number)

    @app.processor(orders)
    async def two(order: Order) -> None:
        seen["two"].append(order.number)

    async with local_worker(app, url=redis_url) as worker:
        before = datetime.now(UTC)
        scheduled = [
            await orders.schedule(
                Order("ann", number), id=str(number), after=timedelta(milliseconds=300 - number)
            )
            for number in range(3)
        ]
        assert [each.id for each in scheduled] == ["0", "1", "2"]
        assert all(before < each.due < before + timedelta(seconds=30) for each in scheduled)
        again = await orders.schedule(Order("ann", 9), id="0", after=60)
        assert (again.duplicate, again.due) == (True, scheduled[0].due)
        await wait_for_async(lambda: all(len(each) == 3 for each in seen.values()), "both have all three")
        for given in seen.values():
            assert sorted(given) == [0, 1, 2]
            dues = [scheduled[number].due for number in given]
            assert dues == sorted(dues)
        assert (await orders.schedule(Order("ann", 9), id="1", after=0)).duplicate, "it was sent"
        await worker.until_drained()


async def test_what_is_cancelled_is_never_sent(redis_url: str) -> None:
    """Its key says where it waits; a worker that starts later finds the rest."""
    app, orders = shop(redis_url)
    seen: list[int] = []

    @app.processor(orders)
    async def take(order: Order) -> None:
        seen.append(order.number)

    async with app:
        for number in range(6):
            await orders.schedule(
                Order("ann", number), id=f"ask-{number}", at=datetime(2020, 1, 1, tzinfo=UTC)
            )
        assert not await orders.cancel("ask-0", key="bob")
        assert [await orders.cancel(f"ask-{number}", key="ann") for number in (0, 2, 4)] == [True] * 3
        assert not await orders.cancel("ask-0", key="ann")
    async with local_worker(app, url=redis_url):
        await wait_for_async(lambda: len(seen) == 3, "the others are sent")
        assert not await orders.cancel("ask-1", key="ann")
        assert (await orders.schedule(Order("ann", 7), id="ask-2", after=0)).duplicate is False
        await wait_for_async(lambda: len(seen) == 4, "a cancelled id may be scheduled again")
    assert sorted(seen) == [1, 3, 5, 7]


async def test_an_app_that_schedules_nothing_leaves_no_keys(redis_url: str) -> None:
    """And a worker asks for one number every two seconds."""
    app, orders = shop(redis_url)

    @app.processor(orders)
    async def take(order: Order) -> None: ...

    async with local_worker(app, url=redis_url) as worker:
        await orders.send(Order("ann", 1))
        await worker.until_drained()
        keys = StreamKeys("shop", "orders")
        names = [name for p in range(4) for name in (keys.later(p), keys.delayed(p))]
        assert await worker._backend.execute("EXISTS", *names) == 0


async def test_wrong_ids_and_times_are_refused_before_anything_is_sent(redis_url: str) -> None:
    """Each error says what is wrong, and what to write."""
    app, orders = shop(redis_url)
    order = Order("ann", 1)
    async with app:
        for wrong in ("", 7):
            with pytest.raises(RecordError, match="An id is a text"):
                await orders.send(order, id=wrong)  # type: ignore[arg-type]
        with pytest.raises(RecordError, match="has 1200 bytes"):
            await orders.send(order, id="x" * 1_200)
        with pytest.raises(RecordError, match="UTF-8"):
            await orders.cancel("\ud800", key="ann")
        with pytest.raises(ConfigurationError, match="have a key, which cancel needs"):
            await orders.cancel("a")
        assert not await orders.cancel("a", key=None)
        now = datetime(2027, 1, 1)  # noqa: DTZ001 - without a zone
        with pytest.raises(ConfigurationError, match="has no zone"):
            await orders.schedule(order, id="a", at=now)
        with pytest.raises(ConfigurationError, match="at='2027-01-01' has no zone"):
            await orders.schedule(order, id="a", at="2027-01-01")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="without a time, or with two"):
            await orders.schedule(order, id="a")
        with pytest.raises(ConfigurationError, match="without a time, or with two"):
            await orders.schedule(order, id="a", after=1, at=now.replace(tzinfo=UTC))
        with pytest.raises(ConfigurationError, match="after='10 m' is no duration"):
            await orders.schedule(order, id="a", after="10 m")
        for name in (None, "a"):
            with pytest.raises(ConfigurationError, match="timeout='soon' is no duration"):
                await orders.send(order, id=name, timeout="soon")
            with pytest.raises(ConfigurationError, match="on_full='rise' is unknown"):
                await orders.send(order, id=name, on_full="rise")  # type: ignore[arg-type]
            await orders.send(order, id=name, timeout="2 seconds")
    with pytest.raises(ConfigurationError, match="id_window"):
        app.stream("other", Order, id_window=0)
