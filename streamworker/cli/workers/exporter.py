"""``streamworker exporter``: the facts of groups as Prometheus metrics, whether or not a worker lives.

It reads with the rights of a viewer. A scrape takes one snapshot of each group, and what the app holds, on a
connection of its own. Between scrapes it keeps what only a row of snapshots tells: ``core.trends``. So all
that reads these metrics should read them from one exporter.
"""

import math
from collections.abc import Iterable, Iterator
from threading import Event
from typing import TYPE_CHECKING, Annotated

import anyio

from streamworker.cli import logs
from streamworker.cli.options import GroupPath, Processors, option
from streamworker.cli.status import holdings_of
from streamworker.cli.support import connected, placements, take
from streamworker.cli.workers.children import two_stages
from streamworker.cli.workers.probes import metrics_page
from streamworker.cli.workers.serving import serve
from streamworker.core.data.archives import GROUP
from streamworker.core.holdings import Holdings
from streamworker.core.snapshot import GroupSnapshot
from streamworker.core.trends import Trend, Trends
from streamworker.declaring.specs import ProcessorSpec
from streamworker.errors import BackendUnavailable, StreamworkerError
from streamworker.importing import Selection, resolve_processors
from streamworker.log import get_logger
from streamworker.redisio.data.maps import follow_maps
from streamworker.runtime.telling import warn

if TYPE_CHECKING:
    from prometheus_client import Metric

log = get_logger(__name__)

Sample = tuple[str, dict[str, str], float]
"""A name, labels and a value."""

METRICS = {
    "streamworker_up": "1 if Redis answered this scrape; 0 also if it did not for some partitions, "
    "which have no figures then.",
    "streamworker_generation": "Version of the list of members.",
    "streamworker_members": "Members by state.",
    "streamworker_lag_records": "Records of a partition that are not committed.",
    "streamworker_oldest_uncommitted_seconds": "How long at most the oldest uncommitted record has waited; "
    "0 if none waits.",
    "streamworker_desired_workers": "Workers that the group wants, at most its partitions.",
    "streamworker_committed_records_total": "Committed records of a partition.",
    "streamworker_deleted_records_total": "Entries of a partition that another program deleted before they "
    "were committed.",
    "streamworker_acked_rows_total": "Rows in the acked log of a partition.",
    "streamworker_dead_letters": "Dead letters of a partition.",
    "streamworker_partition_epoch": "Epoch of a partition's lock; goes up with each acquisition.",
    "streamworker_partition_halted": "1 if the partition stopped at a record.",
    "streamworker_partition_retrying": "1 while a failing record of the partition is tried again.",
    "streamworker_partition_deaths": "Workers that died in a row while they handled the partition's next "
    "record.",
    "streamworker_partition_held_up": "1 if the partition runs and something holds it up, such as a full "
    "acked log, or a partition before it that stands still; `status` says what.",
    "streamworker_partition_unowned": "1 while no worker owns the partition, also until the next one has "
    "acquired it.",
    "streamworker_partition_paused": "1 if an operator has paused the partition.",
    "streamworker_reader_lag_rows": "Acked rows that a Spark reader has not read.",
    "streamworker_reader_lag_seconds": "How long the oldest row that a Spark reader has not read has "
    "waited, since the exporter started.",
    "streamworker_reader_batch_seconds": "Time between a Spark reader's last two micro-batches; at least "
    "its trigger interval.",
    "streamworker_reader_dropped_rows_total": "Rows that a Spark reader's query dropped, as they came after "
    "its watermark; of a query over several processors all, in each.",
    "streamworker_reader_failed": "1 if a Spark reader's query failed and has not read on since.",
    "streamworker_table_keys": "Keys of a table that have not expired.",
    "streamworker_table_due": "Values of a table at whose ends a function is called, or open windows.",
    "streamworker_table_overdue": "Those of these values that ended more than a minute ago, without a call.",
    "streamworker_table_first_end_timestamp_seconds": "The first of these ends; of a window by its records.",
    "streamworker_rebalances_total": "Rebalances and requests of operators since the exporter started, by "
    "cause.",
    "streamworker_outbox_messages": "Messages for other streams that are not forwarded yet.",
    "streamworker_timer_last_run_timestamp_seconds": "Planned time up to which a timer is done, at first "
    "its deploy; of several partitions the newest.",
    "streamworker_timer_next_run_timestamp_seconds": "Planned time of a timer's next run, past while it is "
    "late; of several partitions the oldest.",
    "streamworker_memory_bytes": "Estimated memory by kind and name; for ids an upper bound, from the "
    "number of keys that expire.",
    "streamworker_archive_waiting_records": "Records of a stream that are not archived yet.",
    "streamworker_archive_waiting_seconds": "How long the oldest of these has waited; 0 if none waits.",
    "streamworker_archive_late": "1 if it has waited for three times the interval of the archive.",
    "streamworker_archive_only_records": "Records of a stream that only its archive still has.",
    "streamworker_full_seconds": "Time until the memory is full at today's rate; missing without maxmemory, "
    "or if it is too early.",
}
"""The description of each metric; a name that ends with ``_total`` is a counter, any other a gauge."""


