"""A stream may have a codec of the program's own, such as Protobuf, which other programs read and write."""

from typing import Any

import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from streamworker import App, ConfigurationError, RecordError
from streamworker.testing import local_worker
from tests.raw import opened

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    customer: str
    amount: float


def _message(name: str) -> Any:
    """Make what protoc makes of ``message NAME { string customer = 1; double amount = 2; }``."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", syntax="proto3")
    message = file.message_type.add(name=name)
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="customer", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="amount", number=2, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


OrderMessage = _message("Order")


class Protobuf:
    """Holds orders as messages of Protocol Buffers."""

    name = "protobuf"

    def encode(self, record: Order) -> bytes:
        written: bytes = OrderMessage(customer=record.customer, amount=record.amount).SerializeToString()
        return written

    def decode(self, payload: bytes) -> Order:
        message = OrderMessage.FromString(payload)
        return Order(message.customer, message.amount)


async def test_records_go_through_a_codec_of_the_program(redis_url: str) -> None:
    """Alone and many in one entry, which batches cut: all arrive, in their order."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=1, codec=Protobuf())
    seen: list[Order] = []

    @app.processor(orders, batch=7)
    async def audit(batch: list[Order]) -> None:
        seen.extend(batch)

    async with local_worker(app, url=redis_url) as worker:
        await orders.send(Order("ann", 0.5))
        await orders.send_many([Order("bob", float(n)) for n in range(40)])
        await worker.until_drained()

    assert seen == [Order("ann", 0.5), *(Order("bob", float(n)) for n in range(40))]


async def test_another_program_writes_a_payload_of_the_codec_in_the_field_v(emptied: str) -> None:
    app = App("shop", redis_url=emptied)
    orders = app.stream("orders", Order, partitions=1, codec=Protobuf())
    seen: list[Order] = []

    @app.processor(orders)
    async def audit(order: Order) -> None:
        seen.append(order)

    async with local_worker(app, url=emptied) as worker:
        with opened(emptied) as server:
            server.xadd("sw:{shop.orders.0}:events", {"v": OrderMessage(customer="cid").SerializeToString()})
        await worker.until_drained()

    assert seen == [Order("cid", 0.0)]


async def test_a_stream_that_is_declared_with_another_codec_is_refused(redis_url: str) -> None:
    theirs, mine = App("shop", redis_url=redis_url), App("shop", redis_url=redis_url)
    async with theirs, mine:
        await theirs.stream("orders", Order, partitions=1, codec=Protobuf()).send(Order("ann", 1.0))
        with pytest.raises(
            ConfigurationError, match="is written as 'protobuf' in Redis and as 'json' in the app"
        ):
            await mine.stream("orders", Order, partitions=1).send(Order("ann", 1.0))


async def test_what_a_codec_does_wrong_is_told_by_its_name(redis_url: str) -> None:
    class Wrong(Protobuf):
        def encode(self, record: Order) -> Any:
            return record.customer

    app = App("shop", redis_url=redis_url)
    async with app:
        with pytest.raises(RecordError, match="Codec 'protobuf' returned a str for a record"):
            await app.stream("orders", Order, partitions=1, codec=Wrong()).send(Order("ann", 1.0))
    wrong: list[Any] = ["jsn", object(), type("Named", (Protobuf,), {"name": "json"})()]
    for codec in wrong:
        with pytest.raises(ConfigurationError, match="Stream 'wrong' has"):
            app.stream("wrong", Order, codec=codec)
