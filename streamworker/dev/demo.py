"""The demo: a year of flights goes through a changing group of workers into Spark's tables.

It starts a server, Spark and, one after another, three workers, each as a process. While it sends
flights, it kills one worker with SIGKILL and stops one with SIGTERM; the stream may also grow meanwhile. Then
it compares Spark's tables with the data set. Every process that it starts ends with it.
"""

import asyncio
import contextlib
import importlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamworker.archive.store import store_at
from streamworker.core.data.placement import Placement
from streamworker.core.snapshot import GroupSnapshot, Rebalance
from streamworker.dev.children import Child
from streamworker.dev.cluster import EmbeddedCluster
from streamworker.dev.demo_report import Reporter
from streamworker.dev.flights import as_records, load_flights
from streamworker.dev.lake import counted, read_flights
from streamworker.dev.parquet import count_rows, read_table
from streamworker.dev.server import EmbeddedServer, free_port
from streamworker.dev.timeline import Timeline
from streamworker.dev.verdict import judge
from streamworker.errors import BackendUnavailable
from streamworker.redisio.data.streams import provision
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend

APP = "streamworker.dev.demo_app"
SEND_S = 25.0
"""Long enough for five rebalances; one of them waits 2 s until the group removes a dead worker."""
SEND_CHUNK = 250
SAMPLE_S = 0.2
COUNT_S = 1.0
TIMEOUT_S = 225.0
"""``make demo`` must end within 4 minutes, with or without success."""
STOP_WORKER_S = 20.0
STOP_SPARK_S = 45.0


@dataclass(frozen=True, slots=True)
class Act:
    """A start, kill or stop of a worker in the demo."""

    after: float
    """The share of all flights that must be sent before it."""
    worker: str
    cause: str
    """That of the rebalance that follows: ``join`` (a start), ``death`` (SIGKILL) or ``leave`` (SIGTERM); or
    ``partitions`` (the stream grows)."""
    mark: str
    """Its character in the picture."""
    text: str


SCRIPT = (
    Act(0.00, "w1", "join", "+", "joins"),
    Act(0.14, "w2", "join", "+", "joins"),
    Act(0.28, "w3", "join", "+", "joins"),
    Act(0.50, "w2", "death", "x", "killed with SIGKILL"),
    Act(0.75, "w1", "leave", "-", "stopped with SIGTERM"),
)
"""In the end ``w3`` owns all partitions: some come from a dead worker, others from one that left."""
GROWS_TO = 16
GROWTH = Act(0.36, "flights", "partitions", "*", f"grows to {GROWS_TO} partitions")
"""Shortly before a worker is killed, which may have old partitions and new ones that wait for them."""


def run_demo(
    json_output: bool = False,
    keep: bool = False,
    directory: str | os.PathLike[str] | None = None,
    flights: int | None = None,
    send_s: float = SEND_S,
    cluster: bool = False,
    web: bool = False,
    grow: bool = False,
    archive: bool = False,
) -> int:
    """Run the demo; takes about 40 seconds on two cores.

    With ``json_output`` one JSON object with the figures goes to stdout at the end, and all other output to
    stderr. ``keep`` leaves server, workers and Spark running after the checks, until Ctrl-C. ``directory``
    takes tables and logs; by default it is temporary, and removed after a success. ``flights`` sent in
    ``send_s`` seconds make a shorter run. ``web`` serves the web view beside it. With ``grow`` the stream
    gets more partitions meanwhile. With ``archive`` the flights are archived in a folder of files, which is
    compared, too, and stays.

    The code is 0 if the tables are exactly right and every rebalance happened, 1 if not, and 130 if Ctrl-C
    interrupted the demo. A ConfigurationError says that this machine lacks the server or the data set.
    """
    reporter = Reporter(json_output=json_output)
    if archive:
        store_at("memory://demo")  # It says what is missing.
    where = Path(tempfile.mkdtemp(prefix="streamworker-demo-") if directory is None else directory).absolute()
    where.mkdir(parents=True, exist_ok=True)
    code = 1
    try:
        with EmbeddedCluster() if cluster else EmbeddedServer() as server:
            shown = keep, flights, send_s, web, grow, archive
            demo = _Demo(server, reporter, where, *shown)
            try:
                code = 0 if asyncio.run(demo.run()) else 1
            finally:
                demo.end_children()
    except _GaveUp as error:
        reporter.fail(str(error))
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = 130
    finally:
        if directory is None and code != 1 and not (archive and code == 0):
            shutil.rmtree(where, ignore_errors=True)
        else:
            reporter.say(f"Tables and logs are in {where}")
    return code


