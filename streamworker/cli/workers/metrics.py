"""Group snapshots as Prometheus metrics, for ``run --metrics-port`` and ``run --health-port``.

Each scrape has its own thread, event loop and connection, so a busy processor does not delay it. A
scrape takes one snapshot of each group and keeps nothing. Every worker returns the same values, so
scraping one worker is enough.
"""

from collections.abc import Iterator, Sequence

import anyio
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from streamworker.cli.support import take_all
from streamworker.cli.workers.probes import Page
from streamworker.core.snapshot import GroupSnapshot
from streamworker.errors import StreamworkerError
from streamworker.importing import Selection

METRICS = {
    "streamworker_up": ("gauge", "1 if Redis answered this scrape."),
    "streamworker_generation": ("gauge", "Version of the membership."),
    "streamworker_members": ("gauge", "Members by state."),
    "streamworker_lag_records": ("gauge", "Records of a partition that are not committed."),
    "streamworker_committed_records_total": ("counter", "Records of a partition that were committed."),
    "streamworker_deleted_records_total": (
        "counter",
        "Entries of a partition that another program deleted before they were committed.",
    ),
    "streamworker_acked_rows_total": ("counter", "Rows in the acked log of a partition."),
    "streamworker_dead_letters": ("gauge", "Dead letters of a partition."),
    "streamworker_partition_epoch": ("gauge", "Epoch of a partition's lock; goes up with each acquisition."),
    "streamworker_partition_halted": ("gauge", "1 if the partition stopped at a record."),
    "streamworker_partition_retrying": ("gauge", "1 while a failing record of the partition is tried again."),
    "streamworker_partition_deaths": (
        "gauge",
        "Workers that died in a row in the call of the partition's next record.",
    ),
    "streamworker_partition_held_up": (
        "gauge",
        "1 if the partition runs and something holds it up, such as a full acked log; `status` says what.",
    ),
    "streamworker_partition_paused": ("gauge", "1 if an operator has paused the partition."),
    "streamworker_reader_lag_rows": ("gauge", "Acked rows that a Spark reader has not read."),
    "streamworker_reader_failed": ("gauge", "1 if a Spark reader's query failed and has not read on since."),
    "streamworker_table_keys": ("gauge", "Keys of a table that have not expired."),
    "streamworker_table_memory": ("gauge", "Bytes of a table in Redis, by estimate."),
    "streamworker_rebalances_recent": (
        "gauge",
        "Changes of the membership that the latest control messages show, by cause.",
    ),
}
"""The type and description of each metric."""


def _samples(snapshot: GroupSnapshot) -> Iterator[tuple[str, dict[str, str], int]]:
    group = {"app": snapshot.app, "stream": snapshot.stream, "processor": snapshot.processor}
    yield "streamworker_generation", group, snapshot.generation
    for state in ("active", "standby", "leaving", "silent", "held"):
        count = sum(member.state == state for member in snapshot.members)
        yield "streamworker_members", {**group, "state": state}, count
    for view in snapshot.partitions:
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
        yield "streamworker_partition_held_up", one, int(bool(view.reason) and view.state != "halted")
        yield "streamworker_partition_paused", one, int(view.pause is not None)
    for reader in snapshot.readers:
        its = {**group, "reader": reader.name}
        yield "streamworker_reader_lag_rows", its, reader.lag_rows
        yield "streamworker_reader_failed", its, int(bool(reader.failed))
    for table in snapshot.tables:
        its = {**group, "table": table.name}
        yield "streamworker_table_keys", its, table.keys
        yield "streamworker_table_memory", its, table.bytes or 0
    for cause in sorted({change.cause for change in snapshot.rebalances}):
        count = sum(change.cause == cause for change in snapshot.rebalances)
        yield "streamworker_rebalances_recent", {**group, "cause": cause}, count


class Groups(Collector):
    """A Prometheus collector for the groups of the chosen processors."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def collect(self) -> Iterator[Metric]:
        """Take a snapshot of each group; if Redis does not answer, return only ``streamworker_up 0``."""
        try:
            yield from families(anyio.run(take_all, self._selection), up=True)
        except StreamworkerError:
            yield from families([], up=False)


def families(taken: Sequence[GroupSnapshot], *, up: bool) -> Iterator[Metric]:
    """Convert snapshots to metrics; leave out metrics without a sample."""
    found = {name: Metric(name.removesuffix("_total"), text, kind) for name, (kind, text) in METRICS.items()}
    found["streamworker_up"].add_sample("streamworker_up", {}, int(up))
    for snapshot in taken:
        for name, labels, value in _samples(snapshot):
            found[name].add_sample(name, labels, value)
    return (metric for metric in found.values() if metric.samples)


def page(selection: Selection) -> Page:
    """Return the page with the metrics of these processors."""
    registry = CollectorRegistry()
    registry.register(Groups(selection))

    def answer(accept: str) -> tuple[int, str, bytes]:
        encode, kind = choose_encoder(accept)
        return 200, kind, encode(registry)

    return answer
