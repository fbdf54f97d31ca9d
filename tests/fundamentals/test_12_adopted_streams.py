"""A Redis stream that other programs fill is taken in: each entry once, in order by key."""

import contextlib
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from streamworker import App, ConfigurationError, Skip, Stream
from streamworker.redisio.keys import StreamKeys
from streamworker.testing import local_worker
from tests.contract.support import Raw
from tests.helpers import wait_for_async
from tests.raw import opened

pytestmark = pytest.mark.anyio
PLAIN = "legacy-orders"


class Order(msgspec.Struct):
    customer: str
    number: int


def shop(redis_url: str) -> tuple[App, Stream[Order], dict[str, dict[str, list[int]]]]:
    """An app that takes the plain stream in, and what its two processors were given, by customer."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=4, codec="fields", source=PLAIN)
    seen: dict[str, dict[str, list[int]]] = {name: defaultdict(list) for name in ("one", "two")}

    @app.processor(orders, errors=Skip())
    async def one(order: Order) -> None:
        seen["one"][order.customer].append(order.number)

    @app.processor(orders, errors=Skip())
    async def two(order: Order) -> None:
        seen["two"][order.customer].append(order.number)

    return app, orders, seen


@contextlib.contextmanager
def writers(redis_url: str, each: int) -> Iterator[list[threading.Thread]]:
    """Three programs that know nothing of us write as fast as they can."""

    def write(customer: str) -> None:
        with opened(redis_url) as client:
            for start in range(0, each, 50):
                pipe = client.pipeline(transaction=False)
                for number in range(start, min(start + 50, each)):
                    pipe.xadd(PLAIN, {"customer": customer, "number": number})
                pipe.execute()

    threads = [threading.Thread(target=write, args=[name]) for name in ("ann", "bob", "cid")]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join()


async def test_entries_are_taken_once_and_in_order_under_their_writers_full_load(emptied: str) -> None:
    """Two processes look, since both own partition 0 of their group; workers come and go meanwhile."""
    each = 2_000
    app, _, seen = shop(emptied)
    other = shop(emptied)[0]
    with writers(emptied, each) as threads:
        while any(thread.is_alive() for thread in threads):
            async with (
                local_worker(app, url=emptied, processors=["one"]) as first,
                local_worker(other, url=emptied, processors=["two"]),
            ):
                await first.until(lambda now: now.processors["one"].committed > 100)
    app, _, late = shop(emptied)
    async with local_worker(app, url=emptied) as worker:
        with opened(emptied) as client:
            keys = [f"sw:{{shop.orders.{p}}}:events" for p in range(4)]

            def taken() -> int:
                return sum(client.xinfo_stream(key)["entries-added"] for key in keys if client.exists(key))

            await wait_for_async(lambda: taken() >= 3 * each, "all entries are taken")
            await worker.until_drained()
            assert taken() == 3 * each
    for customer in ("ann", "bob", "cid"):
        assert seen["one"][customer] + late["one"][customer] == list(range(each))


async def test_entries_of_before_and_those_that_are_no_records_are_taken_too(emptied: str) -> None:
    """What cannot be decoded follows the policy of the processor, as any such entry does."""
    app, orders, seen = shop(emptied)
    with opened(emptied) as client:
        for number in range(5):
            client.xadd(PLAIN, {"customer": "ann", "number": number})
        client.xadd(PLAIN, {"nonsense": "x"})
        async with local_worker(app, url=emptied) as worker:
            for number, group in enumerate(
                ("one", "two", "nobody"), 5
            ):  # As the letters of a group that return.
                client.xadd(PLAIN, {"sw:replayed-for": group, "customer": "ann", "number": number})
            await wait_for_async(lambda: len(seen["one"]["ann"]) == 8, "all are taken")
            await orders.send(Order("ann", 8))
            await worker.until_drained()
            assert seen["one"]["ann"] == seen["two"]["ann"] == list(range(9))
        assert client.xlen(PLAIN) == 9, "nothing was changed there"


async def test_a_stream_made_anew_is_named_by_who_knows_only_what_the_partitions_have(
    emptied: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker may begin to read between the hand-over of another and the note of its place."""
    app, _, seen = shop(emptied)
    meta, field = StreamKeys("shop", "orders").meta, f"source {PLAIN}"
    with opened(emptied) as client:
        client.xadd(PLAIN, {"customer": "ann", "number": 0}, id="1000-0")
        async with local_worker(app, url=emptied) as worker:
            await wait_for_async(lambda: len(seen["one"]["ann"]) == 1, "the first is taken")
            await worker.until_drained()
            await wait_for_async(lambda: client.hget(meta, field) is not None, "its place is noted")
        place = client.hget(meta, field)
        assert place is not None
        client.hdel(meta, field)
        client.delete(PLAIN)
        client.xadd(PLAIN, {"customer": "ann", "number": 1}, id="500-0")
        # One processor: a second reader might read the place before it is there, and the stream after it.
        async with local_worker(app, url=emptied, processors=["one"]):
            await wait_for_async(lambda: "source_went_back" in capsys.readouterr().out, "the worker says so")
            client.hset(meta, field, place)
            client.xadd(PLAIN, {"customer": "bob", "number": 2}, id="1000-0")
            await wait_for_async(lambda: "holds something else" in capsys.readouterr().out, "and so again")
        assert seen["one"] == {"ann": [0]}


