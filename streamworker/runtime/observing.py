"""What a process tells of its work, and how it becomes values of metrics.

An app has one observer or none, ``app.observer``: ``streamworker.metrics.measure`` makes it. Workers and
producers take it when they are made, so it is set before a worker runs and before the first send. Senders
need no worker: a web application calls ``measure`` where it declares its app. Without an observer each of
these facts costs one test of an attribute, for a call, a commit or an append and never for a record.

An observer is called in the event loop that does the work, and the end of a call may be told from a thread.
It neither blocks nor raises.
"""

import sys
from collections.abc import Callable
from threading import Lock
from typing import Any, Protocol

from streamworker.core.data.entries import EntryId
from streamworker.core.policies import leaves
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.runtime.clock import CLOCK
from streamworker.runtime.meters import (
    ERROR_NAME_MAX,
    ERRORS_MAX,
    METERS,
    OTHER,
    By,
    Sink,
    Tell,
)


class Observer:
    """Turns what it is told of an app into values of metrics, which sinks keep. Safe from any thread."""

    def __init__(self, *sinks: Sink) -> None:
        self.sinks = sinks
        self._tellers: dict[tuple[str, ...], list[Tell]] = {}
        self._errors: set[str] = set()
        self._lock = Lock()

    def _count(self, name: str, value: float, *labels: str) -> None:
        if (tellers := self._tellers.get((name, *labels))) is None:
            named = dict(zip(METERS[name].labels, labels, strict=True))
            tellers = [sink.teller(name, named) for sink in self.sinks]
            self._tellers[name, *labels] = tellers
        for tell in tellers:
            tell(value)

    def _read(self, name: str, value: Callable[[], float], *labels: str) -> None:
        for sink in self.sinks:
            sink.read(name, dict(zip(METERS[name].labels, labels, strict=True)), value)

    def _begin(self, by: By, *labels: str, archives: bool = False) -> None:
        """Let the counters that are told apart by one thing begin with 0: a rate needs a value before."""
        for name, meter in METERS.items():
            if archives is not name.startswith("streamworker_archive_"):
                continue
            if meter.kind == "counter" and meter.by == (by,):
                self._count(name, 0, *labels)
            elif meter.events and meter.by[0] == by:
                for event in meter.events:
                    self._count(name, 0, *labels, event)

    # -- once --------------------------------------------------------------------------------------

    def loop_runs(self, app: str, lag_ms: Callable[[], int]) -> None:
        """A worker begins; ``lag_ms``, from any thread, returns how late its event loop runs what is due."""
        self._read("streamworker_event_loop_lag_seconds", lambda: lag_ms() / 1000, app)

    def processor_runs(self, spec: ProcessorSpec) -> None:
        """A worker runs a processor."""
        app = spec.stream.app
        if spec.is_archiver:
            self._begin("stream", app, spec.stream.name, archives=True)
        self._begin("processor", app, spec.name)
        for timer in spec.by_time:
            self._begin("timer", app, timer.name)

    def producer_made(self, spec: StreamSpec) -> None:
        """A program begins to send to a stream."""
        self._begin("stream", spec.app, spec.name)

    # -- a call of the function --------------------------------------------------------------------

    def called(self, spec: ProcessorSpec, seconds: float) -> None:
        """A call has ended, whether it succeeded or not.

        A function of one record is called for a few milliseconds in a row, and this is told once for the row.
        """
        self._count("streamworker_handler_seconds", seconds, spec.stream.app, spec.name)

    def failed(self, spec: ProcessorSpec, error: BaseException) -> None:
        """A call has failed."""
        name = type(leaves(error)[0]).__name__[:ERROR_NAME_MAX]
        with self._lock:
            if len(self._errors) < ERRORS_MAX:
                self._errors.add(name)
        known = name if name in self._errors else OTHER
        self._count("streamworker_failures_total", 1, spec.stream.app, spec.name, known)

    def retried(self, spec: ProcessorSpec) -> None:
        """A call that failed is made again now."""
        self._count("streamworker_retries_total", 1, spec.stream.app, spec.name)

    def was_late(self, spec: ProcessorSpec) -> None:
        """A record came when all of its windows were over."""
        self._count("streamworker_records_late_total", 1, spec.stream.app, spec.name)

    def timer_ran(self, spec: ProcessorSpec, timer: str, late_ms: int) -> None:
        """A timer's function has succeeded; it was called so long after its planned time."""
        self._count("streamworker_timer_runs_total", 1, spec.stream.app, timer)
        self._count("streamworker_timer_lateness_seconds", max(late_ms, 0) / 1000, spec.stream.app, timer)

    # -- a commit ----------------------------------------------------------------------------------

    def committed(
        self, spec: ProcessorSpec, seconds: float, records: int, size: int, oldest: EntryId | None, dead: int
    ) -> None:
        """A commit is confirmed, so long after it was made.

        ``size`` is in bytes. ``oldest`` is its first record; None for that of a timer. ``dead`` counts its
        dead letters.
        """
        of = spec.stream.app, spec.name
        self._count("streamworker_commit_seconds", seconds, *of)
        if oldest is None:
            return
        self._count("streamworker_records_total", records, *of)
        self._count("streamworker_record_bytes_total", size, *of)
        self._count("streamworker_batch_records", records, *of)
        self._count("streamworker_record_age_seconds", max(CLOCK.wall_s() - oldest.ms / 1000, 0), *of)
        if dead:
            self._count("streamworker_records_dead_total", dead, *of)

    def refused(self, spec: ProcessorSpec) -> None:
        """A commit was refused, and its partition stops: another worker may have it."""
        self._count("streamworker_commits_fenced_total", 1, spec.stream.app, spec.name)

    def records_lost(self, spec: ProcessorSpec, event: str, records: int) -> None:
        """Redis has lost what it had confirmed; see ``tell_lost``."""
        self._count("streamworker_records_lost_total", records, spec.stream.app, spec.name, event)

    # -- an archive --------------------------------------------------------------------------------

    def archived(self, spec: StreamSpec, seconds: float, records: int, size: int) -> None:
        """A segment of so many bytes is in the store, so long after its records were read."""
        of = spec.app, spec.name
        self._count("streamworker_archive_segments_total", 1, *of)
        self._count("streamworker_archive_records_total", records, *of)
        self._count("streamworker_archive_bytes_total", size, *of)
        self._count("streamworker_archive_put_seconds", seconds, *of)

    def put_refused(self, spec: StreamSpec) -> None:
        """The store had a segment of that name."""
        self._count("streamworker_archive_puts_refused_total", 1, spec.app, spec.name)

    def put_failed(self, spec: StreamSpec) -> None:
        """Nothing could be archived now, and it is tried again."""
        self._count("streamworker_archive_puts_failed_total", 1, spec.app, spec.name)

    def read_archived(self, spec: ProcessorSpec, records: int) -> None:
        """A group has read some records from the archive of its stream."""
        self._count("streamworker_records_from_archive_total", records, spec.stream.app, spec.name)

    # -- a send ------------------------------------------------------------------------------------

    def sent(self, spec: StreamSpec, seconds: float, records: int, waited: int) -> None:
        """Redis has confirmed some records, so long after the oldest of them was given to the producer.

        ``waited`` says how many of them found their partition full, and waited for room.
        """
        self._count("streamworker_sends_total", records, spec.app, spec.name)
        self._count("streamworker_send_seconds", seconds, spec.app, spec.name)
        if waited:
            self._count("streamworker_sends_waited_total", waited, spec.app, spec.name)

    def sends_lost(self, spec: StreamSpec, event: str, records: int) -> None:
        """Redis has lost sends that it had confirmed; see ``tell_lost``."""
        del event  # There is one, and the metric has its name.
        self._count("streamworker_sends_lost_total", records, spec.app, spec.name)

    def repeated(self, spec: StreamSpec) -> None:
        """A record of the same id was sent or scheduled before: this one was not written."""
        self._count("streamworker_sends_duplicate_total", 1, spec.app, spec.name)


class Observable(Protocol):
    """An app, as far as its observer knows it."""

    observer: Observer | None


def meter_provider() -> Any:
    """Return the meter provider of OpenTelemetry that the program has configured; None if it has none."""
    if (api := sys.modules.get("opentelemetry.metrics")) is None:
        return None
    provider = api.get_meter_provider()
    # What the API has without an SDK counts nothing.
    return None if type(provider).__module__.startswith("opentelemetry.metrics") else provider
