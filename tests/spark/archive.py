"""Make an archive of Spark's classes: ``python -m tests.spark.archive FILE``.

Of a start of Spark nearly half is reading and checking some fifteen thousand classes, and the tests start it
dozens of times. Java can map them from a file in place of that (JEP 350): here two pipelines run for some
batches, and what their JVM has loaded when it ends is written to FILE. A JVM takes it when its
``SPARK_SUBMIT_OPTS`` are as ``make test`` sets them; one that the archive does not fit goes without it.
"""

import os
import sys
import tempfile
import threading
from pathlib import Path

from streamworker.dev.server import EmbeddedServer
from streamworker.spark.driver import session
from streamworker.spark.driver.pipelines import run_pipelines
from tests.helpers import wait_for
from tests.spark.acked import AckedLog
from tests.spark.driver import pipelines_in

BATCHES = 3
PATIENCE_S = 300.0


def main(archive: Path) -> int:
    """Write the archive; returns non-zero if there is none afterwards."""
    archive.unlink(missing_ok=True)
    # It writes when it ends, and takes longer for that than a JVM has to end.
    session.STOP_TIMEOUT_S = PATIENCE_S
    with tempfile.TemporaryDirectory(prefix="sw") as scratch, EmbeddedServer() as server:
        folder, stop = Path(scratch), threading.Event()
        with AckedLog(server.url, partitions=2) as acked:
            for p in range(acked.partitions):
                acked.fill(p, [20] * 10 * BATCHES)
        commits = [
            folder / ".streamworker" / name / name / "checkpoint" / "commits" for name in ("legs", "totals")
        ]

        def watch() -> None:
            try:
                done = lambda: all((each / str(BATCHES - 1)).exists() for each in commits)  # noqa: E731
                wait_for(done, "each pipeline has done some batches", timeout_s=PATIENCE_S)
            finally:
                stop.set()

        os.environ["STREAMWORKER_REDIS_URL"] = server.url
        os.environ["SPARK_SUBMIT_OPTS"] = f'"-XX:ArchiveClassesAtExit={archive.absolute()}" -Xlog:cds*=off'
        threading.Thread(target=watch).start()
        run_pipelines(pipelines_in(folder), master="local[2]", stop=stop)
    return int(not archive.exists())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
