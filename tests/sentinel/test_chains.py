"""A chain on one server that sentinels replace, and that loses writes: what is lost or doubled is told."""

import random
import time
from functools import partial
from pathlib import Path

import pytest

from streamworker.redisio.keys import StreamKeys
from tests.chains.losses import KEPT, PARTITIONS, Judge
from tests.chains.scene import ChainScene
from tests.chaos.forked import Forge
from tests.helpers import wait_for
from tests.sentinel.test_failovers import ZOMBIE_NOTICES_S
from tests.stage.server import Server
from tests.stage.trio import Trio

pytestmark = pytest.mark.full("sentinels, replicas and failovers, which take seconds each")


def entries(primary: Server) -> int:
    """Return how many entries the first stream of the chain has."""
    keys = StreamKeys("chain", "items")
    return sum(int(primary.call("XLEN", keys.events(p))) for p in range(PARTITIONS["items"]))


def has_more(primary: Server, than: int) -> bool:
    return entries(primary) > than


@pytest.mark.parametrize("failovers", [2, pytest.param(8, marks=pytest.mark.soak)])
@pytest.mark.timeout(900)
def test_sources_and_targets_that_go_back_together(
    steady: Trio, crew: Forge, tmp_path: Path, failovers: int
) -> None:
    """What went back at both ends is handled again. A worker may forward what only it still remembers."""
    draw = random.Random(failovers)
    scene = ChainScene(steady.url, crew, tmp_path)
    scene.hire("w1", "w2", **KEPT)
    wait_for(lambda: len(scene.logged("worker_started")) == 2, "both work")
    judge = Judge(scene)
    for _ in range(failovers):
        with judge.flow():
            time.sleep(0.5)
            with steady.replicas_cut_off() as primary:
                before = entries(primary)
                time.sleep(0.2 + 0.3 * draw.random())
                # On a busy machine nothing may have been sent yet that is lost.
                wait_for(partial(has_more, primary, before + 8), "records are sent")
                primary.kill()
            steady.replace(primary)
        judge.settle()
        judge.judge()
        steady.bring_back(primary)
        steady.wait_until_whole(ZOMBIE_NOTICES_S)
    print(f"{failovers} failovers: {judge.verdict}")
    assert judge.verdict.unsent, "nothing was lost"
    assert not judge.verdict.lost, "what a source has forgotten, its target on the same server has, too"
