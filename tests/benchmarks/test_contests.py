"""Figures of ``python -m benchmarks``: how they are made, compared and shown."""

import asyncio
import json
import signal
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import redis
from typer.testing import CliRunner

from benchmarks import __main__ as command_line
from benchmarks.contest import Contest, Peer
from benchmarks.figures import LOOP, Row, Target, fallen, rows_against
from benchmarks.filling import fill_records
from benchmarks.measuring.figures import BenchFigures
from benchmarks.measuring.ground import BenchGround, open_ground
from benchmarks.measuring.programs import BenchFailed
from benchmarks.measuring.task import Task
from benchmarks.peers import bare
from benchmarks.report import Report, chart, markdown, svg
from benchmarks.scenes import table as scenes
from benchmarks.scenes import upkeep
from benchmarks.scenes.columns import columns
from benchmarks.scenes.limits import limits
from benchmarks.scenes.process import with_runnel
from benchmarks.scenes.sending import latency, produce
from benchmarks.scenes.stored import stored
from benchmarks.scenes.upkeep import LOADS, idle, memory, partitions
from benchmarks.scenes.waiting import waiting
from streamworker.redisio.keys import GroupKeys

RECORDS = 3000


def row(
    ours: tuple[float, ...], theirs: tuple[float, ...], target: Target | None = None, scene: str = "batch"
) -> Row:
    """Make a row of the table."""
    unit = "ms" if target is not None and target.is_difference else "events/s"
    return Row(
        scene, "batch handler", BenchFigures("ours", unit, ours), BenchFigures(LOOP, unit, theirs), target
    )


def test_a_ratio_is_the_median_of_runs_that_stood_side_by_side() -> None:
    """A machine that slows down slows both: the ratio of the medians would be 1 here."""
    assert row((100, 20, 300), (50, 10, 300)).ratio == 2.0


def test_a_target_may_be_a_least_a_most_or_a_difference() -> None:
    """Latency is added to, CPU is a part of, speed a multiple of theirs."""
    assert row((120,), (100,), Target(1.2)).is_met
    assert row((60,), (100,), Target(0.5, at_most=True)).is_met is False
    late = row((3.5,), (3.0,), Target(1.0, at_most=True, is_difference=True))
    assert late.is_met
    assert late.cells()[3] == "+0.50 ms (0.50 to 0.50)"


def test_a_ratio_that_fell_by_more_than_a_quarter_is_found() -> None:
    """What costs may not rise by more; a difference and a new row are compared with nothing."""
    slower, slow = row((74,), (100,)), row((76,), (100,))
    dearer = row((64,), (100,), Target(0.5, at_most=True), "server-cpu")
    late = row((30,), (1,), Target(1, at_most=True, is_difference=True), "latency-p50")
    reference = {"batch": 1.0, "server-cpu": 0.5, "latency-p50": 1.0}
    assert [each for each, _ in fallen([slower, dearer, late], reference)] == [slower, dearer]
    assert fallen([slow, row((1,), (100,), scene="new")], reference) == []


def test_a_peer_that_did_not_run_has_no_row() -> None:
    """The others keep theirs."""
    measured = {name: BenchFigures(name, "events/s", (1.0,)) for name in ("ours", "loop")}
    rows = rows_against("batch", "…", measured, "ours", {"loop": Target(1.2), "faststream": Target(8)})
    assert [(each.scene, each.against.name) for each in rows] == [("batch-loop", "loop")]


def test_the_report_is_a_table_bars_and_a_picture() -> None:
    """Each says the figures, the machine, and what is not there."""
    rows = [row((200.0,), (100.0,), Target(1.2))]
    report = Report(machine={"cores": "2"}, rows=rows, left_out=["peer: why"], runs=1, command="bench")
    page = markdown(report)
    assert (
        "| batch handler | 200 events/s | redis-py loop: 100 events/s | 2.00x (2.00 to 2.00) | ≥ 1.2x | yes |"
        in page
    )
    assert "cores 2" in page and "Left out: peer: why" in page
    long, short = (line.count("█") for line in chart(rows)[1:])
    assert long == 2 * short > 0
    assert len(ET.fromstring(svg(rows)).findall("{http://www.w3.org/2000/svg}rect")) == 2
    assert report.ratios == {"batch": 2.0}


