"""What the driver leaves beside a reader's position in Redis, for `status`, `graph`, `top` and `doctor`.

The source, in a process of its own, writes the position itself, at any time. It leaves what it finds here,
and may overwrite a number once that was written in the same moment: so the driver writes a number that grows
again after each micro-batch.
"""

from dataclasses import replace

from streamworker.core.data.readers import ReaderPosition, read_position
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.info import ms_of
from streamworker.spark.source.connection import Connection
from streamworker.spark.source.options import SourceOptions


class ReaderNotes:
    """The notes beside the position of one query's reader in the logs of one processor."""

    def __init__(self, options: SourceOptions) -> None:
        self._connection = Connection(options.connection, options.retry_timeout_ms)
        self._key = GroupKeys(options.app, options.stream, options.processor).readers
        self._reader = str(options.reader)

    def failed(self, message: str) -> None:
        """Note that the query failed; it stays until the query has read on."""
        position, now_ms = self._read()
        if position.at_ms:
            self._write(replace(position, failed=message, failed_ms=now_ms))

    def dropped(self, rows: int, before: int | None = None) -> int:
        """Note how many rows the query dropped as late since the driver's start.

        They are added to those ``before`` the start, which the method returns: at the first call those that
        it finds.
        """
        position, _ = self._read()
        before = position.dropped_rows if before is None else before
        if position.at_ms and position.dropped_rows != before + rows:
            self._write(replace(position, dropped_rows=before + rows))
        return before

    def _read(self) -> tuple[ReaderPosition, int]:
        asked = [("HGET", self._key, self._reader), ("TIME",)]
        stored, time = self._connection.pipeline(asked, retry=False)
        return read_position(stored or b""), ms_of(time)

    def _write(self, position: ReaderPosition) -> None:
        self._connection.call(lambda redis: redis.hset(self._key, self._reader, position.text()), retry=False)
