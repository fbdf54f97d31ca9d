"""Whatever a decorator accepts can be run; what it cannot run, it refuses by name when it is declared."""

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from streamworker import App, ConfigurationError, Context, DeadLetter, Records
from streamworker.testing import local_worker
from tests.callables import KINDS, PLACES, Client, Order, Place, made, outcome, passed_on
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio

PROCESSORS = [place for place in PLACES if not place.label.startswith("`@")]
TIMERS = [place for place in PLACES if "timer" in place.label]
AROUND = [place for place in PLACES if place.yields]
LETTER = "which nothing takes"


def _declared(place: Place, app: App) -> dict[str, tuple[str, Any, list[Any]]]:
    """Declare each kind of callable at a place that does not refuse it; return what it is, and its notes."""
    stream = app.stream("orders", Order, key="customer", partitions=1)
    found: dict[str, tuple[str, Any, list[Any]]] = {}
    for number, kind in enumerate(KINDS):
        noted: list[Any] = []
        if (what := outcome(kind, place)) in ("runs", "fails"):
            function = made(kind, place, noted)
            if isinstance(function, functools.partial) or hasattr(function, "__name__"):
                function = _named(function, f"f{number}")
            found[f"f{number}"] = what, place.declare(app, stream, function, f"f{number}"), noted
    return found


def _named(function: Any, name: str) -> Any:
    """Give a function a name of its own, where it can have one."""
    inner = (
        function.func if isinstance(function, functools.partial) else getattr(function, "__func__", function)
    )
    with suppress(AttributeError):
        inner.__name__ = name
    return function


def _has_failed(logs: list[Any], timer: str) -> bool:
    return any(
        each["event"] == "timer_failed" and each["timer"] == timer and LETTER in each["error"]
        for each in logs
    )


def test_each_cell_that_is_refused_names_the_callable_and_the_remedy() -> None:
    """At import: nothing is started, and nothing is declared."""
    refused = 0
    for kind in KINDS:
        for place in PLACES:
            if outcome(kind, place) != "refused":
                continue
            app = App("shop", redis_url="redis://localhost:1/0")
            stream = app.stream("orders", Order, key="customer", partitions=1)
            with pytest.raises(ConfigurationError) as error:
                place.declare(app, stream, made(kind, place, []), "it")
            noun = re.match(
                r"(Processor|Timer|Resource|Middleware|Pipeline) ('\w+' |is a lambda)", str(error.value)
            )
            assert noun, str(error.value)
            assert error.value.remedy
            refused += 1
    assert refused > len(KINDS)


@pytest.mark.parametrize("place", PROCESSORS, ids=lambda place: place.label)
async def test_each_callable_that_a_processor_takes_runs_for_each_record_or_fails_it(place: Place) -> None:
    """None is committed without a call: its body ran, or the record is a dead letter that says why."""
    app = App("shop")
    found = _declared(place, app)
    async with local_worker(app) as worker:
        await app.registry.streams["orders"].send_many([Order("ann"), Order("bob"), Order("ann")])
        await worker.until_drained()
        for name, (what, _, noted) in found.items():
            letters = await worker.dead_letters(name)
            if what == "runs":
                assert noted, name
                assert not letters, name
            else:
                assert len(letters) == 3, name
                assert all(LETTER in letter.error for letter in letters), letters


@pytest.mark.parametrize("place", TIMERS, ids=lambda place: place.label)
async def test_each_callable_that_a_timer_takes_runs_or_its_partition_says_why(place: Place) -> None:
    """A timer that fails is tried again, and is not done."""
    app = App("shop")
    found = _declared(place, app)
    with capture_logs() as logs:
        async with local_worker(app) as worker:
            for what, timer, noted in sorted(found.values(), key=lambda each: each[0], reverse=True):
                before = len(noted)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(worker.run, timer)
                    if what == "fails":
                        await wait_for_async(partial(_has_failed, logs, timer.name), "the timer has failed")
                        tasks.cancel_scope.cancel()
                assert (len(noted) > before) == (what == "runs"), timer.name


