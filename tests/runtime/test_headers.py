"""Headers of records that share entries reach every kind of function, a dead letter, and its replay."""

from collections.abc import Sequence
from functools import partial

import anyio
import msgspec
import pytest

from streamworker import App, Context, DeadLetter
from streamworker.redisio.data import dead
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.testing import local_worker
from tests.raw import opened, records_in
from tests.ways import WAYS, declare

pytestmark = pytest.mark.anyio

KEYS = GroupKeys("shop", "orders", "book")
EVENTS = StreamKeys("shop", "orders").events(0)


class Order(msgspec.Struct):
    """What is sent."""

    number: int


class Desk:
    """Notes what functions see; order 7 fails until it is cured."""

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, str]] = {}
        self.is_cured = False

    def see(self, orders: Sequence[Order], ctx: Context) -> Sequence[Order]:
        if not self.is_cured and any(order.number == 7 for order in orders):
            raise ValueError("not 7")
        self.seen |= {order.number: its for order, its in zip(orders, ctx.headers, strict=True)}
        return ()


@pytest.mark.parametrize("way", WAYS)
async def test_each_record_has_its_own_headers_and_so_has_its_dead_letter(redis_url: str, way: str) -> None:
    """Batches cut the entries; what is replayed has its headers again."""
    app, desk = App("shop", redis_url=redis_url), Desk()
    orders = app.stream("orders", Order, partitions=1, key="number")
    declare(app, orders, way, desk.see, name="book", errors=DeadLetter())
    sent = {n: {"trace": f"t{n}", "raw": "ä"} if n % 3 else {} for n in range(60)}
    async with app, anyio.create_task_group() as tasks:
        for n, headers in sent.items():
            tasks.start_soon(partial(orders.send, Order(n), headers=headers))
    with opened(redis_url) as raw:
        assert raw.xlen(EVENTS) < 10
        found = [fields.get(b"h.trace") for _, fields in records_in(raw, EVENTS)]
    assert found == [f"t{n}".encode() if n % 3 else None for n in sent]
    async with Backend.open(redis_url, name="test") as backend, local_worker(app, url=redis_url) as worker:
        await worker.until_drained()
        (letter,) = await dead.list_dead(backend, KEYS, [0])
        assert letter.fields == {b"v": b'{"number":7}', b"h.trace": b"t7", b"h.raw": "ä".encode()}
        assert desk.seen == {n: headers for n, headers in sent.items() if n != 7}
        desk.is_cured = True
        await dead.replay_dead(backend, KEYS, 0, [letter.id])
        await worker.until_drained()
    assert desk.seen == sent


async def test_an_entry_that_cannot_be_read_is_one_dead_letter_that_says_why(redis_url: str) -> None:
    """A copy of an entry under another id; all records before and after it are handled."""
    app, desk = App("shop", redis_url=redis_url), Desk()
    desk.is_cured = True
    orders = app.stream("orders", Order, partitions=1, key="number")
    declare(app, orders, "batch", desk.see, name="book", errors=DeadLetter())
    async with app, Backend.open(redis_url, name="test") as backend:
        await orders.send_many([Order(n) for n in range(20)])
        with opened(redis_url) as raw:
            ((_, fields),) = raw.xrange(EVENTS)
            copied = raw.xadd(EVENTS, fields).decode()
        async with local_worker(app, url=redis_url) as worker:
            await worker.until_drained()
            await orders.send_many([Order(n) for n in range(20, 40)])
            await worker.until_drained()
        (letter,) = await dead.list_dead(backend, KEYS, [0])
    first = fields[b"sw:first"].decode()
    assert (
        f"The entry {copied} holds many records and cannot be read: it has 20 records from id {first}"
        in letter.error
    )
    assert (str(letter.entry_id), letter.fields) == (copied, fields)
    assert sorted(desk.seen) == list(range(40))
