"""Checks of a pipeline's arguments when it is declared. Imports no pyspark.

Without these checks Spark would report the same mistakes ten seconds later, after its start, and
in its own words.
"""

import re
from pathlib import PurePosixPath

from streamworker.errors import ConfigurationError
from streamworker.processors import PipelineSpec
from streamworker.spark.source.options import is_source_option, parse_options

FILE_FORMATS = frozenset({"parquet", "orc", "json", "csv", "text"})
"""Formats that Spark writes as files in a directory. It only appends to them; mode ``complete``
replaces the directory."""
PATHLESS_FORMATS = frozenset({"console", "noop", "memory"})

_INTERVAL = re.compile(r"(\d+) *(millisecond|second|minute|hour|day)s?")

CONTROL_FOLDER = ".streamworker"
"""Folder beside a result for checkpoint directories and versions. Because its name begins with a dot,
listings hide it, and pyarrow, DuckDB and Spark do not read it as data."""


def check_pipeline(spec: PipelineSpec) -> None:
    """Check a pipeline's arguments against each other; an error names the pipeline and the correction."""
    if not spec.processor.forward:
        raise _wrong(
            spec,
            f"reads processor {spec.processor.name!r}, which forwards nothing.",
            "Let the processor return its records, or declare it with forward=True.",
        )
    if spec.mode not in ("append", "complete", "update"):
        raise _wrong(spec, f"has mode={spec.mode!r}.", "Use append, complete or update.")
    trigger_of(spec)
    _check_options(spec)
    if spec.format in FILE_FORMATS:
        _check_files(spec)
    elif spec.format not in PATHLESS_FORMATS and spec.path is not None and not spec.path:
        raise _wrong(spec, "has an empty path.", "Name the directory of the result.")


def _check_options(spec: PipelineSpec) -> None:
    for option in spec.options:
        if option.lower() in ("app", "stream", "processor"):
            raise _wrong(
                spec,
                f"has option {option!r}.",
                "Leave it out: a pipeline reads the rows of the processor that it is declared for.",
            )
    try:
        parse_options(source_options(spec), streaming=True)
    except ConfigurationError as error:
        raise _wrong(spec, f"cannot read its rows. {error.message}", error.remedy) from None


def source_options(spec: PipelineSpec) -> dict[str, str]:
    """Return the source options of a pipeline, with those for its processor and reader."""
    stream = spec.processor.stream
    given = {name: value for name, value in spec.options.items() if is_source_option(name)}
    if "reader" not in map(str.lower, given):
        given["reader"] = spec.name
    return {"app": stream.app, "stream": stream.name, "processor": spec.processor.name, **given}


def _check_files(spec: PipelineSpec) -> None:
    if spec.mode == "update":
        raise _wrong(
            spec,
            f"has mode='update' and format={spec.format!r}, and files cannot be updated in place.",
            "Use mode='complete', which writes the whole result anew, or return a stream writer "
            "with foreachBatch or a table format such as delta.",
        )
    if spec.mode == "complete" and spec.path is not None and not is_local(spec.path):
        raise _wrong(
            spec,
            f"has mode='complete' and path={spec.path!r}, where a whole result cannot be replaced at once.",
            "Use a path on a local disk, or return a stream writer for a table format such as delta.",
        )
    if spec.path is not None and not local(spec.path).strip("/. "):
        raise _wrong(spec, f"has path={spec.path!r}.", "Name a directory that belongs to the result alone.")


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
    """Return the checkpoint directory of a pipeline: the one given, or one beside its path."""
    if spec.checkpoint is not None:
        return spec.checkpoint
    if spec.path is None:
        return f"{CONTROL_FOLDER}/{spec.processor.stream.app}/{spec.name}/checkpoint"
    return f"{beside(spec.path)}/{spec.name}/checkpoint"


def beside(path: str) -> str:
    """Return the folder for files that belong to a result but are not part of it.

    >>> beside("lake/revenue")
    'lake/.streamworker/revenue'
    >>> beside("s3a://bucket/lake/revenue/")
    's3a://bucket/lake/.streamworker/revenue'
    """
    scheme, mark, rest = path.rpartition("://")
    place = PurePosixPath(rest)
    return f"{scheme}{mark}{place.parent / CONTROL_FOLDER / place.name}"


def is_local(path: str) -> bool:
    """Return whether a path is on this machine's file system."""
    return path.startswith("file:/") or "://" not in path


def local(path: str) -> str:
    """Return a local path without its ``file:`` prefix."""
    return re.sub(r"^file:(//)?", "", path)


def _wrong(spec: PipelineSpec, what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"Pipeline {spec.name!r} {what}", remedy=remedy)
