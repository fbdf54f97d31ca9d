"""Rows F8-F12 and F18-F22 of the fault matrix: what happens to the server.

By default in small, beside each other; the soak has the counts and the limits that are promised.
docs/reliability.md says what it came to.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis.asyncio as aredis
import redis.exceptions

from streamworker.dev.server import EmbeddedServer
from tests.chaos.figures import insist, percentile, record
from tests.chaos.proxy import proxied
from tests.chaos.team import Team, now_ms
from tests.chaos.yard import Yard, gathered, scene
from tests.durability.pair import cut, newest_aof

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

RESUME_MOST_MS = 2_000
REJOIN_MOST_MS = 3_000


async def all_resume(team: Team, since_ms: float) -> float:
    """Wait until each partition is committed to again; return how long that took."""
    at = await team.first_commits(since_ms, range(team.partitions))
    return max(at.values()) - since_ms


# -- F8 ------------------------------------------------------------------------------------------


async def restarts(team: Team, server: EmbeddedServer, count: int, samples: list[float]) -> None:
    """Restart a server that keeps its data: killed or asked to end, in turn."""
    await team.hired("w0", "w1")
    async with team.load(per_second=60):
        for number in range(count):
            await asyncio.sleep(team.rng.uniform(0.1, 0.6))
            if number % 2:
                await asyncio.to_thread(server.restart)
            else:
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            samples.append(await all_resume(team, now_ms()))
            await team.settled()
    await team.finished()


async def many_restarts(yard: Yard, teams: int, count: int) -> list[float]:
    samples: list[float] = []

    async def one(number: int) -> None:
        async with (
            yard.server(appendonly=True) as server,
            yard.team(server.url, f"restarted{number}", environ={}) as team,
        ):
            await restarts(team, server, count, samples)

    await gathered(*map(one, range(teams)))
    record(
        "F8",
        f"default settings, {'in small' if teams == 1 else 'killed and asked to end in turn'}",
        times=len(samples),
        target="nothing lost; work is resumed <= 2 s after the first PONG",
        verdict="met" if percentile(samples, 99) <= RESUME_MOST_MS else "missed",
        samples_ms=samples,
        said="0 violations",
        seed=yard.seed,
    )
    return samples


@scene
async def test_a_restart_with_its_data_loses_and_repeats_nothing(yard: Yard) -> None:
    """Killed, and asked to end."""
    await many_restarts(yard, 1, 3)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_two_hundred_restarts_lose_nothing_and_are_over_in_two_seconds(yard: Yard) -> None:
    """From the first PONG until each partition is committed to again."""
    assert percentile(await many_restarts(yard, 5, 40), 99) <= RESUME_MOST_MS


# -- F9 ------------------------------------------------------------------------------------------


async def emptied(team: Team, server: EmbeddedServer, count: int, samples: list[float]) -> None:
    """Take all data away, by FLUSHALL and by a restart without files, in turn."""
    await team.hired("w0", "w1")
    async with team.load(per_second=60):
        for number in range(count):
            await asyncio.sleep(team.rng.uniform(0.3, 0.8))
            former = set(team.sends.confirmed)
            if number % 2:
                await asyncio.to_thread(server.restart)
            else:
                await team.raw.flushall()
            emptied_at = now_ms()
            team.forget_logs()
            team.flushed |= set(range(team.issued))
            samples.append(await all_resume(team, emptied_at))
            await team.settled()
            came_back = await team.numbers() & former
            assert not came_back, f"records of the life before were committed: {sorted(came_back)[:20]}"
    await team.finished()


async def many_emptied(yard: Yard, teams: int, count: int) -> list[float]:
    samples: list[float] = []

    async def one(number: int) -> None:
        async with yard.server() as server, yard.team(server.url, f"emptied{number}", environ={}) as team:
            await emptied(team, server, count, samples)

    await gathered(*map(one, range(teams)))
    record(
        "F9",
        "FLUSHALL, and a restart without data, in turn" + ("" if teams > 1 else ", in small"),
        times=len(samples),
        target="nothing of the former life is committed; all work again <= 3 s",
        verdict="met" if percentile(samples, 99) <= REJOIN_MOST_MS else "missed",
        samples_ms=samples,
        said="0 records of the former life",
        seed=yard.seed,
    )
    return samples


@scene
async def test_workers_begin_anew_when_all_data_is_gone_and_commit_nothing_of_the_former_life(
    yard: Yard,
) -> None:
    """What was in hand is refused: its lock is gone."""
    await many_emptied(yard, 1, 2)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_a_hundred_servers_that_lost_all_are_worked_on_again_in_three_seconds(yard: Yard) -> None:
    """By FLUSHALL, and by restarts without files."""
    assert percentile(await many_emptied(yard, 5, 20), 99) <= REJOIN_MOST_MS


# -- F10, F11 --------------------------------------------------------------------------------------


def data_of(server: EmbeddedServer) -> Path:
    assert server.data_dir is not None
    return server.data_dir


def behind(file: Path, number: int) -> int:
    written = file.read_bytes()
    at = written.rfind(b'"n":%d}' % number)
    assert at >= 0, f"record {number} was confirmed, and is not in {file.name}"
    return len(written) - at


async def power_losses(yard: Yard, teams: int, count: int) -> None:
    """Take the end of what a server had written."""
    samples: list[float] = []
    gone: list[int] = []
    told: list[int] = []

    async def one(number: int) -> None:
        async with (
            yard.server(appendonly=True) as server,
            yard.team(server.url, f"power{number}", environ={}) as team,
        ):
            await team.hired("w0", "w1")
            before_told = 0
            async with team.load(per_second=60):
                for round_ in range(count):
                    await asyncio.sleep(team.rng.uniform(0.3, 0.8))
                    await team.until("something was confirmed", lambda: team.sends.confirmed)
                    known = max(team.sends.confirmed)
                    await asyncio.to_thread(server.kill)
                    file = newest_aof(data_of(server))
                    # Of the first cut it is sure that something confirmed was behind it.
                    least = 1 if round_ else behind(file, known)
                    cut(file, max(least, team.rng.randrange(1, 20_000)))
                    await asyncio.to_thread(server.start)
                    back = now_ms()
                    # What is lost is lost with its checkpoint and its rows; the rest must fit together.
                    before = set(team.sends.confirmed)
                    team.forget_logs()
                    samples.append(await all_resume(team, back))
                    await team.settled()
                    await team.drained()
                    lost = before - await team.numbers() - team.flushed
                    team.flushed |= lost
                    reported = await team.told_lost()
                    gone.append(len(lost))
                    told.append(reported - before_told)
                    before_told = reported
            await team.finished()

    await gathered(*map(one, range(teams)))
    assert told == gone, "what was lost is not what was reported"
    assert sum(gone) >= teams, "nothing that was confirmed was behind the cuts"
    record(
        "F10",
        "the append-only file cut at any byte" + ("" if teams > 1 else ", in small"),
        times=len(samples),
        target="source, checkpoint and log go back together; what is lost is known by number",
        verdict="met",
        samples_ms=samples,
        said=f"0 violations of order and chain; {sum(gone)} confirmed records were behind the cuts, "
        f"{sum(told)} were reported by their producers",
        seed=yard.seed,
    )


@scene
async def test_what_is_left_after_a_loss_of_power_fits_together(yard: Yard) -> None:
    """Source, checkpoint and log go back to one moment."""
    await power_losses(yard, 1, 2)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_what_is_left_after_a_hundred_losses_of_power_fits_together(yard: Yard) -> None:
    """Cut at any byte."""
    await power_losses(yard, 5, 20)


@scene
async def test_a_server_that_does_not_come_back_is_not_hammered(yard: Yard) -> None:
    """Its file is damaged in the middle: it refuses to start until somebody repairs it."""
    async with (
        yard.server(appendonly=True) as server,
        proxied(server.url) as proxy,
        yard.team(server.url, "damaged", environ={}, worker_url=proxy.url) as team,
    ):
        await team.hired("w0", "w1")
        await team.send(200)
        await team.drained()
        await asyncio.to_thread(server.kill)
        path = newest_aof(data_of(server))
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] + b"\xff" * 64 + whole[len(whole) // 2 + 64 :])
        with pytest.raises(Exception, match=r"ended at once|did not answer"):
            await asyncio.to_thread(_start_without_cleaning, server)
        await asyncio.sleep(2.0)
        before, seconds = proxy.connected, 5.0
        await asyncio.sleep(seconds)
        tries = (proxy.connected - before) / seconds / 2
        path.write_bytes(whole)
        await asyncio.to_thread(server.start)
        async with team.load(per_second=60):
            took = await all_resume(team, now_ms())
        await team.finished()
    record(
        "F11",
        "damaged in the middle; put right after 7 s",
        times=1,
        target="<= 2 tries to connect a second and worker",
        verdict="met" if tries <= 2 else "missed",
        samples_ms=[took],
        said=f"{tries:.1f} tries a second and worker",
    )
    assert tries <= 2


def _start_without_cleaning(server: EmbeddedServer) -> None:
    # start() removes a server's files where it does not come up; these are to be put right.
    server._spawn()
    server._wait_until_ready()


# -- F12 -------------------------------------------------------------------------------------------


async def freezes(yard: Yard, *, seconds: float, count: int) -> None:
    """Stop the server where it stands, and let it go on."""
    samples: list[float] = []
    async with yard.server() as server, yard.team(server.url, "frozen", environ={}) as team:
        await team.hired("w0", "w1")
        before = await team.rebalances()
        async with team.load(per_second=60):
            for _ in range(count):
                await asyncio.sleep(team.rng.uniform(0.1, 0.6))
                os.kill(server.pid, signal.SIGSTOP)
                await asyncio.sleep(seconds)
                os.kill(server.pid, signal.SIGCONT)
                samples.append(await all_resume(team, now_ms()))
        await team.drained()
        moved = len(await team.rebalances()) - len(before)
        await team.check()
        team.check_nobody_was_hurt()
    found = record(
        "F12",
        f"frozen for {seconds:.0f} s, default settings",
        times=count,
        target="resumed <= 2 s after it goes on; nothing moves",
        verdict="met" if percentile(samples, 99) <= RESUME_MOST_MS and not moved else "missed",
        samples_ms=samples,
        said=f"{moved} rebalances",
    )
    insist(found)


@scene
async def test_a_server_that_hangs_is_waited_for_and_nothing_moves(yard: Yard) -> None:
    """Nobody can beat, so nobody is thought dead."""
    await freezes(yard, seconds=4.0, count=1)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_a_server_that_hangs_for_half_a_minute_is_worked_on_again_in_two_seconds(yard: Yard) -> None:
    """Three times the session timeout."""
    await freezes(yard, seconds=30.0, count=10)


# -- F18, F22: scripts -----------------------------------------------------------------------------


@scene
async def test_scripts_that_are_forgotten_all_the_time_are_noticed_by_nobody(yard: Yard) -> None:
    """Not even by a warning in a log."""
    async with yard.server() as server, yard.team(server.url, "forgotten") as team:
        await team.hired("w0", "w1")
        flushes = 0
        async with team.load(per_second=100):
            for _ in range(60):
                await team.raw.script_flush()
                flushes += 1
                await asyncio.gather(*(team.raw.eval(f"return {flushes * 10 + n}", 0) for n in range(10)))
                await asyncio.sleep(0.05)
        await team.finished()
        said = warnings_of(team)
    assert said == [], said
    record(
        "F18",
        "SCRIPT FLUSH every 50 ms, and 600 scripts of others",
        times=flushes,
        target="no error comes to light",
        verdict="met",
        said="0 errors and warnings",
    )


def warnings_of(team: Team) -> list[str]:
    """Return what the team's workers warned of, or worse."""
    return [
        line
        for worker in team.all_workers
        for line in worker.log().splitlines()
        if '"level": "warning"' in line or '"level": "error"' in line
    ]


