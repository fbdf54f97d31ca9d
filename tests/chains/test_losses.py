"""A chain on a Cluster whose nodes fail over and lose writes: whatever is lost or doubled is told."""

import random
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from streamworker.redisio.keys import StreamKeys
from tests.chains.losses import KEPT, PARTITIONS, Judge
from tests.chains.scene import CHAIN, ChainScene
from tests.chaos.forked import Forge
from tests.helpers import wait_for
from tests.stage.cluster import Cluster
from tests.stage.server import cut_off

pytestmark = pytest.mark.full(
    "a Cluster that loses its nodes one after the other, each time with what it had confirmed last"
)


@pytest.mark.parametrize("failovers", [2, pytest.param(8, marks=pytest.mark.soak)])
@pytest.mark.parametrize("durability", ["memory", "replicas"])
@pytest.mark.timeout(900)
def test_each_loss_and_each_double_is_told(
    nodes: Cluster, crew: Forge, tmp_path: Path, durability: str, failovers: int
) -> None:
    """Of sources and targets in turn. With waits there is none; else their replicas had not followed."""
    draw, is_safe = random.Random(failovers), durability == "replicas"
    scene = ChainScene(nodes.url, crew, tmp_path, durability=durability)
    scene.hire("w1", "w2", **KEPT)
    wait_for(lambda: len(scene.logged("worker_started")) == 2, "both work")
    judge = Judge(scene)
    for number in range(failovers):
        stream = list(CHAIN.values())[number % len(CHAIN)]
        partition = draw.randrange(PARTITIONS[stream])
        primary = nodes.primary_of(StreamKeys("chain", stream).events(partition))
        passed = scene.arrived()
        with judge.flow() as told:
            wait_for(lambda told=told: len(told.confirmed) > 100, "records flow")  # type: ignore[misc]
            with nullcontext() if is_safe else cut_off(primary, nodes.replica_of(primary)):
                # Also on a busy machine some are confirmed and pass through the chain while it is cut off.
                goal = passed + len(told.confirmed) + 50
                time.sleep(0.2 + 0.3 * draw.random())
                wait_for(lambda goal=goal: scene.arrived() > goal, "some pass meanwhile")  # type: ignore[misc]
                nodes.fail_over(primary)
            nodes.make_whole()
        judge.settle()
        judge.judge()
    print(f"{failovers} failovers: {judge.verdict}")
    found = [bool(each) for each in (judge.verdict.unsent, judge.verdict.lost, judge.verdict.doubled)]
    assert found == [not is_safe] * 3, "with waits something was lost, or else too little"
