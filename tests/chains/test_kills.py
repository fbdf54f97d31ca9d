"""A chain whose workers are killed: each record arrives once, in the order of its key."""

import time

import pytest

from tests.chains.scene import ChainScene
from tests.conftest import SpawnWorker
from tests.helpers import wait_for

pytestmark = pytest.mark.full("kills workers for a quarter of a minute")

WORKERS = 3


@pytest.mark.parametrize(
    ("records", "kills"), [(12_000, 8), pytest.param(300_000, 200, marks=pytest.mark.soak)]
)
@pytest.mark.timeout(1_800)
def test_a_chain_whose_workers_are_killed_loses_and_doubles_nothing(
    redis_url: str, spawn: SpawnWorker, records: int, kills: int
) -> None:
    """Three processors over three streams with different keys and partition counts."""
    scene = ChainScene(redis_url, spawn, seed=kills)
    workers = [scene.worker(PAUSE_S="0.001") for _ in range(WORKERS)]
    for _ in range(kills):
        scene.send(records // kills)
        before = scene.arrived()
        wait_for(lambda before=before: scene.arrived() > before, "records arrive at the far end", 60)  # type: ignore[misc]
        time.sleep(scene.random.random() / 4)
        victim = scene.random.randrange(WORKERS)
        workers[victim].kill()
        workers[victim] = scene.worker(PAUSE_S="0.001")
    scene.until_arrived(60 + records / 200)
    # What a killed worker had forwarded and not deleted goes once its partitions have an owner again.
    wait_for(lambda: not any(each.outbox for each in scene.snapshots()), "the outboxes are empty", 60)
    for worker in workers:
        # The others may be done before the last victim's successor has begun.
        wait_for(lambda worker=worker: "worker_started" in worker.log(), "it heeds signals")  # type: ignore[misc]
        worker.terminate()
    assert [worker.wait() for worker in workers] == [0] * WORKERS
    assert [snapshot.outbox for snapshot in scene.snapshots()] == [0, 0, 0]
    scene.check()
