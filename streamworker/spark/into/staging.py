"""The files of one sink into a stream, beside the checkpoint of its query.

    <checkpoint>/into/alerts/batches/000012.json       the decision of batch 12
    <checkpoint>/into/alerts/rows/000012-5f0c8e7a...   its rows: Parquet, as Spark wrote them
    <checkpoint>/into/alerts/batches/000012.done       where each partition stood when it was published

A decision is put only if there is none: of two drivers that stage one batch, both publish the rows of the
first. The rows of attempts that did not come to that are removed later. Decisions of the last minute stay,
with their rows: a failover of the target may take back what it had taken (:mod:`.publishing`).
"""

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from streamworker.errors import ConfigurationError
from streamworker.spark.into.points import NONCE, Decision, Stands, rows_of
from streamworker.spark.source.places import place_at

KEPT_MS, KEPT_MAX = 60_000, 20
"""How long a decision stays after it was made, and how many do; the last one stays until there is another."""
WINDOW_BYTES = 64 * 1024 * 1024
"""About how many bytes of rows are read together."""
LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""What Spark's files have if old times are written by another calendar, which no other reader knows."""
ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"
"""Where Spark's files have the types of their columns: those of Parquet are fewer."""


class Done(NamedTuple):
    """The last batch that is published, and where each partition stood then."""

    batch: int
    stands: Stands


