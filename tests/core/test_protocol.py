"""What a group of workers promises, whatever happens to them: many seeds of a small world."""

import pytest

from streamworker.core.control import GroupChanged
from tests.core.world import QUIET, ROUGH, STUCK_MS, Faults, World

SETTLE_MS = 30_000
"""After the last fault: 10 s until a silent peer is removed where the server does not tell about
connections, up to 4 s in which peers let each other go first, 12 s until a stuck owner is
overtaken, and some calls between. Or ``STUCK_MS`` until a handler ends that could not be stopped,
if its worker is leaving and waits for it."""
LATE_MS = 8_000
"""By then each request that its sender gave up has arrived at the server."""


def settled(seed: int, *, workers: int) -> World:
    """Return a world in which some workers have shared the partitions and work."""
    world = World(seed)
    for _ in range(workers):
        world.start()
    world.run_until(world.is_settled, "the group has settled", 10_000)
    world.run_for(2_000)
    return world


def changes(world: World) -> list[GroupChanged]:
    """Return the record of the group's changes."""
    return [message for message in world.server.control if isinstance(message, GroupChanged)]


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
    what = dice.choice(
        ["start", "stop", "kill", "pause", "pause", "disconnect", "disconnect", "restart", "rough"]
    )
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


@pytest.mark.parametrize("seed", range(100))
def test_workers_that_come_and_go_without_faults_do_nothing_twice_and_lose_nothing(seed: int) -> None:
    """Joins and leaves at any moment, several at once: no entry is begun twice, no commit refused."""
    world = World(seed)
    world.start()
    for _ in range(12):
        world.run_for(world.random.choice([0, 5, 50, 500, 2_000]))
        if world.random.random() < 0.5 and len(world.staying) > 1:
            world.random.choice(world.staying).stop()
        else:
            world.start()
    world.run_until(world.is_settled, "the group has settled", 5_000)
    assert max(world.executions.values()) == 1
    assert (world.server.fenced, world.server.overtaken) == (0, 0)
    assert all(message.cause != "death" for message in changes(world))
    check_commits(world)


@pytest.mark.parametrize("seed", range(20))
def test_partitions_that_keep_their_owner_never_stop(seed: int) -> None:
    """A join moves the upper half; below it nobody notices: same lock, same epoch, commits go on."""
    world = settled(seed, workers=1)
    epochs = [lock.epoch for lock in world.server.locks]
    (first,) = world.workers
    runners = dict(first.runners)
    world.start()
    world.run_until(world.is_settled, "the second worker has its half", 3_000)
    document = world.server.membership
    assert document is not None
    for p, lock in enumerate(world.server.locks):
        if document.owners[p] == first.core.member:
            assert lock.epoch == epochs[p]
            assert first.runners[p] is runners[p]
            assert not runners[p].ended
        else:
            assert lock.epoch == epochs[p] + 1
    assert [p for p, owner in enumerate(document.owners) if owner != first.core.member] == [4, 5, 6, 7]


@pytest.mark.parametrize("seed", range(20))
def test_a_leave_is_a_short_gap(seed: int) -> None:
    """The longest batch, and a few round trips: the messages spare all pauses."""
    world = settled(seed, workers=3)
    world.staying[1].stop()
    took_ms = world.run_until(world.is_settled, "the others have its partitions", 5_000)
    assert took_ms <= world.faults.batch_ms + 300


