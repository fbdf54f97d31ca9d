"""The files of one sink into a stream, beside the checkpoint of its query.

    <checkpoint>/into/alerts/000012.json               the decision of batch 12
    <checkpoint>/into/alerts/rows/000012-5f0c8e7a...   its rows: Parquet, as Spark wrote them
    <checkpoint>/into/alerts/000012.done               where each partition stood when it was published

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
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from streamworker.spark.into.points import NONCE, Decision, Stands, rows_of
from streamworker.spark.source.places import place_at

KEPT_MS, KEPT_MAX = 60_000, 20
"""How long a decision stays after it was made, and how many do; the last one stays until there is another."""
ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"
"""Where Spark's files have the types of their columns: those of Parquet are fewer."""


class Done(NamedTuple):
    """The last batch that is published, and where each partition stood then."""

    batch: int
    stands: Stands


class Stages:
    """The decisions of one sink, and their rows.

    The folder is a path, or a URL that both Spark and this process know.
    """

    def __init__(self, folder: str) -> None:
        self._folder, self._is_local = folder, "://" not in folder
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
        result.write.mode("overwrite").parquet(f"{self._folder}/rows/{rows_of(batch, nonce)}")
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
            _flush(
                Path(f"{self._folder}/rows/{staged.rows}")
            )  # A machine that fails must not keep the decision alone.
        if self._place.put_new(_name(staged.batch), staged.dumped()):
            return staged
        decided = self.decided(staged.batch)
        assert decided is not None  # Only batches that are done are removed.
        return decided

    # -- read ------------------------------------------------------------------------------------

    def batches(self, decision: Decision, rows: int) -> Iterator[pa.RecordBatch]:
        """Return the rows of a decision in their order, about so many at a time, in the types of Spark."""
        waiting: list[pa.RecordBatch] = []
        for name in self._files(decision):
            file = pq.ParquetFile(self._opened(name), coerce_int96_timestamp_unit="us")
            target = _types(file)
            for batch in file.iter_batches(rows):
                waiting += pa.Table.from_batches([batch]).cast(target).to_batches()
                if sum(each.num_rows for each in waiting) >= rows:
                    yield pa.concat_batches(waiting)
                    waiting = []
        if waiting:
            yield pa.concat_batches(waiting)

    def _opened(self, name: str) -> Any:
        return f"{self._folder}/{name}" if self._is_local else BytesIO(self._place.read(name) or b"")

    def _files(self, decision: Decision) -> list[str]:
        names = self._place.names(f"rows/{decision.rows}")
        # Spark numbers the tasks with five digits, and more if it needs them.
        return sorted(
            (each for each in names if each.endswith(".parquet")), key=lambda name: (len(name), name)
        )

    # -- mark ------------------------------------------------------------------------------------

    def done(self) -> Done:
        """Return the last batch that is published."""
        batch = max(self._numbers(".done"), default=-1)
        stands = json.loads(self._place.read(f"{batch:06d}.done") or b"{}")
        return Done(batch, {int(partition): text for partition, text in stands.items()})

    def mark(self, done: Done) -> None:
        """Note that a batch is published, and remove what is not needed any more."""
        self._place.put_new(f"{done.batch:06d}.done", json.dumps(done.stands).encode())
        now_ms = time.time_ns() // 10**6
        decisions = self.up_to(done.batch)
        left = [each for each in decisions[-KEPT_MAX:] if now_ms - each.at_ms < KEPT_MS] or decisions[-1:]
        for each in decisions:
            if each not in left:
                self._place.delete([_name(each.batch)])
                del self._known[each.batch]
        self._place.delete(f"{each:06d}.done" for each in self._numbers(".done") if each < done.batch)
        wanted = {each.rows for each in left}
        for rows in {name.split("/")[1] for name in self._place.names("rows")} - wanted:
            if int(rows.partition("-")[0]) < done.batch:  # Another driver may be at this one.
                self.drop(rows)

    def up_to(self, batch: int) -> list[Decision]:
        """Return the decisions that are still there, in order, up to that of a batch."""
        found = (self.decided(number) for number in sorted(self._numbers(".json")) if number <= batch)
        return [each for each in found if each is not None]

    def _numbers(self, ending: str) -> list[int]:
        names = (name for name in self._place.names() if "/" not in name and name.endswith(ending))
        return [int(name.removesuffix(ending)) for name in names]


def _name(batch: int) -> str:
    return f"{batch:06d}.json"


def _types(file: pq.ParquetFile) -> pa.Schema:
    """Return the columns of a file as Spark has them; those of Parquet lack zones and spans of time."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(file.metadata.metadata[ROW_METADATA]))
    return to_arrow_schema(schema.toNullable(), timezone="UTC")


def _flush(folder: Path) -> None:
    """Let the disk keep the files of a folder, and its name."""
    for path in (*folder.iterdir(), folder, folder.parent):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