async def test_a_stream_that_was_made_anew_is_named_and_not_taken_in(
    emptied: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lower ids, another entry in the place of the last one, or no stream: a person should look."""
    app, _, seen = shop(emptied)
    with opened(emptied) as client:
        client.xadd(PLAIN, {"customer": "ann", "number": 0}, id="1000-0")
        async with local_worker(app, url=emptied) as worker:
            await wait_for_async(lambda: len(seen["one"]["ann"]) == 1, "the first is taken")
            client.delete(PLAIN)
            client.xadd(PLAIN, {"customer": "ann", "number": 1}, id="500-0")
            await wait_for_async(lambda: "source_went_back" in capsys.readouterr().out, "the worker says so")
            why = f"nothing is taken from {PLAIN}: its last id"
            await worker.until(lambda now: why in now.processors["one"].partitions[0].reason)
            client.xadd(PLAIN, {"customer": "bob", "number": 2}, id="1000-0")
            await wait_for_async(lambda: "holds something else" in capsys.readouterr().out, "and so again")
            assert "bob" not in seen["one"]
            client.delete(PLAIN)
            client.rpush(PLAIN, "x")
            why = f"nothing is taken from {PLAIN}: .*WRONGTYPE"
            await worker.until(
                lambda now: re.match(why, now.processors["one"].partitions[0].reason) is not None
            )
            client.delete(PLAIN)
            client.xadd(PLAIN, {"customer": "ann", "number": 0}, id="1000-0")
            await worker.until(lambda now: not now.processors["one"].partitions[0].reason)


async def test_entries_that_were_trimmed_before_they_were_taken_are_told(
    emptied: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By number, each once, though two processors look, and though as many were lost the time before.

    Those that were trimmed before the first look are none of ours. The rest is taken.
    """
    app, _, seen = shop(emptied)

    def add(client: Raw, first: int, kept: int) -> None:
        with client.pipeline(transaction=True) as at_once:
            for number in range(first, first + 10):
                at_once.xadd(PLAIN, {"customer": "ann", "number": number})
            at_once.xtrim(PLAIN, maxlen=kept, approximate=False)
            at_once.execute()

    with opened(emptied) as client:
        add(client, 0, kept=4)
        async with local_worker(app, url=emptied):
            await wait_for_async(lambda: seen["one"]["ann"] == [6, 7, 8, 9], "the rest is taken")
        assert "source_trimmed" not in capsys.readouterr().out
        add(client, 10, kept=3)
        async with local_worker(app, url=emptied):
            await wait_for_async(lambda: seen["one"]["ann"][4:] == [17, 18, 19], "the rest is taken")
            for first in (20, 30, 40):
                add(client, first, kept=3)
                rest = [first + 7, first + 8, first + 9]
                await wait_for_async(lambda rest=rest: seen["one"]["ann"][-3:] == rest, "the rest is taken")  # type: ignore[misc]
                await wait_for_async(lambda rest=rest: seen["two"]["ann"][-3:] == rest, "the rest is taken")  # type: ignore[misc]
        told = re.findall(r"(\d+) entries were dropped", capsys.readouterr().out)
        assert told == ["7"] * 4


def test_what_cannot_be_a_source_is_refused_when_it_is_declared() -> None:
    app = App("shop")
    wrong: Any
    for wrong in ("", "sw:{shop.orders.0}:events", 5):
        with pytest.raises(ConfigurationError, match="has source="):
            app.stream("orders", Order, source=wrong)
    with pytest.raises(ConfigurationError, match="and the codec arrow"):
        app.stream("orders", Order, codec="arrow", source=PLAIN)
