"""Readers of the acked logs, and how far each has come; trimming waits for the slowest.

A reader writes its own position: Spark's driver does, with the offsets that it can no longer
ask for again. One that will never come back has to be forgotten by hand, or the logs fill up
to their limit and commits wait.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamworker.errors import BackendError
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.link import Argument


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """How far one reader has come."""

    rows: Mapping[int, int]
    """Partition to the rows of its acked log that the reader is past."""
    logs: Mapping[int, str]
    """Partition to the identity of the log that those rows were counted in."""
    at_ms: int
    """When it said so."""


async def register_reader(backend: Backend, keys: GroupKeys, name: str, position: ReaderPosition) -> None:
    """Say how far a reader has come, for the first time or again. May be repeated.

    Raises
    ------
    BackendError
        Without an answer, or if the key is no hash.
    """
    await backend.execute("HSET", keys.readers, name, reader_text(position))


async def positions(backend: Backend, keys: GroupKeys) -> dict[str, ReaderPosition]:
    """Return all readers and how far they have come.

    Raises
    ------
    BackendError
        Without an answer, or if the key is no hash.
    """
    return read_readers(await backend.execute("HGETALL", keys.readers))


async def slowest_rows(backend: Backend, keys: GroupKeys) -> dict[int, int]:
    """Return, for each partition that every reader has begun, the rows that all of them are past.

    A position in a log that was replaced since says nothing about the new one, and counts as
    none. Without readers the answer is empty: nobody has said what may go.

    Raises
    ------
    BackendError
        Without an answer, or if the key is no hash.
    """
    readers = (await positions(backend, keys)).values()
    if not readers:
        return {}
    shared = sorted(set.intersection(*(set(reader.rows) for reader in readers)))
    commands: list[Sequence[Argument]] = [("HGET", keys.lock(p), "log") for p in shared]
    slowest: dict[int, int] = {}
    for partition, log in zip(shared, await backend.pipeline(commands), strict=True):
        identity = log.decode("utf-8", "replace") if isinstance(log, bytes) else None
        if identity is not None and all(r.logs.get(partition) == identity for r in readers):
            slowest[partition] = min(reader.rows[partition] for reader in readers)
        elif isinstance(log, BackendError) and len(shared) == 1:
            raise log
    return slowest


async def forget(backend: Backend, keys: GroupKeys, name: str) -> bool:
    """Remove a reader that will not come back; whether it was there. May be repeated.

    Raises
    ------
    BackendError
        Without an answer.
    """
    return bool(await backend.execute("HDEL", keys.readers, name))


def reader_text(position: ReaderPosition) -> str:
    """Return a position as it is stored."""
    return json.dumps(
        {
            "p": {str(p): rows for p, rows in sorted(position.rows.items())},
            "log": {str(p): log for p, log in sorted(position.logs.items())},
            "at": position.at_ms,
        },
        separators=(",", ":"),
    )


def read_readers(flat: Sequence[bytes]) -> dict[str, ReaderPosition]:
    """Read the hash of readers.

    A position that cannot be read counts as one at the beginning: trimming too little is
    noticed and can be put right.
    """
    readers: dict[str, ReaderPosition] = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        try:
            fields = json.loads(value)
            position = ReaderPosition(
                {int(p): int(rows) for p, rows in fields["p"].items()},
                {int(p): str(log) for p, log in fields["log"].items()},
                int(fields["at"]),
            )
        except (ValueError, OverflowError, RecursionError, KeyError, TypeError, AttributeError):
            position = ReaderPosition({}, {}, 0)
        readers[name.decode("utf-8", "replace")] = position
    return readers
