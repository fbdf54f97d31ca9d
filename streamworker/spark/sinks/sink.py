"""Sinks that write each micro-batch once, and those of files: a replaced result, and batches as directories.

Spark's file formats can only append. A pipeline in mode ``complete`` has its whole result at
the end of each micro-batch. The sink writes the result into a new directory beside ``path``, and then
points ``path``, a symbolic link, at it in one step. A directory stays for ``KEPT_S`` after it was replaced,
for readers that resolved the link before. A reader that opens file after file through the link itself may
meet two versions: no file system replaces a directory of files under such a reader.

    lake/revenue -> .streamworker/revenue/revenue/versions/5f0c8e7a-000012-30a1c2d4
    lake/.streamworker/revenue/revenue/versions/5f0c8e7a-000011-9b0d77e2
    lake/.streamworker/revenue/revenue/versions/5f0c8e7a-000012-30a1c2d4

When a batch runs again after a crash, its version is either the link's target, and the sink does
nothing, or incomplete, and the sink writes another one; no link points at an incomplete version. The query's
id precedes the number of the batch, since batches count from 0 again in a new checkpoint directory.

A table that grows says itself which batch it got last (:class:`OncePerBatch`). The format ``parquet-batches``
appends, for readers that do not know Spark's list of the files that count. Each micro-batch is written where
no reader looks, and then renamed to a directory of the table:

    lake/orders/batch=5f0c8e7a-000011/part-00000.parquet
    lake/orders/.last        names the last batch: 5f0c8e7a-000011

Imports the standard library only, since with a remote Spark this module runs on the server.
"""

import json
import os
import re
import secrets
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from streamworker.errors import ConfigurationError, DataLoss
from streamworker.spark.source.places import place_at
from streamworker.spark.source.table import PLANNED, latest_batch

VERSIONS = "versions"
KEPT_S = 30.0
"""How long a version stays after it was replaced."""
BATCH_COLUMN = "batch"
"""The column that readers which know Hive's partitions see in a table of batches."""
LAST = ".last"
"""The file of a table of batches that names the last one."""
ID_LENGTH = 8
"""So much of a query's id is in the names of files."""


