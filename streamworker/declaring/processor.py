"""``Processor``: what a decorator makes of a function."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from streamworker.core.data.schedules import Missed, When
from streamworker.core.data.schedules import every as _every
from streamworker.core.units import Duration, duration_ms
from streamworker.declaring.callables import P, R, Wrapper
from streamworker.declaring.parameters import Resource
from streamworker.declaring.specs import FunctionMode, ProcessorSpec
from streamworker.declaring.stream import ByType, Stream
from streamworker.declaring.timers import O, Timer, TimerInto, describe_timer
from streamworker.errors import ConfigurationError
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.send.producer import Sent
from streamworker.runtime.send.receipts import wait_for_commit

P2 = ParamSpec("P2")
R2 = TypeVar("R2")


class ProcessorApp(Protocol):
    """What a processor needs of its app."""

    processors: dict[str, ProcessorSpec]
    resources: dict[str, Resource[..., Any]]

    def backend(self) -> Backend:
        """Return the connections of the running event loop."""
        ...


class Processor(Wrapper[P, R]):
    """A decorated processor function; calling it calls the function itself."""

    def __init__(self, app: ProcessorApp, name: str, function: Callable[P, R]) -> None:
        super().__init__(function)
        self._app = app
        self.name = name
        """The processor's name, which is the name of its group."""

    @property
    def spec(self) -> ProcessorSpec:
        """Return the processor's specification; a pipeline that is bound later may change it."""
        return self._app.processors[self.name]

    async def committed(self, sent: Sent, *, timeout: Duration | None = None) -> bool:
        """Wait until this processor has committed a record, and return whether it has.

        False means that it has not within ``timeout``; without one this waits as long as it takes. A record
        that was skipped or became a dead letter is committed, too.

        Parameters
        ----------
        sent
            What a send to the stream of this processor returned.
        timeout
            A duration.

        Examples
        --------
        >>> async def order(order):
        ...     sent = await orders.send(order)
        ...     return "done" if await price.committed(sent, timeout="2 seconds") else "accepted"
        """
        stream = self.spec.stream
        keys = GroupKeys(stream.app, stream.name, self.name)
        limit_s = None if timeout is None else duration_ms(timeout, "timeout") / 1000
        return await wait_for_commit(self._app.backend(), keys, sent.partition, sent.entry_id, limit_s)

    @overload
    def timer(
        self, *, every: Duration, into: Stream[O], missed: Missed = "skip", when: When | None = None
    ) -> TimerInto[O]: ...
    @overload
    def timer(
        self,
        *,
        every: Duration,
        into: ByType | None = None,
        missed: Missed = "skip",
        when: When | None = None,
    ) -> Callable[[Callable[P2, R2]], Timer[P2, R2]]: ...
    def timer(
        self,
        *,
        every: Duration,
        into: Stream[Any] | ByType | None = None,
        missed: Missed = "skip",
        when: When | None = None,
    ) -> Any:
        """Call a function once a period in each partition, between two batches, with the partition's state.

        The worker that owns the partition calls it. The planned time and what the call stores are committed
        together, under the owner's epoch, so a planned time takes effect once. While a record is tried again,
        and while the partition is paused or halted, its timers wait, too.

        Parameters
        ----------
        every
            The period. Planned times are multiples of it since 1970, in UTC.
        into
            The stream that what the function returns goes to, or a stream for each type of row.
        missed
            What becomes of a planned time that nobody ran within a minute, or before the next one:
            ``skip``; ``once``: the newest of them runs; ``all``: each runs, oldest first.
        when
            ``caught up``: a call waits until all that the partition held when its time had come is committed,
            and keeps its planned time meanwhile. None: it runs between the next two batches.

        Raises
        ------
        ConfigurationError
            If the period is none, the function takes what nothing fills, or the processor takes ``Records``
            or has ``concurrency``: there is no moment between two batches then.

        Examples
        --------
        >>> import msgspec
        >>> from streamworker import App, Context
        >>> app = App("shop")
        >>> class Order(msgspec.Struct):
        ...     customer: str
        >>> @app.processor(app.stream("orders", Order, key="customer"))
        ... async def count(order: Order, ctx: Context) -> None:
        ...     ctx.state["seen"] = ctx.state.get("seen", 0) + 1
        >>> @count.timer(every="1 hour")
        ... async def tell(ctx: Context) -> None:
        ...     ctx.log.info("seen", count=ctx.state.get("seen", 0))
        """

        def bind(function: Callable[P2, R2]) -> Timer[P2, R2]:
            spec = self.spec
            if spec.mode is FunctionMode.STREAM or spec.concurrency > 1:
                raise ConfigurationError(
                    f"Processor {self.name!r} takes Records or has concurrency: it has no batches.",
                    remedy="Take a record or a list without concurrency, or use @app.timer.",
                )
            made = describe_timer(
                function, lambda name: _every(every, name), missed, spec, self._app.resources, into, when
            )
            self._app.processors[self.name] = replace(spec, timers=(*spec.timers, made))
            return Timer(made, function)

        return bind


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
