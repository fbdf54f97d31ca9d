"""Rows F8-F12 and F18-F22 of the fault matrix: what happens to the server.

The soak has the counts and the limits that are promised; docs/reliability.md has the figures.
"""

import asyncio
import contextlib
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as aredis
import redis.exceptions

from streamworker.redisio.keys import StreamKeys
from tests.chaos.proxy import proxied
from tests.chaos.rows_app import STREAM
from tests.chaos.team import Team, now_ms
from tests.chaos.yard import Yard, scene, sized
from tests.stage.disturbed import NEEDS_ROOT, ChaosServer
from tests.stage.server import Server, cut, newest_aof

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
full = pytest.mark.full("rows of the fault matrix wait for what a fault leads to")

REJOIN_MOST_MS = 3_000


# -- F8, F9: restarts, with the data and without ----------------------------------------------------------


@sized(small={"teams": 1, "count": 3}, full={"teams": 5, "count": 40})
async def test_a_restart_with_its_data_moves_loses_and_repeats_nothing(
    yard: Yard, *, teams: int, count: int
) -> None:
    """Killed and asked to end; from the first PONG until each partition is committed to again.

    Peers get time to come back before anybody is thought dead.
    """
    samples: list[float] = []

    async def restarts(team: Team) -> None:
        async with team.at_work("w0", "w1"):
            before = await team.begun()
            for number in range(count):
                await asyncio.sleep(team.rng.uniform(0.1, 0.6))
                if not number % 2:
                    await asyncio.to_thread(team.server.kill)
                await asyncio.to_thread(team.server.restart)
                samples.append(await team.resumed_ms(now_ms()))
                await team.settled()
        assert not yard.is_small or await team.begun() == before, "somebody was thought dead"

    await yard.many(teams, restarts, "restarted", server={"appendonly": True}, environ={})
    yard.record(
        "F8",
        "default settings, killed and asked to end in turn",
        target="nothing lost; work is resumed <= 2 s after the first PONG",
        most_ms=2_000,
        samples_ms=samples,
        said="0 violations",
    )


@full
@sized(small={"teams": 1, "count": 2}, full={"teams": 5, "count": 20})
async def test_workers_begin_anew_when_all_data_is_gone_and_commit_nothing_of_the_former_life(
    yard: Yard, *, teams: int, count: int
) -> None:
    """By FLUSHALL, and by a restart without files. What was in hand is refused: its lock is gone."""
    samples: list[float] = []

    async def emptied(team: Team) -> None:
        async with team.at_work("w0", "w1"):
            for number in range(count):
                await asyncio.sleep(team.rng.uniform(0.3, 0.8))
                former, generation = set(team.sends.confirmed), (await team.snapshot()).generation
                if number % 2:
                    await asyncio.to_thread(team.server.restart)
                else:
                    await team.raw.flushall()
                emptied_at = now_ms()
                team.forget_logs()
                team.flushed |= set(range(team.sender.issued))
                samples.append(await team.resumed_ms(emptied_at))
                await team.settled()
                came_back = await team.numbers() & former
                assert not came_back, f"records of the life before were committed: {sorted(came_back)[:20]}"
                assert (await team.snapshot()).generation > generation
                # What readers need is there again, too: how the stream is made. Rows have shown their schema.
                declared: Any = await team.raw.hget(StreamKeys(team.name, STREAM).meta, "partitions")
                assert int(declared) == team.partitions

    await yard.many(teams, emptied, "emptied", environ={})
    yard.record(
        "F9",
        "FLUSHALL, and a restart without data, in turn",
        target="nothing of the former life is committed; all work again <= 3 s",
        most_ms=REJOIN_MOST_MS,
        samples_ms=samples,
        said="0 records of the former life",
    )


# -- F10, F11 --------------------------------------------------------------------------------------


def data_of(server: Server) -> Path:
    assert server.data_dir is not None
    return server.data_dir


def behind(file: Path, number: int) -> int:
    written = file.read_bytes()
    at = written.rfind(b'"n":%d}' % number)
    assert at >= 0, f"record {number} was confirmed, and is not in {file.name}"
    return len(written) - at


