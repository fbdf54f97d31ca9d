"""What functions are given by their annotations, what is refused at import, and middleware around calls."""

import importlib
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from streamworker import App, ConfigurationError, Context
from streamworker.declaring.middleware import Layer, around
from streamworker.declaring.parameters import Parameters
from streamworker.errors import ProcessingError
from streamworker.importing import resolve_app, resolve_processors
from streamworker.runtime.worker import Worker


class Order(msgspec.Struct):
    customer: str


class Client:
    """Somebody's class."""


app = App("shop")
orders = app.stream("orders", Order, key="customer")


@app.resource
async def prices() -> AsyncIterator[Client]:
    """Yield a client."""
    yield Client()


@app.resource
async def rates() -> AsyncIterator[Client]:
    """Yield another client."""
    yield Client()


@app.resource(each="partition")
async def names(client: Annotated[Client, prices]) -> AsyncIterator[dict[str, int]]:
    """Ask for another resource."""
    yield {"clients": 1}


elsewhere = App("elsewhere")


@elsewhere.resource
async def stranger() -> AsyncIterator[Client]:
    """Belong to another app."""
    yield Client()


def test_a_function_with_resources_stays_callable_as_it_was_written() -> None:
    """With its whole signature, and without a worker."""

    @app.processor(orders, name="callable", forward=False)
    def price(order: Order, client: Annotated[Client, prices], factor: float = 2.0) -> str:
        return f"{order.customer} {factor:g}"

    assert price(Order("ann"), Client()) == "ann 2"
    assert price(Order("ann"), Client(), factor=3.0) == "ann 3"


def _any_order(ctx: Context, counts: dict[str, int], order: Order, client: Annotated[Client, rates]) -> Any:
    return ctx, counts, order, client


def _usual_order(order: Order, ctx: Context) -> Any:
    return order, ctx


def test_parameters_may_stand_in_any_order() -> None:
    """They are filled by their types; a function that takes record and context alone is called directly."""
    spec = app.processor(orders, name="any_order", forward=False)(_any_order).spec
    client, counts = Client(), {"a": 1}
    bound = spec.parameters.bind(spec.function, {rates: client, names: counts})
    assert bound(1, 2) == (2, counts, 1, client)
    usual = app.processor(orders, name="usual_order", forward=False)(_usual_order).spec
    assert usual.parameters.bind(usual.function, {}) is _usual_order


def _unknown(order: Order, number: int) -> None: ...
def _ambiguous(order: Order, client: Client) -> None: ...
def _of_another_app(order: Order, client: Annotated[Client, stranger]) -> None: ...
def _another_type(order: Order, client: Annotated[str, prices]) -> None: ...
def _like_it(order: Order, counts: dict[str, str]) -> None: ...
def _no_record(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_unknown, ("takes `number: int`, which nothing fills. It can take its record and a Context and "
                    "resources that are declared above it with @app.resource: prices (Client), "
                    "rates (Client), names (dict[str, int]).")),
        (_ambiguous, ("takes `client: Client`, which prices and rates yield. Name one: `client: "
                      "Annotated[Client, prices]`.")),
        (_of_another_app, "takes `client` from stranger, a resource of another app."),
        (_another_type, "takes `client: str` from prices, which yields Client."),
        (_like_it, "takes `counts: dict[str, str]`, which nothing fills."),
        (_no_record, "takes no record."),
    ],
)  # fmt: skip
def test_what_nothing_fills_is_refused_at_import_with_what_there_is(
    function: Callable[..., Any], said: str
) -> None:
    """Types match exactly."""
    with pytest.raises(ConfigurationError, match=re.escape(f"Processor {function.__name__[1:]!r} {said}")):
        app.processor(orders, name=function.__name__[1:])(function)


async def _plain() -> Client:
    return Client()


async def _untold():  # type: ignore[no-untyped-def]  # noqa: ANN202
    yield Client()


async def _wants_a_partition(counts: dict[str, int]) -> AsyncIterator[str]:
    yield "x"


async def _wants_a_context(ctx: Context) -> AsyncIterator[str]:
    yield "x"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_plain, "is no async generator"),
        (_untold, "AsyncIterator\\[X\\]"),
        (_wants_a_partition, "is made for each worker, and takes names, one for each partition"),
        (_wants_a_context, "It can take resources that are declared"),
    ],
)
def test_a_resource_that_cannot_be_made_is_refused_at_import(function: Callable[..., Any], said: str) -> None:
    """The error says how to write it."""
    with pytest.raises(ConfigurationError, match=said):
        app.resource(function)


def test_a_name_or_a_scope_that_does_not_fit_is_refused() -> None:
    """Two resources of one name would hide each other."""
    with pytest.raises(ConfigurationError, match="two resources named 'prices'"):
        app.resource(prices._function)
    with pytest.raises(ConfigurationError, match="worker, partition"):
        app.resource(each="call")(prices._function)  # type: ignore[call-overload]


