"""Rebalances with real workers: processes that join, leave, die, sleep and wake."""

import math
import signal
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from streamworker.core.snapshot import Rebalance
from streamworker.runtime.watch.stages import FORCED
from tests.conftest import SpawnWorker
from tests.helpers import wait_for
from tests.rebalance.scene import FAST, Call, Scene, slack_for_this_machine

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def scene(redis_url: str, spawn: SpawnWorker, tmp_path: Path) -> Scene:
    return Scene(redis_url, spawn, tmp_path, partitions=8)


def finished(rebalances: tuple[Rebalance, ...], cause: str) -> list[Rebalance]:
    return [each for each in rebalances if each.cause == cause and each.ms is not None]


def test_partitions_follow_joins_a_leave_and_a_death_and_nothing_is_lost_or_repeated_in_the_log(
    scene: Scene,
) -> None:
    """Two join, one leaves, one is killed; the acked log holds each record once, in order."""
    with scene.steady_load():
        w1 = scene.worker("w1", **FAST)
        scene.wait_for_owners({"w1": 8})
        w2 = scene.worker("w2", **FAST)
        scene.wait_for_owners({"w1": 4, "w2": 4})
        scene.worker("w3", **FAST)
        scene.wait_for_owners({"w1": 3, "w2": 3, "w3": 2})
        w1.terminate()
        assert w1.wait() == 0, w1.log()
        scene.wait_for_owners({"w2": 4, "w3": 4})
        w2.kill()
        scene.wait_for_owners({"w3": 8})
    scene.wait_until_drained()
    scene.check_acked_log()
    causes = [each.cause for each in scene.snapshot().rebalances]
    assert causes == ["join", "join", "join", "leave", "left", "death"]


def test_a_worker_that_leaves_hands_over_within_half_a_second_and_nothing_runs_twice(scene: Scene) -> None:
    """SIGTERM: the batch in hand is finished and committed before the partition moves."""
    w1, _ = scene.worker("w1"), scene.worker("w2")
    wait_for(lambda: sum(scene.owners().values()) == 8 and len(scene.owners()) == 2, "both work", 20)
    with scene.steady_load():
        wait_for(lambda: len(scene.calls()) > 40, "both are busy")
        w1.terminate()
        assert w1.wait() == 0, w1.log()
        scene.wait_for_owners({"w2": 8})
    scene.wait_until_drained()
    (leave,) = finished(scene.snapshot().rebalances, "leave")
    longest_batch_ms = 1000 * max(call.end - call.start for call in scene.calls())
    print(f"handover after SIGTERM: {leave.ms} ms, longest batch {longest_batch_ms:.0f} ms")
    assert leave.ms is not None
    assert leave.ms <= 500 + longest_batch_ms + 1000 * slack_for_this_machine()
    assert sorted(scene.executed()) == list(range(scene.sent)), "a record was executed twice or never"
    scene.check_acked_log()


def test_the_partitions_of_a_killed_worker_run_elsewhere_within_five_seconds(scene: Scene) -> None:
    """SIGKILL, at default settings."""
    scene.worker("w1")
    scene.wait_for_owners({"w1": 8})
    w2 = scene.worker("w2")
    scene.wait_for_owners({"w1": 4, "w2": 4})
    with scene.steady_load():
        wait_for(lambda: len(scene.calls()) > 40, "both are busy")
        orphans = {view.partition for view in scene.held_by("w2")}
        w2.kill()
        killed = time.monotonic()

        def all_run_again() -> bool:
            again = {c.partition for c in scene.calls() if c.pid != w2.pid and c.start > killed}
            return orphans <= again

        wait_for(all_run_again, "every partition of the killed worker runs elsewhere", 20)
        first = {
            p: min(c.end for c in scene.calls() if c.partition == p and c.start > killed) for p in orphans
        }
        took = max(first.values()) - killed
    print(f"takeover after SIGKILL: {took:.2f} s")
    assert took <= 5.0
    scene.wait_until_drained()
    scene.check_acked_log()


def test_a_paused_worker_cannot_commit_after_it_wakes_and_rejoins_without_ending(scene: Scene) -> None:
    """SIGSTOP for longer than the session, then SIGCONT: fenced, renamed, and back at work."""
    environ = {**FAST, "HANDLER_S": "0.3"}
    w1, w2 = scene.worker("w1", **environ), scene.worker("w2", **environ)
    wait_for(lambda: sum(scene.owners().values()) == 8 and len(scene.owners()) == 2, "both work", 20)
    with scene.steady_load(200):
        wait_for(lambda: any(c.pid == w2.pid for c in scene.calls()), "the second worker is busy")
        before = {member.id for member in scene.snapshot().members if member.name == "w2"}
        epochs = {view.partition: view.epoch for view in scene.held_by("w2")}
        w2.pause()
        scene.wait_for_owners({"w1": 8})
        w2.resume()
        wait_for(lambda: scene.owners().get("w2", 0) == 4, "the second worker has rejoined", 20)
        after = {member.id for member in scene.snapshot().members if member.name == "w2"}
    assert w2.running and w1.running
    assert before.isdisjoint(after), "it came back under the name that was removed"
    assert all(
        view.epoch > epochs[view.partition] for view in scene.held_by("w2") if view.partition in epochs
    )
    assert "membership_lost" in w2.log()
    scene.wait_until_drained(60)
    # What it had in hand when it slept was executed again elsewhere, and is in the log once.
    scene.check_acked_log()


def largest_gap(calls: list[Call], since: float, until: float) -> float:
    times = [call.end for call in calls if since <= call.end <= until]
    return max(after - before for before, after in pairwise(times))


