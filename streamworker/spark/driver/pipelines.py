"""Run an app's pipelines, each as one Spark query: start, watch, restart and stop the queries.

A pipeline is a plain function. It gets a DataFrame of forwarded rows, and returns a DataFrame, which
streamworker writes, or a stream writer, which streamworker starts. In both cases streamworker sets the
checkpoint directory, the trigger and the query's name.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from streamworker.core.pauses import pause_ms
from streamworker.declaring.specs import PipelineSpec
from streamworker.errors import BackendUnavailable, ConfigurationError, StreamworkerError, did_you_mean
from streamworker.settings import Settings
from streamworker.spark.driver.checks import check_pipeline, checkpoint_of, is_local, local, source_options
from streamworker.spark.driver.driverlock import sole_driver
from streamworker.spark.driver.failures import Failure, read_failure
from streamworker.spark.driver.notes import ReaderNotes
from streamworker.spark.driver.progress import PipelineProgress, from_event
from streamworker.spark.driver.queries import start_query
from streamworker.spark.driver.session import Session, environment, of_connection, open_session
from streamworker.spark.source.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

POLL_S = 0.5
"""Interval at which queries are checked; a stop takes effect within this time."""
GRACE_S = 30.0
"""How long a stop waits for the current micro-batch. The next start repeats an interrupted micro-batch,
so this saves work, not rows."""
JVM_END_S = 2.0
"""How long to wait for the end of a JVM process that does not answer any more."""
LOG_INTERVAL_S = 10.0
"""Interval at which the progress of a pipeline with new rows is logged."""
RESTARTS_MAX = 5
"""Restarts in a row, without a finished micro-batch between them, before a pipeline fails for good."""
LASTING_RESTARTS_MAX = 30
"""The same for failures whose cause may last: a busy machine, or a Spark server that is away; with the
pauses, a quarter of an hour."""
MESSAGE_LENGTH = 500
"""So much of a failure's message goes to Redis."""
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 1_000, 30_000

OnProgress = Callable[[PipelineProgress], None]


class PipelinesApp(Protocol):
    """What the driver needs of an app."""

    name: str
    settings: Settings

    def load_pipelines(self) -> Sequence[PipelineSpec]:
        """Import the modules that declare pipelines, and return these."""


def run_pipelines(
    app_or_specs: PipelinesApp | Iterable[PipelineSpec],
    *,
    pipelines: Collection[str] = (),
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    once: bool = False,
    stop: threading.Event | None = None,
    on_progress: OnProgress | None = None,
    session: Session | None = None,
) -> int:
    """Run pipelines until each of them is done or has failed for good, or ``stop`` is set.

    Every query continues from its checkpoint directory, so another run after a crash, a kill or a stop
    neither loses nor repeats rows in Spark's own sinks.

    Parameters
    ----------
    app_or_specs
        An app, or the pipelines themselves.
    pipelines
        Run only the pipelines of these names.
    master, remote, conf
        Where Spark runs, and its settings; see :func:`streamworker.spark.driver.session.open_session`.
    once
        Read the rows that the logs hold now and end; this overrides the triggers.
    stop
        Set it to stop: micro-batches that are running get 30 s to finish.
    on_progress
        Called from this thread after each micro-batch and change of state.
    session
        A session to use instead of a new one; it stays open.

    Returns
    -------
    int
        0 if all pipelines are done or were stopped; 1 if a pipeline failed for good. The others go on.
        With ``once`` also 1 if one was stopped before it was done.

    Raises
    ------
    ConfigurationError
        If a pipeline cannot be run as it is declared, or another driver runs it.
    JavaMissing
        If Spark needs a Java and there is none of version 17 or later.
    BackendUnavailable
        If Spark does not start, or its JVM ends.
    """
    specs, redis_url = _selected(app_or_specs, pipelines)
    for spec in specs:
        check_pipeline(spec)
    stop = stop or threading.Event()
    # With a remote server, the checkpoint directories are on the server's disk.
    specs_here = [] if remote or (session and session.remote) else specs
    folders = {spec.name: checkpoint_of(spec) for spec in specs_here}
    on_disk = {name: Path(local(folder)).absolute() for name, folder in folders.items() if is_local(folder)}
    with sole_driver(on_disk, stop) as locks:
        if locks is None:
            return 1 if once else 0
        found = session or open_session(
            specs[0].processors[0].stream.app,
            master=master,
            remote=remote,
            redis_url=redis_url,
            conf=conf,
            shuffle_partitions=max(each.stream.placement.total for spec in specs for each in spec.processors),
            keep_open=locks,
        )
        runs = [_Run(spec, found, redis_url, once=once, on_progress=on_progress) for spec in specs]
        try:
            with found.timestamps_for_all():
                return _watch(runs, stop)
        except Exception:
            if not found.has_ended(within_s=JVM_END_S):
                raise
            raise BackendUnavailable(
                f"Spark's JVM has ended unexpectedly; its output is in {found.log_path}.",
                remedy="It may have been killed, or have run out of memory (spark.driver.memory). Every "
                "query goes on from its checkpoint when it is started again.",
            ) from None
        finally:
            if session is None:
                found.stop()


