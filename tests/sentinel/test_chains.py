"""A chain on one server that sentinels replace, and that loses writes: what is lost or doubled is told."""

import random
import time

import pytest

from tests.chains.losses import KEPT, Judge
from tests.chains.scene import ChainScene
from tests.conftest import SpawnWorker
from tests.helpers import wait_for
from tests.sentinel.test_failovers import ZOMBIE_NOTICES_S
from tests.sentinel.trio import DOWN_AFTER_MS, QUIET_MS, Trio


@pytest.mark.parametrize("failovers", [2, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.timeout(900)
def test_sources_and_targets_that_go_back_together(steady: Trio, spawn: SpawnWorker, failovers: int) -> None:
    """What went back at both ends is handled again. A worker may forward what only it still remembers."""
    draw = random.Random(failovers)
    scene = ChainScene(steady.url, spawn)
    for _ in range(2):
        scene.worker(**KEPT)
    wait_for(lambda: len(scene.told("worker_started")) == 2, "both work")
    judge = Judge(scene)
    for _ in range(failovers):
        with judge.flow():
            time.sleep(0.5)
            with steady.replicas_cut_off() as primary:
                time.sleep(0.2 + 0.3 * draw.random())
                steady.let_primary_be_silent(DOWN_AFTER_MS)
                primary.kill()
            steady.wait_for_other_primary(primary)
            steady.let_primary_be_silent(QUIET_MS)  # No other failover: a busy machine has some.
        judge.settle()
        judge.judge()
        steady.bring_back(primary)
        steady.wait_until_whole(ZOMBIE_NOTICES_S)
    print(f"{failovers} failovers: {judge.verdict}")
    assert judge.verdict.unsent, "nothing was lost"
    assert not judge.verdict.lost, "what a source has forgotten, its target on the same server has, too"
