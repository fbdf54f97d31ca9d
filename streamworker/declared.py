"""``Processor``: what a decorator makes of a function."""

import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from streamworker.processors import ProcessorSpec

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O")  # noqa: E741 - as in the error of a type checker: what goes out


class Processor(Generic[P, R]):
    """A decorated processor function; calling it calls the function itself."""

    def __init__(self, processors: Mapping[str, ProcessorSpec], name: str, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self._processors = processors
        self.name = name
        """The processor's name, which is the name of its group."""
        self._function = function

    @property
    def spec(self) -> ProcessorSpec:
        """Return the processor's specification; a pipeline that is bound later may change it."""
        return self._processors[self.name]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, for instance from a test."""
        return self._function(*args, **kwargs)


class Into(Protocol[O]):
    """A decorator whose function returns what goes to one stream; the function's exact type is kept."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, list[O]]], /
    ) -> Processor[P, Coroutine[Any, Any, list[O]]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, O]], /
    ) -> Processor[P, Coroutine[Any, Any, O]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, O | None]], /
    ) -> Processor[P, Coroutine[Any, Any, O | None]]: ...
    @overload
    def __call__(self, function: Callable[P, list[O]], /) -> Processor[P, list[O]]: ...
    @overload
    def __call__(self, function: Callable[P, O], /) -> Processor[P, O]: ...
    @overload
    def __call__(self, function: Callable[P, O | None], /) -> Processor[P, O | None]: ...
