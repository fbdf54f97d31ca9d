"""Rows F13-F16 and F40 of the fault matrix: what happens between workers and the server.

By default in small, beside each other; the soak has the counts and the limits that are promised.
docs/reliability.md says what it came to.
"""

import asyncio
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack

import pytest

from streamworker.errors import BackendUnavailable
from streamworker.redisio.wire.client import Backend
from tests.chaos.figures import insist, percentile, record
from tests.chaos.proxy import Proxy, proxied
from tests.chaos.team import STEADY, Team, now_ms, setting
from tests.chaos.yard import Yard, gathered, scene
from tests.rebalance.scene import FAST

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

SLOW_MS = setting(FAST, "slow_after_ms")


# -- F6: heartbeats alone ----------------------------------------------------------------------------


class HeartbeatProxy(Proxy):
    """Holds back what a worker's heartbeats send, and nothing else."""

    holds = False

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pipe: object
    ) -> None:
        is_heartbeats = False
        while data := await reader.read(65536):
            is_heartbeats = is_heartbeats or b":heartbeat" in data  # It names itself first.
            while is_heartbeats and self.holds:
                await asyncio.sleep(0.02)
            writer.write(data)
            await writer.drain()


@scene
async def test_a_worker_whose_heartbeats_alone_are_lost_begins_nothing_before_it_is_removed(
    yard: Yard,
) -> None:
    """It stops by its own clock, though all else works."""
    async with yard.server() as server, yard.team(server.url, "silent", ledger=True) as team:
        proxy = HeartbeatProxy(server.url)
        await proxy.start()
        try:
            team.hire("w0")
            await team.hired("w1", STREAMWORKER_REDIS_URL=proxy.url)
            async with team.load(per_second=60):
                await asyncio.sleep(0.5)
                held = {p: lock.epoch for p, lock in enumerate(await team.locks()) if lock.name == "w1"}
                proxy.holds, since = True, now_ms()
                await team.first_commits(since, held, above=held)
                (removed,) = [at for cause, at, _ in await team.rebalances() if cause == "death"]
                late = team.logged("heartbeats_late")
                proxy.holds = False
                await team.settled()
            await team.finished()
            pid = team.workers["w1"].pid
            offset_ms = now_ms() - asyncio.get_running_loop().time() * 1000
            # At the epochs that it had: what it begins after it has joined anew is another life of it.
            begun = [
                call["start"] * 1000 + offset_ms
                for call in team.calls()
                if call["pid"] == pid and call["epoch"] == held.get(call["partition"])
            ]
            margin_ms = removed - max(begun)
        finally:
            await proxy.stop()
    assert late, "it was not said"
    found = record(
        "F6",
        "heartbeats held back, all else passes",
        times=1,
        target=f"the last batch begins >= 10% of slow_after_ms before the removal ({SLOW_MS // 10} ms here)",
        verdict="met" if margin_ms >= SLOW_MS / 10 else "missed",
        said=f"{margin_ms:.0f} ms before",
    )
    insist(found)


# -- F13, F16, F40: networks that are cut, and slow ----------------------------------------------------


async def cuts(team: Team, count: int, samples: list[float]) -> None:
    """Cut one worker off, wait until its partitions are committed to elsewhere, and let it back in."""
    async with AsyncExitStack() as stack:
        proxies = {f"w{n}": await stack.enter_async_context(proxied(team.url)) for n in range(3)}
        for name, proxy in proxies.items():
            await team.hired(name, STREAMWORKER_REDIS_URL=proxy.url)
        async with team.load(per_second=60):
            for _ in range(count):
                await asyncio.sleep(team.rng.uniform(0.05, 0.6))
                victim = team.rng.choice(sorted(proxies))
                held = {p: lock.epoch for p, lock in enumerate(await team.locks()) if lock.name == victim}
                cut = now_ms()
                proxies[victim].hold()
                at = await team.first_commits(cut, held, above=held)
                samples.append(max(at.values()) - cut)
                proxies[victim].let_pass()  # What was held back comes late.
                await team.settled()
        await team.finished()


