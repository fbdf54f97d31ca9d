"""``streamworker graph``: the streams, processors, tables and pipelines of an app, with rate and lag."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import anyio

from streamworker.app import App
from streamworker.cli.options import AppPath, AsJson, option
from streamworker.cli.output import print_json, say
from streamworker.cli.support import LOOK_S, ask, group_keys, take
from streamworker.core.data.archives import GROUP
from streamworker.core.data.graph import cycles
from streamworker.core.snapshot import GroupSnapshot, TableView
from streamworker.core.words import counted
from streamworker.declaring.specs import PipelineSpec, ProcessorSpec
from streamworker.importing import resolve_app, with_pipelines
from streamworker.redisio.data.outbox import read_heads
from streamworker.redisio.wire.client import Backend
from streamworker.tui import model
from streamworker.tui.figures import duration, failure
from streamworker.tui.overview import lagging, table_line


@dataclass(frozen=True, slots=True)
class Edge:
    """What goes from a stream to a processor, and from a processor to a stream or to Spark."""

    start: str
    end: str
    kind: str
    """``reads``: stream to processor. ``sends``: processor to stream. ``spark``: processor to pipeline.
    ``into``: pipeline to stream."""
    per_second: float | None
    """None if two looks do not tell, as after a `reset`."""
    waiting: int
    """Records or rows that have not gone this way yet; for ``sends`` messages, to all streams together."""
    age_ms: int | None = None
    """Since when a pipeline has read nothing; None if it never has, and of other edges."""
    to: str = ""
    """Where a pipeline of the app writes: format and path."""
    failed: str = ""
    """When a pipeline's query failed, and why; empty if it has read since."""
    is_known: bool = True
    """Whether the position of a pipeline could be read; if not, nothing of it is known."""
    has_worker: bool = True
    """Whether a worker of the processor that reads a stream is alive; of other edges nothing."""


Declared = Annotated[bool, option("--declared", "Only what the program declares; needs no server.")]


def graph(app: AppPath, declared: Declared = False, json: AsJson = False) -> None:
    """Show how streams, processors and pipelines hang together, with rate and lag on each edge.

    Streams that a function sends to by `ctx.send` are shown once it has sent to them. Cycles are
    named.

    \b
    Examples:
      streamworker graph shop:app
      streamworker graph shop:app --declared
    """
    found = with_pipelines(resolve_app(app))
    edges, tables, problems = (_declared(found), None, []) if declared else ask(found, _edges, found)
    rings = cycles((edge.start, edge.end) for edge in edges)
    if json:
        print_json({**_as_json(found, edges, tables), "cycles": rings, "problems": problems})
        return
    say(*problems, *_lines(found, edges, tables))
    for ring in rings:
        say(f"cycle: {' → '.join(_short(node) for node in (*ring, ring[0]))}")


def _as_json(
    app: App, edges: list[Edge], tables: Mapping[str, Sequence[TableView]] | None
) -> dict[str, object]:
    streams = {stream.name: stream.spec.placement.total for stream in app.registry.streams.values()}
    if tables is not None:
        held = [{"processor": name, **asdict(each)} for name in tables for each in tables[name]]
        return {"streams": streams, "edges": [asdict(edge) for edge in edges], "tables": held}
    names = ("start", "end", "kind", "to")
    declared = [
        {"processor": spec.name, "name": table.name}
        for spec in app.registry.processors.values()
        for table in spec.tables
    ]
    plain = [{name: getattr(edge, name) for name in names} for edge in edges]
    return {"streams": streams, "edges": plain, "tables": declared}


def _declared(app: App) -> list[Edge]:
    """Return the edges that the program declares, with no figures."""
    edges: list[Edge] = []
    for spec in app.registry.processors.values():
        name = _node(spec.name)
        edges.append(Edge(spec.stream.name, name, "reads", 0.0, 0))
        edges += [Edge(name, target.name, "sends", 0.0, 0) for target in spec.targets]
        edges += [
            Edge(name, _node(pipeline.name), "spark", 0.0, 0, to=_table_of(pipeline))
            for pipeline in app.registry.pipelines.values()
            if spec.name in pipeline.reads
        ]
    return edges + _into(app)


def _into(app: App) -> list[Edge]:
    """Return the edges from pipelines back into streams; nobody counts what goes there."""
    pipelines = (each for each in app.registry.pipelines.values() if each.into is not None)
    return [Edge(_node(each.name), each.into.name, "into", None, 0) for each in pipelines]


async def _edges(
    backend: Backend, app: App
) -> tuple[list[Edge], dict[str, tuple[TableView, ...]], list[str]]:
    before = await look(backend, app)
    await anyio.sleep(LOOK_S)
    after = await look(backend, app)
    tables = {name: group.tables for name, (group, _) in after.items()}
    problems = [line for group, _ in after.values() for line in (*group.problems, *group.unknown)]
    return edges_of(app, before, after), tables, problems


