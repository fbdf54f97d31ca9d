"""``Processor``: what a decorator makes of a function."""

import functools
from collections.abc import Callable, Mapping
from typing import Generic, ParamSpec, TypeVar

from streamworker.processors import ProcessorSpec

P = ParamSpec("P")
R = TypeVar("R")


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