def test_runnel_is_left_out_where_there_is_no_python_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that does not run counts as none; and one line says so."""
    broken = tmp_path / "python3.8"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    contest = Contest(BenchGround.__new__(BenchGround))
    assert with_runnel(contest) == []
    assert contest.left_out == ["runnel: it needs a Python 3.8, and its packages from PyPI."]


def test_who_is_not_installed_is_left_out_with_what_to_install() -> None:
    """The others run."""
    contest = Contest(BenchGround.__new__(BenchGround))
    absent, there = Peer("absent", needs="no_such_module"), Peer("there", needs="redis")
    assert contest.installed([absent, there]) == [there]
    assert contest.left_out == ["absent: no_such_module is not installed. Run: pip install -e '.[all,bench]'"]


@pytest.mark.anyio
async def test_a_scene_that_fails_leaves_the_others_their_figures(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All take half an hour. A scene alone has nothing to leave, and raises."""

    async def breaks(_: Contest) -> list[Row]:
        raise BenchFailed("It broke.", remedy="The end of its log.")

    async def works(_: Contest) -> list[Row]:
        return [row((2.0,), (1.0,))]

    monkeypatch.setattr(scenes, "SCENES", {"breaks": breaks, "works": works})
    run = partial(scenes.run_contests, redis_url, runs=1, records=1000, partitions=1, command="bench")
    warned: list[str] = []
    on_sigterm = signal.getsignal(signal.SIGTERM)
    report = await run(["breaks", "works"], warn=warned.append)
    assert [each.scene for each in report.rows] == ["batch"]
    assert report.failed == ["breaks: It broke."] and "Failed: breaks" in markdown(report)
    assert warned == ["It broke. The end of its log."]
    with pytest.raises(BenchFailed):
        await run(["breaks"])
    assert signal.getsignal(signal.SIGTERM) is on_sigterm, "what runs in this process later inherits it"


@pytest.mark.anyio
async def test_senders_tell_how_fast_they_were(redis_url: str) -> None:
    """Ours and the pipeline by hand, each in a process of its own."""
    async with open_ground(redis_url) as ground:
        (made,) = await produce(Contest(ground, runs=1, records=RECORDS, partitions=2))
        assert made.ours.median > 0 and made.against.median > 0


@pytest.mark.anyio
async def test_each_step_of_a_workers_work_is_measured_alone(redis_url: str) -> None:
    """On all entries, to the last one; what is committed is committed by the script that workers use."""
    async with open_ground(redis_url) as ground:
        keys = await fill_records(ground, "limits", RECORDS - 100)
        last = (await ground.backend.execute("XREVRANGE", keys[0], "+", "-", "COUNT", 1))[0][0]
        committed = set()
        for mode, measure in bare.MODES.items():
            group = mode.replace(" ", "-")
            task = Task(
                app=ground.name,
                mode=mode,
                group=group,
                keys=keys,
                stream="limits",
                records=RECORDS - 100,
                url=redis_url,
            )
            assert await asyncio.to_thread(lambda: measure(bare.Bare(task))) > 0  # noqa: B023 - awaited here
            lock = GroupKeys(ground.name, "limits", group).lock(0)
            checkpoint = await ground.backend.execute("HGET", lock, "checkpoint")
            committed |= {mode} if checkpoint == last else set()
        assert committed == {"commit", "read and commit", "all steps"}


@pytest.mark.soak
@pytest.mark.anyio
@pytest.mark.parametrize(("name", "begins"), [("worker.html", "<!DOCTYPE html>"), ("worker.txt", "")])
async def test_a_profile_names_the_steps_of_a_worker(
    redis_url: str, tmp_path: Path, name: str, begins: str
) -> None:
    """As a page or as text, by the file's name."""
    async with open_ground(redis_url) as ground:
        # With fewer, what the worker imports is nearly all that a profile shows.
        await scenes._profile(Contest(ground, runs=1, records=500_000), tmp_path / name)
    text = (tmp_path / name).read_text()
    assert text.startswith(begins)
    assert all(step in text for step in ("run_worker", "fetcher.py", "modes/batch.py"))


@pytest.mark.soak
@pytest.mark.anyio
async def test_a_batch_handler_stands_beside_each_limit(redis_url: str) -> None:
    """Each step in a process of its own, in turn with a worker."""
    async with open_ground(redis_url) as ground:
        rows = await limits(Contest(ground, runs=1, records=20_000))
        assert len({row.scene for row in rows}) == len(rows) == len(bare.MODES) + 1, "one of packed entries"
        assert all(row.ours.median > 0 and row.against.median > 0 for row in rows)


@pytest.mark.full("measures for five seconds of a core")
@pytest.mark.anyio
async def test_latency_is_from_before_the_send_to_the_handler(redis_url: str) -> None:
    """A median is no more than what nearly all are below."""
    async with open_ground(redis_url) as ground:
        p50, p99 = await latency(Contest(ground, runs=1, records=1000))
        for figures in zip((p50.ours, p50.against), (p99.ours, p99.against), strict=True):
            assert 0 < figures[0].median <= figures[1].median < 10_000


@pytest.mark.soak
@pytest.mark.alone("judges a ratio of speeds")
@pytest.mark.anyio
async def test_columns_are_ten_times_as_fast_as_records(redis_url: str) -> None:
    """Sent, handled and forwarded in one process; twice that was measured."""
    async with open_ground(redis_url) as ground:
        end_to_end, *_ = await columns(Contest(ground, runs=3, records=50_000))
        assert end_to_end.ratio >= 10