def exporter(
    app: GroupPath,
    processor: Processors = None,
    port: Annotated[
        str,
        option("--port PORT", "Serve /metrics at this port of loopback, or HOST:PORT; [::]:PORT is for all."),
    ] = "9090",
) -> None:
    """Serve the facts of groups as Prometheus metrics, until a signal stops it.

    It needs no worker, and the rights of a viewer. Run one for each app. What workers measure
    themselves is at run --metrics-port.

    \b
    Examples:
      streamworker exporter shop:app
      streamworker exporter shop:app --port 0.0.0.0:9090
    """
    logs.configure()
    page, stop = metrics_page(Groups(resolve_processors(app, processor))), Event()
    with two_stages(stop.set, stop.set):
        serve(port, {"/": page, "/metrics": page}, "--port")
        stop.wait()


def _labels(snapshot: GroupSnapshot) -> dict[str, str]:
    return {"app": snapshot.app, "stream": snapshot.stream, "processor": snapshot.processor}


def samples_of(snapshot: GroupSnapshot) -> Iterator[Sample]:
    """Return what a snapshot of a group tells."""
    group = _labels(snapshot)
    yield "streamworker_generation", group, snapshot.generation
    for state in ("active", "standby", "leaving", "silent", "held"):
        count = sum(member.state == state for member in snapshot.members)
        yield "streamworker_members", {**group, "state": state}, count
    for view in snapshot.partitions:
        if view.state == "unknown":
            continue  # A counter that falls to 0 and comes back would be a rate.
        one = {**group, "partition": str(view.partition)}
        yield "streamworker_lag_records", one, view.lag
        yield "streamworker_committed_records_total", one, view.records
        yield "streamworker_deleted_records_total", one, view.gone
        yield "streamworker_acked_rows_total", one, view.rows
        yield "streamworker_dead_letters", one, view.dead
        yield "streamworker_partition_epoch", one, view.epoch
        yield "streamworker_partition_halted", one, int(view.state == "halted")
        yield "streamworker_partition_retrying", one, int(view.state == "retrying")
        yield "streamworker_partition_deaths", one, view.deaths
        yield "streamworker_partition_held_up", one, int(view.is_held_up)
        yield "streamworker_partition_unowned", one, int(view.state in ("unowned", "acquiring"))
        yield "streamworker_partition_paused", one, int(view.pause is not None)
    for view in snapshot.done:
        yield "streamworker_dead_letters", {**group, "partition": str(view.partition)}, view.dead
    for reader in snapshot.readers:
        its = {**group, "reader": reader.name}
        if not snapshot.unknown:
            yield "streamworker_reader_lag_rows", its, reader.lag_rows
        yield "streamworker_reader_dropped_rows_total", its, reader.dropped_rows
        yield "streamworker_reader_failed", its, int(bool(reader.failed))
        if reader.batch_ms:
            yield "streamworker_reader_batch_seconds", its, reader.batch_ms / 1000
    for table in snapshot.tables:
        its = {**group, "table": table.name}
        yield "streamworker_table_keys", its, table.keys
        if table.due is not None:
            yield "streamworker_table_due", its, table.due
            yield "streamworker_table_overdue", its, table.overdue
        if table.next_ms is not None:
            yield "streamworker_table_first_end_timestamp_seconds", its, table.next_ms / 1000
    if not snapshot.unknown:
        yield "streamworker_outbox_messages", group, snapshot.outbox


