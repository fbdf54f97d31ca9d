"""Figures of ``streamworker bench``: how they are made, compared and shown; and what it leaves behind."""

import asyncio
import signal
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
import redis

from streamworker.dev.bench import contest as contest_module
from streamworker.dev.bench import rows
from streamworker.dev.bench.contest import BenchFailed, Contest, Contestant
from streamworker.dev.bench.figures import LOOP, Figures, Row, Target, fallen, rows_against
from streamworker.dev.bench.ground import BUSY_PER_S, Ground, open_ground
from streamworker.dev.bench.peers import bare
from streamworker.dev.bench.record import payloads
from streamworker.dev.bench.report import Report, chart, markdown, svg
from streamworker.dev.bench.scenes import table as scenes
from streamworker.dev.bench.scenes import upkeep
from streamworker.dev.bench.scenes.columns import columns
from streamworker.dev.bench.scenes.limits import limits
from streamworker.dev.bench.scenes.process import BATCH, FASTSTREAM, FORWARDING, HANDWRITTEN, RECORD, TASKIQ
from streamworker.dev.bench.scenes.sending import latency, produce
from streamworker.dev.bench.scenes.upkeep import LOADS, idle, memory, partitions
from streamworker.dev.bench.scenes.waiting import waiting
from streamworker.dev.bench.task import Begun, RowRates, Task
from streamworker.errors import ConfigurationError
from streamworker.redisio.keys import GroupKeys

RECORDS = 3000


def row(
    ours: tuple[float, ...], theirs: tuple[float, ...], target: Target | None = None, scene: str = "batch"
) -> Row:
    """Make a row of the table."""
    unit = "ms" if target is not None and target.is_difference else "events/s"
    return Row(scene, "batch handler", Figures("ours", unit, ours), Figures(LOOP, unit, theirs), target)


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
    measured = {name: Figures(name, "events/s", (1.0,)) for name in ("ours", "loop")}
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


@pytest.mark.anyio
async def test_each_contestant_handles_all_records_of_the_same_streams(redis_url: str) -> None:
    """Workers and the loop by hand, in turn: none of them takes anything from another."""
    async with open_ground(redis_url) as ground:
        contest = Contest(ground, runs=1, records=RECORDS, partitions=2)
        keys = await ground.fill_records("events", RECORDS, partitions=2)
        found = await contest.in_turn([BATCH, HANDWRITTEN, FORWARDING, RECORD], {"events": keys})
        assert all(timing.per_s > 0 and timing.server_us > 0 for (timing,) in found.values())
        assert len(found) == 4
        assert [await ground.backend.execute("XLEN", key) for key in keys] == [RECORDS // 2] * 2


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("peer", "field"), [(FASTSTREAM, "__data__"), (TASKIQ, "data")], ids=["faststream", "taskiq"]
)
async def test_peers_acknowledge_all_records(redis_url: str, peer: Contestant, field: str) -> None:
    """Each reads entries in the form that it writes them in itself."""
    pytest.importorskip(peer.needs, reason="pip install 'streamworker[bench]'")
    async with open_ground(redis_url) as ground:
        key = ground.events(peer.entries)
        if peer is TASKIQ:
            from streamworker.dev.bench.peers.taskiq_tasks import messages

            await ground.fill(key, messages(RECORDS), field)
        else:
            await ground.fill(key, payloads(RECORDS), field)
        timing = await Contest(ground, runs=1).one(peer, [key])
        assert 0 < timing.per_s < 1_000_000
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0


@pytest.mark.anyio
async def test_a_bench_leaves_nothing_behind_and_touches_nothing_else(redis_url: str) -> None:
    """Also when it is cancelled, as Ctrl-C does it."""
    with redis.Redis.from_url(redis_url) as client:
        client.set("sw:{bench-abcd0:mine}", "1")
        client.set("other", "1")

        async def bench() -> None:
            async with open_ground(redis_url, "bench-abcd") as ground:
                await ground.fill_records("events", RECORDS)
                assert client.dbsize() == 3
                await asyncio.sleep(60)

        task = asyncio.create_task(bench())
        while client.dbsize() < 3:
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(client.keys()) == {b"sw:{bench-abcd0:mine}", b"other"}


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["shop", "bench-*", "bench-", "bench-a:b"])
async def test_a_bench_uses_no_name_that_may_be_an_apps(redis_url: str, name: str) -> None:
    """It removes what it finds under its name in the end."""
    with pytest.raises(ConfigurationError, match="removes them when it ends"):
        async with open_ground(redis_url, name):
            raise AssertionError


