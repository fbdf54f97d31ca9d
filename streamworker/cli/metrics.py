"""``run --metrics-port``: what a snapshot says, as text that Prometheus reads.

A thread with an event loop and a connection of its own: a busy processor does not keep the
figures back. Each scrape takes one snapshot of each group; nothing is kept between scrapes, so
every worker tells the same truth and one of them is enough to scrape.
"""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from streamworker.cli.support import connected, say, take
from streamworker.core.snapshot import GroupSnapshot
from streamworker.errors import ConfigurationError, StreamworkerError

if TYPE_CHECKING:
    from streamworker.importing import Selection

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_TIMEOUT_S = 10.0

METRICS = {
    "streamworker_up": ("gauge", "1 if Redis answered this scrape."),
    "streamworker_generation": ("gauge", "Version of the membership."),
    "streamworker_members": ("gauge", "Members by state."),
    "streamworker_lag_entries": ("gauge", "Entries of a partition that are not committed."),
    "streamworker_committed_entries_total": ("counter", "Entries of a partition that were committed."),
    "streamworker_acked_rows_total": ("counter", "Rows in the acked log of a partition."),
    "streamworker_dead_letters": ("gauge", "Dead letters of a partition."),
    "streamworker_partition_epoch": ("gauge", "Epoch of a partition's lock; goes up with each acquisition."),
    "streamworker_partition_halted": ("gauge", "1 if the partition stopped at a record."),
    "streamworker_reader_lag_rows": ("gauge", "Acked rows that a Spark reader has not read."),
    "streamworker_rebalances_total": ("counter", "Changes of the membership on record, by cause."),
}
"""Every metric: its type and what it says."""

Sample = tuple[str, dict[str, object], int]


def render(snapshots: Sequence[GroupSnapshot], *, up: bool) -> str:
    """Write snapshots in Prometheus' text format."""
    samples: list[Sample] = [("streamworker_up", {}, int(up))]
    for snapshot in snapshots:
        samples.extend(_samples(snapshot))
    lines = []
    for name, (kind, help_text) in METRICS.items():
        mine = [sample for sample in samples if sample[0] == name]
        if mine:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels(labels)} {value}" for _, labels, value in mine]
    return "\n".join(lines) + "\n"


def _samples(snapshot: GroupSnapshot) -> Iterator[Sample]:
    group: dict[str, object] = {
        "app": snapshot.app,
        "stream": snapshot.stream,
        "processor": snapshot.processor,
    }
    yield "streamworker_generation", group, snapshot.generation
    for state in ("active", "standby", "leaving", "silent", "held"):
        count = sum(member.state == state for member in snapshot.members)
        yield "streamworker_members", {**group, "state": state}, count
    for view in snapshot.partitions:
        one = {**group, "partition": view.partition}
        yield "streamworker_lag_entries", one, view.lag
        yield "streamworker_committed_entries_total", one, view.entries
        yield "streamworker_acked_rows_total", one, view.rows
        yield "streamworker_dead_letters", one, view.dead
        yield "streamworker_partition_epoch", one, view.epoch
        yield "streamworker_partition_halted", one, int(view.state == "halted")
    for reader in snapshot.readers:
        yield "streamworker_reader_lag_rows", {**group, "reader": reader.name}, reader.lag_rows
    for cause in sorted({change.cause for change in snapshot.rebalances}):
        count = sum(change.cause == cause for change in snapshot.rebalances)
        yield "streamworker_rebalances_total", {**group, "cause": cause}, count


def _labels(labels: dict[str, object]) -> str:
    if not labels:
        return ""
    pairs = []
    for name, value in labels.items():
        escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        pairs.append(f'{name}="{escaped}"')
    return "{" + ",".join(pairs) + "}"


def serve(selection: "Selection", port: int) -> None:
    """Serve the metrics of these processors from a thread, until the process ends.

    Raises
    ------
    ConfigurationError
        If the port is taken.
    """
    ready = threading.Event()
    problem: list[OSError] = []

    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _answer(selection, reader, writer)

        try:
            server = await asyncio.start_server(answer, "0.0.0.0", port)  # noqa: S104  (to be scraped)
        except OSError as error:
            problem.append(error)
            return
        finally:
            ready.set()
        async with server:
            await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(main()), name="metrics", daemon=True).start()
    ready.wait()
    if problem:
        raise ConfigurationError(
            f"Metrics cannot be served at port {port}: {problem[0].strerror}.",
            remedy="Choose another --metrics-port.",
        )
    say(f"Metrics: http://localhost:{port}/metrics", error=True)


async def _answer(selection: "Selection", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, *_ = head.split(b"\r\n")[0].decode("latin-1").split(" ")
            if method not in ("GET", "HEAD") or path.split("?")[0] not in ("/", "/metrics"):
                body, status = "Only GET /metrics is here.\n", "404 Not Found"
            else:
                body, status = await _body(selection), "200 OK"
            content = body.encode()
            lines = (
                f"HTTP/1.1 {status}",
                f"Content-Type: {CONTENT_TYPE}",
                f"Content-Length: {len(content)}",
                "Connection: close",
            )
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if method == "HEAD" else content))
            await writer.drain()
    except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return  # Not a scraper, or one that went away.
    finally:
        writer.close()


async def _body(selection: "Selection") -> str:
    try:
        async with connected(selection.app) as backend:
            return render([await take(backend, selection.app, s) for s in selection.processors], up=True)
    except StreamworkerError:
        return render([], up=False)
