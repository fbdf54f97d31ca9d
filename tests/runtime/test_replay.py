"""A dead letter that is replayed reaches the group whose letter it was, and no other one of its stream."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import redis
import structlog

from streamworker import App, Context, DeadLetter, Halt, Policy, Stream
from streamworker.core.data.placement import Placement
from streamworker.errors import ConfigurationError
from streamworker.records import RecordType
from streamworker.records.entries import REPLAYED_FOR
from streamworker.redisio.data import dead, streams
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.testing import local_worker
from tests.ways import declare

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    """What is sent, and forwarded as it came."""

    number: int


IS_CURED: set[str] = set()
"""Processors whose function has been put right."""


def check(processor: str, numbers: list[int]) -> None:
    """Fail as a function of a user would: at order 3, in one processor."""
    if processor == "book" and 3 in numbers and processor not in IS_CURED:
        raise ValueError("not 3")


def declare_as(app: App, orders: Stream[Order], way: str, processor: str, policy: Policy) -> None:
    """Declare a processor that forwards what it has checked."""

    def see(orders: Sequence[Order], _: Context) -> Sequence[Order]:
        check(processor, [order.number for order in orders])
        return orders

    async def columns(orders: pa.RecordBatch) -> pa.RecordBatch:
        check(processor, orders["number"].to_pylist())
        return orders

    if way == "columns":
        app.processor(orders, name=processor, errors=policy)(columns)
    else:
        declare(app, orders, way, see, returns=Order, name=processor, errors=policy)


CASES = [
    ("record", "json"),
    ("thread", "msgpack"),
    ("batch", "fields"),
    ("batch", "arrow"),
    ("columns", "json"),
    ("columns", "arrow"),
    ("keyed", "json"),
    ("stream", "json"),
]
"""Each codec, each way, and columns and rows from either kind of entry."""


async def numbers(worker: Any, processor: str) -> list[int]:
    """Return what a processor has forwarded."""
    return [row["number"] for row in await worker.rows(processor)]


@pytest.mark.parametrize(("way", "codec"), CASES)
async def test_only_the_group_whose_letter_it_was_gets_a_replayed_record(
    redis_url: str, way: str, codec: Any
) -> None:
    """In the middle of others and alone; when it dies again, too; and for a group that is added later."""
    IS_CURED.clear()
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, partitions=1, codec=codec)
    policies: dict[str, Policy] = {"book": DeadLetter(), "audit": DeadLetter(), "late": Halt()}
    for name, policy in policies.items():
        declare_as(app, orders, way, name, policy)
    keys, audit = GroupKeys("shop", "orders", "book"), GroupKeys("shop", "orders", "audit")

    async def send(*them: int) -> None:
        for number in them:
            await orders.send(Order(number))

    async with Backend.open(redis_url, name="test") as backend:

        async def replayed() -> str:
            """Replay the only letter; return the id of its entry."""
            (letter,) = await dead.list_dead(backend, keys, [0])
            assert REPLAYED_FOR not in letter.fields
            (new,) = (await dead.replay_dead(backend, keys, 0, [letter.id])).values()
            assert new is not None
            return str(new)

        await streams.register(backend, GroupKeys("shop", "orders", "late"), Placement(1), "earliest")
        async with local_worker(app, url=redis_url, processors=["book", "audit"]) as worker:
            await send(0, 1, 2, 3, 4, 5)
            await worker.until_drained()
            first = await dead.list_dead(backend, keys, [0])
        await send(6, 7)
        await replayed()
        await send(8, 9)
        with structlog.testing.capture_logs() as logs:
            async with local_worker(app, url=redis_url, processors=["book", "audit"]) as worker:
                await worker.until_drained()
                assert await numbers(worker, "book") == [0, 1, 2, 4, 5, 6, 7, 8, 9]
                assert await numbers(worker, "audit") == list(range(10))
                (again,) = await dead.list_dead(backend, keys, [0])
                assert again.fields == first[0].fields
                assert again.id != first[0].id
                before = await backend.execute("XRANGE", audit.acked(0), "-", "+")
                IS_CURED.add("book")
                last = await replayed()
                await worker.until_drained()
                assert await numbers(worker, "book") == [0, 1, 2, 4, 5, 6, 7, 8, 9, 3]
                assert await backend.execute("XRANGE", audit.acked(0), "-", "+") == before
                assert await backend.execute("HGET", audit.lock(0), "checkpoint") == last.encode()
                assert await dead.list_dead(backend, audit, [0]) == []
                assert await dead.list_dead(backend, keys, [0]) == []
        said = {line["event"] for line in logs if line.get("processor") == "audit"}
        assert not said & {"record_dead", "record_skipped", "handler_failed", "partition_halted"}
        async with local_worker(app, url=redis_url, processors=["late"]) as worker:
            await worker.until_drained()
            assert await numbers(worker, "late") == list(range(10))


async def test_a_letter_of_an_earlier_version_is_replayed_for_its_group(redis_url: str) -> None:
    """Nothing in it names a group, and nothing needs to."""
    keys = GroupKeys("shop", "orders", "book")
    with redis.Redis.from_url(redis_url) as raw:
        letter = {"at": 5, "by": "w1", "id": "5-0", "error": "no", "attempts": 1, "f.v": '{"number":3}'}
        raw.xadd(keys.dead(0), letter)
        async with Backend.open(redis_url, name="test") as backend:
            (found,) = await dead.list_dead(backend, keys, [0])
            await dead.replay_dead(backend, keys, 0, [found.id])
        ((_, fields),) = raw.xrange(keys.events(0))
        assert list(fields.items()) == [(REPLAYED_FOR, b"book"), (b"v", b'{"number":3}')]


def test_no_field_of_a_record_can_be_taken_for_the_mark_of_a_replay() -> None:
    """Other groups would pass over all such records."""
    marked = msgspec.defstruct("Marked", [("group", str)], rename={"group": REPLAYED_FOR.decode()})
    with pytest.raises(ConfigurationError, match="marks a replayed entry"):
        RecordType.of(marked)
