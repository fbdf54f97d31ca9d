"""Checks of a pipeline's arguments when it is declared, and of its table at its start. Imports no pyspark.

Without the first, Spark would report the same mistakes ten seconds later, after its start, and in its own
words. Without the second, it would report nothing.
"""

import re
from inspect import iscoroutinefunction
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from streamworker.core.data.archives import CREDENTIALS, STORES, has_secrets
from streamworker.declaring.specs import PipelineSpec, ProcessorSpec
from streamworker.errors import ConfigurationError
from streamworker.spark.sinks.postgres import OURS
from streamworker.spark.source.options import is_source_option, parse_options
from streamworker.spark.source.table import PLANNED, WRITTEN, highest, latest_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARQUET = "parquet"
FILE_FORMATS = frozenset({PARQUET, "orc", "json", "csv", "text"})
"""Formats that Spark writes as files in a directory. It only appends to them; mode ``complete``
replaces the directory."""
BATCHES = "parquet-batches"
"""Parquet with a directory for each micro-batch, for readers other than Spark."""
DELTA = "deltalake"
"""A Delta table, which delta-rs writes."""
POSTGRES = "postgres"
"""A table of PostgreSQL, which psycopg writes."""
ONCE = frozenset({BATCHES, DELTA, POSTGRES})
"""Sinks of ours, which count the batches."""
PATHLESS_FORMATS = frozenset({"console", "noop", "memory", POSTGRES})

BATCH_ROWS_MAX = 1_000_000
"""Rows of a pipeline's micro-batch: the first one over a long log must not end in memory."""
IDLE_WAIT_OF_SEVERAL_S = 0.05
"""Spark asks one source after the other: the rows of one wait while another has none."""

_INTERVAL = re.compile(r"(\d+) *(millisecond|second|minute|hour|day)s?")

CONTROL_FOLDER = ".streamworker"
"""Folder beside a result for checkpoint directories and versions. Because its name begins with a dot,
listings hide it, and pyarrow, DuckDB and Spark do not read it as data."""


def check_pipeline(spec: PipelineSpec) -> None:
    """Check a pipeline's arguments against each other; an error names the pipeline and the correction."""
    for name in ("path", "checkpoint"):
        if has_secrets(getattr(spec, name) or ""):
            raise _wrong(spec, f"has credentials in the URL of its {name}.", CREDENTIALS)
    for processor in spec.processors:
        if not processor.forward:
            raise _wrong(
                spec,
                f"reads processor {processor.name!r}, which forwards nothing.",
                "Let the processor return its records, or declare it with forward=True.",
            )
        if spec.processors.count(processor) > 1:
            raise _wrong(
                spec, f"names processor {processor.name!r} twice.", "Use the DataFrame of its rows twice."
            )
    if spec.mode not in ("append", "complete", "update"):
        raise _wrong(spec, f"has mode={spec.mode!r}.", "Use append, complete or update.")
    trigger_of(spec)
    names = [processor.name for processor in spec.processors]
    for name, options in spec.options_of.items():
        if names.count(name) != 1:
            raise _wrong(
                spec,
                f"has options of {name!r}, which is not one of its processors.",
                f"It reads {', '.join(names)}: name one that it reads from one stream.",
            )
        if others := [option for option in options if not is_source_option(option)]:
            raise _wrong(
                spec,
                f"has options of processor {name!r} that the source has not: {', '.join(others)}.",
                "Give those of the writer by themselves.",
            )
    for option in (*spec.options, *(each for options in spec.options_of.values() for each in options)):
        if option.lower() in ("app", "stream", "processor", "table"):
            raise _wrong(
                spec,
                f"has option {option!r}.",
                "Leave it out: a pipeline reads the rows of the processors that it is declared for.",
            )
    try:
        for processor in spec.processors:
            parse_options(source_options(spec, processor), streaming=True)
    except ConfigurationError as error:
        raise _wrong(spec, f"cannot read its rows. {error.message}", error.remedy) from None
    if spec.format in (*FILE_FORMATS, BATCHES, DELTA) and spec.write is None and spec.into is None:
        _check_files(spec)
    elif spec.format not in PATHLESS_FORMATS and spec.path is not None and not spec.path:
        raise _wrong(spec, "has an empty path.", "Name the directory of the result.")
    _check_table(spec)
    _check_into(spec)
    ours = spec.format in ONCE or spec.write is not None or spec.into is not None
    of_files = spec.format == BATCHES and is_local(str(spec.path))
    if ours and not (is_local(where := checkpoint_of(spec)) or (in_store(where) and not of_files)):
        raise _wrong(
            spec,
            f"counts its batches, and has checkpoint={spec.checkpoint!r}.",
            f"Name a directory on a local disk{'' if of_files else ', or a URL such as s3a://lake/checkpoint'}"
            ": the sink reads the query's id there.",
        )
    known = {"partitionBy"} if spec.format == DELTA else set()
    others = [each for each in spec.options if not is_source_option(each) and each not in known]
    if ours and not of_files and others:
        but = f" A batch is one object there; {DELTA} has partitionBy." if spec.format == BATCHES else ""
        raise _wrong(
            spec, f"has options that its sink has not: {', '.join(others)}.", f"Leave them out.{but}"
        )