@pytest.mark.anyio
async def test_a_bench_refuses_keys_that_are_there_already(redis_url: str) -> None:
    """They are not its own; and they are still there afterwards."""
    with redis.Redis.from_url(redis_url) as client:
        client.set("sw:{bench-abcd.events.0}:events", "somebody's")
        with pytest.raises(ConfigurationError, match="exist already"):
            async with open_ground(redis_url, "bench-abcd"):
                raise AssertionError
        assert client.dbsize() == 1


@pytest.mark.anyio
async def test_a_server_that_others_keep_busy_is_known(redis_url: str) -> None:
    """A figure made there would be partly theirs."""
    async with open_ground(redis_url) as ground:
        assert not ground.is_shared
    with redis.Redis.from_url(redis_url) as client:
        opening = asyncio.create_task(_is_shared(redis_url))
        while not opening.done():
            with client.pipeline(transaction=False) as pipe:
                for _ in range(BUSY_PER_S):
                    pipe.ping()
                await asyncio.to_thread(pipe.execute)
    assert opening.result()


async def _is_shared(url: str) -> bool:
    async with open_ground(url) as ground:
        return ground.is_shared


def test_who_is_not_installed_is_left_out_with_what_to_install() -> None:
    """Once, however many scenes it would be in."""
    contest = Contest(Ground.__new__(Ground))
    absent = Contestant("absent", needs="no_such_module")
    assert contest.installed([absent, HANDWRITTEN]) == [HANDWRITTEN]
    contest.installed([absent])
    assert contest.left_out == ["absent: not installed. Run: pip install 'streamworker[bench]'"]


@pytest.mark.anyio
async def test_records_that_are_all_in_the_first_call_give_no_figure(redis_url: str) -> None:
    """Its records are not counted, so nothing would be left to be timed."""
    async with open_ground(redis_url) as ground:
        keys = await ground.fill_records("events", 1000)
        with pytest.raises(BenchFailed, match="all records in its first call"):
            await Contest(ground, records=1000).one(HANDWRITTEN, keys)


@pytest.mark.anyio
async def test_a_process_that_fails_ends_the_bench_with_its_log(redis_url: str) -> None:
    """A figure is never made up."""
    broken = Contestant("broken", ("-c", "raise SystemExit('no such thing')"))
    async with open_ground(redis_url) as ground:
        keys = await ground.fill_records("events", 10)
        with pytest.raises(BenchFailed, match="broken has not begun") as raised:
            await Contest(ground, records=10).one(broken, keys)
    assert "no such thing" in (raised.value.remedy or "")


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
    run = partial(scenes.run_bench, redis_url, runs=1, records=1000, partitions=1, command="bench")
    warned: list[str] = []
    on_sigterm = signal.getsignal(signal.SIGTERM)
    report = await run(["breaks", "works"], warn=warned.append)
    assert [each.scene for each in report.rows] == ["batch"]
    assert report.failed == ["breaks: It broke."] and "Failed: breaks" in markdown(report)
    assert warned == ["It broke. The end of its log."]
    with pytest.raises(BenchFailed):
        await run(["breaks"])
    assert signal.getsignal(signal.SIGTERM) is on_sigterm, "what runs in this process later inherits it"


SLEEPS = Contestant("sleeper", ("-c", "import time; time.sleep(60)"))


