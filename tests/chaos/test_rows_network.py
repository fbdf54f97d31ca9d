"""Rows F13-F16 and F40 of the fault matrix: what happens between workers and the server.

The soak has the counts and the limits that are promised; docs/reliability.md has the figures.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from streamworker.errors import BackendUnavailable
from streamworker.redisio.wire.client import Backend
from tests.chaos.proxy import Proxy, proxied, running
from tests.chaos.team import Team, now_ms, setting
from tests.chaos.times import FAST, STEADY
from tests.chaos.yard import Yard, gathered, scene, sized

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(240),
    pytest.mark.full("rows of the fault matrix wait for what a fault leads to"),
]

SLOW_MS = setting(STEADY, "slow_after_ms")


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
    async with (
        yard.server() as server,
        running(HeartbeatProxy(server.url)) as proxy,
        yard.team(server.url, "silent", environ=STEADY, ledger=True) as team,
    ):
        team.hire("w0")
        await team.hired("w1", STREAMWORKER_REDIS_URL=proxy.url)
        async with team.load(per_second=60):
            held = await team.held_by("w1")
            await team.first_commits(now_ms(), held)
            proxy.holds, since = True, now_ms()
            await team.first_commits(since, held, above=held)
            # Where that takes long it has joined again, and is removed again.
            changes = (await team.snapshot()).rebalances
            removed = min(
                each.at_ms
                for each in changes
                if (each.cause, each.member) == ("death", "w1") and each.at_ms >= since
            )
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
    assert late, "it was not said"
    yard.record(
        "F6",
        "heartbeats held back, all else passes",
        times=1,
        target=f"the last batch begins >= 10% of slow_after_ms before the removal ({SLOW_MS // 10} ms here)",
        met=margin_ms >= SLOW_MS / 10,
        said=f"{margin_ms:.0f} ms before",
    )


# -- F13, F16, F40: networks that are cut, and slow ----------------------------------------------------


@asynccontextmanager
async def each_through_a_proxy(team: Team, count: int) -> AsyncIterator[dict[str, Proxy]]:
    """Let workers begin, each behind a proxy of its own; when all is done, it must be right."""
    async with AsyncExitStack() as stack:
        proxies = {f"w{n}": await stack.enter_async_context(proxied(team.url)) for n in range(count)}
        for name, proxy in proxies.items():
            team.hire(name, STREAMWORKER_REDIS_URL=proxy.url)
        async with team.at_work():
            yield proxies


@sized(small={"teams": 1, "count": 2, "environ": FAST}, full={"teams": 4, "count": 50, "environ": STEADY})
async def test_a_worker_that_is_cut_off_is_taken_over_from_and_what_it_sends_late_is_refused(
    yard: Yard, *, teams: int, count: int, environ: Mapping[str, str]
) -> None:
    """One of three; the server holds its connections for alive, so it counts as slow, not as dead."""
    samples: list[float] = []
    most_ms = setting(environ, "slow_after_ms") + 1_000

    async def cuts(team: Team) -> None:
        async with each_through_a_proxy(team, 3) as proxies:
            for _ in range(count):
                await asyncio.sleep(team.rng.uniform(0.05, 0.6))
                victim = team.rng.choice(sorted(proxies))
                held, cut = await team.held_by(victim), now_ms()
                proxies[victim].hold()
                samples.append(await team.takeover_ms(cut, held))
                proxies[victim].let_pass()  # What was held back comes late.
                await team.settled()

    await yard.many(teams, cuts, "cut", environ=environ)
    yard.record(
        "F13",
        "a worker cut off, its connections held for alive",
        target=f"peers take over <= slow_after_ms + 1 s ({most_ms} ms here)",
        most_ms=most_ms,
        samples_ms=samples,
        said="0 violations, though what was held back came late",
    )


@sized(
    small={"rtt_ms": 200, "seconds": 6.0},
    **{f"full_{rtt_ms}_ms": {"rtt_ms": rtt_ms, "seconds": 60.0} for rtt_ms in (20, 200, 500, 1_000)},
    minutes=15,
)
async def test_a_slow_network_moves_nothing(yard: Yard, *, rtt_ms: int, seconds: float) -> None:
    """At default settings: all that workers say takes its time, and work goes on; then all is done."""
    async with (
        yard.server() as server,
        proxied(server.url) as proxy,
        yard.team(server.url, f"slow{rtt_ms}", environ={}, worker_url=proxy.url) as team,
    ):
        await team.hired("w0", "w1")
        before = len(await team.rebalances())
        proxy.delay_ms, slowed = rtt_ms / 2, now_ms()
        async with team.load(per_second=60 if rtt_ms < 500 else 4):
            await asyncio.sleep(seconds)
            await team.first_commits(slowed, [0])  # On a busy machine it may come later.
        done = len(await team.numbers())
        proxy.heal()
        await team.finished()
        moved = len(await team.rebalances()) - before
    yard.record(
        "F16",
        f"each round trip takes {rtt_ms} ms, for {seconds:.0f} s",
        times=1,
        target="0 rebalances; work goes on",
        met=moved == 0 and done > 0,
        said=f"{moved} rebalances; {done} of {len(team.sends.confirmed)} records done meanwhile, all later",
        strict=True,
    )


@sized(small={"teams": 1, "count": 1}, full={"teams": 5, "count": 20})
async def test_workers_that_are_cut_off_and_back_in_any_order_end_up_at_work(
    yard: Yard, *, teams: int, count: int
) -> None:
    """Cut off one by one until all are, and back one by one in another order."""
    samples: list[float] = []

    async def swizzles(team: Team) -> None:
        async with each_through_a_proxy(team, 4) as proxies:
            for _ in range(count):
                for order in ("hold", "let_pass"):
                    for name in team.rng.sample(sorted(proxies), len(proxies)):
                        await asyncio.sleep(team.rng.uniform(0.0, 1.0))
                        getattr(proxies[name], order)()
                healed = now_ms()
                await team.settled()
                await team.first_commits(healed, range(team.partitions))
                samples.append(now_ms() - healed)

    await yard.many(teams, swizzles, "swizzled", environ=STEADY)
    assert len(samples) == teams * count
    yard.record(
        "F40",
        "4 workers cut off one by one, let in in another order",
        target="0 violations; all work again, in even shares",
        samples_ms=samples,
        said="0 violations; timed from the last return to even shares and commits in all partitions",
    )


# -- F14, F15: replies that are lost, and connections that break ---------------------------------------


@sized(small={"teams": 1, "count": 40}, full={"teams": 4, "count": 250}, minutes=30)
async def test_answers_that_are_lost_duplicate_nothing(yard: Yard, *, teams: int, count: int) -> None:
    """Of commits, acquisitions, heartbeats and sends: what nobody knows the outcome of is asked again."""
    lost = 0

    async def one(number: int) -> None:
        nonlocal lost
        async with yard.server() as server, proxied(server.url) as proxy:
            urls = {"worker_url": proxy.url, "producer_url": proxy.url}
            environ = {"ROWS_HANDLER_S": "0.005"}
            async with (
                yard.team(server.url, f"replies{number}", environ=environ, **urls) as team,
                team.at_work("w0", "w1", per_second=300),
            ):
                proxy.only_after = b"EVALSHA"
                while proxy.lost < count:
                    proxy.lose = 1
                    await team.until("an answer is lost", lambda: proxy.lose == 0, poll_s=0.002)
                    await asyncio.sleep(team.rng.uniform(0, 0.06))
            lost += proxy.lost

    await gathered(*map(one, range(teams)))
    assert lost >= teams * count
    what, said = "answers to scripts of workers and producers lost", "0 duplicates, 0 lost"
    yard.record("F14", what, times=lost, target="0 duplicates", said=said)


@sized(small={"count": 480}, full={"count": 10_000}, minutes=15)
async def test_no_answer_is_taken_for_another_calls_however_connections_break(
    yard: Yard, *, count: int
) -> None:
    """Each call gets its own answer or none, whether they are reset, cut in mid-frame, lost or delayed.

    Several calls are made at a time, on four connections.
    """
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
    yard.record(
        "F15",
        "reset, half open, cut in mid-frame, lost, delayed",
        times=disturbed,
        target="0 crossed answers",
        said=f"0 crossed; {answered} answered, {disturbed - answered} unknown, and said so",
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
