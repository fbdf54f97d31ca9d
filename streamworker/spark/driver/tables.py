"""Check at a query's start whether a table of files and a checkpoint directory belong together.

Spark's file sink stores the number of each batch that it has written beside the files, and skips a batch
whose number it has. A query whose checkpoint directory was lost counts from 0 again, so Spark would
silently skip its first batches. The same holds for an older copy of the directory. Spark writes the
number of a batch into the checkpoint directory before it writes the batch, so if the two belong
together, the table is never ahead. It is never behind either; the source looks at that before each batch
(:mod:`streamworker.spark.source.table`).
"""

from typing import TYPE_CHECKING

from streamworker.errors import ConfigurationError
from streamworker.spark.driver.checks import is_local, local
from streamworker.spark.source.table import PLANNED, WRITTEN, highest, latest_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_belongs(spark: "SparkSession", name: str, path: str, checkpoint: str) -> None:
    """Refuse a table that was written from another checkpoint directory, or from a newer copy of it.

    A remote session cannot list folders that are not on a local disk, so these are not checked.
    """
    written = batch_in(spark, f"{path}/{WRITTEN}")
    planned = batch_in(spark, f"{checkpoint}/{PLANNED}") if written >= 0 else -1
    if written <= planned:
        return
    batches = f"{written - planned} batch{'es' if written > planned + 1 else ''}"
    raise ConfigurationError(
        f"Pipeline {name!r} has a checkpoint directory that is not the one of its table: {path} holds "
        f"batch {written}, and {checkpoint} {f'ends with {planned}' if planned >= 0 else 'knows of none'}. "
        f"Spark would leave out the next {batches}.",
        remedy="Restore the checkpoint directory; or give the pipeline a new path, which gives it a new "
        "checkpoint directory too.",
    )


def batch_in(spark: "SparkSession", folder: str) -> int:
    """Return the highest number of a batch in a folder; -1 if there is none or it cannot be listed."""
    jvm = getattr(spark, "_jvm", None)
    if is_local(folder):
        return latest_batch(local(folder))
    if jvm is None:
        return -1
    where = jvm.org.apache.hadoop.fs.Path(folder)
    files = where.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001, pyspark has no other way
    listed = files.listStatus(where) if files.exists(where) else []
    return highest(each.getPath().getName() for each in listed)
