"""Spans of sends, calls, commits and messages, on a real server: what the SDK's exporter in memory gets."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import anyio.to_thread
import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags
from structlog.testing import capture_logs

from streamworker import App, Context, RecordError, Retry, Skip
from streamworker.runtime.tracing.ids import trace_ids
from streamworker.runtime.tracing.spans import LINKS_MAX
from streamworker.testing import local_worker
from tests.helpers import wait_for_async
from tests.ways import WAYS, declare

pytestmark = pytest.mark.anyio
EXPORTER = InMemorySpanExporter()


class Order(msgspec.Struct):
    n: int


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    """A process has one provider, for good; only apps that ask for traces use it."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))


@pytest.fixture(autouse=True)
def nothing_before() -> Iterator[None]:
    EXPORTER.clear()
    yield
    EXPORTER.clear()


class Shop:
    """A traced app with a source and a target."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = App("shop", redis_url=url, tracing=True)
        self.orders = self.app.stream("orders", Order, key="n", partitions=1)
        self.priced = self.app.stream("priced", Order, key="n", partitions=1)


@pytest.fixture
def shop(redis_url: str) -> Shop:
    return Shop(redis_url)


def spans(name: str) -> list[ReadableSpan]:
    """Return the ended spans of a name, by the time of their start."""
    found = [span for span in EXPORTER.get_finished_spans() if span.name == name]
    return sorted(found, key=lambda span: span.start_time or 0)


async def ended(name: str, count: int = 1) -> list[ReadableSpan]:
    """Wait for some spans of a name; a span of a message ends when its target has it."""
    await wait_for_async(lambda: len(spans(name)) >= count, f"{count} spans {name!r} have ended")
    return spans(name)


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


@pytest.mark.parametrize("way", WAYS)
async def test_a_trace_goes_from_a_send_through_a_call_to_the_next_call(shop: Shop, way: str) -> None:
    seen: list[dict[str, str]] = []
    app, orders, priced = shop.app, shop.orders, shop.priced

    def price(batch: Sequence[Order], _: Context) -> Sequence[Order]:
        seen.append(trace_ids())
        return batch

    declare(app, orders, way, price, returns=Order, name="price", into=priced)
    told: list[Any] = []

    @app.processor(priced)
    async def tell(order: Order, ctx: Context) -> None:
        with capture_logs() as logs:
            ctx.log.info("told")
        told.append(logs[0])

    async with local_worker(app, url=shop.url) as worker:
        sent = await orders.send(Order(1), headers={"own": "x"})
        await worker.until_drained()
        (forward,) = await ended("forward priced")
        await ended("commit priced")
    ((send,), (process,), (then,)) = map(spans, ("send orders", "process orders", "process priced"))
    (commit,) = spans("commit orders")
    assert [parent_of(span) for span in (send, process, commit, forward, then)] == [
        None, *map(id_of, (send, process, commit, process)),
    ]  # fmt: skip
    kinds = [span.kind.name for span in (send, process, commit, forward, then)]
    assert kinds == ["PRODUCER", "CONSUMER", "CLIENT", "PRODUCER", "CONSUMER"]
    assert dict(process.attributes or {}) == {
        "messaging.system": "streamworker",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "price",
        "messaging.message.id": str(sent.entry_id),
    }
    assert int(seen[0]["span_id"], 16) == id_of(process)
    assert int(told[0]["span_id"], 16) == id_of(then)


async def test_a_batch_has_links_to_the_sends_of_its_records(shop: Shop) -> None:
    """At most 128. What it sends names the batch, and its commit is its child."""
    app, orders, priced = shop.app, shop.orders, shop.priced
    count = LINKS_MAX + 12

    @app.processor(orders, batch=count, within=60, into=priced)
    async def price(batch: list[Order]) -> list[Order]:
        return batch[:1]

    @app.processor(priced)
    async def tell(order: Order) -> None: ...

    async with local_worker(app, url=shop.url) as worker:
        async with anyio.create_task_group() as tasks:
            for n in range(count):
                tasks.start_soon(orders.send, Order(n))
        await worker.until_drained()
        await ended("commit priced")
    (batch,) = spans("process orders")
    sent = [span.context for span in spans("send orders")]
    assert len(sent) == count
    assert [link.context.span_id for link in batch.links] == [at.span_id for at in sent[:LINKS_MAX] if at]
    assert parent_of(batch) is None
    assert batch.attributes and batch.attributes["messaging.batch.message_count"] == count
    assert parent_of(spans("commit orders")[0]) == parent_of(spans("process priced")[0]) == id_of(batch)


async def test_each_attempt_is_a_span_with_its_error(shop: Shop) -> None:
    """The next attempt has its number. A record that is skipped is no error. The log names both spans."""
    app, orders = shop.app, shop.orders

    @app.processor(orders, errors=Retry(attempts=3, backoff=0.001))
    async def price(order: Order, ctx: Context) -> None:
        if order.n == 2:
            raise Skip("nothing to do")
        if ctx.attempt == 1:
            raise ValueError("not yet")

    with capture_logs() as logs:
        async with local_worker(app, url=shop.url) as worker:
            await orders.send(Order(1))
            await worker.until_drained()
            await orders.send(Order(2))
            await worker.until_drained()
            await ended("commit orders", 2)
    first, second, skipped = spans("process orders")
    assert parent_of(first) == parent_of(second) == id_of(spans("send orders")[0])
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "not yet")
    assert (first.attributes or {})["error.type"] == "ValueError"
    assert [event.name for event in first.events] == ["exception"]
    assert (second.attributes or {})["streamworker.attempt"] == 2
    assert [span.status.status_code for span in (second, skipped)] == [StatusCode.UNSET] * 2
    told = {line["event"]: line for line in logs if line["event"] in {"handler_failed", "record_skipped"}}
    assert int(told["handler_failed"]["span_id"], 16) == id_of(first)
    assert int(told["record_skipped"]["span_id"], 16) == id_of(skipped)


@pytest.mark.parametrize("many", [list, iter], ids=["list", "iterator"])
async def test_each_record_of_many_goes_on_with_the_trace_of_their_send(
    shop: Shop, many: Callable[[list[Order]], Iterable[Order]]
) -> None:
    app, orders = shop.app, shop.orders

    @app.processor(orders)
    async def price(order: Order) -> None: ...

    async with local_worker(app, url=shop.url) as worker:
        assert await orders.send_many(many([Order(n) for n in range(20)])) == 20
        await worker.until_drained()
    (send,) = spans("send orders")
    assert [parent_of(span) for span in spans("process orders")] == [id_of(send)] * 20


async def test_commits_of_several_calls_have_links_to_them(shop: Shop) -> None:
    app, orders = shop.app, shop.orders

    @app.processor(orders)
    async def price(order: Order) -> None: ...

    async with app, anyio.create_task_group() as tasks:
        for n in range(5):
            tasks.start_soon(orders.send, Order(n))
    async with local_worker(app, url=shop.url) as worker:
        await worker.until_drained()
        await ended("commit orders")
    found = {link.context.span_id for span in spans("commit orders") for link in span.links}
    alone = {parent_of(span) for span in spans("commit orders") if span.parent}
    assert found | alone == {id_of(span) for span in spans("process orders")}
    assert len(found | alone) == 5


async def test_every_kind_of_send_has_a_span(shop: Shop) -> None:
    """Each is a child of the span in which it was called, also from a thread. A program's headers stay."""
    app, orders = shop.app, shop.orders
    seen: list[str | None] = []

    @app.processor(orders)
    async def note(order: Order, ctx: Context) -> None:
        seen.append(ctx.header("traceparent"))

    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with app:
        with trace.get_tracer("test").start_as_current_span("request") as request:
            await orders.send(Order(0), id="a")
            await orders.send(Order(1), timeout=60, headers={"traceparent": own})
            await orders.send_many([Order(2), Order(3)])
            await orders.schedule(Order(4), id="b", after="1 ms")
            await anyio.to_thread.run_sync(orders.sync.send, Order(5))
            with pytest.raises(RecordError):
                await orders.send(Order(6), headers={"big": "x" * 2_000_000})
        app.close()
        async with local_worker(app, url=shop.url):
            await wait_for_async(lambda: len(seen) == 6, "all records were handled")
            await ended("process orders", 6)
    at = request.get_span_context()
    sends = [*spans("send orders"), *spans("schedule orders")]
    assert len(sends) == 6
    assert {parent_of(span) for span in sends} == {at.span_id}
    assert [span.status.status_code for span in sends].count(StatusCode.ERROR) == 1
    assert all(seen)
    assert own in seen
    (many,) = [span for span in sends if "messaging.batch.message_count" in (span.attributes or {})]
    assert (many.attributes or {})["messaging.batch.message_count"] == 2


