"""The metrics of workers and senders: each is provoked on a real server, and sums are exact."""

import ast
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from docs.logevents import PACKAGE
from streamworker import App, Archive, DeadLetter, Retry, Window
from streamworker.archive.store import FileStore
from streamworker.errors import ArchiveUnavailable
from streamworker.metrics import measure
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime.meters import ERRORS_MAX, METERS, OTHER
from tests.helpers import wait_for_async
from tests.raw import opened
from tests.runtime.workbench import Order

pytestmark = pytest.mark.anyio


class Seen(msgspec.Struct):
    user: str
    at: datetime


LOSSES = {"streamworker_records_lost_total", "streamworker_sends_lost_total"}
READ = "streamworker_records_from_archive_total"
ARCHIVED = {name for name in METERS if name.startswith("streamworker_archive_")}


class Measured:
    """An app whose metrics have a registry of their own."""

    def __init__(self, redis_url: str, **settings: Any) -> None:
        self.app = App("shop", redis_url=redis_url, **settings)
        self.registry = CollectorRegistry()
        measure(self.app, self.registry)

    def value(self, name: str, **labels: str) -> float:
        """Return a value, or what a histogram has counted; 0 if there is none."""
        ending = "_count" if METERS[name].kind == "histogram" else ""
        return self.registry.get_sample_value(name + ending, {"app": "shop", **labels}) or 0.0

    async def until(self, least: float, name: str, **labels: str) -> None:
        """Wait until a value is that high."""
        await wait_for_async(lambda: self.value(name, **labels) >= least, f"{name} is {least}")


def values(its: Measured) -> dict[str, float]:
    """Return the values of all metrics, over all labels: of a histogram how much it has counted."""
    found: defaultdict[str, float] = defaultdict(float)
    for metric in its.registry.collect():
        for sample in metric.samples:
            if not sample.name.endswith(("_bucket", "_sum", "_created")):
                found[sample.name.removesuffix("_count")] += sample.value
    return found


async def test_each_metric_of_the_table_is_provoked(redis_url: str) -> None:
    """Failures, a retry, a dead letter, a duplicate, a wait, a timer, a fenced commit, a late record."""
    its = Measured(redis_url, max_processing_time_ms=1_000)
    orders = its.app.stream("orders", Order, partitions=1, max_records=10)
    full = its.app.stream("full", Order, partitions=1, max_records=1)
    lags: list[float] = []
    lock = GroupKeys("shop", "orders", "price").lock(0)

    @its.app.processor(
        orders, into=full, errors={ValueError: Retry(attempts=2, backoff=0.001, then=DeadLetter())}
    )
    async def price(order: Order) -> Order | None:
        if order.number == 1:
            raise ValueError("no")
        if order.number == 2:
            while (lag := its.value("streamworker_event_loop_lag_seconds")) < 0.01:
                time.sleep(0.001)  # It blocks the event loop until that is seen.
            lags.append(lag)
        if order.number == 3 and not its.value("streamworker_commits_fenced_total", processor="price"):
            with opened(redis_url) as redis:
                redis.hincrby(lock, "epoch", 1)
        return order if order.number < 4 else None

    @its.app.timer(every="100 ms")
    async def tick() -> None: ...

    seen = its.app.stream("seen", Seen, key="user", partitions=1)

    @its.app.window(seen, every="1 second", by="at", late=0)
    def per_second(total: int | None, event: Seen, window: Window) -> int:
        return (total or 0) + 1

    async with its.app:
        await seen.send_many([Seen("ann", datetime(2026, 1, 1, second=n, tzinfo=UTC)) for n in (9, 1)])
        for _ in range(2):
            await orders.send(Order(0), id="once")
            await orders.schedule(Order(0), id="later", after="1 hour")
        zero = its.registry.get_sample_value(
            "streamworker_sends_waited_total", {"app": "shop", "stream": "orders"}
        )
        assert zero == 0, "a rate needs a value before the first"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(orders.send_many, [Order(number) for number in range(1, 31)])
            await its.until(1, "streamworker_sends_total", stream="orders")
            async with its.app.worker(name="w1"):
                await its.until(31, "streamworker_records_total", processor="price")
                await its.until(1, "streamworker_timer_runs_total", timer="tick")
                await its.until(1, "streamworker_records_late_total", processor="per_second")
                found = values(its)
    assert set(found) == set(METERS) - ARCHIVED
    found["streamworker_event_loop_lag_seconds"] = max(lags)
    assert {name for name in METERS if not found[name] > 0} == LOSSES | ARCHIVED | {READ}
    assert its.value("streamworker_records_total", processor="price") == 31, (
        "none twice, though one was fenced"
    )
    assert its.value("streamworker_failures_total", processor="price", error="ValueError") >= 2
    assert its.value("streamworker_retries_total", processor="price") >= 1
    assert its.value("streamworker_records_dead_total", processor="price") == 1
    assert its.value("streamworker_sends_duplicate_total", stream="orders") == 2
    assert its.value("streamworker_sends_total", stream="orders") == 31
    assert 20 <= its.value("streamworker_sends_waited_total", stream="orders") <= 30