def source_options(spec: PipelineSpec, processor: ProcessorSpec) -> dict[str, str]:
    """Return the source options of a pipeline for one of its processors, with those that it did not give."""
    stream = processor.stream
    for_all = {name: value for name, value in spec.options.items() if is_source_option(name)}
    defaults = {"reader": spec.name, "maxRowsPerTrigger": str(BATCH_ROWS_MAX)}
    if len(spec.processors) > 1:
        defaults["idleWait"] = str(IDLE_WAIT_OF_SEVERAL_S)
    given = dict[str, str]()
    for layer in (spec.options_of.get(processor.name, {}), for_all, defaults):
        known = set(map(str.lower, given))
        given |= {name: value for name, value in layer.items() if name.lower() not in known}
    return {"app": stream.app, "stream": stream.name, "processor": processor.name, **given}


def _check_files(spec: PipelineSpec) -> None:
    if spec.format == BATCHES and spec.mode != "append":
        raise _wrong(
            spec,
            f"has format={BATCHES!r} and mode={spec.mode!r}.",
            "It appends. Use format='parquet' for another mode.",
        )
    if spec.format in (BATCHES, DELTA) and not (spec.path and (is_local(spec.path) or in_store(spec.path))):
        raise _wrong(
            spec,
            f"has format={spec.format!r} and path={spec.path!r}.",
            "Name a directory on a local disk, or s3://bucket/path, gs:// or abfss://. Use format='parquet' "
            "for another place.",
        )
    if spec.mode == "update" and not (spec.format == DELTA and spec.upsert):
        raise _wrong(
            spec,
            f"has mode='update' and format={spec.format!r}, and files cannot be updated in place.",
            "Use mode='complete', which writes the whole result anew, format='deltalake' or 'postgres' with "
            "upsert=, or write= with a function of yours.",
        )
    if spec.mode == "complete" and spec.format != DELTA and not is_local(spec.path or ""):
        raise _wrong(
            spec,
            f"has mode='complete' and path={spec.path!r}, where a whole result cannot be replaced at once.",
            "Use a path on a local disk, or write= with a function of yours.",
        )
    if spec.path is not None and not local(spec.path).strip("/. "):
        raise _wrong(spec, f"has path={spec.path!r}.", "Name a directory that belongs to the result alone.")


def _check_table(spec: PipelineSpec) -> None:
    if iscoroutinefunction(spec.write):
        raise _wrong(spec, "has a write= that is async.", "Write it as def: Spark calls it.")
    given = [name for name in ("table", "dsn_env", "upsert") if getattr(spec, name)]
    if spec.write is not None and (spec.path is not None or spec.format != PARQUET):
        raise _wrong(spec, "has write= and a path or format.", "Give it one of them.")
    if spec.format != POSTGRES:
        if others := [name for name in given if (name, spec.format) != ("upsert", DELTA)]:
            what = f"has {others[0]}= and format={spec.format!r}."
            raise _wrong(spec, what, f"{others[0]} is for format={POSTGRES!r}; upsert for {DELTA!r}, too.")
        return
    if spec.path is not None:
        raise _wrong(spec, f"has format={POSTGRES!r} and a path.", "Leave the path out: rows go to table=.")
    if not re.fullmatch(r"[^.]+(\.[^.]+)?", spec.table or ""):
        raise _wrong(spec, f"has table={spec.table!r}.", "Name a table: orders, or sales.orders.")
    if not re.fullmatch(r"[A-Za-z_]\w*", spec.dsn_env or ""):
        raise _wrong(
            spec,
            "has a dsn_env that is no name of an environment variable.",
            "Name the variable that holds the connection string, such as WAREHOUSE.",
        )
    if str(spec.table).rpartition(".")[2] in OURS:
        raise _wrong(spec, f"has table={spec.table!r}, a name of the sink's own.", "Give it another name.")
    if spec.mode == "update" and not spec.upsert:
        raise _wrong(spec, "has mode='update' and no upsert=.", "Name the columns of the key: upsert=[...].")


def _check_into(spec: PipelineSpec) -> None:
    if spec.into is None:
        return
    target, app = spec.into.spec, spec.processors[0].stream.app
    if target.app != app:
        raise _wrong(
            spec,
            f"sends into stream {target.name!r} of app {target.app!r}.",
            "Send into a stream of its own app; an app may read streams of several modules.",
        )
    if spec.path is not None or spec.format != PARQUET or spec.write is not None:
        raise _wrong(
            spec,
            "has into= and a path, format or write=.",
            "Give it one of them; write= with streamworker.spark.into_stream sends to several places.",
        )
    if spec.mode != "append":
        raise _wrong(
            spec, f"has into= and mode={spec.mode!r}.", "A stream only takes more: leave the mode out."
        )
    target.record.check_single(f"the result of pipeline {spec.name!r}")


