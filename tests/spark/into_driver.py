"""A Spark driver that sends to streams, to be killed: ``python -m tests.spark.into_driver FOLDER [MASTER]``.

Two pipelines run over the acked logs of ``tests.spark.acked``: ``back`` sends every row to ``events``, and
``windows`` sends to ``windows`` how many rows a user has in each window. Between two starts their shuffles
have other numbers of tasks, and rows of other keys lie together; the rows of one key stay in order.

It starts Spark, and waits for the file ``go-PID`` in the folder. With ``unlocked`` in it, the driver runs
beside another one, as on a disk without locks. What is in the file ``ends``, ``within:SIGKILL``, names a
place, and a signal that this process, its JVM and its executors get when it comes there next.
"""

import contextlib
import datetime as dt
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as every Spark user writes it

from streamworker import App
from streamworker.declaring.specs import PipelineSpec
from streamworker.declaring.stream import Stream
from streamworker.redisio.data.streams import append_by
from streamworker.spark.driver import pipelines
from streamworker.spark.driver.session import open_session
from streamworker.spark.into import publishing
from streamworker.spark.into.staging import Stages
from tests.spark.driver import ONLY, ROWS_A_BATCH
from tests.spark.into import Event, events_of, in_order
from tests.spark.specs import pipeline

ENDS = "ends"
UNLOCKED = "unlocked"
SHUFFLES = "SHUFFLES"
"""Names the variable with the number of tasks of each shuffle."""
PLACES = ("staged", "decided", "within", "published", "marked")
"""After the rows are staged; after the decision; with a part of them sent; before and after the mark."""
KEYS, WINDOW = 200, 500
"""Of each partition of the log; and the seconds of a window, of which each row is one later than the last."""


class Window(msgspec.Struct):
    user: str
    ends: dt.datetime
    orders: int


def streams_on(url: str | None) -> tuple[Stream[Event], Stream[Window]]:
    """Return the streams that the pipelines send to."""
    events = events_of(url or os.environ["STREAMWORKER_REDIS_URL"])
    windows = App("shop", redis_url=url).stream("windows", Window, key="user", partitions=2)
    return events, windows


def mixed(frame: DataFrame) -> DataFrame:
    """Return events; their keys are spread otherwise at each start, and each key has its rows in order."""
    spread = F.xxhash64("k", F.lit(random.getrandbits(32)))
    key = F.format_string("%d-%d", F.floor(F.col("n") / 1_000_000), F.col("n") % KEYS)
    events = frame.select("n", key.alias("k"), (F.col("amount") * 2).alias("v"))
    return events.repartition(int(os.environ[SHUFFLES]), spread).mapInArrow(in_order, events.schema)


def counted(frame: DataFrame) -> DataFrame:
    """Return how many rows each user has in each window. A partition of the log may be four batches ahead."""
    at = F.timestamp_seconds(F.col("n") % 1_000_000)
    marked = frame.withColumn("at", at).withWatermark("at", f"{4 * int(ROWS_A_BATCH)} seconds")
    windows = marked.groupBy(F.window("at", f"{WINDOW} seconds"), "user").agg(F.count("*").alias("orders"))
    return windows.select("user", F.col("window.end").alias("ends"), "orders")


def pipelines_in(folder: Path) -> list[PipelineSpec]:
    """Return the pipelines, with their checkpoints in a folder."""
    rows = {"back": int(ROWS_A_BATCH), "windows": 4 * int(ROWS_A_BATCH)}  # State makes batches slow.
    events, windows = streams_on(None)
    functions: dict[str, tuple[Callable[..., Any], Stream[Any]]] = {
        "back": (mixed, events),
        "windows": (counted, windows),
    }
    return [
        pipeline(
            function, name=name, into=into, path=None, options={"maxRowsPerTrigger": str(rows[name])},
            checkpoint=str(folder / name),
        )
        for name, (function, into) in functions.items()
        if os.environ.get(ONLY, name) == name
    ]  # fmt: skip


def meet_ends(file: Path) -> None:
    """Let this process and its JVM get a signal at the place that a file names, once it is there."""
    stage, decide, mark = Stages.stage, Stages.decide, Stages.mark

    def come(where: str) -> None:
        place, _, number = (file.read_text() if file.exists() else "").partition(":")
        if place != where:
            return
        with contextlib.suppress(FileNotFoundError):  # The other pipeline was first.
            file.unlink()
            print(f"{number} {place}", file=sys.stderr, flush=True)
            os.killpg(0, signal.Signals[number])

    def after(where: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def calls(*given: Any) -> Any:
            found = call(*given)
            come(where)
            return found

        return calls

    def mark_between(*given: Any) -> None:
        come("published")
        mark(*given)
        come("marked")

    async def send_parts(backend: Any, script: Any, calls: Sequence[Any], durability: Any) -> Any:
        half = len(calls) // 2
        if not half:
            return await append_by(backend, script, calls, durability)
        first = await append_by(backend, script, calls[:half], durability)
        come("within")
        return [*first, *await append_by(backend, script, calls[half:], durability)]

    Stages.stage = after("staged", stage)  # type: ignore[method-assign]
    Stages.decide = after("decided", decide)  # type: ignore[method-assign]
    Stages.mark = mark_between  # type: ignore[method-assign,assignment]
    vars(publishing)["append_by"] = send_parts


def main(folder: Path, master: str = "local[2]") -> int:
    """Run the pipelines until SIGTERM, with what they log on standard error."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    meet_ends(folder / ENDS)
    conf = {"spark.sql.shuffle.partitions": os.environ[SHUFFLES]}
    with open_session("shop", master=master, conf=conf) as session:
        session.spark.range(9).repartition(2).count()  # Its classes are loaded then.
        while not (go := folder / f"go-{os.getpid()}").exists():
            time.sleep(0.05)
        if go.read_text() == UNLOCKED:
            vars(pipelines)["sole_driver"] = lambda *_: contextlib.nullcontext(())
        return pipelines.run_pipelines(pipelines_in(folder), session=session, stop=stop)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
