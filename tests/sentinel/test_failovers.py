"""Failovers while records flow: nothing twice, no two owners, and no loss in silence.

An asynchronous failover loses what its replica had not received. To have losses at all, replicas are cut
off for a moment before a primary is killed: on one machine they are too quick otherwise.
"""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.chaos.figures import insist, percentile, record, repeats
from tests.chaos.forked import Forge
from tests.chaos.team import Team, now_ms
from tests.helpers import wait_for
from tests.stage.server import Server
from tests.stage.trio import Trio

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.full("sentinels, replicas and failovers, which take seconds each"),
]

PARTITIONS = 8
PER_SECOND = 250
SOAK_FAILOVERS = int(os.environ.get("SENTINEL_FAILOVERS", repeats(50, 15)))
SEED = int(os.environ.get("SENTINEL_SEED", "1"))
ZOMBIE_NOTICES_S = 40.0
"""Until whoever was replaced is a replica that has all, on a machine that is busy with other things."""

REPLICAS = 2
"""All of them must have what is to survive: sentinels may take any, and not the one that had the most."""


class Scene(Team):
    """A team behind sentinels."""

    def __init__(self, trio: Trio, forge: Forge, folder: Path, durability: str) -> None:
        super().__init__(
            trio.url, forge, folder, name="ledger", partitions=PARTITIONS, environ={}, ledger=True,
            durability=durability, replicas=REPLICAS,
        )  # fmt: skip
        self.trio, self.is_durable = trio, durability == "replicas"

    def acked_rows(self, at: Server) -> int:
        return sum(int(at.call("XLEN", self.keys.acked(p))) for p in range(PARTITIONS))

    def was_confirmed_since(self, moment_ms: float) -> bool:
        """Whether a send was confirmed that was written after a moment."""
        return any(sent.entry_id.ms > moment_ms for sent in list(self.sends.confirmed.values()))


Fault = Callable[[Scene, random.Random], Server]
"""Ends the reign of a primary; returns it."""


@pytest.fixture
async def scene(
    request: pytest.FixtureRequest, steady: Trio, crew: Forge, tmp_path: Path
) -> AsyncIterator[Scene]:
    async with Scene(steady, crew, tmp_path, getattr(request, "param", "memory")) as scene:
        yield scene


def killed(scene: Scene, rng: random.Random) -> Server:
    """SIGKILL of the primary, whose replicas have not received its last writes."""
    with scene.trio.replicas_cut_off() as primary:
        since_ms, rows = now_ms(), scene.acked_rows(primary)
        time.sleep(0.1 + 0.2 * rng.random())
        if not scene.is_durable:
            # On a busy machine nobody may have been told of anything yet that is lost.
            wait_for(lambda: scene.was_confirmed_since(since_ms), "a send is confirmed")
            wait_for(lambda: scene.acked_rows(primary) > rows, "a batch is committed")
        primary.kill()
    scene.trio.replace(primary)
    return primary


def planned(scene: Scene, rng: random.Random) -> Server:
    """``SENTINEL FAILOVER``."""
    del rng
    primary = scene.trio.primary
    scene.trio.ask_for_failover()
    return primary


def coordinated(scene: Scene, rng: random.Random) -> Server:
    """``SENTINEL FAILOVER ... COORDINATED``, for which writes pause until a replica has all."""
    del rng
    primary = scene.trio.primary
    scene.trio.ask_for_failover("COORDINATED")
    return primary


def stopped(scene: Scene, rng: random.Random) -> Server:
    """SIGSTOP of the primary, for longer than until another one is named; it wakes as a zombie."""
    primary = scene.trio.primary
    primary.pause()
    try:
        scene.trio.replace(primary)
        time.sleep(0.3 * rng.random())
    finally:
        primary.resume()
    return primary


