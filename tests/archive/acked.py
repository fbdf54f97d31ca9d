"""Archivers of acked logs for tests, run step by step."""

import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
from structlog.stdlib import BoundLogger

from streamworker.archive.chain import Chain
from streamworker.archive.logs import Commit, read_rows
from streamworker.archive.store import store_at
from streamworker.core.data.archives import GROUP, Archive
from streamworker.core.data.readers import ReaderPosition, read_position
from streamworker.log import get_logger
from streamworker.runtime.archive import logs
from streamworker.runtime.archive.logs import LogArchiver
from tests.spark.acked import AckedLog

T = TypeVar("T")


class Archivers:
    """Archivers of one acked log, as several workers have them."""

    def __init__(self, log: AckedLog, url: str, *, entries_max: int = 1_000, **options: Any) -> None:
        self.entries_max = entries_max
        given: dict[str, Any] = {"every": "100ms", "after": "0 seconds", **options}
        self.log = log
        self.archive = Archive(url, **given)
        self.store = store_at(url)

    def new(self) -> LogArchiver:
        """Return the archiver of another worker."""
        logger: BoundLogger = get_logger("tests")
        backend = self.log._backend
        its = self.archive, "json", self.entries_max
        return LogArchiver(backend, self.log.keys, *its, random.Random(1), logger)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.log._runner.run(work)

    def once(self, archiver: LogArchiver, *partitions: int) -> str:
        """Let it archive a segment of each partition, whatever is due; return why one fails."""
        archiver._pauses.clear()
        self.run(archiver.archive_once(dict.fromkeys(partitions or range(self.log.partitions))))
        return "; ".join(archiver._failing.values())

    def all(self, archiver: LogArchiver) -> str:
        """Let it archive all that is due."""
        while self.run(archiver.archive_once(dict.fromkeys(range(self.log.partitions)))):
            pass
        return "; ".join(archiver._failing.values())

    @property
    def position(self) -> ReaderPosition:
        return read_position(self.log.redis.hget(self.log.keys.readers, GROUP) or b"")

    def chain(self, partition: int) -> Chain:
        return Chain(self.store, partition)

    def commits(self, partition: int, after: int = 0, end: int = 2**60) -> list[Commit]:
        return [*read_rows(self.chain(partition), self.log.identity(partition), after, end)]

    def numbers(self, partition: int) -> list[int]:
        """Return ``n`` of all archived rows, in order; each segment must follow the one before it."""
        found: list[int] = []
        for each in self.chain(partition).segments():
            footer = self.chain(partition).footer(each.after)
            assert footer is not None
            assert footer.after.ms == len(found)
            rows = pq.read_table(Path(self.store.url) / each.name, partitioning=None)
            assert rows["_offset"].to_pylist() == [*range(footer.first.ms, footer.last.ms + 1)]
            found += rows["n"].to_pylist()
        return found


@contextmanager
def instead_of(name: str, other: Callable[..., Any]) -> Iterator[None]:
    """Put another function in the place of one of the archiver's."""
    before = getattr(logs, name)
    setattr(logs, name, other)
    try:
        yield
    finally:
        setattr(logs, name, before)