@scene
async def test_a_server_busy_with_a_script_of_somebody_is_waited_for(yard: Yard) -> None:
    """It answers BUSY to all else meanwhile."""
    samples = []
    async with yard.server() as server, yard.team(server.url, "busy", environ={}) as team:
        await team.raw.config_set("busy-reply-threshold", 200)
        await team.hired("w0", "w1")
        async with team.load(per_second=60):
            for _ in range(2):
                spin = asyncio.create_task(_spin(server.url))
                await asyncio.sleep(1.5)
                async with aredis.Redis.from_url(server.url, protocol=2) as admin:
                    await admin.execute_command("SCRIPT", "KILL")
                samples.append(await all_resume(team, now_ms()))
                await spin
        await team.finished()
    found = record(
        "F22",
        "a script of 1.5 s, busy-reply-threshold 200",
        times=len(samples),
        target="resumed <= 2 s after it ends",
        verdict="met" if max(samples) <= RESUME_MOST_MS else "missed",
        samples_ms=samples,
    )
    insist(found)


async def _spin(url: str) -> None:
    async with aredis.Redis.from_url(url, protocol=2, socket_timeout=30) as client:
        with contextlib.suppress(redis.exceptions.ResponseError):
            await client.eval("while true do end", 0)


# -- F19, F20, F21: no room ------------------------------------------------------------------------