def test_partitions_that_did_not_move_never_pause(scene: Scene) -> None:
    """The largest gap between batches of an unmoved partition is the same with a join and without.

    Three joins, each after a window of the same length in which a process starts that imports the
    same code and does not join, so that both windows cost the machine the same.
    """
    window_s = 2.5
    w1 = scene.worker("w1", HANDLER_S="0.1")
    scene.wait_for_owners({"w1": 8})
    windows: list[tuple[float, float, float]] = []
    with scene.steady_load(1_600):
        wait_for(lambda: len(scene.calls()) > 200, "the worker is busy")
        for number in range(3):
            quiet_since = time.monotonic()
            scene.bystander()
            time.sleep(window_s)
            join_since = time.monotonic()
            newcomer = scene.worker(f"newcomer{number}", HANDLER_S="0.1")
            time.sleep(window_s)
            windows.append((quiet_since, join_since, time.monotonic()))
            scene.wait_for_owners({"w1": 4, f"newcomer{number}": 4})
            unmoved = {view.partition for view in scene.held_by("w1")}
            assert unmoved == {0, 1, 2, 3}
            newcomer.terminate()
            scene.wait_for_owners({"w1": 8})
    calls = [call for call in scene.calls() if call.pid == w1.pid]
    by_partition = [[call for call in calls if call.partition == p] for p in range(4)]
    ratios = []
    for quiet_since, join_since, until in windows:
        quiet = median(largest_gap(mine, quiet_since, join_since) for mine in by_partition)
        during = median(largest_gap(mine, join_since, until) for mine in by_partition)
        print(f"largest gap of an unmoved partition: {quiet:.3f} s, and {during:.3f} s with a join")
        ratios.append(during / quiet)
    print(f"median ratio {median(ratios):.2f}")
    assert median(ratios) <= 1.5


def check_that_busy_workers_keep_their_partitions(scene: Scene, seconds: int, **environ: str) -> None:
    """Let one handler block and another compute for so long, and see that nothing moves."""
    blocking = scene.worker("blocking", HANDLER="block", HANDLER_S=str(seconds), **environ)
    computing = scene.worker("computing", HANDLER="compute", HANDLER_S=str(seconds), **environ)
    wait_for(lambda: scene.owners() == {"blocking": 4, "computing": 4}, "both work", 20)
    before = scene.snapshot()
    scene.send(200)
    wait_for(
        lambda: len({call.pid for call in scene.calls()}) == 2, "both handlers have ended", 2.5 * seconds
    )
    after = scene.snapshot()
    print(f"generation before {before.generation}, after {seconds} s {after.generation}")
    assert after.generation == before.generation
    assert [view.owner for view in after.partitions] == [view.owner for view in before.partitions]
    assert blocking.running and computing.running


def test_a_handler_that_blocks_or_computes_for_six_sessions_causes_no_rebalance(scene: Scene) -> None:
    """Heartbeats have a thread of their own: a busy worker is alive."""
    check_that_busy_workers_keep_their_partitions(scene, 9, **FAST)


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_handler_that_blocks_or_computes_for_a_minute_causes_no_rebalance(scene: Scene) -> None:
    """The same at default settings: a minute is six sessions there."""
    check_that_busy_workers_keep_their_partitions(scene, 60)


@pytest.mark.parametrize(
    ("count", "partitions"), [(9, 6), pytest.param(24, 16, marks=pytest.mark.soak)], ids=["9", "24"]
)
def test_workers_beyond_the_partitions_stand_by_and_one_takes_over(
    redis_url: str, spawn: SpawnWorker, tmp_path: Path, count: int, partitions: int
) -> None:
    """Of three workers two work and one stands by, none fails: nine of them, or 24 by the soak."""
    scene = Scene(redis_url, spawn, tmp_path, partitions)
    workers = [scene.worker(f"w{number}", **FAST) for number in range(count)]
    wait_for(lambda: len(scene.snapshot().members) == count, "all have joined", 90)
    wait_for(lambda: sorted(scene.owners().values()) == [1] * partitions, "each partition has its owner", 30)
    scene.send(100 * partitions)
    scene.wait_until_drained()
    states = [member.state for member in scene.snapshot().members]
    assert states.count("active") == partitions and states.count("standby") == count - partitions
    assert all(worker.running for worker in workers)
    scene.check_acked_log()


def test_a_second_signal_ends_a_worker_at_once_with_its_own_exit_code(scene: Scene) -> None:
    """The first SIGTERM waits for the handler, the second does not."""
    worker = scene.worker("w1", HANDLER_S="30")
    scene.wait_for_owners({"w1": 8})
    scene.send(100)
    scene.wait_until_busy(worker)
    worker.terminate()
    wait_for(lambda: "worker_stopping" in worker.log(), "it was told")
    assert worker.running
    worker.terminate()
    assert worker.wait(5) == FORCED


def test_a_worker_whose_handler_hangs_ends_at_its_deadline(scene: Scene) -> None:
    """Even when the event loop itself is blocked; the exit code says that it was forced."""
    worker = scene.worker(
        "w1",
        HANDLER="block",
        HANDLER_S="60",
        STREAMWORKER_GRACE_PERIOD_MS="500",
        STREAMWORKER_SHUTDOWN_TIMEOUT_MS="2000",
    )
    scene.wait_for_owners({"w1": 8})
    scene.send(100)
    scene.wait_until_busy(worker)
    started = time.monotonic()
    worker.send_signal(signal.SIGINT)
    assert worker.wait(20) == FORCED
    assert math.isclose(time.monotonic() - started, 2.0, abs_tol=1.0 + slack_for_this_machine())