def fail_over(scene: Scene, fault: Fault, rng: random.Random) -> tuple[Server, float]:
    """Let a primary fail; return it, and how long it took until there was another."""
    scene.trio.wait_until_whole(ZOMBIE_NOTICES_S)
    began = time.monotonic()
    old = fault(scene, rng)
    scene.trio.wait_for_other_primary(old)
    took_s = time.monotonic() - began
    if not old.running and scene.is_durable:
        scene.trio.bring_back(old)  # All replicas are waited for, so nothing goes on without it.
    return old, took_s


async def run(scene: Scene, faults: list[Fault], rng: random.Random) -> list[tuple[float, float]]:
    """Let primaries fail while records flow; return how long each was away, and then all were at rest."""
    took = []
    await scene.hired("w1", "w2")
    async with scene.load(PER_SECOND):
        await scene.resumed_ms(0)
        for fault in faults:
            old, named_s = await asyncio.to_thread(fail_over, scene, fault, rng)
            named, named_ms = time.monotonic(), now_ms()
            scene.forget_logs()
            await scene.resumed_ms(named_ms)
            ran_s = time.monotonic() - named
            if not old.running:
                await asyncio.to_thread(scene.trio.bring_back, old)
            print(f"{fault.__name__}: another primary after {named_s:.2f} s, all ran {ran_s:.2f} s later")
            took.append((named_s, ran_s))
        # Nobody reads what the former primary still has.
        await asyncio.to_thread(scene.trio.wait_until_whole, ZOMBIE_NOTICES_S)
    await scene.drained()
    return took


def told_dead(scene: Scene) -> list[dict[str, object]]:
    """Return the rebalances that workers told of, but for joins."""
    return [each for each in scene.logged("rebalance") if each["cause"] != "join"]


async def test_no_failover_makes_two_owners_or_loses_anything_in_silence(scene: Scene) -> None:
    """Killed, replaced by plan, and stopped until it is a zombie, one after another."""
    await run(scene, [killed, planned, stopped], random.Random(SEED))
    gone = await scene.lost()
    print(f"{len(gone)} of {len(scene.sends.confirmed)} confirmed sends were lost, and reported")
    assert len(scene.sends.confirmed) > 1_000
    assert gone, "nothing was lost, so this does not show that losses are told"
    assert scene.logged("partition_rolled_back"), "commits were lost, and no worker said so"
    scene.check_nobody_was_hurt()
    assert not told_dead(scene), "somebody was thought dead"


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    "name, faults, scene",
    [
        ("unplanned", [killed, stopped], "memory"),
        ("planned", [planned], "memory"),
        ("coordinated", [coordinated], "memory"),
        ("durable", [killed, stopped, planned], "replicas"),
    ],
    indirect=["scene"],
)
async def test_many_failovers(scene: Scene, name: str, faults: list[Fault]) -> None:
    """As above, as often as SENTINEL_FAILOVERS says, from SENTINEL_SEED; what all replicas have is safe."""
    rng = random.Random(SEED)
    took = await run(scene, [rng.choice(faults) for _ in range(SOAK_FAILOVERS)], rng)
    gone = await scene.lost()
    for what, times in (("another primary", [t for t, _ in took]), ("all ran again", [t for _, t in took])):
        p50, p99 = percentile(times, 50), percentile(times, 99)
        print(f"{what}: p50 {p50:.2f} s, p99 {p99:.2f} s, max {max(times):.2f} s of {len(times)}")
    all_is_safe = scene.is_durable or faults == [coordinated]
    executed = [n for call in scene.calls() for n in call["n"]]
    lost = f"{len(gone)} of them lost by Redis, all reported by their ids" if gone else "none lost"
    again = len(executed) - len(set(executed))
    found = record(
        "F17",
        f"Sentinel, {name}",
        times=len(took),
        target="0 twin owners; "
        + ("nothing acknowledged is lost" if all_is_safe else "what is lost is reported"),
        verdict="missed" if told_dead(scene) or (all_is_safe and gone) else "met",
        samples_ms=[1_000 * (named + ran) for named, ran in took],
        said=f"{len(scene.sends.confirmed)} sends confirmed, {lost}; {again} records handled again",
        seed=SEED,
    )
    assert not told_dead(scene), "somebody was thought dead"
    insist(found)
