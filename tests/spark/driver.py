"""A Spark driver of its own, to be killed: ``python -m tests.spark.driver FOLDER [MASTER]``.

Runs pipelines over the acked logs of ``tests.spark.acked`` until SIGTERM: ``legs`` appends every row,
``each`` too, for other readers than Spark, ``delta`` to a Delta table, and ``stored`` to the PostgreSQL that
``WAREHOUSE`` names, if it does; ``totals`` keeps one row a user. On a Connect server, ``sc://...``, runs
beside them ``broken``, of which each batch fails. With the URL of a store in ``LAKE`` run ``batches``,
``delta`` and ``merged`` into that instead, and the driver and its JVM die at the step that ``DIES`` names.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as every Spark user writes it

from streamworker.declaring.specs import PipelineSpec
from streamworker.spark.driver.pipelines import run_pipelines
from tests.spark.specs import pipeline

WAREHOUSE = "WAREHOUSE"
"""Names the variable with the connection string of a PostgreSQL."""
ONLY = "PIPELINES"
"""Names the variable with the name of the one pipeline to run; without it all run."""
LAKE = "LAKE"
"""Names the variable with the URL of a folder in an object store."""
DIES = "DIES"
"""Names the variable with a step, before or after it, and the time: ``put:after:2``."""
ROWS_A_BATCH = os.environ.get("ROWS_A_BATCH", "400")


def legs(frame: DataFrame) -> DataFrame:
    return frame.select("n", "_partition", "_offset")


def shuffled(frame: DataFrame) -> DataFrame:
    """Return the rows in another order each time."""
    return legs(frame).repartition(3)


def newest(frame: DataFrame) -> DataFrame:
    return frame.select("_partition", "user", "n")


def totals(frame: DataFrame) -> DataFrame:
    return frame.groupBy("user").agg(F.count("*").alias("orders"), F.sum("n").alias("n"))


def fail(batches: Iterable[pa.RecordBatch]) -> NoReturn:
    """Fail in a Python process of Spark."""
    raise ValueError(f"{sum(batch.num_rows for batch in batches)} rows are too many")


def broken(frame: DataFrame) -> DataFrame:
    return frame.select("n").mapInArrow(fail, "n long")


def over_a_store(folder: Path, lake: str) -> list[PipelineSpec]:
    """Return a pipeline of each sink that writes to object stores, with their checkpoints in a folder."""
    kinds: dict[str, dict[str, Any]] = {
        "batches": {"function": shuffled, "format": "parquet-batches"},
        "delta": {"function": shuffled, "format": "deltalake"},
        "merged": {"function": newest, "format": "deltalake", "upsert": ("_partition", "user")},
    }
    placed = {"maxRowsPerTrigger": ROWS_A_BATCH, "includeMetadata": "true"}
    checkpoints = folder / ".streamworker"
    return [
        pipeline(
            **given, name=name, path=f"{lake}/{name}", options=placed,
            checkpoint=str(checkpoints / name / name / "checkpoint"),
        )
        for name, given in kinds.items()
    ]  # fmt: skip


def pipelines_in(folder: Path) -> list[PipelineSpec]:
    """Return the pipelines, with their tables in a folder."""
    limit = {"maxRowsPerTrigger": ROWS_A_BATCH}
    placed = {**limit, "includeMetadata": "true"}
    stored = pipeline(
        legs, name="stored", format="postgres", path=None, table="stored", dsn_env=WAREHOUSE, options=placed,
        checkpoint=str(folder / ".streamworker" / "stored" / "stored" / "checkpoint"),
    )  # fmt: skip
    found = (
        over_a_store(folder, os.environ[LAKE])
        if LAKE in os.environ
        else [
            *([stored] if WAREHOUSE in os.environ else []),
            pipeline(legs, name="delta", path=str(folder / "delta"), options=placed, format="deltalake"),
            pipeline(legs, name="legs", path=str(folder / "legs"), options=placed),
            pipeline(legs, name="each", path=str(folder / "each"), options=placed, format="parquet-batches"),
            pipeline(totals, name="totals", path=str(folder / "totals"), mode="complete", options=limit),
        ]
    )
    return [each for each in found if os.environ.get(ONLY, each.name) == each.name]


def die_at(step: str, when: str, n: str) -> None:
    """Let this process and its JVM end at the nth time of a step."""
    from tests.spark.clouds import STEPS, dying

    owner, name = STEPS[step]
    end = partial(os.killpg, 0, signal.SIGKILL)
    setattr(owner, name, dying(getattr(owner, name), when, int(n), end))


def main(folder: Path, master: str = "local[2]") -> int:
    """Run the pipelines until SIGTERM, with what they log on standard error."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    specs = pipelines_in(folder)
    if place := os.environ.get(DIES):
        die_at(*place.split(":"))
    if master.startswith("sc://"):
        broken_one = pipeline(broken, name="broken", path=str(folder / "broken"))
        return run_pipelines([broken_one, *specs], remote=master, stop=stop)
    return run_pipelines(specs, master=master, stop=stop)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