Look = dict[str, tuple[GroupSnapshot, Counter[str]]]
"""The snapshot of each processor, and the records that it has sent, by stream."""


def edges_of(app: App, before: Look, after: Look) -> list[Edge]:
    """Return the edges of an app, with the rates between two looks."""
    edges: list[Edge] = []
    for spec in app.registry.processors.values():
        (then, sent_then), (group, sent) = before[spec.name], after[spec.name]
        took_s, name = (group.taken_ms - then.taken_ms) / 1000, _node(spec.name)
        per_s = model.rows(then, group).committed_per_s
        read = Edge(spec.stream.name, name, "reads", per_s, group.lag, has_worker=bool(group.alive))
        edges.append(read)
        for stream in sorted({target.name for target in spec.targets} | sent.keys()):
            sends = model.rate(sent_then[stream], sent[stream], took_s)
            edges.append(Edge(name, stream, "sends", sends, group.outbox))
        for each in (its for its in group.readers if its.name != GROUP):
            age_ms, failed = max(0, group.taken_ms - each.updated_ms), failure(each, group.taken_ms)
            to = _table_of(app.registry.pipelines.get(each.name))
            edges.append(Edge(name, _node(each.name), "spark", per_s, each.lag_rows, age_ms, to, failed))
        known, rows = {each.name for each in group.readers}, sum(view.rows for view in group.all_partitions)
        is_read = not any(group_keys(spec).readers in problem for problem in group.problems)
        edges += [
            Edge(name, _node(pipeline.name), "spark", 0.0, rows, to=_table_of(pipeline), is_known=is_read)
            for pipeline in app.registry.pipelines.values()
            if spec.name in pipeline.reads and pipeline.name not in known
        ]
    return edges + _into(app)


async def look(backend: Backend, app: App) -> Look:
    """Look at each processor of an app."""
    processors = app.registry.processors.values()
    return {spec.name: (await take(backend, spec), await _sent(backend, spec)) for spec in processors}


async def _sent(backend: Backend, spec: ProcessorSpec) -> Counter[str]:
    sent = Counter[str]()
    if spec.may_send:
        keys = group_keys(spec)
        for each in await read_heads(backend, [keys.outbox(p) for p in spec.stream.placement.all]):
            for target, position in each.positions.items():
                sent[target.stream] += position.records
    return sent


def _table_of(pipeline: PipelineSpec | None) -> str:
    if pipeline is not None and pipeline.into is not None:
        return f"into {pipeline.into.name}"
    place = pipeline and (pipeline.path or pipeline.table)
    return f"{pipeline.format} {place}" if pipeline is not None and place else ""


def _node(name: str) -> str:
    """Return the node of a processor or pipeline, whose names may be those of streams, too."""
    return f"{name}()"


def _short(node: str) -> str:
    return node.removesuffix("()")


def _lines(app: App, edges: list[Edge], tables: Mapping[str, Sequence[TableView]] | None) -> list[str]:
    """Return a line for each way from a stream by a processor, and one below it for each further end.

    Without ``tables`` there are no figures.
    """
    partitions = {stream.name: stream.spec.placement.total for stream in app.registry.streams.values()}
    alone = sorted(partitions.keys() - {edge.start for edge in edges if edge.kind == "reads"})
    lines = [f"{name} x{partitions[name]}  no processor reads it" for name in alone]
    for edge in edges:
        told = "" if tables is None else _figures(edge)
        match edge.kind:
            case "reads":
                name = _short(edge.end)
                declared = (table.name for table in app.registry.processors[name].tables)
                held = declared if tables is None else map(table_line, tables[name])
                lines.append(f"{edge.start} x{partitions.get(edge.start, 0)} ──► {name}{told}")
                lines += [f"    └─ {table}" for table in held]
            case "sends":
                lines.append(f"    └──► {edge.end} x{partitions.get(edge.end, 0)}{told}")
            case "spark":
                lines.append(f"    └──► {_short(edge.end)} (Spark){told}  {edge.to}".rstrip())
    return lines


def _figures(edge: Edge) -> str:
    """Return how much goes along an edge, and what waits."""
    if edge.kind == "reads":
        rate = _rate(edge) if edge.has_worker else "no worker"
        return f"  {rate}, lag {lagging(edge.waiting, edge.per_second)}"
    if edge.kind == "sends":
        waits = f", {counted(edge.waiting, 'message')} in the outbox" if edge.waiting else ""
        return f"  {_rate(edge)}{waits}"
    if not edge.is_known:
        return "  its position cannot be read"
    last = "has never read" if edge.age_ms is None else f"read {duration(edge.age_ms)} ago"
    return f"  {counted(edge.waiting, 'row')} behind, {edge.failed or last}"


def _rate(edge: Edge) -> str:
    return "-/s" if edge.per_second is None else f"{edge.per_second:,.0f}/s"