@full
@sized(small={"teams": 1, "count": 2}, full={"teams": 5, "count": 20})
async def test_what_is_left_after_a_loss_of_power_fits_together(
    yard: Yard, *, teams: int, count: int
) -> None:
    """The end of what the server had written is cut off at any byte: all goes back to one moment."""
    samples: list[float] = []
    gone: list[int] = []
    told: list[int] = []

    async def power_losses(team: Team) -> None:
        before_told = 0
        async with team.at_work("w0", "w1"):
            for round_ in range(count):
                await asyncio.sleep(team.rng.uniform(0.3, 0.8))
                await team.until("something was confirmed", lambda: team.sends.confirmed)
                known = max(team.sends.confirmed)
                await asyncio.to_thread(team.server.kill)
                file = newest_aof(data_of(team.server))
                # Of the first cut it is sure that something confirmed was behind it.
                least = 1 if round_ else behind(file, known)
                cut(file, max(least, team.rng.randrange(1, 20_000)))
                await asyncio.to_thread(team.server.start)
                back = now_ms()
                # What is lost is lost with its checkpoint and its rows; the rest must fit together.
                before = set(team.sends.confirmed)
                team.forget_logs()
                samples.append(await team.resumed_ms(back))
                await team.settled()
                await team.drained()
                lost = before - await team.numbers() - team.flushed
                team.flushed |= lost
                await team.sender.ask_what_is_lost()
                reported = team.sends.reported_lost
                gone.append(len(lost))
                told.append(reported - before_told)
                before_told = reported

    await yard.many(teams, power_losses, "power", server={"appendonly": True}, environ={})
    assert told == gone, "what was lost is not what was reported"
    assert sum(gone) >= teams, "nothing that was confirmed was behind the cuts"
    yard.record(
        "F10",
        "the append-only file cut at any byte",
        target="source, checkpoint and log go back together; what is lost is known by number",
        samples_ms=samples,
        said=f"0 violations of order and chain; {sum(gone)} confirmed records were behind the cuts, "
        f"{sum(told)} were reported by their producers",
    )


