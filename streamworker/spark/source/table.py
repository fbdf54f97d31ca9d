"""Whether the table of files that a query writes still holds what the query has committed.

Spark's file sink lists the files of each batch in the table's ``_spark_metadata``, and only then marks the
batch as done in the checkpoint directory. So the table is never behind, unless its directory was removed,
replaced, or put back from a backup. Spark does not look: it would write the next batch into a table
without the earlier ones.
"""

import json
from collections.abc import Iterable

from streamworker.errors import DataLoss
from streamworker.spark.source.places import place_at

WRITTEN, PLANNED, DONE = "_spark_metadata", "offsets", "commits"
"""Folders in a table of files and in a checkpoint directory; Spark keeps a file for each batch there."""


def latest_batch(path: str, folder: str = "") -> int:
    """Return the highest number of a batch in a folder of a path or URL; -1 if there is none."""
    return highest(name.rpartition("/")[2] for name in place_at(path).names(folder))


def highest(names: Iterable[str]) -> int:
    """Return the highest number of a batch among names of files; -1 if there is none."""
    numbers = (name.removesuffix(".compact") for name in names)
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def check_holds(path: str, checkpoint: str, rows: dict[int, int]) -> None:
    """Raise DataLoss if a table on a local disk lacks batches that its query has committed.

    ``rows`` are the rows of each partition's log that the query has read.
    """
    written, done = latest_batch(path, WRITTEN), latest_batch(checkpoint, DONE)
    if written >= done:
        return
    others = read_by(checkpoint, done)
    begin = f"with option startingOffsets={json.dumps(rows)}"
    if len(others) > 1:
        each = {name: {"startingOffsets": json.dumps(read)} for name, read in others.items()}
        begin = f"with options={each}"
    found = f"ends with batch {written}" if written >= 0 else "holds no batch"
    raise DataLoss(
        f"The table {path} {found}, and its query has committed batch {done}, with {sum(rows.values())} rows "
        "in all: the table's directory was removed, replaced, or is an older copy.",
        remedy="Nothing was written. Restore the directory. Or rebuild the table from what the acked logs "
        "hold: give the pipeline a new path and a new name. Or go on without the rows up to here: the same, "
        f"{begin}.",
    )


def read_by(checkpoint: str, batch: int) -> dict[str, dict[str, int]]:
    """Return the rows that a query had read at the end of a batch, by processor and partition.

    Spark's file of a batch has a version, the query's settings, and a line with the offset of each source.
    """
    lines = (place_at(checkpoint).read(f"{PLANNED}/{batch}") or b"").decode().splitlines()[2:]
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return {str(each.get("of", "")).rpartition(":")[2]: each.get("p", {}) for each in found}