def test_middleware_is_a_generator_that_takes_what_can_be_given() -> None:
    """Else it is refused at import."""

    async def no_generator(ctx: Context) -> None: ...

    async def takes_the_record(order: Order) -> AsyncIterator[None]:
        yield

    with pytest.raises(ConfigurationError, match="is no async generator"):
        app.middleware(no_generator)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="`order: Order`, which nothing fills"):
        app.middleware(takes_the_record)


seen: list[str] = []


def _layer(
    name: str, *, before: bool = False, after: bool = False, yields: int = 1, hides: bool = False
) -> Layer:
    async def function() -> AsyncGenerator[None, None]:
        seen.append(f"{name} begins")
        if before:
            raise KeyError(name)
        for _ in range(yields):
            try:
                yield
            except ZeroDivisionError as error:
                seen.append(f"{name} sees {error}")
                if not hides:
                    raise
        seen.append(f"{name} ends")
        if after:
            raise KeyError(name)

    return Layer(name, function, Parameters())


async def _attempt() -> str:
    seen.append("attempt")
    return "result"


REMEDY = "Let it yield exactly once on each path: the attempt runs there."
NEVER = ProcessingError("Middleware 'a' ended without a yield.", remedy=REMEDY)
TWICE = ProcessingError("Middleware 'a' has yielded twice.", remedy=REMEDY)


async def _failing() -> str:
    raise ZeroDivisionError("oh")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("layers", "attempt", "outcome", "steps"),
    [
        ([_layer("a"), _layer("b")], _attempt, "result",
         ["a begins", "b begins", "attempt", "b ends", "a ends"]),
        ([_layer("a", before=True)], _attempt, KeyError, ["a begins"]),
        ([_layer("a", after=True)], _attempt, KeyError, ["a begins", "attempt", "a ends"]),
        ([_layer("a")], _failing, ZeroDivisionError, ["a begins", "a sees oh"]),
        ([_layer("a"), _layer("b", hides=True)], _failing, ZeroDivisionError,
         ["a begins", "b begins", "b sees oh", "b ends", "a sees oh"]),
        ([_layer("a", hides=True, after=True)], _failing, KeyError, ["a begins", "a sees oh", "a ends"]),
        ([_layer("a", yields=0)], _attempt, NEVER, ["a begins", "a ends"]),
        ([_layer("a", yields=2)], _attempt, TWICE, ["a begins", "attempt"]),
        ([_layer("a", yields=2, hides=True)], _failing, ZeroDivisionError, ["a begins", "a sees oh"]),
    ],
)  # fmt: skip
async def test_middleware_neither_loses_a_result_nor_hides_an_error(
    layers: list[Layer], attempt: Callable[[], Any], outcome: Any, steps: list[str]
) -> None:
    """What it raises fails the attempt; so does a generator that does not yield exactly once."""
    seen.clear()
    context: Any = None
    if isinstance(outcome, str):
        assert await around(layers, context, attempt) == outcome
    else:
        with pytest.raises(type(outcome) if isinstance(outcome, ProcessingError) else outcome) as error:
            await around(layers, context, attempt)
        if isinstance(outcome, ProcessingError):
            assert str(error.value) == str(outcome)
    assert seen == steps


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an app in two modules, the second of which imports the first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    folder = tmp_path / "many"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from typing import NamedTuple\nfrom streamworker import App\n"
        "app = App('many', include=['many.mail'])\n"
        "orders = app.stream('orders', NamedTuple('Order', [('customer', str)]), key='customer')\n"
        "seen = app.table('seen', int, key=str)\n"
    )
    (folder / "mail.py").write_text(
        "from many import app, orders, seen\n@app.processor(orders, forward=False, tables=[seen])\n"
        "async def send(order): ...\n"
    )
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "many"]:
        del sys.modules[name]


def test_an_app_in_several_modules_is_whole_when_it_is_loaded(parts: Path) -> None:
    """By a command, which finds processors of all of them; the import of the app alone loads no other."""
    many = importlib.import_module("many")
    assert many.app.registry.processors == {}
    assert list(resolve_app("many:app").registry.processors) == ["send"]
    assert [spec.name for spec in resolve_processors("many:send").processors] == ["send"]


def test_a_module_that_is_not_there_is_named_and_one_that_misses_another_is_not(parts: Path) -> None:
    """The first is a fault of the app's list, the second of the module, which is there."""
    many = importlib.import_module("many")
    many.app.include = ("many.male",)
    with pytest.raises(ConfigurationError, match=r"There is no module 'many.male', which the app's include="):
        many.app.load()
    (parts / "male.py").write_text("import nowhere_to_be_found\n")
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        many.app.load()


@pytest.mark.anyio
async def test_a_program_without_a_worker_reads_the_table_of_a_processor_in_another_module(
    parts: Path, redis_url: str
) -> None:
    """A web application imports the app alone; in its tests a worker has imported the rest."""
    many = importlib.import_module("many")
    many.app.settings = replace(many.app.settings, redis_url=redis_url)
    async with many.app:
        assert await many.seen.get("ann") is None


def test_a_worker_loads_an_app_in_several_modules(parts: Path) -> None:
    """Also one that a program makes."""
    many = importlib.import_module("many")
    Worker(many.app)
    assert list(many.app.registry.processors) == ["send"]
