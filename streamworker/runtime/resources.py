"""Makes the resources of a worker and of its partitions, and closes them.

The generator of each runs in a task of its own, from its first line to its last. A task group, cancel scope
or timeout that it holds open around its ``yield``, or has left entered, can cancel that task alone. If the
task ends before the resource is to be closed, what runs with it is cancelled, and ResourceEnded names it.
"""

import functools
from asyncio import CancelledError
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from streamworker.core.text import in_words
from streamworker.declaring.middleware import Layer
from streamworker.declaring.parameters import Resource, Scope
from streamworker.declaring.specs import ProcessorSpec
from streamworker.errors import ProcessingError
from streamworker.log import get_logger
from streamworker.runtime.risks import Namer
from streamworker.runtime.run.failures import Left, describe_error, failure

CLOSE_S = 10
"""How long a resource may take to close. It is closed after a drain, and should only close connections."""

log = get_logger("streamworker.resources")


class ResourceEnded(ProcessingError):
    """A resource has ended before it was to be closed."""


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

        Raise ProcessingError if one cannot be made, and ResourceEnded if one ends; the others are closed
        then. ``risks`` are those of the worker or the partition: a resource that kills its process is not
        made again and again.
        """
        values = dict(self.values)
        calls = [call for spec in specs for call in (spec, *(each.call for each in spec.by_time))]
        wanted = [call.parameters for call in calls] + [layer.parameters for layer in self.layers]
        error: BaseException | None = None
        try:
            async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:

                async def make(resources: Iterable[Resource[..., Any]]) -> None:
                    for resource in resources:
                        if resource in values or (each == "worker" and resource.each != each):
                            continue
                        await make(resource.parameters.resources.values())
                        async with risks.taken("resource", resource.name) if risks else nullcontext():
                            values[resource] = await stack.enter_async_context(_made(tasks, resource, values))

                for parameters in wanted:
                    await make(parameters.resources.values())
                yield replace(self, values=values)
        except BaseExceptionGroup as errors:
            error = errors.exceptions[0]  # Raised here it would have the group for its context.
        if error is not None:
            raise error

    def bound(self, spec: ProcessorSpec) -> ProcessorSpec:
        """Return a processor whose function and middleware have their resources."""
        layers = [
            replace(layer, function=layer.parameters.bind(layer.function, self.values))
            for layer in self.layers
        ]
        function = spec.parameters.bind(spec.function, self.values)
        bound = spec.calling(lambda each: _timed(self.bound(each.call)))
        return replace(bound, function=function, layers=layers)


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
async def _made(
    tasks: TaskGroup, resource: Resource[..., Any], values: Mapping[Resource[..., Any], Any]
) -> AsyncIterator[Any]:
    """Make a resource in a task of its own, and close it there."""
    needs = {name: values[other] for name, other in resource.parameters.resources.items()}
    life, closes, has_ended = anyio.CancelScope(), anyio.Event(), anyio.Event()

    async def live(*, task_status: TaskStatus[tuple[Any, Context]]) -> None:
        error, why, remedy = None, "its generator has returned", ""
        try:
            with life:
                left = Left(resource)
                try:
                    async with asynccontextmanager(resource)(**needs) as value:
                        # Where the worker is cancelled, it is closed, too: what is open elsewhere should
                        # learn of it.
                        life.shield = True
                        task_status.started((value, copy_context()))
                        await closes.wait()
                finally:
                    left.leave()
        except BaseException as raised:  # noqa: BLE001 - whatever a user's code raises
            error = failure(raised)
            why = describe_error(error)
            if isinstance(raised, CancelledError):
                why = "what it has entered has cancelled its task"
                remedy = "Let it leave before its `yield` what is not to last as long as it."
        finally:
            has_ended.set()
        if not life.shield and error is not None:
            raise error
        if not closes.is_set():
            raise ResourceEnded(f"Resource {resource.name!r} has ended: {why}.", remedy=remedy) from error
        if error is not None or life.cancelled_caught:
            said = in_words(error) if error else "it takes too long"
            log.warning("resource_not_closed", resource=resource.name, error=said)

    try:
        value, context = await tasks.start(live, name=f"resource {resource.name}")
    except Exception as error:
        raise ProcessingError(
            f"Resource {resource.name!r} could not be made: {in_words(error).rstrip('.')}.",
            remedy="What it needs may be away.",
        ) from error
    for variable, its in context.items():  # Those that it has set are seen by what uses it.
        if variable.get(None) is not its:
            variable.set(its)
    try:
        yield value
    finally:
        life.deadline = anyio.current_time() + CLOSE_S
        closes.set()
        with anyio.CancelScope(shield=True):
            await has_ended.wait()
