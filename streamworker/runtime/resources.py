"""Makes the resources of a worker and of its partitions, and closes them."""

import functools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from streamworker.core.text import in_words
from streamworker.declaring.middleware import Layer
from streamworker.declaring.parameters import Resource, Scope
from streamworker.declaring.specs import ProcessorSpec
from streamworker.errors import ProcessingError
from streamworker.log import get_logger
from streamworker.runtime.risks import Namer

CLOSE_S = 10
"""How long a resource may take to close. It is closed after a drain, and should only close connections."""

log = get_logger("streamworker.resources")


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that are made, and what middleware there is."""

    layers: Sequence[Layer] = ()
    values: Mapping[Resource[..., Any], Any] = field(default_factory=dict)

    @asynccontextmanager
    async def opened(
        self, specs: Iterable[ProcessorSpec], each: Scope, risks: Namer | None = None
    ) -> "AsyncIterator[Resources]":
        """Make what some processors and the middleware need, once in a worker or for a partition.

        Raise ProcessingError if one cannot be made; those before it are closed then. ``risks`` are those of
        the worker or the partition: a resource that kills its process is not made again and again.
        """
        values = dict(self.values)
        calls = [call for spec in specs for call in (spec, *(timer.call for timer in spec.timers))]
        wanted = [call.parameters for call in calls] + [layer.parameters for layer in self.layers]
        async with AsyncExitStack() as stack:

            async def make(resources: Iterable[Resource[..., Any]]) -> None:
                for resource in resources:
                    if resource in values or (each == "worker" and resource.each != each):
                        continue
                    await make(resource.parameters.resources.values())
                    async with risks.taken("resource", resource.name) if risks else nullcontext():
                        values[resource] = await stack.enter_async_context(_made(resource, values))

            for parameters in wanted:
                await make(parameters.resources.values())
            yield replace(self, values=values)

    def bound(self, spec: ProcessorSpec) -> ProcessorSpec:
        """Return a processor whose function and middleware have their resources."""
        layers = [
            replace(layer, function=layer.parameters.bind(layer.function, self.values))
            for layer in self.layers
        ]
        timers = tuple(replace(timer, call=_timed(self.bound(timer.call))) for timer in spec.timers)
        function = spec.parameters.bind(spec.function, self.values)
        return replace(spec, function=function, layers=layers, timers=timers)


def _timed(call: ProcessorSpec) -> ProcessorSpec:
    """Return a timer's call whose function is given the planned time, and drops it if it takes none."""
    function = call.function
    if call.parameters.record:
        return call

    @functools.wraps(function)
    def without_time(_: object, *context: object) -> Any:
        return function(*context)

    return replace(call, function=without_time)


@asynccontextmanager
async def _made(resource: Resource[..., Any], values: Mapping[Resource[..., Any], Any]) -> AsyncIterator[Any]:
    needs = {name: values[other] for name, other in resource.parameters.resources.items()}
    manager = asynccontextmanager(resource)(**needs)
    try:
        value = await manager.__aenter__()
    except Exception as error:
        raise ProcessingError(
            f"Resource {resource.name!r} could not be made: {in_words(error).rstrip('.')}.",
            remedy="What it needs may be away.",
        ) from error
    try:
        yield value
    finally:
        # Also where the worker is cancelled: what is open elsewhere should learn of it.
        with anyio.move_on_after(CLOSE_S, shield=True) as scope:
            try:
                await manager.__aexit__(None, None, None)
            except Exception as error:  # noqa: BLE001 - whatever a user's code raises; the work is done
                log.warning("resource_not_closed", resource=resource.name, error=in_words(error))
        if scope.cancelled_caught:
            log.warning("resource_not_closed", resource=resource.name, error="it takes too long")
