"""A chain on a Cluster whose nodes fail over: with waits for replicas each record arrives once."""

from pathlib import Path

import pytest

from streamworker.dev.cluster import EmbeddedCluster
from streamworker.redisio.keys import StreamKeys
from tests.chains.scene import CHAIN, ChainScene
from tests.chaos.forked import Forge
from tests.cluster.support import fail_over, primary_of
from tests.helpers import wait_for

pytestmark = pytest.mark.full("a Cluster that loses its nodes one after the other")


@pytest.mark.parametrize("failovers", [3, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.timeout(900)
def test_a_chain_survives_failovers_of_its_sources_and_targets(
    nodes: EmbeddedCluster, crew: Forge, tmp_path: Path, failovers: int
) -> None:
    """Its streams lie on three nodes; with `durability="replicas"` nothing is lost, doubled or told."""
    scene = ChainScene(nodes.url, crew, tmp_path, seed=failovers, durability="replicas")
    workers = [scene.worker() for _ in range(2)]
    # A worker that starts gives up if it cannot do so for half a minute.
    wait_for(lambda: len(scene.told("worker_started")) == 2, "both work")
    for number in range(failovers):
        scene.send(500)
        stream = list(CHAIN.values())[number % len(CHAIN)]
        fail_over(nodes, primary_of(nodes, StreamKeys("chain", stream).events(0)))
    scene.send(500)
    scene.until_arrived(300)
    for worker in workers:
        worker.terminate()
        worker.wait()
    scene.check()
    assert not scene.told("forwarded_records_lost", "outbox_diverged")
