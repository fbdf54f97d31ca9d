"""A driver that lives many times in one JVM: ``python -m tests.spark.lives FOLDER``.

It runs the pipelines of ``tests.spark.driver`` when it reads ``live``, and ends its queries at once, in the
middle of whatever they do, when it reads ``die``; then it says ``dead``. Who has stopped it in between
and copied its files has what a SIGKILL would have left.
"""

import sys
import threading
from pathlib import Path

from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.spark.driver.session import open_session
from tests.spark.driver import pipelines_in


def main(folder: Path) -> int:
    """Do what is read until there is no more; returns 1 if a pipeline failed for good."""
    codes: list[int] = []
    with open_session("lives", master="local[2]") as session:
        print("ready", flush=True)
        stop, life = threading.Event(), threading.Thread()
        for line in sys.stdin:
            if line.strip() == "live":
                stop = threading.Event()

                def live(stop: threading.Event = stop) -> None:
                    codes.append(run_pipelines(pipelines_in(folder), session=session, stop=stop))

                life = threading.Thread(target=live)
                life.start()
            else:
                stop.set()
                for query in session.spark.streams.active:
                    query.stop()
                life.join()
                print("dead", flush=True)
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