async def test_what_is_archived_and_read_again_is_measured(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a store that does not answer, and a put whose answer was lost, so that its repeat is refused."""
    its = Measured(redis_url)
    archive = Archive(str(tmp_path), every="100 ms", after="0 seconds")
    orders = its.app.stream("orders", Order, partitions=1, archive=archive)
    put_new, tries = FileStore.put_new, []

    def put(store: FileStore, name: str, body: bytes) -> bool:
        tries.append(name) if name.startswith("partition=") else None
        if len(tries) == 1:
            raise ArchiveUnavailable("The store is away.")
        return put_new(store, name, body) and len(tries) != 2

    monkeypatch.setattr(FileStore, "put_new", put)
    async with its.app:
        async with its.app.worker(name="w1"):
            await orders.send_many([Order(number) for number in range(30)])
            await its.until(1, "streamworker_archive_puts_refused_total", stream="orders")
            await orders.send_many([Order(number) for number in range(30)])
            await its.until(30, "streamworker_archive_records_total", stream="orders")
        with opened(redis_url) as redis:
            redis.xtrim(GroupKeys("shop", "orders", "late").events(0), maxlen=0, approximate=False)

        @its.app.processor(orders, batch=100)
        async def late(batch: list[Order]) -> None: ...

        async with its.app.worker(name="w1"):
            await its.until(60, READ, processor="late")
    found = values(its)
    assert {name for name in {*ARCHIVED, READ} if not found[name] > 0} == set()
    assert found[READ] == 60 and found["streamworker_archive_segments_total"] == 1


async def test_what_redis_lost_is_counted_from_0_on_and_once(redis_url: str) -> None:
    """By the worker that had committed it, and by the sender; both go on."""
    its = Measured(redis_url)
    orders = its.app.stream("orders", Order, partitions=1)

    @its.app.processor(orders)
    async def price(order: Order) -> None: ...

    lost, rolled_back = "streamworker_records_lost_total", "partition_rolled_back"
    async with its.app, its.app.worker(name="w1"):
        await orders.send_many([Order(number) for number in range(20)])
        await its.until(20, "streamworker_records_total", processor="price")
        for event in METERS[lost].events:
            labels = {"app": "shop", "processor": "price", "event": event}
            assert its.registry.get_sample_value(lost, labels) == 0, "a rate needs a value before the first"
        with opened(redis_url) as redis:
            redis.flushall()
        await orders.send(Order(20))
        await its.until(20, lost, processor="price", event=rolled_back)
        await its.until(21, "streamworker_records_total", processor="price")
        await its.app.producer(orders).verify()
        told = its.app.producer(orders).lost
    assert its.value(lost, processor="price", event=rolled_back) == 20
    assert (
        its.value("streamworker_sends_lost_total", stream="orders") == sum(each.records for each in told) > 0
    )


def test_each_loss_that_is_logged_is_counted() -> None:
    """``tell_lost`` is the one way to tell of it, and its events are those that the metrics begin with 0."""
    calls = (
        call
        for path in PACKAGE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "tell_lost"
    )
    told = {ast.literal_eval(call.args[1]) for call in calls}
    assert told == {"sends_lost", *METERS["streamworker_records_lost_total"].events}


def test_classes_of_errors_are_bounded() -> None:
    """A program that makes classes as it runs makes no series without end, and a page that can be read."""
    app = App("shop")
    orders = app.stream("orders", Order)

    @app.processor(orders)
    async def price(order: Order) -> None: ...

    registry = CollectorRegistry()
    measure(app, registry)
    assert app.observer is not None
    for number in range(ERRORS_MAX + 7):
        app.observer.failed(app.registry.processors["price"], type(f"Error{number}\n", (Exception,), {})())
    labels = {"app": "shop", "processor": "price", "error": OTHER}
    assert registry.get_sample_value("streamworker_failures_total", labels) == 7
    assert b"Error49" in generate_latest(registry)


def test_an_app_is_measured_once_however_often_it_is_asked_for() -> None:
    """Two apps share the registry of a process. Without a provider nothing of OpenTelemetry is told."""
    first, second, registry = App("first"), App("second"), CollectorRegistry()
    for app in (first, second, first):
        measure(app, registry)
    assert first.observer is not None and second.observer is not None
    assert len(first.observer.sinks) == 1
    assert first.observer.sinks == second.observer.sinks


async def test_a_meter_provider_of_opentelemetry_gets_the_same_metrics(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are the same, and the SDK takes the bounds."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", lambda: provider)
    its = Measured(redis_url)
    orders = its.app.stream("orders", Order, partitions=1)

    @its.app.processor(orders, into=orders)
    async def price(order: Order) -> None: ...

    await orders.send(Order(1))
    async with its.app.worker():
        await its.until(1, "streamworker_records_total", processor="price")
        read = reader.get_metrics_data()
    assert read is not None
    (resource,) = read.resource_metrics
    points: dict[str, Any] = {
        metric.name: metric.data.data_points[0]
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert set(points) == {name for name in METERS if name in values(its)}
    age = points["streamworker_record_age_seconds"]
    assert (age.count, age.attributes) == (1, {"app": "shop", "processor": "price"})
    assert tuple(age.explicit_bounds) == METERS["streamworker_record_age_seconds"].bounds
    assert points["streamworker_sends_total"].value == 1
    provider.shutdown()
