"""``streamworker graph``: the streams, processors, tables and pipelines of an app, with rate and lag."""

from dataclasses import asdict, dataclass
from itertools import groupby

import anyio

from streamworker.app import App
from streamworker.cli.options import AppPath, AsJson
from streamworker.cli.output import print_json, say
from streamworker.cli.support import LOOK_S, connected, group_keys, run_async, take
from streamworker.core.data.graph import cycles
from streamworker.core.snapshot import GroupSnapshot, TableView
from streamworker.importing import resolve_app
from streamworker.processors import PipelineSpec, ProcessorSpec
from streamworker.redisio.admin.outboxes import read_heads
from streamworker.redisio.wire.client import Backend
from streamworker.tui.figures import counted, duration, failure
from streamworker.tui.overview import lagging, table_line


@dataclass(frozen=True, slots=True)
class Edge:
    """What goes from a stream to a processor, and from a processor to a stream or to Spark."""

    start: str
    end: str
    kind: str
    """``reads``: stream to processor. ``sends``: processor to stream. ``spark``: processor to pipeline."""
    per_second: float
    waiting: int
    """Records or rows that have not gone this way yet; for ``sends`` messages, to all streams together."""
    age_ms: int | None = None
    """Since when a pipeline has read nothing; None if it never has, and of other edges."""
    to: str = ""
    """Where a pipeline of the app writes: format and path."""
    failed: str = ""
    """When a pipeline's query failed, and why; empty if it has read since."""


@dataclass(frozen=True, slots=True)
class _Look:
    """One processor at one moment."""

    snapshot: GroupSnapshot
    sent: dict[str, int]
    """Records that it sent, by stream."""
    at_s: float


def graph(app: AppPath, json: AsJson = False) -> None:
    """Show how streams, processors and pipelines hang together, with rate and lag on each edge.

    The command looks twice, a second apart. Streams that a function sends to by `ctx.send` are shown
    once it has sent to them. Cycles are named.

    \b
    Examples:
      streamworker graph shop:app
      streamworker graph shop:app --json
    """
    found = resolve_app(app)
    edges, tables = run_async(_edges, found)
    partitions = {stream.name: stream.spec.partitions for stream in found.streams.values()}
    rings = cycles((edge.start, edge.end) for edge in edges)
    if json:
        its_tables = [{"processor": name, **asdict(each)} for name in tables for each in tables[name]]
        shown = {"streams": partitions, "edges": [asdict(edge) for edge in edges], "tables": its_tables}
        print_json({**shown, "cycles": rings})
        return
    say(*_lines(edges, partitions, tables))
    for ring in rings:
        say(f"cycle: {' → '.join(_short(node) for node in (*ring, ring[0]))}")


async def _edges(app: App) -> tuple[list[Edge], dict[str, tuple[TableView, ...]]]:
    async with connected(app) as backend:
        before = await _look(backend, app)
        await anyio.sleep(LOOK_S)
        after = await _look(backend, app)
    edges: list[Edge] = []
    for spec in app.processors.values():
        then, now = before[spec.name], after[spec.name]
        took_s, group = now.at_s - then.at_s, now.snapshot
        name, rate = _node(spec.name), (group.committed - then.snapshot.committed) / took_s
        edges.append(Edge(spec.stream.name, name, "reads", rate, group.lag))
        for stream in sorted({target.name for target in spec.targets} | now.sent.keys()):
            sent = (now.sent.get(stream, 0) - then.sent.get(stream, 0)) / took_s
            edges.append(Edge(name, stream, "sends", sent, group.outbox))
        edges += [
            Edge(
                name,
                _node(each.name),
                "spark",
                rate,
                each.lag_rows,
                max(0, group.taken_ms - each.updated_ms),
                _place(app.pipelines.get(each.name)),
                failure(each, group.taken_ms),
            )
            for each in group.readers
        ]
        known = {each.name for each in group.readers}
        edges += [
            Edge(
                name,
                _node(pipeline.name),
                "spark",
                0.0,
                sum(view.rows for view in group.partitions),
                to=_place(pipeline),
            )
            for pipeline in app.pipelines.values()
            if pipeline.processor.name == spec.name and pipeline.name not in known
        ]
    return edges, {name: look.snapshot.tables for name, look in after.items()}


async def _look(backend: Backend, app: App) -> dict[str, _Look]:
    looks: dict[str, _Look] = {}
    for spec in app.processors.values():
        snapshot = await take(backend, spec)
        looks[spec.name] = _Look(snapshot, await _sent(backend, spec), snapshot.taken_ms / 1000)
    return looks


async def _sent(backend: Backend, spec: ProcessorSpec) -> dict[str, int]:
    sent: dict[str, int] = {}
    if spec.may_send:
        heads = await read_heads(backend, group_keys(spec), range(spec.stream.partitions))
        for each in heads.values():
            for target, mark in each.marks.items():
                sent[target.stream] = sent.get(target.stream, 0) + mark.records
    return sent


def _place(pipeline: PipelineSpec | None) -> str:
    return f"{pipeline.format} {pipeline.path}" if pipeline is not None and pipeline.path else ""


def _node(name: str) -> str:
    """Return the node of a processor or pipeline, whose names may be those of streams, too."""
    return f"{name}()"


def _short(node: str) -> str:
    return node.removesuffix("()")


def _lines(
    edges: list[Edge], partitions: dict[str, int], tables: dict[str, tuple[TableView, ...]]
) -> list[str]:
    """Return a line for each way from a stream by a processor, and one below it for each further end."""
    lines: list[str] = []
    by_start = {start: list(its) for start, its in groupby(sorted(edges, key=_start), key=_start)}
    reads = [edge for edge in edges if edge.kind == "reads"]
    alone = sorted(partitions.keys() - {edge.start for edge in reads})
    lines += [f"{name} x{partitions[name]}  no processor reads it" for name in alone]
    for edge in reads:
        head = f"{edge.start} x{partitions.get(edge.start, 0)} ──► {_short(edge.end)}"
        lines.append(f"{head}  {edge.per_second:,.0f}/s, lag {lagging(edge.waiting, edge.per_second)}")
        lines += [f"    └─ {table_line(table)}" for table in tables[_short(edge.end)]]
        for further in by_start.get(edge.end, ()):
            if further.kind == "sends":
                waits = f", {counted(further.waiting, 'message')} in the outbox" if further.waiting else ""
                size = partitions.get(further.end, 0)
                lines.append(f"    └──► {further.end} x{size}  {further.per_second:,.0f}/s{waits}")
            else:
                behind = counted(further.waiting, "row")
                last = "has never read" if further.age_ms is None else f"read {duration(further.age_ms)} ago"
                told = f"{behind} behind, {further.failed or last}  {further.to}".rstrip()
                lines.append(f"    └──► {_short(further.end)} (Spark)  {told}")
    return lines


def _start(edge: Edge) -> str:
    return edge.start