@scene
async def test_full_memory_refuses_who_sends_and_loses_nothing_that_was_confirmed(yard: Yard) -> None:
    """A send that was refused was not written."""
    await full_memory(yard, rounds=2)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_all_is_done_five_seconds_after_there_is_memory_again(yard: Yard) -> None:
    """Over and over, on one server."""
    assert max(await full_memory(yard, rounds=30)) <= 5_000


async def full_memory(yard: Yard, *, rounds: int) -> list[float]:
    """Leave no memory, and give some back."""
    samples: list[float] = []
    async with yard.server() as server, yard.team(server.url, "memory", environ={}) as team:
        await team.hired("w0", "w1")
        for _ in range(rounds):
            async with team.load(per_second=200):
                await asyncio.sleep(0.5)
                used = (await team.raw.info("memory"))["used_memory"]
                await team.raw.config_set("maxmemory", used)
                await asyncio.sleep(1.5)
            await team.raw.config_set("maxmemory", "1gb")
            there = now_ms()
            await team.drained()
            samples.append(now_ms() - there)
        async with team.load(per_second=60):
            await all_resume(team, now_ms())
        await team.finished()
        refused = len(team.sends.refused)
    assert refused, "memory was never full"
    record(
        "F19",
        f"maxmemory at what is used, {rounds} times",
        times=rounds,
        target="no half of a commit; drained <= 5 s after the relief",
        verdict="met" if max(samples) <= 5_000 else "missed",
        samples_ms=samples,
        said=f"{refused} sends refused, none of them written; 0 violations",
    )
    return samples