async def many_cuts(
    yard: Yard, teams: int, count: int, environ: Mapping[str, str] = FAST
) -> tuple[list[float], int]:
    """Cut off workers of several teams; return how long takeovers took and how long they may take."""
    samples: list[float] = []
    most_ms = setting(environ, "slow_after_ms") + 1_000
    await yard.many(teams, lambda team: cuts(team, count, samples), "cut", environ=environ)
    record(
        "F13",
        "a worker cut off, its connections held for alive" + ("" if teams > 2 else ", in small"),
        times=len(samples),
        target=f"peers take over <= slow_after_ms + 1 s ({most_ms} ms here)",
        verdict="met" if percentile(samples, 99) <= most_ms else "missed",
        samples_ms=samples,
        said="0 violations, though what was held back came late",
        seed=yard.seed,
    )
    return samples, most_ms


@scene
async def test_a_worker_that_is_cut_off_is_taken_over_from_and_what_it_sends_late_is_refused(
    yard: Yard,
) -> None:
    """The server holds its connections for alive: it counts as slow, not as dead."""
    await many_cuts(yard, 1, 2)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_two_hundred_workers_that_are_cut_off_are_taken_over_from_in_time(yard: Yard) -> None:
    """One of three, over and over."""
    samples, most_ms = await many_cuts(yard, 4, 50, STEADY)
    assert percentile(samples, 99) <= most_ms


@scene
async def test_a_slow_network_moves_nothing(yard: Yard) -> None:
    """At default settings."""
    await slow(yard, 200, seconds=6.0)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rtt_ms", [20, 200, 500, 1_000])
async def test_a_network_that_stays_slow_moves_nothing(yard: Yard, rtt_ms: int) -> None:
    """For a minute, at default settings; and when it is over all is done."""
    await slow(yard, rtt_ms, seconds=60.0)


async def slow(yard: Yard, rtt_ms: int, *, seconds: float) -> None:
    """Let all that workers say take its time: that moves nothing, and work goes on."""
    async with (
        yard.server() as server,
        proxied(server.url) as proxy,
        yard.team(server.url, f"slow{rtt_ms}", environ={}, worker_url=proxy.url) as team,
    ):
        await team.hired("w0", "w1")
        before = len(await team.rebalances())
        proxy.delay_ms = rtt_ms / 2
        async with team.load(per_second=60 if rtt_ms < 500 else 4):
            await asyncio.sleep(seconds)
        done = len(await team.numbers())
        proxy.heal()
        await team.drained()
        moved = len(await team.rebalances()) - before
        await team.check()
        team.check_nobody_was_hurt()
    record(
        "F16",
        f"each round trip takes {rtt_ms} ms, for {seconds:.0f} s",
        times=1,
        target="0 rebalances; work goes on",
        verdict="met" if moved == 0 and done else "missed",
        said=f"{moved} rebalances; {done} of {len(team.sends.confirmed)} records done meanwhile, all later",
    )
    assert (moved, done > 0) == (0, True)


async def swizzles(team: Team, count: int, samples: list[float]) -> None:
    """Cut workers off one by one, and let them back in one by one, in another order."""
    async with AsyncExitStack() as stack:
        proxies = {f"w{n}": await stack.enter_async_context(proxied(team.url)) for n in range(4)}
        for name, proxy in proxies.items():
            await team.hired(name, STREAMWORKER_REDIS_URL=proxy.url)
        async with team.load(per_second=60):
            for _ in range(count):
                for order in ("hold", "let_pass"):
                    for name in team.rng.sample(sorted(proxies), len(proxies)):
                        await asyncio.sleep(team.rng.uniform(0.0, 1.0))
                        getattr(proxies[name], order)()
                healed = now_ms()
                await team.settled()
                await team.first_commits(healed, range(team.partitions))
                samples.append(now_ms() - healed)
        await team.finished()


async def many_swizzles(yard: Yard, teams: int, count: int) -> list[float]:
    samples: list[float] = []
    await yard.many(teams, lambda team: swizzles(team, count, samples), "swizzled", environ=STEADY)
    record(
        "F40",
        "4 workers cut off one by one, let in in another order" + ("" if teams > 1 else ", in small"),
        times=len(samples),
        target="0 violations; all work again, in even shares",
        verdict="met",
        samples_ms=samples,
        said="0 violations; timed from the last return to even shares and commits in all partitions",
        seed=yard.seed,
    )
    return samples


@scene
async def test_workers_that_are_cut_off_and_back_in_any_order_end_up_at_work(yard: Yard) -> None:
    """All of them at once, for a while."""
    await many_swizzles(yard, 1, 1)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_a_hundred_rounds_of_cutting_off_in_any_order_end_with_all_at_work(yard: Yard) -> None:
    """Of four workers each."""
    assert len(await many_swizzles(yard, 5, 20)) == 100


