"""Kinds of callables, the places that they can be given to, and what becomes of each pair.

docs/errors.md prints :func:`table`. ``test_callables.py`` runs every cell of it.
"""

import functools
import types
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa

from streamworker import App, ConfigurationError, DeadLetter, Records, Stream, Table


class Order(msgspec.Struct):
    """What the stream holds."""

    customer: str


class Client:
    """What the resource makes."""


class Shapes:
    """One body in each shape that Python has for it; ``takes`` annotates its one parameter.

    The body adds to ``noted`` when it runs.
    """

    def __init__(self, noted: list[Any], takes: Any, yields: Any) -> None:
        def note() -> None:
            noted.append(None)

        def plain(given: Any) -> None:
            note()

        async def coroutine(given: Any) -> None:
            if isinstance(given, Records):
                async for _ in given:
                    note()
            else:
                note()

        def generator(given: Any) -> Iterator[None]:
            note()
            yield

        async def agenerator(given: Any) -> AsyncIterator[None]:
            note()
            yield

        async def maker() -> AsyncIterator[Any]:
            note()
            yield Client() if yields is Client else None

        def plain_maker() -> Iterator[Any]:
            note()
            yield Client()

        for function in (plain, coroutine, generator, agenerator):
            function.__annotations__ = {"given": takes, "return": None}
        maker.__annotations__ = {"return": AsyncIterator[yields]}
        plain_maker.__annotations__ = {"return": Iterator[yields]}
        self.noted = noted
        self.plain: Any = plain
        self.coroutine: Any = coroutine
        self.generator: Any = plain_maker if yields else generator
        self.agenerator: Any = maker if yields else agenerator
        self.right: Any = maker if yields else plain if takes is Rows else coroutine
        """The shape that the place is made for."""


class Rows:
    """Stands for the DataFrame of a pipeline."""


def passed_on(function: Any) -> Any:
    """Decorate a function as most decorators do: with a plain function that calls it."""

    @functools.wraps(function)
    def inner(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return inner


def bound(function: Any) -> Any:
    """Return a method of an object that calls a function."""
    if isinstance(function, types.FunctionType) and function.__code__.co_argcount == 0:

        async def maker(self: object) -> AsyncIterator[Any]:
            async for each in function():
                yield each

        maker.__annotations__ = function.__annotations__
        return types.MethodType(maker, Client())

    def plain(self: object, given: Any) -> Any:
        return function(given)

    async def coroutine(self: object, given: Any) -> Any:
        return await function(given)

    method = coroutine if function.__name__ == "coroutine" else plain
    method.__annotations__ = function.__annotations__
    return types.MethodType(method, Client())


def callable_object(function: Any) -> Any:
    """Return an object whose class has a method ``__call__``."""
    method = bound(function).__func__
    return type("Callable", (), {"__call__": method})()


@dataclass(frozen=True)
class Kind:
    """One kind of callable."""

    label: str
    make: Callable[[Shapes], Any]
    typed: bool = True
    """Whether it has annotations, which say what a function takes."""
    fails: bool = False
    """Whether only its result shows that nobody can run it."""


KINDS = (
    Kind("`def`", lambda shapes: shapes.plain),
    Kind("`async def`", lambda shapes: shapes.coroutine),
    Kind("`def` with `yield`", lambda shapes: shapes.generator),
    Kind("`async def` with `yield`", lambda shapes: shapes.agenerator),
    Kind("`functools.partial`", lambda shapes: functools.partial(shapes.right)),
    Kind("a bound method", lambda shapes: bound(shapes.right)),
    Kind("an object with `__call__`", lambda shapes: callable_object(shapes.right)),
    Kind("a plain decorator around `async def`", lambda shapes: passed_on(shapes.coroutine)),
    Kind("a plain decorator around a generator", lambda shapes: passed_on(shapes.agenerator), fails=True),
    Kind("a lambda", lambda shapes: lambda given: shapes.noted.insert(0, given), typed=False),
    Kind("a function in C", lambda shapes: shapes.noted.append, typed=False),
    Kind("a function in C without a signature", lambda _: max, typed=False),
    Kind("a class", lambda _: Client),
    Kind("no function", lambda _: "price"),
)

Declare = Callable[[App, Stream[Order], Any, str], Any]


@dataclass(frozen=True)
class Place:
    """One decorator, or one way to take records."""

    label: str
    takes: Any
    declare: Declare
    """Declares a callable under a name, which lambdas need."""
    yields: Any = None
    typed: bool = False
    """Whether only annotations say that a function is for here."""


def _processor(**options: Any) -> Declare:
    return lambda app, stream, function, name: app.processor(
        stream, name=name, errors=DeadLetter(), **options
    )(function)


def _with_table(app: App, stream: Stream[Order], function: Any, name: str) -> Any:
    table: Table[str, int] = app.table(name, int)
    return app.processor(stream, name=name, tables=[table])(function)


def _partition_timer(app: App, stream: Stream[Order], function: Any, name: str) -> Any:
    async def owner(order: Order) -> None: ...

    return app.processor(stream, name=name)(owner).timer(every="1 hour")(function)


PLACES = (
    Place("one record", Order, _processor()),
    Place("`concurrency=`", Order, _processor(concurrency=4)),
    Place("a list", list[Order], _processor(batch=2)),
    Place("columns", pa.RecordBatch, _processor(), typed=True),
    Place("`Records`", Records[Order], _processor(), typed=True),
    Place("`tables=`", Order, _with_table),
    Place("`@app.timer`, `cron`", datetime, lambda app, _, function, __: app.timer(every="1 hour")(function)),
    Place("`@processor.timer`", datetime, _partition_timer),
    Place("`@app.resource`", None, lambda app, _, function, __: app.resource(function), Client),
    Place("`@app.middleware`", None, lambda app, _, function, __: app.middleware(function), type(None)),
    Place(
        "`@app.pipeline`",
        Rows,
        lambda app, stream, function, name: app.pipeline(
            app.processor(stream, name=name)(Shapes([], Order, None).coroutine), name=name, path=name
        )(function),
    ),
)


def outcome(kind: Kind, place: Place) -> str:
    """Declare a callable; return what becomes of it."""
    if place.typed and not kind.typed:
        return ""
    app = App("shop", redis_url="redis://localhost:1/0")
    try:
        place.declare(app, app.stream("orders", Order, key="customer"), made(kind, place, []), "it")
    except ConfigurationError:
        return "refused"
    fails = kind.fails or ("around" in kind.label and place.label == "`@app.pipeline`")
    return "fails" if fails else "runs"


def made(kind: Kind, place: Place, noted: list[Any]) -> Any:
    """Return a callable of a kind for a place."""
    return kind.make(Shapes(noted, place.takes, place.yields))


def table() -> str:
    """Return the kinds and places as a table."""
    cells = {kind.label: tuple(outcome(kind, place) for place in PLACES) for kind in KINDS}
    return merged(["", *(place.label for place in PLACES)], cells)


def merged(head: Sequence[str], cells: Mapping[str, tuple[str, ...]]) -> str:
    """Return a table of Markdown, in which equal rows are one."""
    labels: dict[tuple[str, ...], list[str]] = {}
    for label, row in cells.items():
        labels.setdefault(row, []).append(label)
    rows = [head, ["---"] * len(head), *(["; ".join(names), *row] for row, names in labels.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
