"""Redis goes away and comes back: workers wait, keep their partitions, and lose nothing."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from streamworker.dev.server import EmbeddedServer
from tests.conftest import SpawnWorker
from tests.helpers import wait_for
from tests.rebalance.scene import FAST, Scene

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(data_dir=tmp_path / "data", appendonly=True) as server:
        yield server


@pytest.fixture
def scene(durable: EmbeddedServer, spawn: SpawnWorker, tmp_path: Path) -> Scene:
    return Scene(durable.url, spawn, tmp_path, partitions=8)


def all_ran_since(scene: Scene, moment: float) -> bool:
    return len({call.partition for call in scene.calls() if call.start > moment}) == scene.partitions


def test_a_restart_of_redis_moves_nothing_and_loses_nothing(scene: Scene, durable: EmbeddedServer) -> None:
    """Peers get time to come back before anybody is thought dead."""
    environ = {**FAST, "STREAMWORKER_REDIS_URL": durable.url}
    w1, w2 = scene.worker("w1", **environ), scene.worker("w2", **environ)
    wait_for(lambda: scene.owners() == {"w1": 4, "w2": 4}, "both work", 20)
    before = scene.snapshot().generation
    with scene.steady_load(200):
        wait_for(lambda: len(scene.calls()) > 20, "both are busy")
        for _ in range(3):
            durable.restart()
            back = time.monotonic()
            wait_for(partial(all_ran_since, scene, back), "every partition runs again", 20)
            print(f"every partition ran again {time.monotonic() - back:.2f} s after the restart")
    assert scene.snapshot().generation == before
    assert w1.running and w2.running
    scene.wait_until_drained()
    scene.check_acked_log()


def test_a_redis_that_hangs_is_waited_for(scene: Scene, durable: EmbeddedServer) -> None:
    """SIGSTOP of the server for longer than the session: nothing moves, since nobody can beat."""
    environ = {**FAST, "STREAMWORKER_REDIS_URL": durable.url}
    scene.worker("w1", **environ)
    scene.worker("w2", **environ)
    wait_for(lambda: scene.owners() == {"w1": 4, "w2": 4}, "both work", 20)
    before = scene.snapshot().generation
    scene.send(400)
    os.kill(durable.pid, signal.SIGSTOP)
    time.sleep(3)  # twice the session timeout of this test
    os.kill(durable.pid, signal.SIGCONT)
    scene.send(400)
    scene.wait_until_drained()
    assert scene.snapshot().generation == before
    scene.check_acked_log()


def test_workers_come_back_after_the_database_was_emptied(scene: Scene, durable: EmbeddedServer) -> None:
    """FLUSHALL: the group forms anew with a later generation, and new records are handled."""
    environ = {**FAST, "STREAMWORKER_REDIS_URL": durable.url}
    w1 = scene.worker("w1", **environ)
    scene.wait_for_owners({"w1": 8})
    scene.send(100)
    scene.wait_until_drained()
    before = scene.snapshot().generation
    with redis.Redis.from_url(durable.url) as client:
        client.flushall()
    scene.wait_for_owners({"w1": 8})
    scene.send(100)
    scene.wait_until_drained()
    assert scene.snapshot().generation > before
    assert w1.running
    assert set(range(100, 200)) <= set(scene.executed())
    # What readers need is there again, too: the schema of the rows, and how the stream is made.
    assert {row["n"] for rows in scene.acked().values() for row in rows} == set(range(100, 200))
    with redis.Redis.from_url(durable.url) as client:
        assert client.hget("sw:{ledger.items}:stream", "partitions") == b"8"
