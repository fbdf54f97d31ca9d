"""Finds what an app has by its name alone: its workers store what they declare, under one key for the app."""

from streamworker.errors import ConfigurationError
from streamworker.redisio.keys import declared_by
from streamworker.spark.source.connection import Connection
from streamworker.spark.source.options import SourceOptions


def find_stream(options: SourceOptions) -> str:
    """Return the stream of the processor that a query names; an error for none or several lists them."""
    connection = Connection(options.connection, options.retry_timeout_ms)
    fields: list[bytes] = connection.call(lambda redis: redis.hkeys(declared_by(options.app)))
    known = sorted(field.decode("utf-8", "replace").split(":", 2) for field in fields)
    processors = [(each[1], each[2]) for each in known if each[0] == "processor" and len(each) == 3]
    streams = [stream for name, stream in processors if name == options.processor]
    if len(streams) == 1:
        return streams[0]
    title = f"processor {options.processor!r} of app {options.app!r}"
    if streams:
        raise ConfigurationError(
            f"Workers have run {title} on the streams {', '.join(streams)}.",
            remedy="Name one: option stream.",
        )
    there = ", ".join(f"{name} on {stream}" for name, stream in processors)
    raise ConfigurationError(
        f"No worker has declared a {title} in Redis.",
        remedy=f"The app has: {there}."
        if there
        else "Workers declare all processors of their app when they start: check the names, and that "
        f"connection {options.connection!r} is the right server and database.",
    )
