"""The metrics of a process: what each is.

What keeps the values is a sink: Prometheus' client library or OpenTelemetry's, see ``streamworker.metrics``.
No metric has a label for a partition or a worker, so their number grows with the names in the app's code, and
not with its load.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

ERRORS_MAX = 50
"""How many classes of errors of an app a process tells apart. Those that come later are counted as ``OTHER``:
a program may make classes as it runs, and each is a series for ever."""
OTHER = "other"
ERROR_NAME_MAX = 100
"""Characters of the name of a class that are kept."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Bounds for what takes milliseconds if all is well."""
WAITS = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400)
"""Bounds for what may have to wait for a worker, in seconds."""
RECORDS = (1, 10, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000)

By = Literal["processor", "stream", "timer", "error", "event"]


class Meter(NamedTuple):
    """What a metric is."""

    kind: Literal["counter", "gauge", "histogram"]
    by: tuple[By, ...]
    """Its labels beside ``app``."""
    text: str
    bounds: tuple[float, ...] = ()
    """Upper bounds of the buckets of a histogram."""
    events: tuple[str, ...] = ()
    """All values of its label ``event``: names of log lines."""

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
    "streamworker_records_late_total": Meter(
        "counter", ("processor",), "Records that came when all of their windows were over."
    ),
    "streamworker_commits_fenced_total": Meter(
        "counter", ("processor",), "Commits that were refused: another worker has the partition, or may have."
    ),
    "streamworker_records_lost_total": Meter(
        "counter",
        ("processor", "event"),
        "Records of which Redis lost what was confirmed, by the event of the log; at least 1 for each line.",
        events=("partition_rolled_back", "forwarded_records_lost", "outbox_diverged", "source_trimmed"),
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
    "streamworker_sends_lost_total": Meter(
        "counter",
        ("stream",),
        "Confirmed sends of this process that Redis has lost: `sends_lost` in the log.",
    ),
    "streamworker_records_from_archive_total": Meter(
        "counter", ("processor",), "Records that were read from the archive of the stream, not from Redis."
    ),
    "streamworker_archive_segments_total": Meter("counter", ("stream",), "Segments that were archived."),
    "streamworker_archive_records_total": Meter("counter", ("stream",), "Records in them."),
    "streamworker_archive_bytes_total": Meter("counter", ("stream",), "Bytes of them in the store."),
    "streamworker_archive_put_seconds": Meter(
        "histogram", ("stream",), "From the reading of a segment's records to its confirmed put.", SECONDS
    ),
    "streamworker_archive_puts_refused_total": Meter(
        "counter", ("stream",), "Puts that the store refused, since it had a segment of that name."
    ),
    "streamworker_archive_puts_failed_total": Meter(
        "counter", ("stream",), "Failures of store or Redis, after which archiving is tried again."
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
