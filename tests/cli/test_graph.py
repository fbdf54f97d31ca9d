"""`graph` on an app with a chain, a cycle, a pipeline and a stream that only `ctx.send` reaches."""

import re
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.graph import Look, edges_of, look
from streamworker.cli.support import ask
from streamworker.core.data.entries import ZERO
from streamworker.core.data.readers import ReaderPosition
from streamworker.importing import resolve_app
from streamworker.redisio.group.locks import move_checkpoint
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from tests.cli.conftest import Invoke, work_off
from tests.raw import opened

LOOP = """
import msgspec
from streamworker import App, Context

app = App("loop")


class Item(msgspec.Struct):
    n: int


first = app.stream("first", Item, partitions=2)
second = app.stream("second", Item, partitions=3)
aside = app.stream("aside", Item, partitions=1)


@app.processor(first, into=second)
async def one(item: Item, ctx: Context) -> Item | None:
    if item.n % 2:
        ctx.send(aside, item)
    return item


@app.processor(second, into=first, forward=False)
async def two(item: Item) -> Item | None:
    return Item(item.n - 1) if item.n else None


@app.pipeline(one, path="lake")
def to_lake(frame):
    return frame
"""


@pytest.fixture
def loop(folder: Path) -> None:
    (folder / "loop.py").write_text(LOOP, "utf-8")


@pytest.mark.usefixtures("loop")
def test_what_is_declared_needs_no_server(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams, edges, pipelines and cycles, for people and for programs; no figures."""
    monkeypatch.setenv("STREAMWORKER_REDIS_URL", "redis://127.0.0.1:1")
    shown = invoke.does("graph", "loop:app", "--declared")
    assert shown.splitlines() == [
        "aside x1  no processor reads it",
        "first x2 ──► one",
        "    └──► second x3",
        "    └──► to_lake (Spark)  parquet lake",
        "second x3 ──► two",
        "    └──► first x2",
        "cycle: first → one → second → two → first",
    ]
    facts = invoke.tells("graph", "loop:app", "--declared")
    assert facts["edges"][2] == {"start": "one()", "end": "to_lake()", "kind": "spark", "to": "parquet lake"}
    assert facts["streams"] == {"first": 2, "second": 3, "aside": 1} and facts["cycles"]
    assert invoke("graph", "loop:app").exit_code == ExitCode.REDIS


def test_a_pipeline_back_into_a_stream_is_an_edge_and_may_close_a_cycle(folder: Path, invoke: Invoke) -> None:
    (folder / "loop.py").write_text(LOOP.replace('path="lake"', "into=first"), "utf-8")
    shown = invoke.does("graph", "loop:app", "--declared").splitlines()
    assert "    └──► to_lake (Spark)  into first" in shown
    assert "cycle: first → one → to_lake → first" in shown
    edge = invoke.tells("graph", "loop:app", "--declared")["edges"][-1]
    assert edge == {"start": "to_lake()", "end": "first", "kind": "into", "to": ""}


@pytest.mark.usefixtures("loop")
def test_graph_names_each_edge_and_the_cycles(streamworker: Invoke, redis_url: str) -> None:
    """As JSON for programs and as lines for people, which tell of a pipeline when it read and failed."""
    before = {(edge["start"], edge["end"]) for edge in streamworker.tells("graph", "loop:app")["edges"]}
    assert before == {
        ("first", "one()"),
        ("one()", "second"),
        ("one()", "to_lake()"),
        ("second", "two()"),
        ("two()", "first"),
    }
    streamworker.does("send", "loop:first", "-", input="\n".join('{"n": 3}' for _ in range(5)))
    with capture_logs() as said_by_worker:
        work_off(redis_url, "loop:app")
    assert "streams_form_a_cycle" in {line["event"] for line in said_by_worker}
    shown = streamworker.tells("graph", "loop:app")
    assert ("one()", "aside") in [(edge["start"], edge["end"]) for edge in shown["edges"]]
    assert not any(edge["waiting"] for edge in shown["edges"] if edge["kind"] == "reads")
    assert shown["streams"] == {"first": 2, "second": 3, "aside": 1}
    assert [sorted(ring) for ring in shown["cycles"]] == [["first", "one()", "second", "two()"]]
    (spark,) = [edge for edge in shown["edges"] if edge["kind"] == "spark"]
    assert (spark["end"], spark["waiting"]) == ("to_lake()", 20)
    lines = streamworker("graph", "loop:app").stdout.splitlines()
    assert lines[0].startswith("aside x1  no processor reads it")
    assert any(line.startswith("first x2 ──► one  ") for line in lines)
    assert "cycle: first → one → second → two → first" in lines
    assert "    └──► to_lake (Spark)  20 rows behind, has never read  parquet lake" in lines
    with opened(redis_url) as raw:
        at_ms = raw.time()[0] * 1000 - 14_000
        raw.hset("sw:{loop.first:one}:readers", "to_lake", ReaderPosition({0: 3}, {}, at_ms).text())
    shown = streamworker("graph", "loop:app").stdout
    assert re.search(r"to_lake \(Spark\)  17 rows behind, read .* ago  parquet lake", shown)
    with opened(redis_url) as raw:
        position = ReaderPosition({0: 3}, {}, at_ms, failed="no such user", failed_ms=at_ms)
        raw.hset("sw:{loop.first:one}:readers", "to_lake", position.text())
    failed = r"rows behind, FAILED .* s ago: no such user  parquet lake$"
    assert re.search(failed, streamworker("graph", "loop:app").stdout, re.MULTILINE)
    said = r"to_lake.* FAILED .* s ago: no such user"
    assert re.search(rf"fail .*{said}", (checked := streamworker("doctor", "loop:app")).stdout)
    assert checked.exit_code == ExitCode.FAILED
    assert re.search(f"^Spark reader {said}$", streamworker("status", "loop:app").stdout, re.MULTILINE)


@pytest.mark.usefixtures("loop")
def test_graph_tells_no_rate_and_no_reader_that_it_has_not_seen(streamworker: Invoke, redis_url: str) -> None:
    """A reset between two looks is no rate below zero; readers that cannot be read may have read."""
    streamworker.does("send", "loop:second", "-", input="\n".join('{"n": 0}' for _ in range(5)))
    work_off(redis_url, "loop:app")
    app = resolve_app("loop:app")

    async def looks(backend: Backend) -> tuple[Look, Look]:
        before = await look(backend, app)
        for p in range(3):
            await move_checkpoint(backend, GroupKeys("loop", "second", "two"), p, ZERO, entries=0)
        return before, await look(backend, app)

    before, after = ask(app, looks)
    edges = {(edge.start, edge.end): edge.per_second for edge in edges_of(app, before, after)}
    assert edges["second", "two()"] is None
    assert edges["first", "one()"] == 0
    assert {edge.per_second for edge in edges_of(app, after, after) if edge.kind != "spark"} == {None}
    with opened(redis_url) as raw:
        raw.set("sw:{loop.first:one}:readers", "mine")
    shown = streamworker.does("graph", "loop:app")
    assert shown.startswith("sw:{loop.first:one}:readers cannot be read: ")
    assert "to_lake (Spark)  its position cannot be read  parquet lake" in shown
    assert "has never read" not in shown