@scene
async def test_a_server_without_room_for_connections_keeps_who_is_in_and_is_not_hammered(yard: Yard) -> None:
    """Who is in works on beside one who is not; who is thrown out comes back when there is room."""
    async with (
        yard.server() as server,
        yard.team(server.url, "clients", environ={}) as team,
        AsyncExitStack() as crowd,
    ):
        await team.hired("w0")
        async with team.load(per_second=60):
            await all_resume(team, now_ms() + 500)  # With all connections that it needs.
            await team.raw.config_set("maxclients", (await team.raw.info("clients"))["connected_clients"])
            team.hire("late")
            late = team.workers.pop("late")
            assert await team.ended(late) != 0, "it says so and ends, for a supervisor to start it again"
            await all_resume(team, now_ms())
            # Now w0 is thrown out, and others are in before it is back.
            await team.raw.config_set("maxclients", 10_000)
            for _ in range(20):
                one = aredis.Redis.from_url(server.url, protocol=2)
                crowd.push_async_callback(one.aclose)
                await one.ping()
            async with team.raw.pipeline(transaction=True) as pipe:
                pipe.config_set("maxclients", 20)
                for client in await team.raw.client_list():
                    if client["name"].startswith("w0"):
                        pipe.client_kill_filter(_id=client["id"])
                await pipe.execute()
            before = await team.raw.info()
            await asyncio.sleep(4)
            after = await team.raw.info()
            # A busy machine sleeps longer, so the server's own clock tells the time between its two counts.
            seconds = (after["server_time_usec"] - before["server_time_usec"]) / 1_000_000
            tries = (after["rejected_connections"] - before["rejected_connections"]) / seconds
            await team.raw.config_set("maxclients", 10_000)
            took = await all_resume(team, now_ms())
        await team.finished(late)
    record(
        "F20",
        "maxclients at what is connected; a worker comes, another is thrown out",
        times=2,
        target="who is in works on; < 1 try a second",
        verdict="met" if tries < 1 else "missed",
        samples_ms=[took],
        said=f"{tries:.1f} tries a second by the producer and all connections of a worker",
    )
    assert tries < 1


@scene
async def test_a_full_disk_stops_all_and_loses_nothing(yard: Yard) -> None:
    """The server takes no writes; a send that was refused was not written."""
    await full_disk(yard, rounds=1)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_work_goes_on_three_seconds_after_there_is_disk_again(yard: Yard) -> None:
    """Over and over, on one server."""
    assert max(await full_disk(yard, rounds=20)) <= REJOIN_MOST_MS


async def full_disk(yard: Yard, *, rounds: int) -> list[float]:
    """Leave no room on the server's disk, and give some back."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    samples: list[float] = []
    disk = yard.folder / "disk"
    async with (
        small_disk(disk),
        yard.server(data_dir=disk / "data", appendonly=True) as server,
        yard.team(server.url, "disk", environ={}) as team,
    ):
        await team.hired("w0", "w1")
        async with team.load(per_second=60):
            for _ in range(rounds):
                await asyncio.sleep(0.5)
                fill(disk)
                await team.until("the server takes no writes", lambda: _refuses(team), poll_s=0.1)
                await asyncio.sleep(1.0)
                (disk / "fill").unlink()
                samples.append(await all_resume(team, now_ms()))
        await team.finished()
        refused = len(team.sends.refused)
    record(
        "F21",
        f"a small file system without room, {rounds} times",
        times=rounds,
        target="nothing lost; resumed <= 3 s after there is room",
        verdict="met" if max(samples) <= REJOIN_MOST_MS else "missed",
        samples_ms=samples,
        said=f"{refused} sends refused, none of them written",
    )
    return samples


@contextlib.asynccontextmanager
async def small_disk(where: Path) -> AsyncIterator[None]:
    mount(where)
    try:
        yield
    finally:
        unmount(where)


def mount(where: Path) -> None:
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", where], check=True)


def unmount(where: Path) -> None:
    subprocess.run(["umount", "--lazy", where], check=True)


def fill(disk: Path) -> None:
    with (disk / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


async def _refuses(team: Team) -> bool:
    try:
        await team.raw.set("filler", b"x" * 1000)
    except redis.exceptions.ResponseError as error:
        return "MISCONF" in str(error)
    return False
