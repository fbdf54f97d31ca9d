"""Middleware: a generator around each attempt to call a function."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from streamworker.context import Context
from streamworker.declaring.parameters import Parameters
from streamworker.errors import ProcessingError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Layer:
    """One middleware; its function takes nothing but its context once its resources are bound."""

    name: str
    function: Callable[..., AsyncGenerator[None, None]]
    parameters: Parameters

    def begin(self, context: Context) -> AsyncGenerator[None, None]:
        """Return its generator for one attempt."""
        return self.function(context) if self.parameters.context else self.function()


Naming = Callable[[str], Awaitable[None]]
"""Is told which layer runs next, and an empty name where the attempt does."""


async def around(
    layers: Sequence[Layer],
    context: Context,
    attempt: Callable[[], Awaitable[T]],
    naming: Naming | None = None,
) -> T:
    """Make an attempt between the two halves of each layer, the first outermost; return what it returned.

    A layer sees neither the result nor can it hide an error. What it raises takes the place of both.
    ``naming`` is awaited before each half and before the attempt, and at the end.
    """
    if not layers:
        if naming is not None:
            await naming("")
        return await attempt()
    layer, *inner = layers
    steps = layer.begin(context)
    if naming is not None:
        await naming(layer.name)
    if not await _goes_on(steps):
        raise ProcessingError(f"Middleware {layer.name!r} ended without a yield.", remedy=_REMEDY)
    try:
        result = await around(inner, context, attempt, naming)
        if naming is not None:
            await naming(layer.name)
    except BaseException as error:
        await _goes_on(steps, error)
        await steps.aclose()
        raise
    if await _goes_on(steps):
        await steps.aclose()
        raise ProcessingError(f"Middleware {layer.name!r} has yielded twice.", remedy=_REMEDY)
    return result


_REMEDY = "Let it yield exactly once on each path: the attempt runs there."


async def _goes_on(steps: AsyncGenerator[None, None], error: BaseException | None = None) -> Any:
    """Run a generator to its next yield or its end; return whether it has yielded."""
    try:
        await (anext(steps) if error is None else steps.athrow(error))
    except StopAsyncIteration:
        return False
    return True