@pytest.mark.parametrize("seed", range(20))
def test_without_any_message_a_change_costs_a_heartbeat_and_a_pause(seed: int) -> None:
    """The control stream is a hint: everything is found out without it."""
    world = settled(seed, workers=2)
    world.faults = Faults(control_lost=1.0)
    world.start()
    timing = world.timing
    known_ms = 2 * timing.heartbeat_interval_ms
    took_ms = world.run_until(world.is_settled, "the third worker has its share", 10_000)
    assert took_ms <= known_ms + world.faults.batch_ms + 2 * timing.acquire_retry_ms


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_the_partitions_of_a_killed_worker_run_again_within_seconds(seed: int, tells: bool) -> None:
    """Two heartbeats of silence and the question; or the session timeout, where nobody answers it."""
    world = settled(seed, workers=3)
    world.server.tells_connections = tells
    world.random.choice(world.staying).kill()
    timing = world.timing
    patience_ms = timing.dead_after_ms if tells else timing.session_timeout_ms
    took_ms = world.run_until(world.is_settled, "the others have its partitions", 20_000)
    assert took_ms <= patience_ms + 3 * timing.heartbeat_interval_ms
    assert [message.cause for message in changes(world)].count("death") == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_worker_that_is_only_slow_keeps_its_partitions(seed: int) -> None:
    """Stopped for 20 s, with its connection alive: nothing moves, and it goes on where it was."""
    world = settled(seed, workers=3)
    before, epochs = world.server.membership, [lock.epoch for lock in world.server.locks]
    sleeper = world.random.choice(world.staying)
    sleeper.paused = True
    world.run_for(20_000)
    sleeper.wake()
    check_rest(world)
    assert world.server.membership == before
    assert [lock.epoch for lock in world.server.locks] == epochs
    assert max(world.executions.values()) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_worker_that_slept_for_too_long_cannot_commit_after_it_wakes(seed: int) -> None:
    """Its partitions went to others; what it has in hand is refused, and it joins again."""
    world = settled(seed, workers=3)
    sleeper = world.random.choice(world.staying)
    former = sleeper.core.member
    sleeper.paused = True
    world.run_for(40_000)
    assert former not in {lock.owner for lock in world.server.locks}
    commits = sum(commit.owner == former for lock in world.server.locks for commit in lock.log)
    sleeper.wake()
    world.run_until(world.is_settled, "it is a member again", 5_000)
    check_commits(world)
    assert sleeper.core.member != former
    assert sum(commit.owner == former for lock in world.server.locks for commit in lock.log) == commits


@pytest.mark.parametrize("outage_ms", [300, 3_000, 8_000])
@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_an_outage_that_hits_all_workers_moves_nothing(seed: int, restarted: bool, outage_ms: int) -> None:
    """Whoever is back first does not take the others for dead: they are as silent as it was."""
    world = settled(seed, workers=4)
    before, epochs = world.server.membership, [lock.epoch for lock in world.server.locks]
    if restarted:
        world.restart_server()
    for worker in world.workers:
        worker.disconnect()
        worker.later(outage_ms + world.random.randint(0, 700), worker.connect)
    world.run_for(outage_ms + 5_000)
    check_rest(world)
    assert world.server.membership == before
    assert [lock.epoch for lock in world.server.locks] == epochs


@pytest.mark.parametrize("seed", range(20))
def test_an_owner_that_cannot_stop_is_overtaken_at_the_drain_deadline(seed: int) -> None:
    """Its handler ignores being cancelled; the next owner waits no longer than the deadline."""
    world = settled(seed, workers=1)
    (first,) = world.workers
    world.faults = Faults(stuck=1.0)
    world.run_until(lambda: any(runner.stubborn for runner in first.runners.values()), "one is stuck", 5_000)
    world.faults = QUIET
    world.start()
    took_ms = world.run_until(world.is_settled, "the second worker has its half", STUCK_MS)
    stuck = [
        runner.partition for runner in first.runners.values() if runner.partition >= 4 and runner.stubborn
    ]
    assert world.server.overtaken == len(stuck)
    assert took_ms <= 12_000 + 3 * world.timing.acquire_retry_ms
    world.run_for(STUCK_MS)
    check_commits(world)


def test_two_dozen_workers_start_at_once_and_share_sixteen_partitions() -> None:
    """Each joins once; eight stand by and take over as soon as others leave."""
    world = World(7, partitions=16)
    for _ in range(24):
        world.start()
    world.run_until(world.is_settled, "all have joined", 10_000)
    assert len(world.server.history) == 24
    owners = {lock.owner for lock in world.server.locks}
    assert len(owners) == 16
    for worker in world.staying[:12]:
        worker.stop()
    world.run_until(world.is_settled, "the others have taken over", 10_000)
    assert {lock.owner for lock in world.server.locks} == {worker.core.member for worker in world.staying}
    assert max(world.executions.values()) == 1


def test_a_group_that_is_stopped_as_a_whole_leaves_no_member_and_no_lock() -> None:
    """What the last one leaves is a document without members and locks without owners."""
    world = settled(3, workers=5)
    for worker in world.staying:
        worker.stop()
    world.run_until(world.is_settled, "all have left", 10_000)
    document = world.server.membership
    assert document is not None
    assert document.members == ()
    assert world.server.beats == {}
    assert {lock.owner for lock in world.server.locks} == {""}
    assert max(world.executions.values()) == 1


def test_the_same_seed_gives_the_same_run() -> None:
    """Without that no failure could be looked into."""
    histories = []
    for _ in range(2):
        world = settled(11, workers=3)
        for _ in range(10):
            world.run_for(1_000)
            one_fault(world)
        histories.append((world.server.history, [lock.log for lock in world.server.locks]))
    assert histories[0] == histories[1]