def _of_trend(snapshot: GroupSnapshot, trend: Trend) -> Iterator[Sample]:
    group = _labels(snapshot)
    if snapshot.processor != GROUP:  # An archiver waits for its interval, and wants no worker for that.
        yield "streamworker_oldest_uncommitted_seconds", group, trend.oldest_ms / 1000
        yield "streamworker_desired_workers", group, trend.desired
    for reader, ms in trend.readers_ms.items():
        yield "streamworker_reader_lag_seconds", {**group, "reader": reader}, ms / 1000
    for cause, count in trend.rebalances.items():
        yield "streamworker_rebalances_total", {**group, "cause": cause}, count


def _of_timers(snapshot: GroupSnapshot, spec: ProcessorSpec) -> Iterator[Sample]:
    for timer in spec.timers:
        its = {**_labels(snapshot), "timer": timer.name}
        done = [view.timers[timer.name] for view in snapshot.partitions if timer.name in view.timers]
        if done:
            yield "streamworker_timer_last_run_timestamp_seconds", its, max(done) / 1000
        next_ms = timer.schedule.after(min(done, default=snapshot.taken_ms))
        yield "streamworker_timer_next_run_timestamp_seconds", its, next_ms / 1000


def _of_holdings(app: str, groups: Iterable[GroupSnapshot], holdings: Holdings) -> Iterator[Sample]:
    for each in holdings.held:
        its = {"app": app, "kind": each.kind.replace(" ", "_"), "name": each.name}
        yield "streamworker_memory_bytes", its, each.size
        if (archived := each.archived) is not None:
            of, now_ms = {"app": app, "stream": each.name}, holdings.taken_ms
            yield "streamworker_archive_waiting_records", of, archived.waiting
            yield "streamworker_archive_waiting_seconds", of, archived.waits_ms(now_ms) / 1000
            yield "streamworker_archive_late", of, int(archived.is_late(now_ms))
            yield "streamworker_archive_only_records", of, archived.only
    for table in (table for snapshot in groups for table in snapshot.tables):
        yield "streamworker_memory_bytes", {"app": app, "kind": "table", "name": table.name}, table.bytes or 0
    yield "streamworker_memory_bytes", {"app": app, "kind": "ids", "name": ""}, holdings.ids
    if holdings.limit and not any(each.is_early(holdings.taken_ms) for each in holdings.held):
        full_s = holdings.full_in_s
        yield "streamworker_full_seconds", {"app": app}, math.inf if full_s is None else full_s


class Groups:
    """A Prometheus collector for the groups of the chosen processors."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        registry = selection.app.registry
        # A whole app also has a group for its own timers.
        self._specs = registry.groups if selection.is_whole else [*selection.processors]
        self._trends = [Trends() for _ in self._specs]

    def collect(self) -> "Iterator[Metric]":
        """Look at each group; if Redis does not answer, return only ``streamworker_up 0``, and log why."""
        try:
            yield from families(self._samples(*anyio.run(self._look)))
        except StreamworkerError as error:
            warn(log, "scrape_failed", error)
            yield from families([("streamworker_up", {"app": self._selection.app.name}, 0)])

    async def _look(self) -> tuple[list[GroupSnapshot], Holdings]:
        async with connected(self._selection.app) as backend:
            await follow_maps(backend, placements(self._selection.app))
            groups = [await take(backend, spec) for spec in self._specs]
            return groups, await holdings_of(backend, self._selection)

    def _samples(self, groups: list[GroupSnapshot], holdings: Holdings) -> Iterator[Sample]:
        unknown = [each for group in groups for each in group.unknown]
        if unknown:
            warn(log, "scrape_failed", BackendUnavailable(unknown[0]))
        yield "streamworker_up", {"app": self._selection.app.name}, int(not unknown)
        for spec, snapshot, trends in zip(self._specs, groups, self._trends, strict=True):
            if spec.stream.has_records:
                yield from samples_of(snapshot)
                if not snapshot.unknown:
                    yield from _of_trend(snapshot, trends.follow(snapshot))
            if not snapshot.unknown:
                yield from _of_timers(snapshot, spec)
        if not unknown:
            yield from _of_holdings(self._selection.app.name, groups, holdings)


def families(samples: Iterable[Sample]) -> "Iterator[Metric]":
    """Convert samples to metrics; leave out metrics without a sample."""
    from prometheus_client import Metric

    found = {
        name: Metric(name.removesuffix("_total"), text, "counter" if name.endswith("_total") else "gauge")
        for name, text in METRICS.items()
    }
    for name, labels, value in samples:
        found[name].add_sample(name, labels, value)
    return (metric for metric in found.values() if metric.samples)
