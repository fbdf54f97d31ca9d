"""The metrics of a process: what each is, and how what an observer is told becomes their values.

What keeps the values is a sink: Prometheus' client library or OpenTelemetry's, see ``streamworker.metrics``.
No metric has a label for a partition or a worker, so their number grows with the names in the app's code, and
not with its load.
"""

from collections.abc import Callable
from threading import Lock
from typing import Literal, NamedTuple, Protocol

from streamworker.core.data.entries import EntryId
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.runtime.clock import CLOCK
from streamworker.runtime.observing import Observer

ERRORS_MAX = 50
"""How many classes of errors a process tells apart. Those that come later are counted as ``OTHER``: a program
may make classes as it runs, and each is a series for ever."""
OTHER = "other"
ERROR_NAME_MAX = 100
"""Characters of the name of a class that are kept."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Bounds for what takes milliseconds if all is well."""
WAITS = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400)
"""Bounds for what may have to wait for a worker, in seconds."""
RECORDS = (1, 10, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000)

By = Literal["processor", "stream", "timer", "error"]


class Meter(NamedTuple):
    """What a metric is."""

    kind: Literal["counter", "gauge", "histogram"]
    by: tuple[By, ...]
    """Its labels beside ``app``."""
    text: str
    bounds: tuple[float, ...] = ()
    """Upper bounds of the buckets of a histogram."""

    @property
    def labels(self) -> tuple[str, ...]:
        """All its labels."""
        return ("app", *self.by)


METERS = {
    "streamworker_records_total": Meter("counter", ("processor",), "Records that were committed."),
    "streamworker_record_bytes_total": Meter("counter", ("processor",), "Bytes of these records in Redis."),
    "streamworker_batch_records": Meter("histogram", ("processor",), "Records of a commit.", RECORDS),
    "streamworker_handler_seconds": Meter(
        "histogram",
        ("processor",),
        "Time of a call; calls of one record each are measured together, for 2 ms (5 ms in a thread).",
        SECONDS,
    ),
    "streamworker_commit_seconds": Meter(
        "histogram", ("processor",), "From a commit to its confirmation, with all its tries.", SECONDS
    ),
    "streamworker_record_age_seconds": Meter(
        "histogram",
        ("processor",),
        "Age of a commit's oldest record when it is confirmed, by the clocks of Redis and of the worker.",
        WAITS,
    ),
    "streamworker_failures_total": Meter(
        "counter",
        ("processor", "error"),
        f"Calls that failed, by the class of the error; after {ERRORS_MAX} classes `{OTHER}`.",
    ),
    "streamworker_retries_total": Meter("counter", ("processor",), "Calls that were made again."),
    "streamworker_records_dead_total": Meter("counter", ("processor",), "Records that became dead letters."),
    "streamworker_commits_fenced_total": Meter(
        "counter", ("processor",), "Commits that were refused: another worker has the partition, or may have."
    ),
    "streamworker_outbox_depth": Meter(
        "gauge", ("processor",), "Messages that wait in the outboxes of the worker's partitions."
    ),
    "streamworker_timer_runs_total": Meter("counter", ("timer",), "Calls of a timer that succeeded."),
    "streamworker_timer_lateness_seconds": Meter(
        "histogram", ("timer",), "From the planned time of such a call to its beginning.", WAITS
    ),
    "streamworker_sends_total": Meter("counter", ("stream",), "Records that were sent and confirmed."),
    "streamworker_send_seconds": Meter(
        "histogram",
        ("stream",),
        "From a send to its confirmation; of those that share an append, the longest.",
        SECONDS,
    ),
    "streamworker_sends_waited_total": Meter(
        "counter", ("stream",), "Records among them that waited, because their partition was full."
    ),
    "streamworker_sends_duplicate_total": Meter(
        "counter", ("stream",), "Sends and schedules of a known id, which wrote nothing."
    ),
    "streamworker_event_loop_lag_seconds": Meter(
        "gauge", (), "How late the worker's event loop ran what was due, at the last look: one a second."
    ),
}
"""All metrics by name."""

