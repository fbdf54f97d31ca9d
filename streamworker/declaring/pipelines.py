"""``@app.pipeline``: what Spark makes of what a processor forwards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from streamworker.core.rules import check_arguments, checked
from streamworker.declaring.callables import P, R, look, takes
from streamworker.declaring.processors import Processor
from streamworker.declaring.registry import DeclaringApp
from streamworker.declaring.specs import PipelineSpec, ProcessorSpec, has_several_types, rows_of_several_types
from streamworker.declaring.stream import Stream
from streamworker.errors import ConfigurationError
from streamworker.redisio.keys import check_name
from streamworker.spark.driver.checks import check_pipeline


@checked("Pipeline")
def pipeline(
    app: DeclaringApp,
    processor: Processor[..., Any],
    *others: Processor[..., Any],
    name: str | None = None,
    trigger: str = "10 seconds",
    into: Stream[Any] | None = None,
    path: str | None = None,
    format: str = "parquet",
    mode: Literal["append", "complete", "update"] = "append",
    table: str | None = None,
    upsert: Sequence[str] = (),
    dsn_env: str | None = None,
    write: Callable[..., object] | None = None,
    checkpoint: str | None = None,
    options: Mapping[str, str | Mapping[str, str]] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Bind a function that turns DataFrames into a DataFrame; ``streamworker spark`` runs it.

    Parameters
    ----------
    processor, others
        Whose forwarded rows are read: the function takes a DataFrame of each, in this order. A processor
        that returns nothing forwards its records. To join two streams, give both a watermark.
    name
        Name of the pipeline; the function's name if None.
    trigger
        ``"10 seconds"``, or ``"available now"`` to process the existing rows and stop.
    into
        The stream that the rows go to, each once (docs: into-a-stream). Their columns are the fields of its
        records, and ``_headers`` if rows have headers.
    path, format, mode
        Where and how the returned DataFrame is written. A function that returns a stream writer
        needs none of them.
    table, dsn_env
        With ``format="postgres"``: the table, ``schema.name`` or a name; and the environment variable that
        holds the connection string.
    upsert
        The columns of the key, if a row replaces the one of its key, for ``"postgres"`` and ``"deltalake"``.
    write
        A sink of your own: ``write(rows, query, batch)`` gets each micro-batch with the query's id and the
        number of the batch, and again if it was killed.
    checkpoint
        Spark's checkpoint directory; beside ``path`` if None, or in ``.streamworker`` for a table of
        ``"deltalake"`` or ``"parquet-batches"`` in an object store.
    options
        Options of the source (docs: spark-reference) and of the writer. With several processors, those of the
        source hold for each; a mapping under a processor's name holds for that one alone.

    Raises
    ------
    ConfigurationError
        If the function does not take a DataFrame of each processor, or what is written, and where, is not
        clear.

    Examples
    --------
    >>> import msgspec
    >>> from streamworker import App
    >>> class Order(msgspec.Struct):
    ...     customer: str
    ...     amount: float
    >>> app = App("shop")
    >>> @app.processor(app.stream("orders", Order, key="customer"))
    ... async def price(order: Order) -> Order:
    ...     return order
    >>> @app.pipeline(price, path="lake/orders")
    ... def lake(orders):
    ...     return orders.where("amount > 100")
    >>> @app.pipeline(price, into=app.stream("large", Order, key="customer"))
    ... def large(orders):
    ...     return orders.where("amount > 1000")
    """
    inputs, given = (processor, *others), (options or {}).items()
    for each in others:
        check_arguments("Pipeline", {"name": name, "processor": each})

    def bind(function: Callable[P, R]) -> Callable[P, R]:
        looked = look(function, "Pipeline", name)
        label = check_name("pipeline", looked.name)
        if looked.is_async or not takes(looked, len(inputs)):
            some = "one DataFrame" if len(inputs) == 1 else f"{len(inputs)} DataFrames, one of each processor"
            raise ConfigurationError(
                f"{looked.whose} is async, or does not take {some}.",
                remedy=f"Write it as `def ...({', '.join(each.name for each in inputs)})`: Spark's driver "
                "calls it once, at the start.",
            )
        app.registry.check_new(
            "pipelines", label, "Give one of them another name: @app.pipeline(..., name=...)."
        )
        spec = PipelineSpec(
            name=label,
            processors=tuple(_forwarding(app, each, label) for each in inputs),
            function=looked.function,
            trigger=trigger,
            path=path,
            format=format,
            mode=mode,
            checkpoint=checkpoint,
            options={name: value for name, value in given if not isinstance(value, Mapping)},
            options_of={name: dict(value) for name, value in given if isinstance(value, Mapping)},
            table=table,
            upsert=(upsert,) if isinstance(upsert, str) else tuple(upsert),
            dsn_env=dsn_env,
            write=write,
            into=into,
        )
        check_pipeline(spec)
        app.registry.pipelines[label] = spec
        return function

    return bind


def _forwarding(app: DeclaringApp, processor: Processor[..., Any], pipeline: str) -> ProcessorSpec:
    """Return a processor; one that returns nothing, and was not told to, forwards its records from now on."""
    spec = processor.spec
    if not spec.forward and spec.options.forward is None:
        if has_several_types(spec.into):
            raise rows_of_several_types(f"Processor {spec.name!r}")
        target = spec.targets[0] if spec.targets else spec.stream
        target.record.check_single(f"the acked log that pipeline {pipeline!r} reads")
        spec = replace(spec, forward=True, output=target.record)
        app.registry.keep(spec)
    return spec
