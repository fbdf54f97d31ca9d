"""``@app.processor``, and ``Processor``: what it makes of a function."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from streamworker.core.time.schedules import Missed, When
from streamworker.core.time.schedules import every as _every
from streamworker.core.units import Duration, duration_ms
from streamworker.declaring.callables import Co, P, R, Wrapper
from streamworker.declaring.functions import describe
from streamworker.declaring.options import Options, ProcessorOptions
from streamworker.declaring.registry import DeclaringApp
from streamworker.declaring.specs import FunctionMode, ProcessorSpec
from streamworker.declaring.stream import ByType, IntoStreams, Stream, specs_of
from streamworker.declaring.table import Table, written
from streamworker.declaring.timed.expiring import ExpiredInto, ExpiredOf, K, V, expired
from streamworker.declaring.timed.timers import O, Timer, TimerInto, timed
from streamworker.errors import ConfigurationError, did_you_mean
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime.send.producer import Sent
from streamworker.runtime.send.receipts import wait_for_commit

P2 = ParamSpec("P2")
R2 = TypeVar("R2")


class Processor(Wrapper[P, R]):
    """A decorated processor function, as ``App.processor`` makes it; calling it calls the function itself."""

    def __init__(self, app: DeclaringApp, name: str, function: Callable[P, R]) -> None:
        super().__init__(function)
        self._app = app
        self.name: str = name
        """The processor's name, which is the name of its group."""

    @property
    def spec(self) -> ProcessorSpec:
        """Return the processor's specification; a pipeline that is bound later may change it."""
        return self._app.registry.processors[self.name]

    async def committed(self, sent: Sent, *, timeout: Duration | None = None) -> bool:
        """Wait until this processor has committed a record, and return whether it has.

        False means that it has not within ``timeout``; without one this waits as long as it takes. A record
        that was skipped or became a dead letter is committed, too.

        Parameters
        ----------
        sent
            What a send to the stream of this processor returned.
        timeout
            How long to wait at most; 0 looks once.

        Raises
        ------
        BackendRefused, AuthenticationFailed
            If Redis refuses, or does not accept the user or password. While it does not answer, this waits.
        ConfigurationError
            If ``timeout`` is no duration.

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
        self, *, every: Duration, into: IntoStreams = None, missed: Missed = "skip", when: When | None = None
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
        if self.spec.mode is FunctionMode.STREAM or self.spec.options.concurrency > 1:
            raise ConfigurationError(
                f"Processor {self.name!r} takes Records or has concurrency: it has no batches.",
                remedy="Take a record or a list without concurrency, or use @app.timer.",
            )
        return timed(self._app, lambda _: self.spec, partial(_every, every), missed, into, when)

    @overload
    def expired(self, table: Table[K, V], *, into: Stream[O]) -> ExpiredInto[K, V, O]: ...
    @overload
    def expired(self, table: Table[K, V], *, into: ByType | None = None) -> ExpiredOf[K, V]: ...
    def expired(self, table: Table[Any, Any], *, into: IntoStreams = None) -> Any:
        """Call a function at the ends of a table's values, in place of removing them in silence.

        The worker that owns the partition calls it between two batches, after all that the partition held
        when the value ended, in the order of the ends. What the function returns, sends and stores is
        committed with the removal of the value, once; a value stays readable until then. The function may set
        the value again, which keeps it. If it fails it is called again, after a pause that grows up to a
        minute, and later ends of this table wait; after ``Skip`` the value is removed.

        Parameters
        ----------
        table
            A table that this processor writes. Its values end by its ``ttl``, or by ``set(..., until=)``.
        into
            The stream that what the function returns goes to, or a stream for each type of row.

        Raises
        ------
        ConfigurationError
            If the processor does not write the table, or takes ``Records``; if the table has such a function
            already, or the function does not take a key and its value or a list of such pairs.

        Examples
        --------
        >>> import msgspec
        >>> from streamworker import App
        >>> app = App("visits")
        >>> class Seen(msgspec.Struct):
        ...     user: str
        >>> class Visit(msgspec.Struct):
        ...     user: str
        ...     pages: int = 0
        >>> ended = app.stream("ended", Visit, key="user")
        >>> visits = app.table("visits", Visit, ttl="30 minutes")
        >>> @app.processor(app.stream("seen", Seen, key="user"), tables=[visits])
        ... async def follow(seen: Seen) -> None:
        ...     visit = await visits.get(seen.user) or Visit(seen.user)
        ...     visit.pages += 1
        ...     visits.set(seen.user, visit)
        >>> @follow.expired(visits, into=ended)
        ... async def gone(user: str, visit: Visit) -> Visit:
        ...     return visit
        """
        return expired(self._app, self.name, table, into)


class Into(Protocol[O]):
    """A decorator whose function returns what goes to one stream; the function's exact type is kept."""

    @overload
    def __call__(self, function: Callable[P, Co[list[O]]], /) -> Processor[P, Co[list[O]]]: ...
    @overload
    def __call__(self, function: Callable[P, Co[O]], /) -> Processor[P, Co[O]]: ...
    @overload
    def __call__(self, function: Callable[P, Co[O | None]], /) -> Processor[P, Co[O | None]]: ...
    @overload
    def __call__(self, function: Callable[P, list[O]], /) -> Processor[P, list[O]]: ...
    @overload
    def __call__(self, function: Callable[P, O], /) -> Processor[P, O]: ...
    @overload
    def __call__(self, function: Callable[P, O | None], /) -> Processor[P, O | None]: ...