async def test_what_is_not_sampled_makes_no_span_and_says_so_along_the_chain(shop: Shop) -> None:
    """The sampler of the SDK decides where the trace begins."""
    app, orders, priced = shop.app, shop.orders, shop.priced
    seen: list[str | None] = []

    @app.processor(orders, into=priced)
    async def price(order: Order) -> Order:
        return order

    @app.processor(priced)
    async def tell(order: Order, ctx: Context) -> None:
        seen.append(ctx.header("traceparent"))

    at = SpanContext(trace_id=7, span_id=8, is_remote=False, trace_flags=TraceFlags(0))
    async with local_worker(app, url=shop.url) as worker:
        with trace.use_span(NonRecordingSpan(at)):
            await orders.send(Order(1))
        await worker.until_drained()
    assert seen[0] is not None
    assert seen[0].startswith(f"00-{7:032x}-")
    assert int(seen[0][-2:], 16) % 2 == 0
    assert EXPORTER.get_finished_spans() == ()


PROGRAM = """
import sys, anyio, msgspec
from streamworker import App
from streamworker.runtime.tracing.ids import trace_ids
from streamworker.testing import local_worker

class Order(msgspec.Struct):
    n: int

async def main(asks: bool) -> None:
    app = App("shop", tracing=asks)
    orders = app.stream("orders", Order, partitions=1)

    @app.processor(orders)
    async def note(order: Order) -> None: ...

    async with local_worker(app) as worker:
        await orders.send(Order(1))
        await worker.until_drained()
    print(asks, trace_ids(), "streamworker.runtime.tracing.spans" in sys.modules)

anyio.run(main, False)
anyio.run(main, True)
"""


def test_without_a_provider_nothing_is_traced_and_unasked_nothing_is_imported() -> None:
    """Who asks is told once that nothing is traced."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    unasked, told, asked = (line for line in ran.stdout.splitlines() if "{}" in line or "tracing" in line)
    assert (unasked, asked) == ("False {} False", "True {} False")
    assert "tracing_is_off" in told
