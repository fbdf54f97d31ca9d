"""Finds what an app has by its name alone: its workers store what they declare, under one key for the app."""

import pyarrow as pa

from streamworker.errors import ConfigurationError
from streamworker.redisio.data.ackedlog import deserialize_schema
from streamworker.redisio.keys import declaration, declared_by
from streamworker.spark.source.connection import Connection
from streamworker.spark.source.options import SourceOptions


def find_stream(options: SourceOptions) -> str:
    """Return the stream of the processor or table of a query; an error for none or several lists them."""
    connection = Connection(options.connection, options.retry_timeout_ms)
    fields: list[bytes] = connection.call(lambda redis: redis.hkeys(declared_by(options.app)))
    kind, name = ("table", options.table) if options.table else ("processor", options.processor)
    declared = [field.decode("utf-8", "replace").split(":", 2) for field in sorted(fields)]
    there = [(each[1], each[2]) for each in declared if each[0] == kind and len(each) == 3]
    streams = [on for each, on in there if each == name and options.stream in ("", on)]
    if len(streams) == 1:
        return streams[0]
    title = f"{kind} {name!r} of app {options.app!r}"
    if streams:
        raise ConfigurationError(
            f"Workers have declared {title} on the streams {', '.join(streams)}.",
            remedy="Name one: option stream.",
        )
    listed = ", ".join(f"{each} on {on}" for each, on in there)
    raise ConfigurationError(
        f"No worker has declared a {title} in Redis.",
        remedy=f"The app has: {listed}."
        if there
        else "Workers declare all of their app when they start: check the names, and that connection "
        f"{options.connection!r} is the right server and database.",
    )


def find_columns(options: SourceOptions) -> pa.Schema:
    """Return the columns of a table, as the workers that ran last have declared them."""
    connection = Connection(options.connection, options.retry_timeout_ms)
    field = declaration("table", options.table, options.stream)
    stored = connection.call(lambda redis: redis.hget(declared_by(options.app), field))
    columns = deserialize_schema(stored or b"")
    if why := (columns.metadata or {}).get(b"why"):
        raise ConfigurationError(
            f"Table {options.table!r} has no columns: {why.decode()}", remedy="Read it with Table.scan()."
        )
    return columns
