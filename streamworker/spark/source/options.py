"""The options of ``format("streamworker")``, parsed and checked. Pure.

An unknown option is an error: otherwise a misspelt limit would be noticed only in production. A Redis
URL is refused as an option: Spark copies options into task closures, and may show them.
"""

import difflib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from streamworker.errors import ConfigurationError
from streamworker.redisio.keys import check_name
from streamworker.spark.source.offsets import row_count

Where = int | Literal["earliest", "latest"]
"""A row count, or one end of the log."""

ENDS: Mapping[int, Where] = {-2: "earliest", -1: "latest"}
"""Values that mean the ends of the log in JSON, as in Spark's Kafka source."""

RETRY_TIMEOUT_MS = 60_000
"""Longer than a restart of Redis with a large append-only file takes. Spark itself never retries a
planner call."""

IDLE_WAIT_MS = 500
"""``query.stop()`` waits for it, and so do the rows of another source of the same query."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where a query begins or ends: one offset for all partitions, one for each, or a time."""

    everywhere: Literal["earliest", "latest"]
    """The offset in each partition that ``each`` does not name."""
    each: Mapping[int, Where]
    at_ms: int | None = None
    """The time in place of the offsets: of the first row that was committed then or later."""

    def of(self, partition: int) -> Where:
        """Return the offset in one partition."""
        return self.each.get(partition, self.everywhere)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a query, with the defaults filled in; :data:`NAMES` says what each is for."""

    app: str
    stream: str = ""
    """Empty if it was not given, and is not found yet."""
    processor: str = ""
    table: str = ""
    """The table whose state is read, in the place of a processor's rows."""
    connection: str = "default"
    starting_offsets: Offsets = Offsets("earliest", {})
    ending_offsets: Offsets = Offsets("latest", {})
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    max_partitions: int | None = None
    parallelism: int | None = None
    """Tasks that run at a time; None for the cores of the machine that plans."""
    fail_on_data_loss: bool = True
    fail_on_late_start: bool = False
    """Whether a query that is to read all rows may not begin where rows were trimmed."""
    include_metadata: bool = False
    include_headers: bool = False
    reader: str | None = None
    siblings: tuple[str, ...] = ()
    retry_timeout_ms: int = RETRY_TIMEOUT_MS
    idle_wait_ms: int = IDLE_WAIT_MS
    drop_other_columns: bool = False
    record_schema: str | None = None
    sink: tuple[str, str] | None = None
    """The directory of the query's table of files and its checkpoint directory, on the driver's disk."""


@dataclass(frozen=True, slots=True)
class Option:
    """What docs/spark-reference.md says of an option, in a sentence or two."""

    takes: str
    default: str
    meaning: str


NAMES = {
    "app": Option("name", "required", "Name of the App."),
    "stream": Option("name", "none", "Name of the stream, if processors of this name are on several."),
    "processor": Option("name", "required, or table", "Name of the processor whose forwarded rows are read."),
    "table": Option("name", "none", "Name of the table whose present keys and values a batch reads."),
    "connection": Option("name", "default", "Name of the Redis connection; each process resolves it itself."),
    "startingOffsets": Option("offsets", "earliest", "Where a new query begins."),
    "startingTimestamp": Option(
        "time", "none", "A new query begins with the first row that was committed at this time or later."
    ),
    "endingOffsets": Option("offsets", "latest", "Where a batch read ends."),
    "endingTimestamp": Option(
        "time", "none", "A batch read ends before the first row that was committed at this time or later."
    ),
    "maxRowsPerTrigger": Option(
        "number", "none; 1000000 in a pipeline", "Rows of a micro-batch at most, over all partitions."
    ),
    "maxBytesPerTrigger": Option(
        "number", "none", "Bytes of a micro-batch at most, about, as the logs hold them in Redis."
    ),
    "minPartitions": Option("number", "none", "Spark tasks at least: large partitions are split by rows."),
    "maxPartitions": Option("number", "none", "Spark tasks at most: partitions are packed together."),
    "parallelism": Option(
        "number", "cores of the machine that plans", "Tasks that Spark runs at a time; pipelines set it."
    ),
    "failOnDataLoss": Option(
        "true or false", "true", "Missing rows end the query; with false it warns and goes on."
    ),
    "includeMetadata": Option("true or false", "false", "Adds the metadata columns but _headers."),
    "includeHeaders": Option("true or false", "false", "Adds _headers."),
    "reader": Option(
        "name", "none; a pipeline's is its name", "Redis keeps its position, so trimming waits."
    ),
    "siblings": Option(
        "names", "none; pipelines set it", "Readers that start with this one, for which the first rows stay."
    ),
    "otherColumns": Option(
        "fail or drop", "fail", "What happens to a column that rows have and the query's schema lacks."
    ),
    "recordSchema": Option(
        "JSON of a schema", "none; pipelines set it", "Columns that the query has before rows have them."
    ),
    "sinkPath": Option(
        "directory", "none; pipelines set it", "Table of files that must hold all batches before the next."
    ),
    "sinkCheckpoint": Option(
        "directory", "none; pipelines set it", "The query's checkpoint directory, with sinkPath."
    ),
    "retryTimeout": Option("seconds", "60", "How long Redis may be away before the query fails."),
    "idleWait": Option(
        "seconds",
        "0.5; 0.05 in a pipeline of several processors",
        "How long a micro-batch without rows waits for the first, and query.stop() with it.",
    ),
}
"""Every option; docs/spark-reference.md shows this table."""

