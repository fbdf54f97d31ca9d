"""What a group of workers promises, whatever happens to them: many seeds of a small world."""

import pytest

from tests.core.world import QUIET, ROUGH, STUCK_MS, Faults, World

SETTLE_MS = 45_000
"""After the last fault: up to 20 s until a handler that could not be stopped ends (its worker may
be leaving, and then waits for it), or 10 s until a silent peer is removed where the server does
not tell about connections, then 12 s until a stuck owner is overtaken, and some calls between."""
LATE_MS = 8_000
"""By then each request that its sender gave up has arrived at the server."""


def check_commits(world: World) -> None:
    """Judge the acked logs: an unbroken chain, epochs that never go down, one owner for each."""
    for lock in world.server.locks:
        checkpoint = epoch = 0
        owners: dict[int, str] = {}
        for commit in lock.log:
            assert commit.previous == checkpoint < commit.new
            assert commit.epoch >= epoch
            assert owners.setdefault(commit.epoch, commit.owner) == commit.owner
            checkpoint, epoch = commit.new, commit.epoch


def check_rest(world: World) -> None:
    """A settled group goes on working, and asks nothing but its heartbeats."""
    calls = world.server.calls
    done = [lock.checkpoint for lock in world.server.locks]

    def all_went_on() -> bool:
        halted = {p for w in world.staying for p, r in w.runners.items() if r.halted and not r.ended}
        return all(lock.checkpoint > done[p] or p in halted for p, lock in enumerate(world.server.locks))

    world.run_for(5_000)
    world.run_until(all_went_on, "every partition went on", STUCK_MS + 1_000)
    assert world.is_settled()
    assert world.server.calls == calls, "a group at rest asks about documents or locks"


def one_fault(world: World) -> None:
    """Let one thing happen to the group."""
    dice, alive = world.random, [worker for worker in world.workers if worker.alive]
    what = dice.choice(["start", "stop", "kill", "pause", "disconnect", "disconnect", "restart", "rough"])
    victim = dice.choice(alive) if alive else None
    if what == "start" and len(world.staying) < 6:
        world.start()
    elif what == "restart":
        world.restart_server()
        for worker in alive:
            worker.later(dice.randint(10, 3_000), worker.connect)
    elif what == "rough":
        world.faults = dice.choice([QUIET, ROUGH, Faults(control_lost=0.5), Faults(lost=0.4)])
    elif victim is None:
        world.start()
    elif what == "stop":
        victim.stop()
    elif what == "kill":
        victim.kill()
    elif what == "pause" and not victim.paused:
        victim.paused = True
        world.after(dice.choice([500, 3_000, 12_000, 40_000]), victim.wake)
    elif what == "disconnect":
        victim.disconnect()
        victim.later(dice.randint(10, 15_000), victim.connect)


@pytest.mark.parametrize("seed", range(300))
def test_a_group_keeps_its_promises_through_any_faults_and_settles_after_them(seed: int) -> None:
    """Safety while faults last; after them each partition runs at its assigned member."""
    world = World(seed)
    world.server.tells_connections = seed % 5 != 0
    for _ in range(world.random.randint(1, 4)):
        world.start()
    for _ in range(world.random.randint(3, 15)):
        world.run_for(world.random.choice([10, 200, 1_000, 3_000]))
        one_fault(world)
        check_commits(world)
    if not world.staying:
        world.start()
    world.heal()
    world.run_until(world.is_settled, "the group has settled", SETTLE_MS)
    world.run_for(LATE_MS)
    world.run_until(world.is_settled, "the group has settled after late requests", SETTLE_MS)
    check_rest(world)
    check_commits(world)
