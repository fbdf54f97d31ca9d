"""A Spark driver of its own, to be killed: ``python -m tests.spark.upgraded FOLDER [MASTER]``.

Runs one pipeline over the acked logs of ``tests.spark.acked`` until SIGTERM. It appends every row with all
columns that the query has. Its processor's type is version 1 of the record, whatever workers forward.
"""

import sys
from pathlib import Path

from streamworker.declaring.specs import PipelineSpec
from tests.spark.driver import run_until_stopped
from tests.spark.specs import pipeline, same

NAME = "table"


def pipeline_in(folder: Path) -> PipelineSpec:
    """Return the pipeline, with its table in a folder."""
    options = {"maxRowsPerTrigger": "1000", "includeMetadata": "true"}
    return pipeline(same, name=NAME, path=str(folder / NAME), options=options)


if __name__ == "__main__":
    sys.exit(run_until_stopped([pipeline_in(Path(sys.argv[1]))], *sys.argv[2:]))
