"""All rows that a processor ever forwarded: its archive as Parquet files, and the acked log behind them."""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

from streamworker.core.units import moment, time_ms
from streamworker.errors import ConfigurationError
from streamworker.spark.driver.session import environment, of_connection, register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from streamworker.spark.source.archived import ArchivedLogs
    from streamworker.spark.source.offsets import Position

SCHEMES = {"s3": "s3a", "az": "abfss", "azure": "abfss"}
"""What Spark calls the stores whose URLs have another scheme here."""


class _Files(NamedTuple):
    """The archived rows of one partition."""

    names: list[str]
    end: int
    """The number of the last row in them."""


def history(
    spark: "SparkSession",
    app: str,
    processor: str,
    since: datetime | str | None = None,
    stream: str | None = None,
    redis_url: str | None = None,
    **options: Any,
) -> "DataFrame":
    """Return all rows that a processor ever forwarded, each once.

    Spark reads the archive of the acked log itself, as Parquet, up to a row of each partition, and the
    source reads the rows behind that. It may be used for as long as the archive has its segments: rows that
    Redis drops later are read from there.

    Parameters
    ----------
    spark
        The session. It needs what Spark needs for the store, such as hadoop-aws for ``s3://``.
    app, processor, stream
        Whose rows; the stream only if processors of this name are on several.
    since
        Only rows that were committed at this time or later: a text such as ``2026-01-31T12:00Z``. Without a
        zone it is in that of the session.
    redis_url
        The Redis, if the connection ``default`` of Spark's processes is none or another one.
    options
        Of the source, such as ``includeMetadata=True`` or ``connection="prod"``.

    Raises
    ------
    ConfigurationError
        If there is no such processor, or an option does not fit.
    ArchiveConflict
        If the archive is of another log than Redis has.

    Examples
    --------
    >>> def count(spark: "SparkSession") -> None:
    ...     rows = history(spark, app="shop", processor="price", since="2026-01-01")
    ...     rows.groupBy("customer").count().show()
    """
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    from streamworker.spark.source.archived import ArchivedLogs
    from streamworker.spark.source.datasource import FORMAT, locate
    from streamworker.spark.source.declared import find_stream
    from streamworker.spark.source.options import Offsets, parse_options
    from streamworker.spark.source.schema import METADATA

    given = {"app": app, "processor": processor, **({"stream": stream} if stream else {})}
    for name, each in options.items():
        given[name] = str(each).lower() if isinstance(each, bool) else str(each)
    since_ms = None if since is None else _since_ms(spark, since)
    with _connected(spark, redis_url):
        parsed = parse_options(given, streaming=False)
        if parsed.starting_offsets != Offsets("earliest", {}) or parsed.table:
            raise ConfigurationError(
                "history() begins with the first row, or with since=.", remedy="Leave out what says another."
            )
        parsed = replace(parsed, stream=find_stream(parsed))
        logs = ArchivedLogs(parsed)
        partitions = range(len(logs.tails()))
        # First what is archived, then the log: rows that are archived in between are read from Redis, or
        # from the archive if Redis has dropped them, but once.
        url = logs.archive()
        files = _listed(url, logs, partitions) if url else {}
        starts: Mapping[int, Position] = {}
        if since_ms is not None:
            starts = locate(parsed, logs, Offsets("earliest", {}, since_ms))
        register(spark, by_value=_is_remote(spark))
        from_rows = {p: max(its.end, starts[p].rows if p in starts else 0) for p, its in files.items()}
        from_rows = {p: at.rows for p, at in starts.items()} | from_rows
        if from_rows:
            given["startingOffsets"] = json.dumps(from_rows)
        live = spark.read.format(FORMAT).options(**given).load()
    paths = [path for p, its in sorted(files.items()) for path in _since(its, starts.get(p))]
    if not paths:
        return live
    more = [field for field in METADATA if since_ms is not None and field.name not in live.columns]
    cold = spark.read.schema(StructType([*live.schema, *more])).parquet(*(_path(url, name) for name in paths))
    if since_ms is not None:
        cold = cold.filter(functions.col("_acked_at") >= functions.lit(moment(since_ms)))
    # The source's tasks first: they take longer to begin, and the files are read meanwhile.
    return live.union(cold.select([functions.col(f"`{name}`") for name in live.columns]))


def _since(files: _Files, start: "Position | None") -> list[str]:
    """Return the files of one partition that have rows behind a position."""
    from streamworker.core.data.archives import after_of

    if start is None:
        return files.names
    if start.rows >= files.end:
        return []
    begins = [each.ms for name in files.names if (each := after_of(name)) is not None]
    first = max((index for index, after in enumerate(begins) if after <= start.rows), default=0)
    return files.names[first:]


def _listed(url: str, logs: "ArchivedLogs", partitions: range) -> dict[int, _Files]:
    """Return the archived rows of each partition that has some.

    A list may be older than the store; it ends earlier then, and the source reads the rest.
    """
    from streamworker.archive.chain import Chain
    from streamworker.archive.logs import check_log
    from streamworker.archive.store import store_at
    from streamworker.spark.source.archived import LISTS

    chains = [Chain(store_at(url), p) for p in partitions]

    def ends(chain: Chain) -> tuple[_Files, Any] | None:
        if not (segments := chain.segments()):
            return None
        if (footer := chain.footer(segments[-1].after)) is None:
            raise ConfigurationError(
                f"{url}/{segments[-1].name} is gone since it was listed.", remedy="Ask for the history again."
            )
        return _Files([each.name for each in segments], footer.last.ms), footer

    with ThreadPoolExecutor(LISTS) as threads:
        found = dict(zip(partitions, threads.map(ends, chains), strict=True))
    tails = logs.tails()
    for p, its in found.items():
        if its is not None:
            check_log(chains[p], its[1], tails[p].log)
    return {p: its[0] for p, its in found.items() if its is not None}


def _path(url: str, name: str) -> str:
    scheme, has_scheme, rest = url.partition("://")
    if not has_scheme or scheme == "file":
        return f"file://{Path(rest if has_scheme else url).absolute() / name}"
    return f"{SCHEMES.get(scheme, scheme)}://{rest.rstrip('/')}/{name}"


def _since_ms(spark: "SparkSession", since: datetime | str) -> int:
    try:
        at = datetime.fromisoformat(since) if isinstance(since, str) else since
    except ValueError:
        raise ConfigurationError(
            f"since={since!r} is no time.", remedy="Write it as 2026-01-31 or 2026-01-31T12:00Z."
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=_zone(spark))
    return time_ms(at, "since")


def _zone(spark: "SparkSession") -> Any:
    try:
        return ZoneInfo(str(spark.conf.get("spark.sql.session.timeZone")))
    except (KeyError, ValueError):
        return UTC


def _is_remote(spark: "SparkSession") -> bool:
    return not hasattr(spark, "_jsc")


@contextmanager
def _connected(spark: "SparkSession", redis_url: str | None) -> "Iterator[None]":
    """Let this process, and the Python processes of Spark that read the source, connect to a Redis."""
    if redis_url is None:
        yield
        return
    if _is_remote(spark):
        raise ConfigurationError(
            "redis_url= is given, and Spark is a remote server.",
            remedy="Name a connection that the server knows: connection=.",
        )
    values, given = of_connection(redis_url), spark.sparkContext.environment
    before = {**given}
    with environment(values):
        given.update(values)  # They go with the source that is registered now.
        try:
            yield
        finally:
            given.clear()
            given.update(before)