@pytest.mark.parametrize("place", AROUND, ids=lambda place: place.label)
async def test_each_callable_that_makes_or_surrounds_something_runs(place: Place) -> None:
    """A resource is made for a function that takes it; middleware is around its call."""
    app = App("shop")
    found = _declared(place, app)
    calls: list[object] = []

    async def audit(order: Order) -> None:
        calls.append(order)

    for name, (_, resource, _) in found.items():
        if place.yields is Client:

            async def take(order: Order, client: Client) -> None:
                calls.append(client)

            take.__annotations__["client"] = Annotated[Client, resource]
            app.processor(app.registry.streams["orders"], name=f"take_{name}")(take)
    if place.yields is not Client:
        app.processor(app.registry.streams["orders"])(audit)
    async with local_worker(app) as worker:
        await app.registry.streams["orders"].send(Order("ann"))
        await worker.until_drained()
    assert len(calls) == (len(found) if place.yields is Client else 1)
    assert all(noted for _, _, noted in found.values())


def test_each_callable_that_a_pipeline_takes_is_called_with_the_rows() -> None:
    """Spark's driver calls it once; what returns no DataFrame is an error of its start."""
    place = PLACES[-1]
    app = App("shop", redis_url="redis://localhost:1/0")
    for name, (what, _, noted) in _declared(place, app).items():
        result = app.registry.pipelines[name].function(object())
        assert bool(noted) == (what == "runs")
        if asyncio.iscoroutine(result):
            result.close()


# -- what stands around the kinds -----------------------------------------------------------------


async def test_a_plain_decorator_keeps_the_context_the_timeout_and_the_rows_of_an_async_function() -> None:
    """The context is open until the awaited function has returned, and its timeout cancels it."""
    app = App("shop")
    orders = app.stream("orders", Order, key="customer", partitions=1)
    begun: list[Order] = []
    cancelled: list[Order] = []

    async def count(order: Order, ctx: Context) -> Order:
        await asyncio.sleep(0)
        ctx.state[order.customer] = seen = ctx.state.get(order.customer, 0) + 1
        return Order(f"{order.customer}{seen}")

    async def hang(order: Order) -> None:
        begun.append(order)
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(order)

    counting = app.processor(orders)(passed_on(count))
    hanging = app.processor(orders, timeout=0.5, errors=DeadLetter())(passed_on(hang))
    async with local_worker(app) as worker:
        await orders.send_many([Order("ann"), Order("ann")])
        await worker.until_drained()
        assert await worker.rows(counting) == [{"customer": "ann1"}, {"customer": "ann2"}]
        letters = await worker.dead_letters(hanging)
        assert len(letters) == 2
        assert "longer than 0.5 s" in letters[0].error
        assert begun and cancelled == begun


def test_a_pipeline_may_name_its_frames_for_type_checkers_alone() -> None:
    """Its module then needs no pyspark where workers import it."""
    app = App("shop")
    orders = app.stream("orders", Order, key="customer", partitions=1)

    @app.processor(orders, forward=True)
    def price(order: Order) -> None: ...

    @app.pipeline(price, path="lake")
    def revenue(rows: "DataFrame") -> "DataFrame":  # type: ignore[name-defined]  # noqa: F821
        return rows

    assert list(app.registry.pipelines) == ["revenue"]


