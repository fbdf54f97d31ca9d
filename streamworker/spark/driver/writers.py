"""Where the result of a pipeline goes: a format of Spark's, or a sink of ours for each micro-batch."""

from importlib.util import find_spec
from typing import Any

from streamworker.declaring.specs import PipelineSpec
from streamworker.errors import ConfigurationError
from streamworker.spark.driver.checks import (
    BATCHES,
    DELTA,
    FILE_FORMATS,
    PATHLESS_FORMATS,
    POSTGRES,
    absolute,
    beside,
    check_belongs,
    is_local,
    partition_columns,
)
from streamworker.spark.sinks.deltalake import DeltaLake
from streamworker.spark.sinks.objects import ObjectBatches
from streamworker.spark.sinks.postgres import Postgres, type_of
from streamworker.spark.sinks.sink import BATCH_COLUMN, Batches, Handed, OncePerBatch, WholeResult
from streamworker.spark.source.options import is_source_option
from streamworker.spark.source.table import PLANNED, latest_batch

EXTRAS = {"obstore": "archive"}
"""Packages whose extra has not the name of the format."""


def writer_of(spec: PipelineSpec, result: Any, checkpoint: str, *, remote: bool) -> Any:
    """Return the stream writer of a pipeline's result, which has neither a trigger nor a checkpoint yet."""
    # ``isStreaming`` is checked first: a remote DataFrame has any attribute, as a column of that name.
    if not hasattr(result, "isStreaming"):
        if hasattr(result, "foreachBatch") and spec.into is None:
            return result
        raise ConfigurationError(
            f"Pipeline {spec.name!r} returned {type(result).__name__}.",
            remedy="Its function returns a DataFrame, or the stream writer of one (df.writeStream...).",
        )
    if not result.isStreaming:
        raise ConfigurationError(
            f"Pipeline {spec.name!r} returned a DataFrame that does not come from its argument.",
            remedy="Derive the result from the DataFrame that the function is given.",
        )
    if spec.write is not None:
        return result.writeStream.outputMode(spec.mode).foreachBatch(
            Handed(spec.write, spec.name, checkpoint)
        )
    if spec.into is not None:
        return result.writeStream.foreachBatch(_into(spec, result, checkpoint, remote=remote))
    if spec.path is None and spec.format not in PATHLESS_FORMATS:
        raise ConfigurationError(
            f"Pipeline {spec.name!r} has no path for its result.",
            remedy='Give it one: @app.pipeline(..., path="lake/..."), or a function: write=.',
        )
    options = {name: value for name, value in spec.options.items() if not is_source_option(name)}
    options.pop("partitionBy", None)
    if spec.mode == "complete" and spec.format in FILE_FORMATS:
        if not (spec.path and is_local(spec.path) and is_local(checkpoint)):
            raise ConfigurationError(
                f"Pipeline {spec.name!r} writes its whole result each time, and {spec.path!r} or its "
                "checkpoint is not on a local disk.",
                remedy="Use local paths, or write= with a function of yours.",
            )
        path = absolute(spec.path)
        whole = WholeResult(path, f"{beside(path)}/{spec.name}", checkpoint, spec.format, options)
        whole.check()
        return result.writeStream.outputMode("complete").foreachBatch(whole)
    if (sink := _sink_of(spec, result, checkpoint, options)) is not None:
        if sink.needs and not remote and find_spec(sink.needs) is None:
            raise ConfigurationError(
                f"Format {spec.format} needs {sink.needs}, which is not installed.",
                remedy=f"Run: pip install 'streamworker[{EXTRAS.get(sink.needs, spec.format)}]'",
            )
        if not (sink.needs and remote):  # The server's disk and packages are another machine's.
            sink.begin()
        return result.writeStream.outputMode(spec.mode).foreachBatch(sink)
    if spec.path and spec.format in FILE_FORMATS:
        check_belongs(result.sparkSession, spec.name, absolute(spec.path), checkpoint)
    writer = result.writeStream.outputMode(spec.mode).format(spec.format).options(**options)
    if by := partition_columns(spec):
        writer = writer.partitionBy(*by)
    return writer.option("path", absolute(spec.path)) if spec.path else writer