class Stages:
    """The decisions of one sink, and their rows.

    The folder is a path, or a URL that both Spark and this process know. ``plans`` is the folder in which
    Spark keeps what it plans, if that is known.
    """

    def __init__(self, folder: str, plans: str = "") -> None:
        self._folder, self._plans, self._is_local = folder, plans, "://" not in folder
        self._place = place_at(folder)
        self._known: dict[int, Decision] = {}

    # -- stage and decide ----------------------------------------------------------------------

    def decided(self, batch: int) -> Decision | None:
        """Return what was decided of a batch; None if nothing was."""
        if batch not in self._known and (stored := self._place.read(_name(batch))) is not None:
            self._known[batch] = Decision.load(stored)
        return self._known.get(batch)

    def stage(self, result: Any, batch: int) -> str:
        """Let Spark write the rows of a batch; return the nonce of what is to be decided."""
        nonce = secrets.token_hex(NONCE // 2)
        rows = rows_of(batch, nonce)
        result.write.mode("overwrite").parquet(f"{self._folder}/rows/{rows}")
        if not self._files(rows):  # Spark writes one even if there are no rows.
            raise ConfigurationError(
                f"Spark has written the rows of batch {batch} where this process finds none: {self._folder}.",
                remedy="Name a checkpoint directory, or stage=, that Spark and its driver have at one path.",
            )
        return nonce

    def drop(self, rows: str) -> None:
        """Remove rows that are not needed."""
        if self._is_local:
            shutil.rmtree(f"{self._folder}/rows/{rows}", ignore_errors=True)
        else:
            self._place.delete(self._place.names(f"rows/{rows}"))

    def decide(self, staged: Decision) -> Decision:
        """Let these rows be those of the batch, unless another driver was first; return what is decided."""
        if self._is_local:
            # A machine that fails must not keep the decision alone; nor may Spark plan the batch anew then.
            rows = Path(self._folder, "rows", staged.rows)
            files = [each for each in rows.iterdir() if not each.name.startswith(".")]
            if (plan := Path(self._plans, str(staged.batch))).is_file():
                files += [plan, plan.parent]
            _flush(*files, rows, rows.parent)
        if self._place.put_new(_name(staged.batch), staged.dumped()):
            return staged
        decided = self.decided(staged.batch)
        assert decided is not None  # Only batches that are done are removed.
        return decided

    # -- read ------------------------------------------------------------------------------------

    def batches(self, decision: Decision, rows: int) -> Iterator[pa.RecordBatch]:
        """Return the rows of a decision in their order, about so many at a time, in the types of Spark."""
        waiting: list[pa.RecordBatch] = []
        for name in self._files(decision.rows):
            file = pq.ParquetFile(self._opened(name), coerce_int96_timestamp_unit="us")
            target = _types(file)
            for batch in file.iter_batches(min(rows, _rows_of(file, WINDOW_BYTES))):
                waiting += pa.Table.from_batches([batch]).cast(target).to_batches()
                size = sum(each.get_total_buffer_size() for each in waiting)
                if sum(each.num_rows for each in waiting) >= rows or size >= WINDOW_BYTES:
                    yield pa.concat_batches(waiting)
                    waiting = []
        if waiting:
            yield pa.concat_batches(waiting)

    def _opened(self, name: str) -> Any:
        return f"{self._folder}/{name}" if self._is_local else BytesIO(self._place.read(name) or b"")

    def _files(self, rows: str) -> list[str]:
        """Return the files of rows in order; those of a task that is late are in folders of their own."""
        names = self._place.names(f"rows/{rows}")
        files = [each for each in names if each.endswith(".parquet") and each.count("/") == 2]
        # Spark numbers the tasks with five digits, and more if it needs them.
        return sorted(files, key=lambda name: (len(name), name))

    # -- mark ------------------------------------------------------------------------------------

    def done(self) -> Done:
        """Return the last batch that is published."""
        batch = max(self._numbers(".done"), default=-1)
        stands = json.loads(self._place.read(_name(batch, ".done")) or b"{}")
        return Done(batch, {int(partition): text for partition, text in stands.items()})

    def mark(self, done: Done) -> None:
        """Note that a batch is published, and remove what is not needed any more."""
        self._place.put_new(_name(done.batch, ".done"), json.dumps(done.stands).encode())
        now_ms = time.time_ns() // 10**6
        decisions = self.up_to(done.batch)[::-1]
        # Each begins where the one before it ends: none is left without those between.
        later = takewhile(lambda each: now_ms - each.at_ms < KEPT_MS, decisions[1:KEPT_MAX])
        left = [*decisions[:1], *later]
        for each in decisions[len(left) :]:
            self._place.delete([_name(each.batch)])
            del self._known[each.batch]
        self._place.delete(_name(each, ".done") for each in self._numbers(".done") if each < done.batch)
        for rows in self._all_rows() - {each.rows for each in left}:
            if int(rows.partition("-")[0]) < done.batch:  # Another driver may be at this one.
                self.drop(rows)

    def up_to(self, batch: int | None = None) -> list[Decision]:
        """Return the decisions that are still there, in order, up to that of a batch."""
        numbers = (each for each in sorted(self._numbers(".json")) if batch is None or each <= batch)
        return [found for each in numbers if (found := self.decided(each)) is not None]

    def _numbers(self, ending: str) -> list[int]:
        names = (name.removeprefix("batches/") for name in self._place.names("batches"))
        return [int(name.removesuffix(ending)) for name in names if name.endswith(ending)]

    def _all_rows(self) -> set[str]:
        if self._is_local:
            rows = Path(self._folder, "rows")
            return {each.name for each in rows.iterdir()} if rows.exists() else set()
        return {name.split("/")[1] for name in self._place.names("rows")}


def _name(batch: int, ending: str = ".json") -> str:
    return f"batches/{batch:06d}{ending}"


def _rows_of(file: pq.ParquetFile, size: int) -> int:
    """Return about how many rows of a file have so many bytes, and one at least."""
    meta = file.metadata
    total: int = sum(meta.row_group(index).total_byte_size for index in range(meta.num_row_groups))
    return max(1, size * int(meta.num_rows) // max(total, 1))


def _types(file: pq.ParquetFile) -> pa.Schema:
    """Return the columns of a file as Spark has them; those of Parquet lack zones and spans of time."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    if file.metadata.metadata.keys() & set(LEGACY):
        raise ConfigurationError(
            "Spark writes times by the calendar before 1582, which would become other times.",
            remedy="Leave spark.sql.parquet.datetimeRebaseModeInWrite and int96RebaseModeInWrite alone.",
        )
    if any(pa.types.is_timestamp(each.type) and each.type.unit == "ms" for each in file.schema_arrow):
        raise ConfigurationError(
            "Spark writes times without their microseconds.",
            remedy="Set spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS.",
        )
    schema = StructType.fromJson(json.loads(file.metadata.metadata[ROW_METADATA]))
    return to_arrow_schema(schema.toNullable(), timezone="UTC")


def _flush(*paths: Path) -> None:
    """Let the disk keep files, and the names in folders."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