@full
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
        # Where a command begins: inside of a long value the server would not notice it.
        at = whole.rindex(b"\r\n*", 0, len(whole) // 2) + 2
        path.write_bytes(whole[:at] + b"\xff" * 64 + whole[at + 64 :])
        with pytest.raises(Exception, match=r"ended at once|did not answer"):
            await asyncio.to_thread(_start_without_cleaning, server)
        await asyncio.sleep(2.0)
        before, began = proxy.connected, time.monotonic()
        await asyncio.sleep(5.0)
        # A busy machine sleeps longer.
        tries = (proxy.connected - before) / (time.monotonic() - began) / 2
        path.write_bytes(whole)
        await asyncio.to_thread(server.start)
        async with team.load(per_second=60):
            took = await team.resumed_ms(now_ms())
        await team.finished()
    target, said = "<= 2 tries to connect a second and worker", f"{tries:.1f} tries a second and worker"
    what = "damaged in the middle; put right after 7 s"
    yard.record("F11", what, target=target, met=tries <= 2, samples_ms=[took], said=said)


def _start_without_cleaning(server: Server) -> None:
    # start() removes a server's files where it does not come up; these are to be put right.
    server._spawn()
    server._wait_until_ready()


# -- F12 -------------------------------------------------------------------------------------------


@full
@sized(small={"seconds": 4.0, "count": 1}, full={"seconds": 30.0, "count": 10})
async def test_a_server_that_hangs_is_waited_for_and_nothing_moves(
    yard: Yard, *, seconds: float, count: int
) -> None:
    """Nobody can beat, so nobody is thought dead, even in three times the session timeout."""
    samples: list[float] = []
    async with yard.group("frozen", environ={}) as team:
        async with team.at_work("w0", "w1"):
            before = await team.rebalances()
            for _ in range(count):
                await asyncio.sleep(team.rng.uniform(0.1, 0.6))
                with team.server.paused():
                    await asyncio.sleep(seconds)
                samples.append(await team.resumed_ms(now_ms()))
        moved = len(await team.rebalances()) - len(before)
    yard.record(
        "F12",
        f"frozen for {seconds:.0f} s, default settings",
        target="resumed <= 2 s after it goes on; nothing moves",
        met=not moved,
        most_ms=2_000,
        samples_ms=samples,
        said=f"{moved} rebalances",
        strict=True,
    )


# -- F18, F22: scripts -----------------------------------------------------------------------------


@full
@scene
async def test_scripts_that_are_forgotten_all_the_time_are_noticed_by_nobody(yard: Yard) -> None:
    """Not even by a warning in a log."""
    flushes = 60
    async with yard.group("forgotten", environ={}) as team:
        async with team.at_work("w0", "w1", per_second=100):
            for number in range(flushes):
                await team.raw.script_flush()
                await asyncio.gather(*(team.raw.eval(f"return {number * 10 + n}", 0) for n in range(10)))
                await asyncio.sleep(0.05)
        lines = [line for worker in team.all_workers for line in worker.log().splitlines()]
    said = [line for line in lines if '"level": "warning"' in line or '"level": "error"' in line]
    assert said == [], said
    what, target = "SCRIPT FLUSH every 50 ms, and 600 scripts of others", "no error comes to light"
    yard.record("F18", what, times=flushes, target=target, said="0 errors and warnings")


@full
@scene
async def test_a_server_busy_with_a_script_of_somebody_is_waited_for(yard: Yard) -> None:
    samples = []
    async with yard.group("busy", environ={}) as team:
        await team.raw.config_set("busy-reply-threshold", 200)
        async with team.at_work("w0", "w1"):
            for _ in range(2):
                spin = asyncio.create_task(_spin(team.url))
                await asyncio.sleep(1.5)
                async with aredis.Redis.from_url(team.url, protocol=2) as admin:
                    await admin.script_kill()
                samples.append(await team.resumed_ms(now_ms()))
                await spin
    what, target = "a script of 1.5 s, busy-reply-threshold 200", "resumed <= 2 s after it ends"
    yard.record("F22", what, target=target, most_ms=2_000, samples_ms=samples)


async def _spin(url: str) -> None:
    async with aredis.Redis.from_url(url, protocol=2, socket_timeout=30) as client:
        with contextlib.suppress(redis.exceptions.ResponseError):
            await client.eval("while true do end", 0)


# -- F19, F20, F21: no room ------------------------------------------------------------------------


@full
@sized(small={"rounds": 2}, full={"rounds": 30}, minutes=15)
async def test_full_memory_refuses_who_sends_and_loses_nothing_that_was_confirmed(
    yard: Yard, *, rounds: int
) -> None:
    """A send that was refused was not written; all is done five seconds after there is memory again."""
    samples: list[float] = []
    async with yard.group("memory", environ={}) as team:
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
            await team.resumed_ms(now_ms())
        await team.finished()
        refused = len(team.sends.refused)
    assert refused, "memory was never full"
    yard.record(
        "F19",
        f"maxmemory at what is used, {rounds} times",
        target="no half of a commit; drained <= 5 s after the relief",
        met=max(samples) <= 5_000,
        samples_ms=samples,
        said=f"{refused} sends refused, none of them written; 0 violations",
    )


@full
@scene
async def test_a_server_without_room_for_connections_keeps_who_is_in_and_is_not_hammered(yard: Yard) -> None:
    """Who is in works on beside one who is not; who is thrown out comes back when there is room."""
    async with yard.group("clients", environ={}) as team, AsyncExitStack() as crowd:
        await team.hired("w0")
        async with team.load(per_second=60):
            await team.resumed_ms(now_ms() + 500)  # With all connections that it needs.
            await team.raw.config_set("maxclients", (await team.raw.info("clients"))["connected_clients"])
            team.hire("late")
            late = team.workers.pop("late")
            await team.until("the late one says for what it waits", lambda: "start_delayed" in late.log())
            late.terminate()
            assert await team.ended(late) == 0, "it owns nothing yet"
            await team.resumed_ms(now_ms())
            # Now w0 is thrown out, and others are in before it is back.
            await team.raw.config_set("maxclients", 10_000)
            for _ in range(20):
                one = aredis.Redis.from_url(team.url, protocol=2)
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
            took = await team.resumed_ms(now_ms())
        await team.finished(late)
    yard.record(
        "F20",
        "maxclients at what is connected; a worker comes, another is thrown out",
        times=2,
        target="who is in works on; < 1 try a second",
        met=tries < 1,
        samples_ms=[took],
        said=f"{tries:.1f} tries a second by the producer and all connections of a worker",
    )


@full
@sized(small={"rounds": 1}, full={"rounds": 20}, minutes=15)
async def test_a_full_disk_stops_all_and_loses_nothing(yard: Yard, *, rounds: int) -> None:
    """The server takes no writes; a send that was refused was not written."""
    if os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    samples: list[float] = []
    server = ChaosServer(yard.folder / "disk", small_disk=True)
    await asyncio.to_thread(server.__enter__)
    try:
        async with yard.team(server.url, "disk", environ={}) as team, team.at_work("w0", "w1"):
            for _ in range(rounds):
                await asyncio.sleep(0.5)
                server.fill_disk()
                await team.until("the server takes no writes", lambda: _refuses(team), poll_s=0.1)
                await asyncio.sleep(1.0)
                server.give_room()
                samples.append(await team.resumed_ms(now_ms()))
        refused = len(team.sends.refused)
    finally:
        await asyncio.to_thread(server.__exit__)
    yard.record(
        "F21",
        f"a small file system without room, {rounds} times",
        target="nothing lost; resumed <= 3 s after there is room",
        met=max(samples) <= REJOIN_MOST_MS,
        samples_ms=samples,
        said=f"{refused} sends refused, none of them written",
    )


async def _refuses(team: Team) -> bool:
    try:
        await team.raw.set("filler", b"x" * 1000)
    except redis.exceptions.ResponseError as error:
        return "MISCONF" in str(error)
    return False
