"""From a pipeline's declaration to a running query."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamworker.declaring.specs import PipelineSpec, ProcessorSpec
from streamworker.errors import ConfigurationError
from streamworker.redisio.data.ackedlog import log_schema
from streamworker.spark.driver.checks import (
    FILE_FORMATS,
    absolute,
    checkpoint_of,
    is_local,
    source_options,
    trigger_of,
)
from streamworker.spark.driver.session import Session, register
from streamworker.spark.driver.writers import writer_of
from streamworker.spark.source.options import SourceOptions, parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)


def start_query(
    spec: PipelineSpec, session: Session, *, together: Iterable[PipelineSpec] = (), once: bool = False
) -> "StreamingQuery":
    """Start the query of a pipeline from its checkpoint directory, and return it.

    ``together`` are the pipelines that run with this one. Those that read the same logs all begin with
    the first rows, even if they start later. ``once`` overrides the trigger: the query reads the rows
    that the logs hold now, and ends.
    """
    from pyspark.errors import AnalysisException

    trigger = {"availableNow": True} if once else trigger_of(spec)
    checkpoint = absolute(checkpoint_of(spec))
    try:
        result = spec.function(*(source_rows(spec, each, session, together) for each in spec.processors))
        if (changed := _as_it_turned_out(spec, result, checkpoint)) != spec:
            return start_query(changed, session, together=together, once=once)
        writer = writer_of(spec, result, checkpoint, remote=session.remote)
        writer = writer.queryName(spec.name).option("checkpointLocation", checkpoint)
        query: StreamingQuery = writer.trigger(**trigger).start()
    except AnalysisException as error:
        if "Traceback (most recent call last)" in str(error):  # The source's, such as Redis that is away.
            raise
        raise ConfigurationError(
            f"Spark refuses pipeline {spec.name!r}: {str(error).splitlines()[0]}",
            remedy="Correct its function; what joins or aggregates streams may need a watermark.",
        ) from error
    return query


def source_rows(
    spec: PipelineSpec, processor: ProcessorSpec, session: Session, together: Iterable[PipelineSpec] = ()
) -> "DataFrame":
    """Return the streaming DataFrame of the rows of one processor that a pipeline reads.

    Its schema has the columns of the processor's output type, so a pipeline can start before the first row,
    and those of the newest schema in Redis: workers of a newer version than this process may forward more.
    """
    from streamworker.spark.source.datasource import FORMAT
    from streamworker.spark.source.schema import declared_schema

    options = source_options(spec, processor)
    given = {name.lower(): value for name, value in options.items()}
    if "siblings" not in given and (siblings := _siblings(spec, processor, together)):
        options["siblings"] = ",".join(siblings)
    if "parallelism" not in given:
        options["parallelism"] = str(session.parallelism)
    if spec.mode != "append" and "failondataloss" not in given:
        options["failOnDataLoss"] = "true"  # The result would be of a part of the rows.
    if _is_table(spec):
        options |= {"sinkPath": absolute(str(spec.path)), "sinkCheckpoint": absolute(checkpoint_of(spec))}
    if "recordschema" not in given:
        options["recordSchema"] = declared_schema(log_schema(processor)).json()
    # Each query needs its own registration: see ``register``.
    register(session.spark, by_value=session.remote)
    return session.spark.readStream.format(FORMAT).options(**options).load()


def _siblings(spec: PipelineSpec, processor: ProcessorSpec, together: Iterable[PipelineSpec]) -> list[str]:
    """Return the reader names of the other pipelines that read the logs of this processor."""

    def logs(options: SourceOptions) -> tuple[str, ...]:
        return options.connection, options.app, options.stream, options.processor

    mine = parse_options(source_options(spec, processor), streaming=True)
    others = [
        parse_options(source_options(other, each), streaming=True)
        for other in together
        for each in other.processors
    ]
    return sorted({str(o.reader) for o in others if logs(o) == logs(mine) and o.reader != mine.reader})


def _as_it_turned_out(spec: PipelineSpec, result: Any, checkpoint: str) -> PipelineSpec:
    """Return the pipeline as its function's result shows it; the options of its source depend on that."""
    if not hasattr(result, "isStreaming"):  # A stream writer has a place of its own.
        return spec if spec.path is None else replace(spec, path=None, checkpoint=checkpoint)
    if spec.mode == "append" and result.isStreaming and not _can_append(result):
        what = "keys that change are" if spec.upsert else "its whole result is"
        log.info("pipeline %s has no watermark: %s written each time", spec.name, what)
        return replace(spec, mode="update" if spec.upsert else "complete")
    return spec


def _is_table(spec: PipelineSpec) -> bool:
    """Return whether Spark appends the result to a table of files on a local disk."""
    local_files = spec.path is not None and is_local(spec.path) and spec.format in FILE_FORMATS
    return spec.mode == "append" and local_files and is_local(checkpoint_of(spec))


def _can_append(frame: Any) -> bool:
    """Return whether rows of a result are final when they are written.

    Rows of an aggregate without a watermark are not final, so such a result can only be written as a
    whole. Spark reports this only when the query starts, and by then a file sink has written its
    metadata into the directory. So this function calls Spark's checker first. A remote Spark runs it
    before it refuses a query of continuous mode, which the source does not have, so none begins.
    """
    from pyspark.errors import PySparkException

    try:
        if (plan := getattr(frame, "_jdf", None)) is None:
            writer = frame.writeStream.format("noop").outputMode("append")
            writer.trigger(continuous="1 second").start().stop()
            return True
        jvm = frame.sparkSession._jvm  # noqa: SLF001, the checker has no other way in
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        checker.checkForStreaming(plan.queryExecution().analyzed(), append)
    except PySparkException as error:
        return "OUTPUT_MODE" not in (error.getCondition() or "")
    return True
