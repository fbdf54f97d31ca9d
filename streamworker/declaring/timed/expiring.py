"""``@processor.expired``: functions that are called at the ends of a table's values."""

import functools
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Concatenate, Protocol, TypeVar, overload

from streamworker.declaring.callables import Co, Looked, P, R, Wrapper, look, refused
from streamworker.declaring.functions import returned_type
from streamworker.declaring.parameters import read_parameters
from streamworker.declaring.registry import DeclaringApp
from streamworker.declaring.specs import ExpirySpec, FunctionMode, TableSpec
from streamworker.declaring.stream import IntoStreams
from streamworker.declaring.table import Table, become
from streamworker.declaring.timed.timers import call_by_time, check_name_is_free
from streamworker.records.types import label
from streamworker.redisio.keys import check_name

K = TypeVar("K")
V = TypeVar("V")
O = TypeVar("O")  # noqa: E741 - what goes out


class Expired(Wrapper[P, R]):
    """A function that is called at the ends of values, as ``Processor.expired`` makes it; it stays callable.

    Examples
    --------
    >>> import msgspec
    >>> from streamworker import App
    >>> class Seen(msgspec.Struct):
    ...     user: str
    >>> app = App("visits")
    >>> pages = app.table("pages", int, ttl="30 minutes")
    >>> @app.processor(app.stream("seen", Seen, key="user"), tables=[pages])
    ... async def follow(seen: Seen) -> None:
    ...     pages.set(seen.user, (await pages.get(seen.user) or 0) + 1)
    >>> @follow.expired(pages)
    ... def gone(user: str, count: int) -> None:
    ...     print(f"{user} saw {count}")
    >>> gone("ann", 3)
    ann saw 3
    """

    def __init__(self, name: str, function: Callable[P, R]) -> None:
        super().__init__(function)
        self.name: str = name
        """The function's name, by which ``status`` and logs tell of it."""


class ExpiredOf(Protocol[K, V]):
    """A decorator of a function that takes a key and its value, or a list of such pairs."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[K, V, P], R], /
    ) -> Expired[Concatenate[K, V, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[tuple[K, V]], P], R], /
    ) -> Expired[Concatenate[list[tuple[K, V]], P], R]: ...


class ExpiredInto(Protocol[K, V, O]):
    """A decorator whose function returns what goes to one stream; the function's exact type is kept."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[tuple[K, V]], P], Co[list[O]]], /
    ) -> Expired[Concatenate[list[tuple[K, V]], P], Co[list[O]]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[tuple[K, V]], P], list[O]], /
    ) -> Expired[Concatenate[list[tuple[K, V]], P], list[O]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[K, V, P], Co[list[O]]], /
    ) -> Expired[Concatenate[K, V, P], Co[list[O]]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[K, V, P], Co[O]], /
    ) -> Expired[Concatenate[K, V, P], Co[O]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[K, V, P], Co[O | None]], /
    ) -> Expired[Concatenate[K, V, P], Co[O | None]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[K, V, P], list[O]], /
    ) -> Expired[Concatenate[K, V, P], list[O]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[K, V, P], O], /
    ) -> Expired[Concatenate[K, V, P], O]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[K, V, P], O | None], /
    ) -> Expired[Concatenate[K, V, P], O | None]: ...


def expired(
    app: DeclaringApp, processor: str, table: Table[Any, Any], into: IntoStreams
) -> Callable[[Callable[P, R]], Expired[P, R]]:
    """Return the decorator that lets a function be called at the ends of a table's values."""

    def bind(function: Callable[P, R]) -> Expired[P, R]:
        group = app.registry.processors[processor]
        looked = look(function, "Function")
        if table.spec not in group.tables:
            named = table.name
            raise refused(
                looked.whose,
                f"is called at the ends of {named!r}, which is no table of processor {processor!r}.",
                f"Name a table that it writes: {', '.join(each.name for each in group.tables) or 'none'}.",
            )
        if group.mode is FunctionMode.STREAM:
            raise refused(
                looked.whose,
                f"is called between two batches, and processor {processor!r} takes Records.",
                "Let the processor take a record or a list.",
            )
        if any(each.table is table.spec for each in group.expiries):
            raise refused(
                looked.whose,
                f"is the second function at the ends of table {table.name!r}.",
                "Call both from one function.",
            )
        check_name_is_free(group, check_name("function", looked.name))
        its = replace(table.spec, lifetime=table.spec.lifetime._replace(is_called=True))
        takes_many, looked = _read(looked, its)
        parameters = read_parameters(looked, app.registry.resources)
        spec = ExpirySpec(
            name=looked.name,
            table=its,
            call=call_by_time(group, looked, parameters, into),
            takes_many=takes_many,
        )
        check_taken(looked, into)
        tables = tuple(its if each.name == its.name else each for each in group.tables)
        app.registry.keep(replace(group, tables=tables, expiries=(*group.expiries, spec)))
        become(table, its)
        return Expired(spec.name, function)

    return bind


def _read(looked: Looked, table: TableSpec) -> tuple[bool, Looked]:
    """Return whether a function takes many values in one call, and how it is called with one argument."""
    form, hints = table.form, looked.hints
    names = list(looked.signature.parameters)
    if names and typing.get_origin(hints.get(names[0])) is list:
        return True, looked
    check_types(looked, (form.kind, form.value), f"table {table.name!r} has")
    return False, of_pairs(looked, "a key and its value")


def check_types(looked: Looked, wanted: tuple[Any, Any], whose: str) -> None:
    """Raise ConfigurationError if the first two parameters are annotated otherwise than these types."""
    for name, right in zip(looked.signature.parameters, wanted, strict=False):
        hint = looked.hints.get(name, right)
        if hint not in (right, Any) and not (right is tuple and typing.get_origin(hint) is tuple):
            raise refused(
                looked.whose,
                f"takes `{name}: {label(hint)}`, and {whose} {label(right)} there.",
                f"Let it take {label(wanted[0])} and {label(wanted[1])}.",
            )


def check_taken(looked: Looked, into: IntoStreams) -> None:
    """Raise ConfigurationError if a function returns rows, and nothing takes them."""
    returned = returned_type(looked.hints.get("return"))
    if into is None and returned not in (None, Any):
        raise refused(
            looked.whose,
            f"returns {label(returned)}, which goes nowhere.",
            "Name the stream in into=, or return None.",
        )


def of_pairs(looked: Looked, what: str) -> Looked:
    """Return a function that takes a pair in place of its two parts; ConfigurationError if it takes none."""
    parameters = list(looked.signature.parameters.values())
    if len(parameters) < 2 or any(each.kind is not each.POSITIONAL_OR_KEYWORD for each in parameters[:2]):
        raise refused(looked.whose, f"does not take {what}.", f"Let its first two parameters be {what}.")
    function, by_name = looked.function, parameters[1].name

    @functools.wraps(function)
    def of_pair(*given: Any, **named: Any) -> Any:
        pair, *others = given or (named.pop(by_name),)
        return function(*pair, *others, **named)

    return replace(looked, function=of_pair, signature=looked.signature.replace(parameters=parameters[1:]))