# -- F14: replies that are lost ----------------------------------------------------------------------


async def lost_replies(team: Team, proxy: Proxy, count: int) -> None:
    """Lose answers to scripts: commits, acquisitions, heartbeats and sends."""
    await team.hired("w0", "w1")
    proxy.only_after = b"EVALSHA"
    goal = proxy.lost + count
    async with team.load(per_second=300):
        while proxy.lost < goal:
            proxy.lose = 1
            await team.until("an answer is lost", lambda: proxy.lose == 0, poll_s=0.002)
            await asyncio.sleep(team.rng.uniform(0, 0.06))
    proxy.lose = 0
    await team.finished()


async def many_lost_replies(yard: Yard, teams: int, count: int) -> int:
    lost = 0

    async def one(number: int) -> None:
        nonlocal lost
        async with yard.server() as server, proxied(server.url) as proxy:
            options = {
                "environ": {"ROWS_HANDLER_S": "0.005"},
                "worker_url": proxy.url,
                "producer_url": proxy.url,
            }
            async with yard.team(server.url, f"replies{number}", **options) as team:
                await lost_replies(team, proxy, count)
            lost += proxy.lost

    await gathered(*map(one, range(teams)))
    record(
        "F14",
        "answers to scripts of workers and producers lost" + ("" if teams > 1 else ", in small"),
        times=lost,
        target="0 duplicates",
        verdict="met",
        said="0 duplicates, 0 lost",
        seed=yard.seed,
    )
    return lost


@scene
async def test_answers_that_are_lost_duplicate_nothing(yard: Yard) -> None:
    """Nobody knows what became of the call: it is made again."""
    await many_lost_replies(yard, 1, 40)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
async def test_a_thousand_answers_that_are_lost_duplicate_nothing(yard: Yard) -> None:
    """Of commits, acquisitions, heartbeats and sends."""
    assert await many_lost_replies(yard, 4, 250) >= 1_000


# -- F15: connections that break -----------------------------------------------------------------------


@scene
async def test_no_answer_is_taken_for_another_calls_however_connections_break(yard: Yard) -> None:
    """Each call gets its own answer or none."""
    await echoes(yard, 480)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_no_answer_of_ten_thousand_is_taken_for_another_calls(yard: Yard) -> None:
    """On four connections, several calls at a time."""
    await echoes(yard, 10_000)


async def echoes(yard: Yard, count: int) -> None:
    """Call through a proxy that resets, cuts in mid-frame, loses and delays answers."""
    rng = yard.rng("echoes")
    wrong: list[tuple[int, object]] = []
    disturbed = answered = 0
    async with (
        yard.server() as server,
        proxied(server.url) as proxy,
        Backend.open(proxy.url, name="echoes", call_timeout_ms=300, connections=4) as backend,
    ):

        async def call(n: int) -> bool:
            # Long enough for a frame to be cut in the middle.
            text = b"%d " % n * rng.choice((1, 1, 200))
            try:
                answer = await backend.execute("ECHO", text)
            except BackendUnavailable:
                return False
            if answer != text:
                wrong.append((n, answer))
            return True

        for first in range(0, count, 8):
            proxy.heal()
            disturb(proxy, rng)
            some = range(first, min(first + 8, count))
            healing = asyncio.get_running_loop().call_later(rng.choice((0.005, 0.02)), proxy.heal)
            done = await asyncio.gather(*map(call, some))
            healing.cancel()
            disturbed, answered = disturbed + len(done), answered + sum(done)
    assert wrong == []
    assert 0 < answered < disturbed, "all answers came, or none: nothing was to be mixed up"
    record(
        "F15",
        "reset, half open, cut in mid-frame, lost, delayed",
        times=disturbed,
        target="0 crossed answers",
        verdict="met",
        said=f"0 crossed; {answered} answered, {disturbed - answered} unknown, and said so",
        seed=yard.seed,
    )


def disturb(proxy: Proxy, rng: random.Random) -> None:
    """Do to a proxy's connections one of the things that happen to them."""
    what = rng.randrange(5)
    if what == 0:
        asyncio.get_running_loop().call_later(rng.uniform(0, 0.004), proxy.reset)
    elif what == 1:
        proxy.hold(up=False)
    elif what == 2:
        proxy.cut = rng.randrange(1, 4)
    elif what == 3:
        proxy.lose = rng.randrange(1, 4)
    else:
        proxy.delay_ms = rng.uniform(0, 20)