@dataclass(frozen=True)
class WholeResult:
    """A ``foreachBatch`` function that replaces the result after each batch."""

    path: str
    """The path that readers open; becomes a symbolic link."""
    folder: str
    """The folder of the versions; on the same file system."""
    checkpoint: str
    """The query's checkpoint directory, which holds the query's id."""
    format: str
    options: dict[str, str] = field(default_factory=dict)

    def __call__(self, result: Any, batch: int) -> None:
        """Write ``result`` (a DataFrame) as the whole result after ``batch``."""
        if self._shows(batch):
            return
        target = Path(self.folder) / VERSIONS / attempt_at(name_of(query_id(self.checkpoint), batch))
        result.write.format(self.format).options(**self.options).save(str(target))
        if not self._shows(batch):  # Where the lock does not hold, another driver may have been faster.
            self.point(Path(self.path), target)
        self._clean()

    def _shows(self, batch: int) -> bool:
        """Whether readers see the result after this batch; raise if they see a later one."""
        link = Path(self.path)
        last = batch_of(link.readlink().name, query_id(self.checkpoint)) if link.is_symlink() else None
        if last is not None and last > batch:
            raise ConfigurationError(
                f"{self.path}: it is the whole result after batch {last}, and batch {batch} comes again. "
                f"Another driver uses {self.checkpoint}, or that is an older copy.",
                remedy="End one of the drivers; or restore the checkpoint directory.",
            )
        return last == batch

    def check(self) -> None:
        """Refuse a path that holds other data, or a result that was made from another checkpoint directory.

        With another checkpoint directory, the new result would lack rows that were trimmed from the acked
        logs.
        """
        link = Path(self.path)
        if link.is_symlink():
            made_by = link.readlink().name.partition("-")[0]
            if made_by and made_by != query_id(self.checkpoint)[:ID_LENGTH]:
                raise ConfigurationError(
                    f"{self.path}: its whole result was made from another checkpoint directory than "
                    f"{self.checkpoint}, which was lost or is another one.",
                    remedy="Restore the checkpoint directory. Or begin anew, with what the acked logs still "
                    "hold: remove that link, and have the pipeline's reader forgotten.",
                )
            return
        is_empty = link.is_dir() and not any(link.iterdir())
        if link.exists() and not is_empty:
            raise ConfigurationError(
                f"{self.path} holds files already, and mode complete replaces the whole directory.",
                remedy="Move it away, or give the pipeline another path.",
            )

    @staticmethod
    def point(link: Path, target: Path) -> None:
        """Make ``link`` point at ``target`` atomically."""
        if link.is_dir() and not link.is_symlink():
            link.rmdir()
        fresh = target.parent / f".link-{target.name}"
        fresh.unlink(missing_ok=True)
        # Relative, so that the parent folder can be moved; renamed, since a rename is atomic.
        fresh.symlink_to(os.path.relpath(target, link.parent))
        fresh.replace(link)

    def _clean(self) -> None:
        versions = (Path(self.folder) / VERSIONS).glob("[!.]*")
        made_s = {version: version.stat().st_mtime for version in versions}
        for version, successor in pairwise(sorted(made_s, key=made_s.__getitem__)):
            if made_s[successor] < time.time() - KEPT_S:
                shutil.rmtree(version, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class OncePerBatch(ABC):
    """A ``foreachBatch`` function that writes each batch once, though Spark repeats a batch after a crash.

    The table says which batch it got last of which query, and gets that together with the batch. So a table
    or a checkpoint directory that was lost, or put back from a backup, is noticed.
    """

    path: str
    """The table, as messages name it."""
    checkpoint: str
    """The query's checkpoint directory, which holds the query's id."""
    needs: ClassVar[str] = ""
    """The package that it imports."""

    def __call__(self, result: Any, batch: int) -> None:
        """Write ``result`` (a DataFrame); do nothing if the table has the batch from before a crash."""
        query = query_id(self.checkpoint)
        with self.opened() as table:
            last = self._check(table, query, batch)
            if batch > 0 and last < batch - 1:
                raise DataLoss(
                    f"The table {self.path} does not hold batch {batch - 1}, which its query has committed: "
                    "it was removed, replaced, or is an older copy.",
                    remedy="Nothing was written. Restore it; or give the pipeline a new table and name.",
                )
            if last < batch:
                self.write(table, result, query, batch)

    def begin(self) -> None:
        """Refuse a table that holds what this query has not written, before the query starts."""
        with self.opened() as table:
            self._check(table, query_id(self.checkpoint), latest_batch(self.checkpoint, PLANNED))

    def opened(self) -> AbstractContextManager[Any]:
        """Return what the other methods get as the table, for one batch."""
        return nullcontext(Path(self.path))

    @abstractmethod
    def last(self, table: Any, query: str) -> int | None:
        """Return the number of the last batch that the table got; -1 for none, None for another query's."""

    @abstractmethod
    def write(self, table: Any, result: Any, query: str, batch: int) -> None:
        """Write a batch that the table has not, with its number."""

    def _check(self, table: Any, query: str, planned: int) -> int:
        last = self.last(table, query)
        if last is None or last > planned:
            raise ConfigurationError(
                f"{self.path}: its last batch was written from another checkpoint directory than "
                f"{self.checkpoint}, which was lost or is an older copy. Rows would be there twice.",
                remedy="Restore the checkpoint directory; or give the pipeline a new table; or end the other "
                "driver, if there is one.",
            )
        return last


@dataclass(frozen=True, kw_only=True)
class Batches(OncePerBatch):
    """Adds each batch to a table as a directory of its own; ``path`` holds nothing else."""

    folder: str
    """Where batches are written before they are whole; on the same file system."""
    partition_by: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)

    def last(self, table: Path, query: str) -> int | None:
        """Read the file that names the last batch; refuse files of which nothing tells the batches."""
        if (mark := table / LAST).exists():
            return batch_of(mark.read_text(), query)
        first = name_of(query, 0)  # A kill may have left it without the file.
        refuse_files(str(table), besides=f"{BATCH_COLUMN}={first}")
        return -1

    def write(self, table: Path, result: Any, query: str, batch: int) -> None:
        """Write a batch beside the table, and rename it into the table."""
        name = name_of(query, batch)
        fresh, target = Path(self.folder) / "fresh" / attempt_at(name), table / f"{BATCH_COLUMN}={name}"
        table.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            result.write.options(**self.options).partitionBy(*self.partition_by).parquet(str(fresh))
            (fresh / "_SUCCESS").unlink(missing_ok=True)
            if _has_rows(fresh) and not target.exists():
                fresh.rename(target)  # It fails if another driver has been here just now.
            for each in fresh.parent.iterdir():
                if each == fresh or each.name < name:  # Another driver may be at this batch.
                    shutil.rmtree(each, ignore_errors=True)
        if self._check(table, query, batch) < batch:  # Nobody may set back what another one has written.
            mark = table / f".{fresh.name}"
            mark.write_text(name)
            mark.replace(table / LAST)


@dataclass(frozen=True)
class Handed:
    """A ``foreachBatch`` function that hands each batch to a user's, with what names it in all attempts."""

    write: Callable[..., object]
    name: str
    checkpoint: str

    def __call__(self, result: Any, batch: int) -> None:
        """Call the user's function with the rows, the query's id and the number of the batch."""
        try:
            from streamworker.spark.sinks.running import running
        except ModuleNotFoundError:  # A server without streamworker: no function sends to a stream there.
            within: AbstractContextManager[Any] = nullcontext()
        else:
            within = running(self.name, self.checkpoint)
        with within:
            self.write(result, query_id(self.checkpoint), batch)


def _has_rows(folder: Path) -> bool:
    from pyarrow.parquet import read_metadata

    return any(read_metadata(file).num_rows for file in folder.rglob("*.parquet"))


def refuse_files(path: str, besides: str = "") -> None:
    """Raise ConfigurationError if a path or URL holds files besides those in a folder of this name."""
    if any(name.partition("/")[0] != besides for name in place_at(path).names()):
        raise ConfigurationError(
            f"{path} holds files already, and none says which batches it has.",
            remedy="Move it away, or give the pipeline another path.",
        )


def name_of(query: str, batch: int) -> str:
    """Return the name of a batch in those of files."""
    return f"{query[:ID_LENGTH]}-{batch:06d}"


def attempt_at(name: str) -> str:
    """Return a name for what one attempt at a batch writes: two drivers must not mix their files."""
    return f"{name}-{secrets.token_hex(4)}"


def batch_of(name: str, query: str) -> int | None:
    """Return the number of a batch by its name, or that of an attempt; None for another query's."""
    found = re.match(r"(.*?)-(-?\d+)", name)
    return int(found[2]) if found and found[1] == query[:ID_LENGTH] else None


def query_id(checkpoint: str) -> str:
    """Return a query's id; empty before its first start."""
    found = place_at(checkpoint).read("metadata")
    return str(json.loads(found)["id"]) if found else ""
