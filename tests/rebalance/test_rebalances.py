"""What does not move in a rebalance does not pause, and workers that are asked to end do."""

import math
import signal
import time
from itertools import pairwise
from statistics import median

import pytest

from streamworker.runtime.watch.stages import FORCED
from tests.helpers import wait_for
from tests.rebalance.scene import Call, Scene, slack_for_this_machine

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.full("sessions and holds run out, and how long partitions stand still is measured"),
    pytest.mark.alone("how long partitions stand still, with sessions of about a second"),
]


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