def _selected(
    app_or_specs: PipelinesApp | Iterable[PipelineSpec], names: Collection[str]
) -> tuple[list[PipelineSpec], str | None]:
    if isinstance(app_or_specs, Iterable):
        specs, redis_url, owner = list(app_or_specs), None, "the list"
    else:
        specs, redis_url = list(app_or_specs.load_pipelines()), app_or_specs.settings.redis_url
        owner = f"app {app_or_specs.name!r}"
    if not specs:
        raise ConfigurationError(
            f"There is no pipeline in {owner}.", remedy="Declare one with @app.pipeline(processor)."
        )
    known = [spec.name for spec in specs]
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"There is no pipeline {name!r} in {owner}.",
                remedy=did_you_mean(name, known).strip() or f"It has: {', '.join(known)}.",
            )
    return [spec for spec in specs if not names or spec.name in names], redis_url


def _watch(runs: "list[_Run]", stop: threading.Event) -> int:
    try:
        for run in runs:
            run.start(runs)
        while not stop.is_set() and any(run.active for run in runs):
            stop.wait(POLL_S)
            for run in runs:
                run.check(runs)
    finally:
        # Also on Ctrl-C and on an error: a query that is not stopped keeps the JVM busy.
        deadline = time.monotonic() + GRACE_S
        for run in runs:
            if not run.session.has_ended():
                run.stop(deadline)
    return 1 if any(run.failure is not None or (run.once and run.state != "done") for run in runs) else 0