def trigger_of(spec: PipelineSpec) -> dict[str, str | bool]:
    """Return the arguments of Spark's ``trigger(...)`` for a time or ``available now``."""
    text = spec.trigger.strip().lower()
    if text in ("available now", "once"):
        return {"availableNow": True}
    if _INTERVAL.fullmatch(text):
        return {"processingTime": text}
    raise _wrong(
        spec, f"has trigger={spec.trigger!r}.", 'Use a time such as "10 seconds", or "available now".'
    )


def checkpoint_of(spec: PipelineSpec) -> str:
    """Return the checkpoint directory of a pipeline: the one given, or one beside its path.

    A sink of ours into a store has it in the folder of those without a path: Spark needs jars for a store.
    """
    if spec.checkpoint is not None:
        return spec.checkpoint
    if spec.path is None or (spec.format in ONCE and in_store(spec.path)):
        return f"{CONTROL_FOLDER}/{spec.processors[0].stream.app}/{spec.name}/checkpoint"
    return f"{beside(spec.path)}/{spec.name}/checkpoint"


def partition_columns(spec: PipelineSpec) -> tuple[str, ...]:
    """Return the columns by whose values the files of a result are divided."""
    names = spec.options.get("partitionBy", "").split(",")
    return tuple(name.strip() for name in names if name.strip())


def beside(path: str) -> str:
    """Return the folder for files that belong to a result but are not part of it.

    >>> beside("lake/revenue")
    'lake/.streamworker/revenue'
    >>> beside("s3a://bucket/lake/revenue/")
    's3a://bucket/lake/.streamworker/revenue'
    """
    scheme, mark, rest = path.rpartition("://")
    result = PurePosixPath(rest)
    return f"{scheme}{mark}{result.parent / CONTROL_FOLDER / result.name}"


def is_local(path: str) -> bool:
    """Return whether a path is on this machine's file system."""
    return path.startswith("file:/") or "://" not in path


def in_store(path: str) -> bool:
    """Return whether a path is a URL of an object store that the sinks of ours know."""
    scheme, has_scheme, rest = path.partition("://")
    return bool(has_scheme) and scheme in STORES and bool(rest.strip("/"))


def local(path: str) -> str:
    """Return a local path without its ``file:`` prefix."""
    return re.sub(r"^file:(//)?", "", path)


def absolute(path: str) -> str:
    """Return a path of this machine as an absolute one, and another as it is."""
    return str(Path(local(path)).absolute()) if is_local(path) else path


def check_belongs(spark: "SparkSession", name: str, path: str, checkpoint: str) -> None:
    """Refuse a table that was written from another checkpoint directory, or from a newer copy of it.

    Spark's file sink stores the number of each batch that it has written beside the files, and skips a batch
    whose number it has: a query whose checkpoint directory was lost counts from 0 again, and would silently
    skip its first batches. Spark writes the number of a batch into the checkpoint directory before it writes
    the batch, so if the two belong together, the table is never ahead. It is never behind either; the source
    looks at that before each batch (:mod:`streamworker.spark.source.table`).

    A remote session cannot list folders that are not on a local disk, so these are not checked.
    """
    written = batch_in(spark, f"{path}/{WRITTEN}")
    planned = batch_in(spark, f"{checkpoint}/{PLANNED}") if written >= 0 else -1
    if written <= planned:
        return
    batches = f"{written - planned} batch{'es' if written > planned + 1 else ''}"
    raise ConfigurationError(
        f"Pipeline {name!r} has a checkpoint directory that is not the one of its table: {path} holds "
        f"batch {written}, and {checkpoint} {f'ends with {planned}' if planned >= 0 else 'knows of none'}. "
        f"Spark would leave out the next {batches}.",
        remedy="Restore the checkpoint directory; or give the pipeline a new path, which gives it a new "
        "checkpoint directory too.",
    )


def batch_in(spark: "SparkSession", folder: str) -> int:
    """Return the highest number of a batch in a folder; -1 if there is none or it cannot be listed."""
    if is_local(folder):
        return latest_batch(local(folder))
    if (jvm := getattr(spark, "_jvm", None)) is None:
        return -1
    where = jvm.org.apache.hadoop.fs.Path(folder)
    files = where.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001, pyspark has no other way
    listed = files.listStatus(where) if files.exists(where) else []
    return highest(each.getPath().getName() for each in listed)


def _wrong(spec: PipelineSpec, what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"Pipeline {spec.name!r} {what}", remedy=remedy)