@pytest.mark.full("compares times")
@pytest.mark.anyio
async def test_calls_that_overlap_are_faster_than_calls_in_order(redis_url: str) -> None:
    """Both wait 5 ms for each record."""
    async with open_ground(redis_url) as ground:
        (made,) = await waiting(Contest(ground, runs=1, records=6000))
        assert made.against.median <= 200
        assert made.ratio > 2


@pytest.mark.full("measures for seconds")
@pytest.mark.slow
@pytest.mark.anyio
async def test_upkeep_is_measured_from_outside(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU, memory, commands and connections are those of a real worker, and there are some."""
    monkeypatch.setattr(upkeep, "SETTLE_S", 0.2)
    monkeypatch.setattr(upkeep, "MANY", 128)
    async with open_ground(redis_url) as ground:
        # Three seconds of an idle worker: between two of its heartbeats it may send nothing.
        contest = Contest(ground, runs=1, records=15_000)
        one_load = partial(partitions, loads=LOADS[:1])
        rows = {row.scene: row for scene in (one_load, idle, memory) for row in await scene(contest)}
        for name in ("partitions", "idle-commands/s", "idle-connections", "memory-growth", "memory"):
            assert rows[name].ours.median > 0, name
        assert rows["memory"].ours.median > 20


@pytest.mark.anyio
async def test_a_record_takes_less_memory_in_larger_and_compressed_entries(redis_url: str) -> None:
    """The keys are gone afterwards."""
    async with open_ground(redis_url) as ground:
        rows = {row.what: row for row in await stored(Contest(ground, runs=1, records=2000))}
        sizes = [
            rows[f"orders, json, {shape}"].ours.median
            for shape in (
                "1,000 an entry, zstd",
                "100 an entry, zstd",
                "100 an entry, lz4",
                "100 an entry, none",
            )
        ]
        single = rows["orders, json, 100 an entry, none"].against.median
        assert 1 < sizes[0] < sizes[1] < sizes[2] < sizes[3] < single < 300
        assert await ground.length(ground.keys("stored", 1)) == 0


def invoke(*arguments: str) -> tuple[int, str, str]:
    """Run ``python -m benchmarks ARGUMENTS`` in this process; return its code and what it printed."""
    done = CliRunner().invoke(command_line.app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


SMALL = ("--runs", "1", "--records", "2000")


@pytest.mark.full("runs each contestant")
@pytest.mark.slow
@pytest.mark.timeout(600)  # it installs runnel, a package of 2020, where there is a Python for it
def test_the_command_prints_json_and_writes_ratios_and_a_picture(redis_url: str, tmp_path: Path) -> None:
    """Programs find machine, figures, ratios and what was left out; and nothing is left on the server.

    Each contestant has acknowledged all records, in the form that it writes them in itself.
    """
    ratios, bars = tmp_path / "ratios.json", tmp_path / "bars.svg"
    code, out, error = invoke("process", *SMALL, "--redis-url", redis_url, "--json",
                              "--ratios", str(ratios), "--svg", str(bars))  # fmt: skip
    assert code == 0, error
    report = json.loads(out)
    assert set(report) == {"command", "failed", "left_out", "machine", "rows", "runs"}
    assert not report["failed"]
    assert [row["scene"] for row in report["rows"]][:3] == ["batch", "forwarding", "record"]
    first = report["rows"][0]
    assert set(first) == {"against", "is_met", "ours", "pairs", "ratio", "scene", "target", "what"}
    assert first["ratio"] == pytest.approx(first["ours"]["median"] / first["against"]["median"])
    assert {"cores", "cpu", "python", "server", "redis"} <= set(report["machine"])
    named = [*report["left_out"], *(row["against"]["name"] for row in report["rows"])]
    assert all(any(peer in name for name in named) for peer in ("FastStream", "taskiq", "runnel"))
    assert json.loads(ratios.read_text())["batch"] == pytest.approx(first["ratio"], abs=0.001)
    assert bars.read_text().startswith("<svg")
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0


@pytest.mark.full("compares times")
@pytest.mark.slow
def test_the_command_fails_where_a_ratio_fell(redis_url: str, tmp_path: Path) -> None:
    """And names it; the figures are printed all the same."""
    reference = tmp_path / "ratios.json"
    reference.write_text('{"columns-both": 1000.0, "columns-send": 0.0001}')
    code, out, error = invoke("columns", *SMALL, "--redis-url", redis_url, "--check", str(reference))
    assert code == 1
    assert "columns-both: the ratio is" in error and "and was 1000.00" in error
    assert "columns-send: the ratio" not in error
    assert "JSON records" in out


def test_a_file_of_ratios_that_cannot_be_read_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    """Not after minutes."""
    (tmp_path / "ratios.json").write_text("[]")
    code, _, error = invoke("process", "--check", str(tmp_path / "ratios.json"))
    assert code == 3
    assert "holds no ratios" in error


def test_the_command_offers_each_scene() -> None:
    """And all of them."""
    assert [each.value for each in command_line.What] == [*scenes.SCENES, "all"]