@dataclass
class _Run:
    spec: PipelineSpec
    session: Session
    redis_url: str | None
    once: bool
    on_progress: OnProgress | None
    failure: Failure | None = None
    active: bool = True
    state: str = ""
    """What it said last of its state, as :class:`PipelineProgress` has it; empty before the first."""
    _query: "StreamingQuery | None" = None
    _spark: "SparkSession | None" = None
    """The session that the query was started in; a remote one may have been renewed since."""
    _last: PipelineProgress | None = None
    _seen: tuple[int, str] = (-1, "")
    _failures: int = 0
    """Failures since the last finished micro-batch, without those in :attr:`_lasting`."""
    _lasting: int = 0
    """Failures since then whose cause may last."""
    _start_at: float = 0.0
    _log_at: float = 0.0
    _rows: int = 0
    """Rows since the last line about progress."""
    _rows_in_all: int = 0
    _dropped: int = 0
    """Rows that Spark has dropped as late since the start."""
    _dropped_before: dict[str, int] = field(default_factory=dict)
    """By processor, what earlier drivers had counted."""

    def start(self, runs: "Iterable[_Run]") -> None:
        """Build the query and start it, together with the other active runs.

        A start that fails is tried again as a query that fails is; a ConfigurationError is raised.
        """
        together = [run.spec for run in runs if run.active]
        try:
            if self.session.remote:
                self.session.renew(self.spec.name)
            self._spark = self.session.spark
            self._query = start_query(self.spec, self.session, together=together, once=self.once)
        except Exception as error:
            if isinstance(error, ConfigurationError) or self.session.has_ended(within_s=JVM_END_S):
                raise
            self._fail(self._failure_of(error))
        else:
            log.info("pipeline %s runs", self.spec.name)

    def check(self, runs: "Iterable[_Run]") -> None:
        """Report progress; restart a query that failed, and finish one that is done."""
        if not self.active:
            return
        if self._query is None:
            if time.monotonic() >= self._start_at:
                try:
                    self.start(runs)
                except ConfigurationError as refusal:
                    self._fail(Failure("ConfigurationError", str(refusal), final=True))
            return
        error: Exception | None
        try:
            ended = not self._query.isActive
            self._report_progress(self._query)
            if not ended:
                return
            error = self._query.exception()
        except Exception as lost:
            if not self.session.remote:
                raise
            error = lost
        self._query = None
        if error is None:
            self.active = False
            self._report_state("done")
        else:
            self._fail(self._failure_of(error))

    def _failure_of(self, error: Exception) -> Failure:
        session = self.session
        if session.remote and (self._spark is not session.spark or not session.is_known()):
            message = f"The Spark server does not answer, or was restarted: {type(error).__name__}."
            return Failure("BackendUnavailable", message, final=False, may_last=True)
        # One that the sink or the source raised here has no name in its text, which Spark puts before it.
        name = f"{type(error).__module__}.{type(error).__name__}: "
        return read_failure(name * isinstance(error, StreamworkerError) + str(error), session.log_path)

    def stop(self, deadline: float) -> None:
        """Wait until ``deadline`` for the current micro-batch, then stop the query."""
        query, self._query = self._query, None
        if not self.active or self._spark is None:
            return
        self.active = False
        if query is None:  # It waits for its next start.
            self._report_state("stopped")
            return
        is_done = False
        try:
            while time.monotonic() < deadline and query.status["isTriggerActive"]:
                time.sleep(0.05)
            is_done = not query.isActive and query.exception() is None
            self._report_progress(query)
            query.stop()
        except Exception as error:
            if not self.session.remote:
                raise
            log.warning("pipeline %s was not stopped on the server: %s", self.spec.name, type(error).__name__)
        self._report_state("done" if is_done else "stopped")

    def _report_progress(self, query: "StreamingQuery") -> None:
        last = query.lastProgress
        if last is None or int(last.batchId) < self._seen[0]:
            return
        # Each event costs a call into the JVM, so all are fetched only if some were missed.
        missed = int(last.batchId) > self._seen[0] + 1
        for event in query.recentProgress if missed else [last]:
            key = (int(event.batchId), str(event.timestamp))
            if key > self._seen:
                self._seen = key
                self._failures = self._lasting = 0
                self._last = self._with_dropped(from_event(self.spec.name, event))
                self._log(self._last)
                if self.on_progress is not None:
                    self.on_progress(self._last)

    def _with_dropped(self, progress: PipelineProgress) -> PipelineProgress:
        """Add up the rows that Spark dropped, warn of the first, and leave the sum in Redis."""
        if progress.dropped_rows and not self._dropped:
            log.warning(
                "pipeline %s: %d rows came after the watermark, and Spark dropped them; one with more room "
                "drops fewer", self.spec.name, progress.dropped_rows,
            )  # fmt: skip
        self._dropped += progress.dropped_rows
        if self._dropped:
            self._write("dropped rows", self._write_dropped)
        return replace(progress, dropped_rows=self._dropped)

    def _write_dropped(self, processor: str, notes: ReaderNotes) -> None:
        before = notes.dropped(self._dropped, self._dropped_before.get(processor))
        self._dropped_before[processor] = before

    def _log(self, progress: PipelineProgress) -> None:
        given = {name.lower() for each in self.spec.processors for name in source_options(self.spec, each)}
        if progress.late_rows and not given & {"startingoffsets", "startingtimestamp"}:
            log.warning(
                "pipeline %s begins late: %d rows were trimmed before it", self.spec.name, progress.late_rows
            )
        self._rows += progress.rows
        self._rows_in_all += progress.rows
        if not self._rows or progress.lag is None or time.monotonic() < self._log_at:
            return
        options = source_options(self.spec, self.spec.processors[0])
        limit = parse_options(options, streaming=True).max_rows_per_trigger
        is_cut = limit is not None and progress.lag > 0 and progress.rows >= limit
        why = f"; a micro-batch has at most {limit} rows (maxRowsPerTrigger)" if is_cut else ""
        log.info("pipeline %s: %d rows processed, lag %d%s", self.spec.name, self._rows, progress.lag, why)
        self._rows, self._log_at = 0, time.monotonic() + LOG_INTERVAL_S

    def _fail(self, failure: Failure) -> None:
        waits = (failure.nothing_there_yet or failure.target_full) and not self.once
        if not (waits and failure.nothing_there_yet):
            message = failure.message[:MESSAGE_LENGTH]
            self._write("failure", lambda _, notes: notes.failed(message))
        if not waits:
            self._lasting += failure.may_last
            self._failures += not failure.may_last
        too_many = self._failures > RESTARTS_MAX or self._lasting > LASTING_RESTARTS_MAX
        if (failure.final and not waits) or too_many:
            self.failure, self.active = failure, False
            log.error("pipeline %s failed: %s", self.spec.name, failure.message)
            self._report_state("failed", failure.message)
            return
        count = self._lasting if failure.may_last else self._failures
        pause_s = pause_ms(count, random.random, first_ms=FIRST_PAUSE_MS, max_ms=LONGEST_PAUSE_MS) / 1000
        self._start_at = time.monotonic() + pause_s
        self._seen = (-1, "")
        log.warning(
            "pipeline %s starts again from its checkpoint in %.1f s: %s",
            self.spec.name, pause_s, failure.message,
        )  # fmt: skip
        self._report_state("waiting" if waits else "restarting", failure.message)

    def _write(self, what: str, tell: Callable[[str, ReaderNotes], None]) -> None:
        """Leave something beside the reader's positions, for `status`, `graph`, `top` and `doctor`."""
        try:
            with environment(of_connection(self.redis_url)):
                for processor in self.spec.processors:
                    options = parse_options(source_options(self.spec, processor), streaming=True)
                    tell(processor.name, ReaderNotes(options))
        except StreamworkerError as error:
            log.warning("the %s of pipeline %s: not written to Redis: %s", what, self.spec.name, error)

    def _report_state(self, state: str, error: str = "") -> None:
        self.state = state
        if state in ("done", "stopped"):
            late = f", {self._dropped} dropped as late" if self._dropped else ""
            if late:  # The source, which has ended, overwrites it no more.
                self._write("dropped rows", self._write_dropped)
            rows = self._rows_in_all
            log.info("pipeline %s is %s: %d rows processed in all%s", self.spec.name, state, rows, late)
        if self.on_progress is not None:
            last = self._last or PipelineProgress(self.spec.name, state)
            self.on_progress(replace(last, state=state, rows=0, rows_per_s=0.0, seconds=0.0, error=error))
