"""What kind of callable a decorator was given. It is read once, where the function is declared.

All decorators ask :func:`look`, so that whatever one of them accepts can be run by whatever calls it.
"""

import functools
import inspect
import typing
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from streamworker.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")
Co = Coroutine[Any, Any, R]
"""What a call of an ``async def`` function returns."""

NOT_RUN = (Generator, AsyncGenerator, Awaitable)
"""The types of objects whose code has not run, or not to its end, when a call returns them."""


class Wrapper(Generic[P, R]):
    """What a decorator makes of a function; calling it calls the function itself."""

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, for instance from a test."""
        return self._function(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Looked:
    """A callable, as a decorator sees it."""

    function: Callable[..., Any]
    """What is to be called."""
    name: str
    whose: str
    """Names it in errors: ``Processor 'price'``."""
    is_async: bool
    """Whether a call returns a coroutine. A plain function that returns an awaitable is not known to."""
    annotated: Any
    """What has the annotations."""
    signature: inspect.Signature

    @property
    def hints(self) -> Mapping[str, Any]:
        """The annotations; one that names nothing is a ConfigurationError.

        Those of a pipeline are not asked for: its program may import ``DataFrame`` for type checkers alone.
        """
        try:
            return typing.get_type_hints(self.annotated, include_extras=True)
        except NameError as error:
            raise refused(
                self.whose,
                f"has an annotation that names nothing: {error}.",
                "Define or import the type at the top of the module.",
            ) from error


def look(function: Any, noun: str, name: str | None = None, *, yields: str = "") -> Looked:
    """Read a callable; raise ConfigurationError for one that cannot be run, which names it and the remedy.

    ``yields`` is for functions that have to be async generators, and says what of.
    """
    while isinstance(function, Wrapper):
        function = function._function  # noqa: SLF001
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    called = inner if inspect.isroutine(inner) else getattr(inner, "__call__", None)  # noqa: B004
    label = name or str(getattr(inner, "__name__", type(inner).__name__))
    whose = f"{noun} {label!r}"
    if called is None or isinstance(inner, type):
        what = "is a class" if isinstance(inner, type) else "is no function"
        raise refused(whose, f"{what}.", "Decorate a function, or an object that is called like one.")
    if label == "<lambda>":
        remedy = "Write it with `def`. A processor or a pipeline may have name= instead."
        raise refused(noun, "is a lambda, which has no name.", remedy)

    def is_(test: Callable[[Any], bool]) -> bool:
        return test(inner) or test(called)

    if yields and not is_(inspect.isasyncgenfunction):
        raise no_generator(whose, yields)
    if not yields and (is_(inspect.isasyncgenfunction) or is_(inspect.isgeneratorfunction)):
        raise refused(
            whose,
            "is a generator: it has a `yield`, so a call would not run its body.",
            "Return what it yields, as a list if there are several.",
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:  # Some functions in C say nothing about their parameters.
        raise refused(
            whose, f"does not tell its parameters: {error}.", "Write a function with `def` that calls it."
        ) from error
    annotated = inner if hasattr(inner, "__wrapped__") else called
    return Looked(function, label, whose, is_(inspect.iscoroutinefunction), annotated, signature)


def takes(looked: Looked, count: int) -> bool:
    """Return whether it can be called with so many arguments."""
    try:
        looked.signature.bind(*range(count))
    except TypeError:
        return False
    return True


def no_generator(whose: str, kind: str) -> ConfigurationError:
    """Return the error for what has to be an async generator and is none, or does not say of what."""
    return refused(
        whose,
        "is no async generator that says what it yields.",
        f"Write `async def ...() -> AsyncIterator[{kind}]:` with one yield.",
    )


def refused(whose: str, what: str, remedy: str) -> ConfigurationError:
    """Return the error for a wrong declaration of somebody's."""
    return ConfigurationError(f"{whose} {what}", remedy=remedy)