class _GaveUp(Exception):
    """The demo cannot continue; the text says why."""


@dataclass
class _Demo:
    """One run: its processes, and the latest observations."""

    server: EmbeddedServer | EmbeddedCluster
    reporter: Reporter
    where: Path
    keep: bool
    limit: int | None
    send_s: float
    web: bool
    grow: bool
    archive: bool
    app: Any = field(init=False)
    backend: Backend = field(init=False)
    timeline: Timeline = field(init=False)
    tasks: "list[asyncio.Task[None]]" = field(default_factory=list)
    """What sends and watches while the demo waits."""
    children: dict[str, Child] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Children that the demo has ended."""
    sent: int = 0
    in_spark: int = 0
    snapshot: GroupSnapshot | None = None
    acted_ms: dict[tuple[str, str], float] = field(default_factory=dict)
    """When each worker was started, killed or stopped, by (cause, worker) and this machine's clock."""
    told: set[int] = field(default_factory=set)
    """Generations of reported rebalances."""
    started_s: float = field(default_factory=time.monotonic)

    async def run(self) -> bool:
        """Run the demo and check the tables; return whether all checks pass."""
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        flights = load_flights().slice(0, self.limit)
        self.reporter.say(f"{flights.num_rows:,} flights of 2013; {self.server.describe()}")
        self._start("spark", "spark", f"{APP}:app")
        if self.web:
            port = free_port()
            self._start("web", "web", f"{APP}:app", "--port", str(port))
            self.reporter.say(f"The web view: http://127.0.0.1:{port}")
        # With the environment of the children, so that it uses the same server.
        os.environ.update(self._environ)
        self.app = importlib.import_module(APP).app
        async with self.app, Backend.open(self.server.url, name="watch") as self.backend:
            rebalances = await self._flow(flights)
        # Without ``keep`` Spark is stopped first, so that the tables are read after its last batch.
        stopped_well = self.keep or await asyncio.to_thread(self._stop_spark)
        verdict = judge(
            flights=flights,
            sent=self.sent,
            legs=read_table(self.where / "every_leg"),
            delays=read_table(self.where / "delays"),
            archived=read_flights(self.where / "flights", flights.schema) if self.archive else None,
            rebalances=rebalances,
            after_ms=self._after_ms(rebalances),
            placement=self._placement,
            seconds=self._now_s(),
        )
        self.reporter.verdict(verdict, self.timeline)
        if self.archive:
            self.reporter.say(f"The archive, read without streamworker:\n  {counted(self.where / 'flights')}")
        if self.keep:
            await self._wait_for_ctrl_c()
        return verdict.holds and stopped_well

    # -- the course of the demo ----------------------------------------------------------------

    async def _flow(self, flights: pa.Table) -> tuple[Rebalance, ...]:
        """Send all flights while workers start and end; return when Spark has written all rows."""
        total = flights.num_rows
        await self._spark_runs()
        self.timeline = Timeline(partitions=self._placement.total)
        self.reporter.begin(total)
        begun = time.monotonic()
        sending = asyncio.create_task(self._send(flights))
        watching = (self._watch_group(begun), self._watch_table(self.where / "every_leg"))
        self.tasks = [sending, *map(asyncio.create_task, watching)]
        try:
            for act in sorted([*SCRIPT, *([GROWTH] if self.grow else [])], key=lambda act: act.after):
                at = act.after * total
                await self._until(f"{at:,.0f} flights were sent", partial(self._has_sent, at))
                self.timeline.mark(round(1000 * (time.monotonic() - begun)), act.mark, act.text)
                self._do(act)
                settled = f"the group had settled ({act.worker} {act.text})"
                await self._until(settled, partial(self._settled, act))
            await self._until("all flights were sent", sending.done)
            await sending
            await self._until("the workers had no lag", self._no_lag)
            self._say("all flights are processed")
            await self._until("Spark had appended all legs", lambda: self.in_spark >= total)
            await self._until("Spark had summed up all legs", lambda: self._summed() >= total)
            self._say("Spark has read all of them")
            while self.archive and (await self._look("archive")).lag:
                self._check("all flights were archived")
                await asyncio.sleep(SAMPLE_S)
        finally:
            for task in self.tasks:
                task.cancel()
            self.reporter.end()
        return (await self._look()).rebalances

    async def _spark_runs(self) -> None:
        """Wait until both pipelines read, so that the tables grow while workers start and end."""
        stream = self.app.registry.streams["flights"].spec
        keys = StreamKeys(self.app.name, stream.name)
        # No producer or worker has started yet, so none has declared the stream.
        await provision(self.backend, keys, stream.declared_partitions, stream.codec_name)
        while len((await self._look()).readers) < len(self.app.registry.pipelines):
            self._check("Spark ran both pipelines")
            await asyncio.sleep(SAMPLE_S)
        self._say("Spark runs both pipelines")

    def _do(self, act: Act) -> None:
        self._say(f"{act.worker} {act.text}")
        self.acted_ms[act.cause, act.worker] = time.time() * 1000
        if act.cause == "join":
            self._start(act.worker, "run", f"{APP}:app", "--name", act.worker)
            return
        self.gone.add(act.worker)
        if act.cause == "partitions":
            self._start(act.worker, "partitions", f"{APP}:{act.worker}", str(GROWS_TO), "--yes")
            return
        if act.cause == "death":
            self.children[act.worker].kill()
        else:
            self.children[act.worker].terminate()

    def _after_ms(self, rebalances: tuple[Rebalance, ...]) -> dict[int, int]:
        """Return, by generation, the time from the demo's act until all moved partitions ran again.

        The server runs on this machine, so its clock is the demo's clock.
        """
        found: dict[int, int] = {}
        for one in rebalances:
            acted_ms = self.acted_ms.get((one.cause, one.member))
            if acted_ms is not None and one.ms is not None:
                found[one.generation] = round(one.at_ms + one.ms - acted_ms)
        return found

    async def _send(self, flights: pa.Table) -> None:
        """Send all flights in their order, at an even rate."""
        stream = self.app.registry.streams["flights"]
        records = as_records(flights)
        begun = time.monotonic()
        while chunk := list(itertools.islice(records, SEND_CHUNK)):
            self.sent += await stream.send_many(chunk)
            ahead_s = self.send_s * self.sent / flights.num_rows - (time.monotonic() - begun)
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)

    # -- watching ------------------------------------------------------------------------------

    async def _watch_group(self, begun: float) -> None:
        """Update ``snapshot`` and the picture, and report each rebalance once."""
        while True:
            self.snapshot = await self._look()
            self.timeline.sample(round(1000 * (time.monotonic() - begun)), self.snapshot)
            for one in self.snapshot.rebalances:
                if one.ms is not None and one.generation not in self.told:
                    self.told.add(one.generation)
                    self._say(
                        f"rebalanced after {one.cause} of {one.member}: "
                        f"{len(one.moved)} partitions moved in {one.ms} ms"
                    )
            self.reporter.update(self.sent, self.snapshot.committed, self.in_spark)
            await asyncio.sleep(SAMPLE_S)

    async def _watch_table(self, table: Path) -> None:
        while True:
            self.in_spark = await asyncio.to_thread(count_rows, table)
            await asyncio.sleep(COUNT_S)

    async def _look(self, group: str = "legs") -> GroupSnapshot:
        while True:
            try:
                return await take_snapshot(self.backend, self.app.name, "flights", group)
            except BackendUnavailable:
                # On a busy machine the server may answer too late.
                await asyncio.sleep(SAMPLE_S)

    async def _until(self, what: str, condition: Callable[[], bool]) -> None:
        while not condition():
            self._check(what)
            await asyncio.sleep(0.1)

    def _check(self, what: str) -> None:
        """Give up waiting for something after the timeout, or when a task has failed or a child has ended."""
        for task in self.tasks:
            if task.done():
                task.result()
        for name, child in self.children.items():
            if not child.running and name not in self.gone:
                raise _GaveUp(f"{name} ended with code {child.exit_code}. Its log ends:\n{child.log_tail()}")
        if self._now_s() > TIMEOUT_S:
            logs = "\n".join(f"--- {name}\n{child.log_tail(8)}" for name, child in self.children.items())
            raise _GaveUp(f"Timeout: waited until {what}.\n{logs}")

    def _has_sent(self, count: float) -> bool:
        return self.sent >= count

    def _settled(self, act: Act) -> bool:
        if act.cause == "partitions":
            command = self.children[act.worker]
            if command.exit_code:
                raise _GaveUp(f"The stream did not grow:\n{command.log_tail()}")
            return command.exit_code == 0
        return self.snapshot is not None and any(
            one.cause == act.cause and one.member == act.worker and one.ms is not None
            for one in self.snapshot.rebalances
        )

    def _no_lag(self) -> bool:
        return self.snapshot is not None and self.snapshot.lag == 0

    def _summed(self) -> int:
        try:
            table = read_table(self.where / "delays", columns=["flights"])
        except FileNotFoundError:
            # Spark has just replaced the result during the read.
            return 0
        return int(pc.sum(table["flights"]).as_py() or 0) if table.num_rows else 0

    # -- processes -----------------------------------------------------------------------------

    @property
    def _environ(self) -> dict[str, str]:
        return {
            "STREAMWORKER_REDIS_URL": self.server.url,
            "STREAMWORKER_DEMO_DIR": str(self.where),
            "STREAMWORKER_DEMO_ARCHIVE": "1" if self.archive else "",
            "PYTHONUNBUFFERED": "1",
        }

    def _start(self, name: str, *arguments: str) -> None:
        self.children[name] = Child(
            [sys.executable, "-m", "streamworker", *arguments],
            log_path=self.where / f"{name}.log",
            environ=self._environ,
            cwd=self.where,
        )

    def _stop_spark(self) -> bool:
        self.gone.add("spark")
        spark = self.children["spark"]
        well = spark.stop(STOP_SPARK_S) and spark.exit_code == 0
        if not well:
            self.reporter.fail(f"Spark did not stop cleanly. Its log ends:\n{spark.log_tail()}")
        return well

    def end_children(self) -> None:
        """End all running children: SIGTERM to all first, so that workers leave and Spark commits."""
        for child in self.children.values():
            child.terminate()
        for name, child in self.children.items():
            child.wait(STOP_SPARK_S if name == "spark" else STOP_WORKER_S)

    async def _wait_for_ctrl_c(self) -> None:
        """Restart the workers that have ended, and wait for Ctrl-C or SIGTERM."""
        for name in sorted(self.gone - {"spark"}):
            self._start(name, "run", f"{APP}:app", "--name", name)
        self.reporter.say(
            "The demo runs until Ctrl-C. To watch it, in another terminal:\n"
            f"  STREAMWORKER_REDIS_URL='{self.server.url}' streamworker top {APP}:app\n"
            f"Tables and logs are in {self.where}"
        )
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    # -- small things --------------------------------------------------------------------------

    @property
    def _placement(self) -> Placement:
        """The partitions that the stream has in the end."""
        declared = self.app.registry.streams["flights"].spec.declared_partitions
        return Placement(declared, *([GROWS_TO] if self.grow else []))

    def _now_s(self) -> float:
        return time.monotonic() - self.started_s

    def _say(self, text: str) -> None:
        self.reporter.say(f"{self._now_s():6.1f} s  {text}")