Tell = Callable[[float], None]


class Sink(Protocol):
    """What keeps the values."""

    def teller(self, name: str, labels: dict[str, str]) -> Tell:
        """Return what adds to a counter, or what a histogram observes."""

    def read(self, name: str, labels: dict[str, str], value: Callable[[], float]) -> None:
        """Let a gauge have the value that a function returns."""


class Meters(Observer):
    """Turns what it is told into values of metrics. Safe from any thread."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._tellers: dict[tuple[str, ...], Tell] = {}
        self._errors: set[str] = set()
        self._lock = Lock()

    def _count(self, name: str, value: float, *labels: str) -> None:
        if (tell := self._tellers.get((name, *labels))) is None:
            tell = self._sink.teller(name, dict(zip(METERS[name].labels, labels, strict=True)))
            self._tellers[name, *labels] = tell
        tell(value)

    def _begin(self, by: By, *labels: str) -> None:
        """Let the counters that are told apart by one thing begin with 0: a rate needs a value before."""
        for name, meter in METERS.items():
            if meter.kind == "counter" and meter.by == (by,):
                self._count(name, 0, *labels)

    # -- once --------------------------------------------------------------------------------------

    def loop_runs(self, app: str, lag_ms: Callable[[], int]) -> None:
        """A worker begins."""
        self._sink.read("streamworker_event_loop_lag_seconds", {"app": app}, lambda: lag_ms() / 1000)

    def processor_runs(self, spec: ProcessorSpec, waiting: Callable[[], int]) -> None:
        """A worker runs a processor."""
        app = spec.stream.app
        self._begin("processor", app, spec.name)
        for timer in spec.timers:
            self._begin("timer", app, timer.name)
        if spec.may_send:
            self._sink.read("streamworker_outbox_depth", {"app": app, "processor": spec.name}, waiting)

    def producer_made(self, spec: StreamSpec) -> None:
        """A producer of a stream is made."""
        self._begin("stream", spec.app, spec.name)

    # -- as it happens -----------------------------------------------------------------------------

    def called(self, spec: ProcessorSpec, seconds: float) -> None:
        """A call has ended."""
        self._count("streamworker_handler_seconds", seconds, spec.stream.app, spec.name)

    def failed(self, spec: ProcessorSpec, error: BaseException) -> None:
        """A call has failed."""
        name = type(error).__name__[:ERROR_NAME_MAX]
        with self._lock:
            if len(self._errors) < ERRORS_MAX:
                self._errors.add(name)
        known = name if name in self._errors else OTHER
        self._count("streamworker_failures_total", 1, spec.stream.app, spec.name, known)

    def retried(self, spec: ProcessorSpec) -> None:
        """A call is made again."""
        self._count("streamworker_retries_total", 1, spec.stream.app, spec.name)

    def timer_ran(self, spec: ProcessorSpec, timer: str, late_ms: int) -> None:
        """A timer's function has succeeded."""
        self._count("streamworker_timer_runs_total", 1, spec.stream.app, timer)
        self._count("streamworker_timer_lateness_seconds", max(late_ms, 0) / 1000, spec.stream.app, timer)

    def committed(
        self, spec: ProcessorSpec, seconds: float, records: int, size: int, oldest: EntryId | None, dead: int
    ) -> None:
        """A commit is confirmed."""
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
        """A commit was refused."""
        self._count("streamworker_commits_fenced_total", 1, spec.stream.app, spec.name)

    def sent(self, spec: StreamSpec, seconds: float, records: int, waited: int) -> None:
        """Redis has confirmed some records."""
        self._count("streamworker_sends_total", records, spec.app, spec.name)
        self._count("streamworker_send_seconds", seconds, spec.app, spec.name)
        if waited:
            self._count("streamworker_sends_waited_total", waited, spec.app, spec.name)

    def repeated(self, spec: StreamSpec) -> None:
        """A record was not written again."""
        self._count("streamworker_sends_duplicate_total", 1, spec.app, spec.name)