def _into(spec: PipelineSpec, result: Any, checkpoint: str, *, remote: bool) -> Any:
    """Return the sink into a stream; a server on another machine looks itself where the stream stands."""
    from streamworker.spark.into.sink import StreamSink, check_columns

    if spec.mode != "append":
        raise ConfigurationError(
            f"Pipeline {spec.name!r} has an aggregate without a watermark, so its rows change, and a stream "
            "only takes more.",
            remedy="Give it a watermark: withWatermark(...) lets each row come once, when it is final.",
        )
    target = spec.into
    folder, plans = f"{checkpoint}/into/{target.name}", f"{checkpoint}/{PLANNED}"
    sink = StreamSink(target.spec, target.app.settings, spec.name, folder, plans)
    if remote:
        check_columns(target.spec, result)
    else:
        sink.begin(result, latest_batch(checkpoint, PLANNED))
    return sink


def _sink_of(
    spec: PipelineSpec, result: Any, checkpoint: str, options: dict[str, str]
) -> OncePerBatch | None:
    """Return the sink that writes each micro-batch once; None for Spark's own formats."""
    path, by = absolute(str(spec.path)), partition_columns(spec)
    _need_columns(spec, result, "partitionBy", by)
    if spec.format == DELTA:
        _need_columns(spec, result, "upsert", spec.upsert)
        whole = spec.mode == "complete" and not spec.upsert
        return DeltaLake(path=path, checkpoint=checkpoint, partition_by=by, upsert=spec.upsert, whole=whole)
    if spec.format == POSTGRES:
        return _postgres(spec, result, checkpoint)
    if spec.format != BATCHES:
        return None
    if spec.mode != "append":
        raise ConfigurationError(
            f"Pipeline {spec.name!r} has an aggregate without a watermark, and {BATCHES} only appends.",
            remedy="Give it a watermark, or use format='parquet', which replaces the whole result.",
        )
    if ours := [name for name in result.columns if name.lower() == BATCH_COLUMN]:
        raise ConfigurationError(
            f"The result of pipeline {spec.name!r} has a column {ours[0]!r}, in whose place readers of "
            f"{BATCHES} show the name of each batch's directory.",
            remedy=f"Rename it in the function: .withColumnRenamed({ours[0]!r}, ...).",
        )
    if not is_local(path):
        return ObjectBatches(path=path, checkpoint=checkpoint)
    folder = f"{beside(path)}/{spec.name}"
    return Batches(path=path, folder=folder, checkpoint=checkpoint, partition_by=by, options=options)


def _postgres(spec: PipelineSpec, result: Any, checkpoint: str) -> Postgres:
    _need_columns(spec, result, "upsert", spec.upsert)
    columns = {}
    for column in result.schema:
        kind = column.dataType.simpleString()
        columns[column.name] = type_of(kind)
        if not columns[column.name]:
            raise ConfigurationError(
                f"Column {column.name!r} of pipeline {spec.name!r} is {kind}, which PostgreSQL has not.",
                remedy="Cast it in the pipeline's function.",
            )
    return Postgres(
        path=str(spec.table),
        checkpoint=checkpoint,
        pipeline=f"{spec.processors[0].stream.app}.{spec.name}",
        dsn_env=str(spec.dsn_env),
        columns=columns,
        upsert=spec.upsert,
        whole=spec.mode == "complete" and not spec.upsert,
    )


def _need_columns(spec: PipelineSpec, result: Any, what: str, columns: tuple[str, ...]) -> None:
    if missing := [name for name in columns if name not in result.columns]:
        raise ConfigurationError(
            f"Pipeline {spec.name!r} has {what} with {', '.join(missing)}, which its result lacks.",
            remedy=f"It has: {', '.join(result.columns)}.",
        )
