"""What a processor sends to other streams: where it goes, in which order, and what holds it up."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest

from streamworker import App, Context, DeadLetter
from streamworker.cli.doctor.groups import app_checks
from streamworker.core.data.outbox import Target
from streamworker.declaring.stream import Stream
from streamworker.redisio.admin.outboxes import accept_target, find_diverged
from streamworker.redisio.data.outbox import Heads, heads_of
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.testing import local_worker
from tests.helpers import wait_for_async
from tests.raw import opened, records_of

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    n: int
    customer: str = "ann"


class Priced(msgspec.Struct):
    n: int
    sku: str | None = None


class Alert(msgspec.Struct):
    n: int


@dataclass
class Shop:
    """An app with a source and two targets."""

    app: App
    orders: Stream[Order]
    priced: Stream[Priced]
    alerts: Stream[Alert]


def shop(*, sources: int = 1, codec: Any = "json", **priced: Any) -> Shop:
    app = App("shop")
    return Shop(
        app,
        app.stream("orders", Order, key="customer", partitions=sources),
        app.stream("priced", Priced, key="sku", partitions=4, codec=codec, **priced),
        app.stream("alerts", Alert, partitions=3),
    )


async def test_lists_go_in_order_and_none_sends_nothing() -> None:
    """Also of a function that takes one record."""
    its = shop()

    @its.app.processor(its.orders, into=its.priced)
    async def price(order: Order) -> list[Priced]:
        return [Priced(10 * order.n + place, "one") for place in range(order.n)]

    async with local_worker(its.app) as worker:
        await its.orders.send_many([Order(n) for n in (2, 0, 3)])
        await worker.until_drained()
        assert [row.n for row in await worker.sent(its.priced)] == [20, 21, 30, 31, 32]
        assert [row["n"] for row in await worker.rows(price)] == [20, 21, 30, 31, 32]


async def test_rows_go_by_their_exact_type_and_rows_without_a_key_in_turn() -> None:
    its = shop()

    @its.app.processor(its.orders, batch=3, into={Priced: its.priced, Alert: its.alerts})
    async def price(batch: list[Order]) -> list[Priced | Alert]:
        found: list[Priced | Alert] = []
        for order in batch:
            found += [Priced(order.n, "one"), Alert(order.n)]
        return found

    async with local_worker(its.app) as worker:
        for n in range(7):
            await its.orders.send(Order(n))
        await worker.until_drained()
        assert [row.n for row in await worker.sent(its.priced)] == list(range(7))
        keys = StreamKeys("shop", "alerts")
        lengths = [await worker._backend.execute("XLEN", keys.events(p)) for p in range(3)]
    assert sorted(lengths) == [2, 2, 3]


async def test_a_record_beside_keeps_its_headers_and_goes_with_its_commit_alone() -> None:
    """A call that fails sends nothing, and what it sent is not sent by the next attempt besides."""
    its = shop()

    @its.app.processor(its.orders, errors=DeadLetter())
    async def price(order: Order, ctx: Context) -> None:
        ctx.send(its.alerts, Alert(order.n), headers={"why": "because"})
        if order.n == 1:
            raise ValueError

    seen: list[tuple[int, str | None]] = []

    @its.app.processor(its.alerts)
    async def tell(alert: Alert, ctx: Context) -> None:
        seen.append((alert.n, ctx.header("why")))

    async with local_worker(its.app) as worker:
        await its.orders.send_many([Order(0), Order(1), Order(2)])
        await worker.until_drained()
    assert sorted(seen) == [(0, "because"), (2, "because")]


class Photo(NamedTuple):
    data: bytes
    n: int


@pytest.mark.parametrize("codec", ["json", "msgpack", "fields", "arrow"])
async def test_a_target_gets_records_in_its_own_codec(codec: Any) -> None:
    """One, or many in an entry, as its producers write them.

    A named tuple that begins with bytes is not taken for a payload with headers.
    """
    its = shop(codec=codec)
    photos = its.app.stream("photos", Photo, partitions=1, codec=codec)

    @its.app.processor(its.orders, batch=100, into={Priced: its.priced, Photo: photos})
    async def price(batch: list[Order]) -> list[Priced | Photo]:
        return [*(Priced(order.n, f"s{order.n % 9}") for order in batch), Photo(b"jpeg", batch[0].n)]

    seen: list[int] = []
    shown: list[Photo] = []

    @its.app.processor(its.priced)
    async def read(row: Priced) -> None:
        seen.append(row.n)

    @its.app.processor(photos)
    async def show(photo: Photo) -> None:
        shown.append(photo)

    async with local_worker(its.app) as worker:
        await its.orders.send_many([Order(n) for n in range(300)])
        await its.orders.send(Order(300))
        await worker.until_drained()
    assert sorted(seen) == list(range(301))
    assert (b"jpeg", 300) in shown and all(type(photo) is Photo for photo in shown)


async def test_a_row_that_cannot_be_sent_fails_its_call() -> None:
    """It becomes a dead letter by itself, and the others arrive."""
    its = shop()

    @its.app.processor(its.orders, into={Alert: its.alerts}, forward=False, errors=DeadLetter())
    async def price(order: Order) -> Any:
        return Alert(order.n) if order.n else Priced(order.n)

    async with local_worker(its.app) as worker:
        await its.orders.send_many([Order(n) for n in (0, 1)])
        await worker.until_drained()
        (letter,) = await worker.dead_letters(price)
        assert [alert.n for alert in await worker.sent(its.alerts)] == [1]
    assert "into= names no stream for that type" in letter.error


@pytest.mark.parametrize("codec", ["json", "msgpack", "fields", "arrow"])
async def test_a_row_that_no_consumer_can_take_is_a_dead_letter_of_who_made_it(codec: Any) -> None:
    """As ``send`` refuses it: two streams on, nobody could mend it. ``validate=False`` sends it."""
    its = shop(codec=codec)
    wrong: Any = "many"

    @its.app.processor(its.orders, into=its.priced)
    async def price(order: Order, ctx: Context) -> Priced:
        if order.n == 1:
            ctx.send(its.priced, Priced(wrong))
        return Priced(order.n or wrong)

    seen: list[int] = []

    @its.app.processor(its.priced)
    async def read(row: Priced) -> None:
        seen.append(row.n)

    async with local_worker(its.app) as worker:
        await its.orders.send_many([Order(n) for n in range(4)])
        await worker.until_drained()
        letters = await worker.dead_letters(price)
    assert sorted(seen) == [2, 3]
    assert len(letters) == 2 and all("Priced" in letter.error for letter in letters)


async def test_a_full_target_holds_up_its_source_and_says_which_and_why(redis_url: str) -> None:
    """First the reason is shown, then commits wait; and all arrives once the slow group goes on."""
    app = App("shop", redis_url=redis_url, outbox_messages_max=3)
    orders = app.stream("orders", Order, key="customer", partitions=1)
    alerts = app.stream("alerts", Alert, partitions=1, max_records=4)
    gate = anyio.Event()

    @app.processor(orders, into=alerts, forward=False)
    async def price(order: Order) -> Alert:
        return Alert(order.n)

    seen: list[int] = []

    @app.processor(alerts, batch=1)
    async def tell(batch: list[Alert]) -> None:
        await gate.wait()
        seen.extend(alert.n for alert in batch)

    async with local_worker(app, url=redis_url) as worker:
        for n in range(20):
            await orders.send(Order(n))
        await worker.until(
            lambda now: (
                "partition 0 of alerts is full because tell lags"
                in now.processors["price"].partitions[0].reason
            )
        )
        shown = await worker.until(
            lambda now: now.processors["price"].partitions[0].reason.startswith("outbox full: partition 0")
        )
        assert shown.processors["price"].outbox >= 3
        gate.set()
        await worker.until_drained()
        assert (await worker.snapshot()).processors["price"].partitions[0].reason == ""
    assert seen == list(range(20))


async def _chain(worker: Any, its: Shop, numbers: range) -> None:
    for n in numbers:
        await its.orders.send(Order(n))
    await worker.until_drained()


def _alerting(redis_url: str) -> Shop:
    its = shop()

    @its.app.processor(its.orders, into=its.alerts, forward=False)
    async def price(order: Order) -> Alert:
        return Alert(order.n)

    return its


async def test_a_target_that_went_back_is_told_and_counted_and_the_chain_goes_on(redis_url: str) -> None:
    """What it had confirmed and lost is gone from the source, too; nothing comes twice."""
    its = _alerting(redis_url)
    keys, target = GroupKeys("shop", "orders", "price"), StreamKeys("shop", "alerts")
    async with local_worker(its.app, url=redis_url) as worker:
        await _chain(worker, its, range(30))
        with opened(redis_url) as client:
            for key in (target.events(1), target.taken(1)):
                client.delete(key)
        await _chain(worker, its, range(30, 60))
    with opened(redis_url) as client:
        heads = heads_of([part for pair in client.hgetall(keys.outbox(0).heads).items() for part in pair])
        arrived = [
            msgspec.json.decode(fields[b"v"])["n"]
            for p in range(3)
            for fields in records_of(client, target.events(p))
        ]
    assert heads.lost == {(Target("alerts", 1), 1): 10}
    assert len(arrived) == len(set(arrived)) == 50
    assert set(range(30, 60)) <= set(arrived)
    async with Backend.open(redis_url, name="doctor") as backend:
        told = {check.name: check for check in await app_checks(backend, its.app, "shop:app")}["outbox price"]
    assert (told.verdict, told.found) == ("warn", "targets lost 10 records that they had confirmed, 1 times")


def test_records_that_a_target_lost_in_two_failovers_count_once() -> None:
    """Beside those of other partitions, and of other ranges."""
    one, other = Target("alerts", 0), Target("alerts", 1)
    lost = {(one, 6): 10, (one, 4): 12, (one, 5): 7, (one, 20): 20, (other, 1): 3, (other, 5): 5}
    assert Heads("", {}, lost).lost_records == 9 + 1 + 3 + 1


async def test_a_source_that_went_back_sends_nothing_to_who_knows_more(redis_url: str) -> None:
    """Which of its records are there already cannot be told: a person decides, and others go on."""
    its = _alerting(redis_url)
    keys, target = GroupKeys("shop", "orders", "price"), StreamKeys("shop", "alerts")
    async with local_worker(its.app, url=redis_url) as worker:
        await _chain(worker, its, range(30))
    with opened(redis_url) as client:
        heads = client.hgetall(keys.outbox(0).heads)
        client.hset(keys.outbox(0).heads, mapping={b"alerts/1": b"4-0123456789ab", b"#": heads[b"#"]})
    async with local_worker(its.app, url=redis_url) as worker:
        for n in range(30, 60):
            await its.orders.send(Order(n))
        shown = await worker.until(
            lambda now: "partition 1 of alerts has records" in now.processors["price"].partitions[0].reason
        )
        assert "streamworker doctor" in shown.processors["price"].partitions[0].reason

        def lengths() -> list[int]:
            with opened(redis_url) as client:
                return [len(records_of(client, target.events(p))) for p in range(3)]

        await wait_for_async(lambda: lengths() == [20, 10, 20], "the others have all")
        now = await worker.until(lambda now: now.processors["price"].lag == 0)
        assert now.processors["price"].outbox > 0
    assert lengths() == [20, 10, 20]

    async with Backend.open(redis_url, name="doctor") as backend:
        (found,) = await find_diverged(backend, keys, 1)
        told = {check.name: check for check in await app_checks(backend, its.app, "shop:app")}["outbox price"]
        assert (found.to, found.stands.records, found.since.records) == (Target("alerts", 1), 10, 4)
        assert told.verdict == "fail" and "--accept-targets price" in told.remedy
        assert await accept_target(backend, keys, found)
        assert not await accept_target(backend, keys, found)
    async with local_worker(its.app, url=redis_url) as worker:
        await worker.until_drained()
    assert lengths() == [20, 20, 20]