@overload
def processor(
    app: DeclaringApp,
    stream: Stream[Any],
    *,
    into: Stream[O],
    tables: Sequence[Table[Any, Any]] = (),
    **options: Unpack[Options],
) -> Into[O]: ...
@overload
def processor(
    app: DeclaringApp,
    stream: Stream[Any],
    *,
    into: ByType | None = None,
    tables: Sequence[Table[Any, Any]] = (),
    **options: Unpack[Options],
) -> Callable[[Callable[P, R]], Processor[P, R]]: ...
def processor(
    app: DeclaringApp,
    stream: Stream[Any],
    *others: object,
    into: IntoStreams = None,
    tables: Sequence[Table[Any, Any]] = (),
    **options: Unpack[Options],
) -> Callable[[Callable[P, R]], Processor[P, R]]:
    """Bind a function to a stream; it gets each record at least once, in order by key.

    Parameters
    ----------
    stream
        The stream that the processor reads.
    into
        Where what the function returns goes, each row once: a stream of this app, or one for each type
        of row. The target's key decides the partition. None and an empty list send nothing, and a list
        sends each of its rows in order (docs: chains).
    tables
        The tables that the function writes; no other processor may write them.
    name
        Name of the processor and its group; the function's name if None.
    batch
        Maximum records in one call, for a function that takes a list.
    within
        How long a batch waits for more records once it has one. At 0 it has those that came while the
        batch before was handled and committed: one at a low rate, and ``batch`` of them in a flow.
    batch_bytes
        Maximum bytes of entries in one batch.
    errors
        What is done about a record whose handling fails: one policy (``Retry()``, ``DeadLetter()``,
        ``Skip()``, ``Halt()``), or a mapping from exception types to policies, of which the nearest
        class wins. None is ``Retry()``: for ever, with backoff up to a minute, in order. An entry that
        cannot be decoded goes to the dead letters, unless the mapping names ``DecodeError``; one that
        kills its process halts its partition, unless it names ``ProcessDied`` (docs: errors).
    timeout
        How long one call may take; a longer call counts as failed. None sets no limit: a call
        that hangs is only reported, after ``max_processing_time_ms``. A ``def`` function cannot be
        interrupted: its thread keeps running, and its results are discarded.
    forward
        Whether rows go to the acked log. None forwards if the function returns something.
    output
        Type of the rows, if the return annotation does not give it.
    log_retention
        How long rows of the acked log stay after all readers have read them; see ``retention`` of a stream.
        A log without any reader keeps a day if None.
    log_archive
        Where rows of the acked log go besides, for ever: a URL, or an ``Archive`` (docs: archive).
    log_metadata
        Whether the acked log keeps, beside each row, the key, the time and the headers of the record that it
        was made of, which Spark shows as ``_key``, ``_sent_at`` and ``_headers``. For a function that takes
        one record. Once a log has them, it keeps them.
    concurrency
        Maximum concurrent calls in one partition, for a function that takes one record and waits
        for I/O. Such a function has no ``ctx.state``.
    ordered_by
        Which order is kept where calls overlap. ``key``: records with the same key never overlap
        and keep their order. ``none``: any records may overlap.
    start
        Where the group begins when it is new: with the oldest record that the stream still has
        (``earliest``), or with the next (``latest``).

    Raises
    ------
    ConfigurationError
        If the stream is another app's, or the function cannot be run as it is declared, takes what nothing
        fills, or returns what ``into`` does not take; or if an option is wrong, or the app has a processor
        of this name.

    Examples
    --------
    >>> import msgspec
    >>> from streamworker import App, DeadLetter, Retry
    >>> class Order(msgspec.Struct):
    ...     customer: str
    ...     amount: float
    >>> app = App("shop")
    >>> orders = app.stream("orders", Order, key="customer")
    >>> large = app.stream("large", Order, key="customer")
    >>> @app.processor(orders, into=large, errors={TimeoutError: Retry(attempts=5, then=DeadLetter())})
    ... async def pick(order: Order) -> Order | None:
    ...     return order if order.amount > 100 else None

    In batches, with a table that is committed with them:

    >>> totals = app.table("totals", float)
    >>> @app.processor(large, batch=500, within="200 milliseconds", tables=[totals])
    ... async def sum_up(batch: list[Order]) -> None:
    ...     known = await totals.get_many({order.customer for order in batch})
    ...     for order in batch:
    ...         known[order.customer] = known.get(order.customer, 0.0) + order.amount
    ...     totals.set_many(known)
    """
    if others or isinstance(stream, list | tuple | set):
        raise ConfigurationError(
            "@app.processor reads one stream, and was given several.",
            remedy="Send records of several types into one stream, or let a processor of each stream send "
            "into= a third (docs: recipes/join).",
        )
    if not isinstance(stream, Stream):
        raise ConfigurationError(
            "@app.processor was used without a stream.", remedy="Write @app.processor(orders)."
        )
    if stream.app.name != app.name:
        # Its keys, rights, trimming and tests are those of its own app.
        raise ConfigurationError(
            f"@app.processor of app {app.name!r} was given stream {stream.name!r} of app "
            f"{stream.app.name!r}.",
            remedy="Declare it with the app of its stream: services share an app, and each runs its own "
            "processors (docs: recipes/share-a-stream).",
        )
    for name in options.keys() - Options.__annotations__.keys():
        raise _unknown(name)
    told = ProcessorOptions(**options)

    def bind(function: Callable[P, R]) -> Processor[P, R]:
        declared = app.registry
        spec = describe(function, stream.spec, told, into=specs_of(into), resources=declared.resources)
        declared.check_new(
            "processors", spec.name, "Give one of them another name: @app.processor(..., name=...)."
        )
        declared.keep(replace(spec, tables=written(tables, spec)))
        return Processor(app, spec.name, function)

    return bind


_MEANT = {
    **dict.fromkeys(("retry", "retries", "max_retries", "attempts"), "Write errors=Retry(attempts=3). "),
    **dict.fromkeys(("batch_size", "max_batch", "size", "prefetch"), "Did you mean 'batch'? "),
    "priority": "Send what is urgent to a stream of its own (docs: recipes/noisy-tenant). ",
}
"""What those mean who write an option of another library."""


def _unknown(name: str) -> ConfigurationError:
    meant = did_you_mean(name, ["into", "tables", *Options.__annotations__])
    meant = _MEANT.get(name, meant)
    return ConfigurationError(
        f"@app.processor has no option {name!r}.",
        remedy=f"{meant}`help(streamworker.App.processor)` lists them.",
    )


def _with_each_option(function: Any) -> inspect.Signature:
    """Return its signature with each option by its name and default, for ``help()`` and the reference."""
    signature = inspect.signature(function)
    own = [
        each
        for each in signature.parameters.values()
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    return signature.replace(parameters=[*own, *inspect.signature(ProcessorOptions).parameters.values()])


processor.__signature__ = _with_each_option(processor)  # type: ignore[attr-defined]