@pytest.mark.anyio
async def test_a_process_is_waited_for_as_long_as_its_streams_move(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine makes it slow, which is no failure; one that stands still is given up."""
    monkeypatch.setattr(contest_module, "STALL_S", 0.4)
    async with open_ground(redis_url) as ground:
        keys = await ground.fill_records("events", 10)
        async with Contest(ground).started(SLEEPS, keys) as process:
            waiting = asyncio.create_task(process.begun())
            for _ in range(20):
                await asyncio.sleep(0.1)
                await ground.append(keys, payloads(1))
            assert not waiting.done()
            with pytest.raises(BenchFailed, match="sleeper has not begun"):
                await waiting


@pytest.mark.anyio
async def test_a_reader_is_not_waited_for_when_its_sender_has_failed(redis_url: str) -> None:
    """What was not sent would never arrive; the log that is shown is the sender's."""
    broken = Contestant("sender", ("-c", "raise SystemExit('no such thing')"))
    async with open_ground(redis_url) as ground:
        keys = await ground.fill_records("events", 10)
        contest = Contest(ground)
        async with contest.started(SLEEPS, keys) as reader, contest.started(broken, keys) as sender:
            with pytest.raises(BenchFailed, match="sender has not sent all") as raised:
                await reader.told(Begun, beside=sender)
    assert "no such thing" in (raised.value.remedy or "")


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
        keys = await ground.fill_records("limits", RECORDS - 100)
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
        await scenes._profile(Contest(ground, runs=1, records=100_000), tmp_path / name)
    text = (tmp_path / name).read_text()
    assert text.startswith(begins)
    assert all(step in text for step in ("run_worker", "fetcher.py", "batch_mode.py"))


@pytest.mark.soak
@pytest.mark.anyio
async def test_a_batch_handler_stands_beside_each_limit(redis_url: str) -> None:
    """Each step in a process of its own, in turn with a worker."""
    async with open_ground(redis_url) as ground:
        rows = await limits(Contest(ground, runs=1, records=20_000))
        assert len({row.scene for row in rows}) == len(rows) == len(bare.MODES)
        assert all(row.ours.median > 0 and row.against.median > 0 for row in rows)


@pytest.mark.anyio
async def test_latency_is_from_before_the_send_to_the_handler(redis_url: str) -> None:
    """A median is no more than what nearly all are below."""
    async with open_ground(redis_url) as ground:
        p50, p99 = await latency(Contest(ground, runs=1, records=1000))
        for figures in zip((p50.ours, p50.against), (p99.ours, p99.against), strict=True):
            assert 0 < figures[0].median <= figures[1].median < 10_000


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["columns", "records"])
async def test_rows_are_measured_as_they_are_sent_handled_and_both(
    redis_url: str, tmp_path: Path, mode: str
) -> None:
    """Each way to the end: what was sent is committed when the time is taken."""
    async with open_ground(redis_url) as ground:
        path = tmp_path / "rates"
        keys = ground.keys("rows", 2)
        task = Task(
            app=ground.name, mode=mode, group="g", keys=keys, stream="rows", partitions=2, records=RECORDS,
            begun_path=str(path), url=redis_url,
        )  # fmt: skip
        await rows.measure(task)
        rates = msgspec.json.decode(path.read_bytes(), type=RowRates)
        assert min(rates.send_per_s, rates.handle_per_s, rates.both_per_s) > 0
        for stream in ("rows-apart", "rows-together"):
            acked = [GroupKeys(ground.name, stream, "g").acked(partition) for partition in range(2)]
            last = await ground.backend.pipeline([("XREVRANGE", key, "+", "-", "COUNT", 1) for key in acked])
            assert sum(int(found[0][0].partition(b"-")[0]) for found in last if found) == RECORDS + 1


@pytest.mark.soak
@pytest.mark.anyio
async def test_columns_are_ten_times_as_fast_as_records(redis_url: str) -> None:
    """Sent, handled and forwarded in one process; twice that was measured."""
    async with open_ground(redis_url) as ground:
        end_to_end, *_ = await columns(Contest(ground, runs=3, records=50_000))
        assert end_to_end.ratio >= 10


@pytest.mark.anyio
async def test_calls_that_overlap_are_faster_than_calls_in_order(redis_url: str) -> None:
    """Both wait 5 ms for each record."""
    async with open_ground(redis_url) as ground:
        (made,) = await waiting(Contest(ground, runs=1, records=6000))
        assert made.against.median <= 200
        assert made.ratio > 2


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