NEEDED = (
    'The source needs app and processor, or app and table, such as .option("app", "shop"). In SQL use '
    "CREATE TEMPORARY VIEW rows USING streamworker OPTIONS (app 'shop', ...): tables of the catalog have no "
    "options."
)
STREAM_ONLY = (
    "idleWait",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "reader",
    "siblings",
    "sinkPath",
    "sinkCheckpoint",
)
BATCH_ONLY = ("endingOffsets", "endingTimestamp")
OF_TABLE = frozenset(
    (
        "app",
        "stream",
        "table",
        "connection",
        "includeMetadata",
        "maxPartitions",
        "parallelism",
        "retryTimeout",
    )
)
_BY_LOWER = {name.lower(): name for name in NAMES}


def parse_options(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Read the options of a query, whose names are in any case.

    ``streaming`` is None if it is not known yet whether the query is a stream or a batch read. A refusal
    names the option, and never shows a value that may hold a password.
    """
    if "path" in map(str.lower, given):
        raise ConfigurationError("Acked logs have no path.", remedy=f"Call load() without one. {NEEDED}")
    if any(name.lower().startswith("option.") for name in given):
        raise ConfigurationError("Acked logs can be no table of Spark's catalog.", remedy=NEEDED)
    options = {_known(name, value): value.strip() for name, value in given.items()}
    misplaced = () if streaming is None else BATCH_ONLY if streaming else STREAM_ONLY
    for name in misplaced:
        if name in options:
            kind = "a stream" if streaming else "a batch read"
            raise ConfigurationError(f"Option {name} is not for {kind}.", remedy="Leave it out.")
    if "table" in options:
        _check_table(options, streaming=streaming)
    for name in ("app", "table" if "table" in options else "processor"):
        if not options.get(name):
            raise ConfigurationError(f"Option {name} is missing.", remedy=NEEDED)
    for name in ("app", "stream", "processor", "table", "reader", "connection"):
        if name in options:
            check_name(name, options[name])
    siblings = tuple(name.strip() for name in options.get("siblings", "").split(",") if name.strip())
    for name in siblings:
        check_name("siblings", name)
    if siblings and "reader" not in options:
        raise ConfigurationError(
            "Option siblings is given, and reader is not.",
            remedy="Give the query a reader name: without one it registers nothing in Redis.",
        )
    sink = options.get("sinkPath"), options.get("sinkCheckpoint")
    if (sink[0] is None) != (sink[1] is None):
        raise ConfigurationError(
            "One of the options sinkPath and sinkCheckpoint is missing.", remedy="Give both, or neither."
        )
    parsed = SourceOptions(
        app=options["app"],
        stream=options.get("stream", ""),
        processor=options.get("processor", ""),
        table=options.get("table", ""),
        connection=options.get("connection", "default"),
        starting_offsets=_offsets(options, "startingOffsets", "startingTimestamp", "earliest"),
        ending_offsets=_offsets(options, "endingOffsets", "endingTimestamp", "latest"),
        max_rows_per_trigger=_number(options, "maxRowsPerTrigger"),
        max_bytes_per_trigger=_number(options, "maxBytesPerTrigger"),
        min_partitions=_number(options, "minPartitions"),
        max_partitions=_number(options, "maxPartitions"),
        parallelism=_number(options, "parallelism"),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        fail_on_late_start=_flag(options, "failOnDataLoss", default=False),
        include_metadata=_flag(options, "includeMetadata", default=False),
        include_headers=_flag(options, "includeHeaders", default=False),
        reader=options.get("reader"),
        siblings=siblings,
        retry_timeout_ms=_seconds_as_ms(options, "retryTimeout", RETRY_TIMEOUT_MS),
        idle_wait_ms=_seconds_as_ms(options, "idleWait", IDLE_WAIT_MS),
        drop_other_columns=_choice(options, "otherColumns", ("fail", "drop")) == "drop",
        record_schema=options.get("recordSchema"),
        sink=(sink[0], sink[1]) if sink[0] and sink[1] else None,
    )
    _check_pairs(parsed)
    return parsed


def _check_pairs(parsed: SourceOptions) -> None:
    """Refuse options that contradict each other."""
    starts, ends = parsed.starting_offsets, parsed.ending_offsets
    if starts.at_ms is not None and ends.at_ms is not None and starts.at_ms > ends.at_ms:
        raise ConfigurationError(
            "Option startingTimestamp is after endingTimestamp.", remedy="Exchange them, or leave one out."
        )
    for start, end in ((starts.of(p), ends.of(p)) for p in (*starts.each, *ends.each, -1)):
        is_above = isinstance(start, int) and isinstance(end, int) and start > end
        if is_above or (start, end) == ("latest", "earliest"):
            raise ConfigurationError(
                f"Option startingOffsets ({start}) is after endingOffsets ({end}).",
                remedy="Exchange them, or leave one out.",
            )
    low, high = parsed.min_partitions, parsed.max_partitions
    if low is not None and high is not None and low > high:
        raise ConfigurationError(
            f"Option minPartitions ({low}) is above maxPartitions ({high}).", remedy="Leave one of them out."
        )


def _check_table(options: Mapping[str, str], *, streaming: bool | None) -> None:
    if streaming:
        raise ConfigurationError(
            "A table is no stream: its values change, and rows of a stream do not.",
            remedy="Read it with spark.read, or read the rows of its processor as a stream.",
        )
    for name in options:
        if name not in OF_TABLE:
            raise ConfigurationError(
                f"Options table and {name} are given.",
                remedy="Leave one out: a table is found by its name, and read whole, as it is now.",
            )


def is_source_option(name: str) -> bool:
    """Return whether the source has an option of this name, in any case."""
    return name.lower() in _BY_LOWER


def _known(name: str, value: str) -> str:
    if "://" in value or name.lower() in ("url", "redis_url", "redisurl", "redis.url", "password"):
        raise ConfigurationError(
            f"Option {name} holds a Redis URL or password, and Spark copies options into every task.",
            remedy="Name a connection instead, such as connection=prod, and set "
            "STREAMWORKER_CONNECTION_PROD to the URL on the driver and the executors.",
        )
    known = _BY_LOWER.get(name.lower())
    if known is None:
        close = difflib.get_close_matches(name.lower(), _BY_LOWER, n=1)
        raise ConfigurationError(
            f"Source streamworker has no option {name!r}.",
            remedy=f"Did you mean {_BY_LOWER[close[0]]}?" if close else f"It has: {', '.join(NAMES)}.",
        )
    return known


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise _wrong(name, text, "It must be a whole number above 0.")
    return int(text)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _choice(options, name, ("true", "false") if default else ("false", "true")) == "true"


def _choice(options: Mapping[str, str], name: str, words: tuple[str, str]) -> str:
    """Return the value of an option that is one of two words; the first is the default."""
    text = options.get(name, words[0])
    if text.lower() not in words:
        raise _wrong(name, text, f"It must be {' or '.join(sorted(words, reverse=True))}.")
    return text.lower()


def _seconds_as_ms(options: Mapping[str, str], name: str, default_ms: int) -> int:
    text = options.get(name)
    if text is None:
        return default_ms
    with suppress(ValueError):
        seconds = float(text.removesuffix("s"))
        if 0 <= seconds < 1e9:
            return int(seconds * 1000)
    raise _wrong(name, text, "It is a time in seconds, such as 60.")


def _moment_ms(options: Mapping[str, str], name: str, other: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if other in options:
        raise ConfigurationError(f"Options {name} and {other} are given.", remedy="Give one of them.")
    with suppress(ValueError):
        if text.isdigit():
            return int(text)
        if (moment := datetime.fromisoformat(text)).tzinfo is not None:
            return int(moment.timestamp() * 1000)
    raise _wrong(name, text, "It is a time with its zone, such as 2026-01-31T12:00Z, or ms since 1970.")


def _offsets(
    options: Mapping[str, str], name: str, time: str, default: Literal["earliest", "latest"]
) -> Offsets:
    text, at_ms = options.get(name, default), _moment_ms(options, time, name)
    if text.lower() == "earliest":
        return Offsets("earliest", {}, at_ms)
    if text.lower() == "latest":
        return Offsets("latest", {}, at_ms)
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        document = json.loads(text)
        if isinstance(document, dict) and "v" in document:
            document = document["p"]
        each = {int(p): row_count(rows, min(ENDS)) for p, rows in document.items()}
        return Offsets(default, {p: ENDS.get(rows, rows) for p, rows in each.items()})
    raise _wrong(
        name,
        text,
        'It is earliest, latest, or JSON from partition to rows, such as {"0": 1200, "1": -1}; '
        "-2 stands for earliest and -1 for latest.",
    )


def _wrong(name: str, text: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"Option {name} is {text!r}.", remedy=remedy)