def test_a_pipeline_takes_a_frame_of_each_of_its_processors() -> None:
    """What it cannot be is refused where it is declared."""
    app = App("shop")
    orders = app.stream("orders", Order, key="customer", partitions=1)
    price = app.processor(orders, name="price")(lambda order: None)
    audit = app.processor(orders, name="audit", forward=True)(lambda order: None)
    silent = app.processor(orders, name="silent", forward=False)(lambda order: None)

    @app.pipeline(price, audit, path="lake")
    def both(rows: Any, audited: Any) -> Any:
        return rows.join(audited, "customer")

    assert app.registry.pipelines["both"].reads == ["price", "audit"]
    assert app.registry.processors["price"].forward
    wrong: Any = "audit"
    for refused, says in (
        (lambda: app.pipeline(price, audit, name="few")(lambda rows: rows), "does not take 2 DataFrames"),
        (lambda: app.pipeline(price, name="many")(both), "does not take one DataFrame"),
        (lambda: app.pipeline(price, price, name="same")(both), "names processor 'price' twice"),
        (lambda: app.pipeline(price, silent, name="none")(both), "'silent', which forwards nothing"),
        (lambda: app.pipeline(price, wrong, name="text"), "has processor='audit'. Use a Processor"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            refused()


async def test_two_processors_may_share_a_function() -> None:
    """A decorated function is seen as the function that it was."""
    app = App("shop")
    orders = app.stream("orders", Order, key="customer", partitions=1)
    seen: list[str] = []

    @app.processor(orders, name="two")
    @app.processor(orders, name="one")
    async def note(batch: list[Order]) -> None:
        seen.extend(order.customer for order in batch)

    assert app.registry.processors["two"].is_async
    async with local_worker(app) as worker:
        await orders.send(Order("ann"))
        await worker.until_drained()
    assert seen == ["ann", "ann"]


class _ByClass:
    """A decorator that is a class, as some write it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


def test_what_a_decorator_that_is_a_class_surrounds_keeps_its_annotations() -> None:
    """They say what the function takes."""
    app = App("shop", redis_url="redis://localhost:1/0")
    orders = app.stream("orders", Order, key="customer", partitions=1)

    def some(batch: list[Order]) -> None: ...

    spec = app.processor(orders, batch=7)(_ByClass(some)).spec
    assert (spec.name, spec.mode.value, spec.batch) == ("some", "batch", 7)


def only_by_name(*, order: Order) -> None: ...
def only_in_place(ctx: Context, order: Order, /) -> None: ...


@pytest.mark.parametrize("function", [only_by_name, only_in_place])
def test_a_function_that_no_call_fits_is_refused(function: Callable[..., Any]) -> None:
    """The call that a worker makes is tried at import, without calling."""
    app = App("shop", redis_url="redis://localhost:1/0")
    with pytest.raises(
        ConfigurationError, match=f"'{function.__name__}' cannot be called with what it takes"
    ):
        app.processor(app.stream("orders", Order))(function)


class Row(msgspec.Struct):
    """What is forwarded."""

    n: int


def _bare(order: Order):  # type: ignore[no-untyped-def]  # noqa: ANN202
    return Row(1)


class _Awaitable:
    """What a function forgot to await. A coroutine would warn when it is collected, in any later test."""

    def __await__(self) -> Iterator[None]:
        return iter(())


async def _nested(order: Order):  # type: ignore[no-untyped-def]  # noqa: ANN202
    return _Awaitable()


async def _forwarding(order: Order, ctx: Context) -> None:
    ctx.forward(Row(1))


async def _returning(orders: Records[Order]) -> None:
    async for _ in orders:
        break
    return 1  # type: ignore[return-value]


async def test_a_result_that_nobody_takes_is_an_error_of_the_record() -> None:
    """Unless forward=False says that rows go nowhere; and what has not run goes nowhere in no case."""
    app = App("shop")
    orders = app.stream("orders", Order, key="customer", partitions=1)
    refuse: dict[str, Any] = {
        "bare": _bare,
        "nested": _nested,
        "forwarding": _forwarding,
        "returning": _returning,
    }
    for name, function in refuse.items():
        app.processor(orders, name=name, errors=DeadLetter())(function)
    drop: dict[str, Any] = {
        "bare_dropped": _bare,
        "nested_dropped": _nested,
        "forwarding_dropped": _forwarding,
    }
    for name, function in drop.items():
        app.processor(orders, name=name, forward=False, errors=DeadLetter())(function)
    async with local_worker(app) as worker:
        await orders.send(Order("ann"))
        await worker.until_drained()
        for name in refuse | drop:
            letters = await worker.dead_letters(name)
            takes = name in ("bare_dropped", "forwarding_dropped")
            assert [LETTER in letter.error for letter in letters] == ([] if takes else [True]), name


async def test_a_generator_that_a_resource_wraps_is_the_resource() -> None:
    """A decorated resource is seen as the generator that it was."""
    app = App("shop", redis_url="redis://localhost:1/0")

    @app.resource
    async def client() -> AsyncIterator[Client]:
        yield Client()

    other = App("other", redis_url="redis://localhost:1/0")
    assert other.resource(client).yields is Client
