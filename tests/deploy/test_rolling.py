"""deploy/rolling.sh restarts real workers one after the other, while records flow."""

import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from streamworker.errors import BackendUnavailable
from streamworker.settings import Settings
from tests.chaos.forked import Forge, Forked
from tests.cli.test_probes import ask
from tests.conftest import SpawnWorker
from tests.rebalance.scene import APP, ROOT, Scene

pytestmark = [
    pytest.mark.full("starts of Python, one after the other"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

ROLLING = ROOT / "deploy" / "rolling.sh"
PARTITIONS = 12
PER_SECOND = 400
LOOK_EVERY_S = 0.05
HOLD_MS = 120_000
"""Longer than a start of Python takes on a machine that is busy with much else."""
RESTART = """#!/bin/sh
touch "$1.wanted"
while [ -e "$1.wanted" ]; do sleep 0.1; done
"""
"""Asks the test for a restart, and returns when it has ended the old process and started the new one."""


class Ports(dict[str, str]):
    """A free port for each name."""

    def __missing__(self, name: str) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return self.setdefault(name, str(probe.getsockname()[1]))


class Roll:
    """Workers, what is seen of them, and the restarts that the script asks for."""

    def __init__(self, scene: Scene, spawn: SpawnWorker, options: Mapping[str, tuple[str, ...]]) -> None:
        self.scene, self.options = scene, options
        self.environ = {**scene.environ, "STREAMWORKER_HOLD_MS": str(HOLD_MS)}
        self.ports = Ports()
        self.restarted: list[str] = []
        self.without_owner: dict[int, tuple[int, int]] = {}
        """When each partition that has no owner was seen so first and last, by the server's clock."""
        self.longest_ms = 0
        self.owned_by: dict[int, set[str]] = {number: set() for number in range(PARTITIONS)}
        self._spawn = spawn
        self.workers = {name: self._start(name) for name in options}
        scene.wait_for_owners(dict.fromkeys(options, PARTITIONS // len(options)))

    def _start(self, name: str) -> Forked:
        arguments = ("run", APP, "--name", name, "--health-port", self.ports[name], *self.options[name])
        return self._spawn(*arguments, cwd=ROOT, environ=self.environ)

    def is_ready(self, name: str) -> bool:
        return ask(self.ports[name], "/readyz") == (200, "ok")

    def step(self) -> None:
        """Look, and go on with the restart that is wanted."""
        self._look()
        for name, worker in self.workers.items():
            wanted = self.scene.folder / f"{name}.wanted"
            if not wanted.exists():
                assert ask(self.ports[name], "/livez")[0] in {0, 200}  # 0: it has not begun to serve
            elif name not in self.restarted:
                assert all(self.is_ready(each) for each in self.workers), "the script waits for all workers"
                self.restarted.append(name)
                worker.terminate()
            elif not worker.running:
                assert worker.wait() == 0, worker.log()
                self.workers[name] = self._start(name)
                wanted.unlink()

    def _look(self) -> None:
        try:
            snapshot = self.scene.snapshot()
        except BackendUnavailable:  # The machine is busy: the next look tells.
            return
        for view in snapshot.partitions:
            if view.owner:
                self.without_owner.pop(view.partition, None)
                self.owned_by[view.partition].add(view.owner.rpartition(".")[0])  # An id is NAME.NONCE.
            else:
                first, _ = self.without_owner.get(view.partition, (snapshot.taken_ms, 0))
                self.without_owner[view.partition] = first, snapshot.taken_ms
                self.longest_ms = max(self.longest_ms, snapshot.taken_ms - first)

    def run(self) -> None:
        """Run the script to its end."""
        restart = self.scene.folder / "restart"
        restart.write_text(RESTART, "utf-8")
        restart.chmod(0o755)
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        script = subprocess.Popen(
            [ROLLING, APP, *(f"{name}={self.ports[name]}" for name in self.workers)],
            cwd=self.scene.folder,
            env={**self.environ, "PATH": path, "PYTHONPATH": str(ROOT), "RESTART": str(restart)},
        )
        try:
            while script.poll() is None:
                self.step()
                time.sleep(LOOK_EVERY_S)
        finally:
            script.kill()
            script.wait()
        assert script.returncode == 0
        assert self.restarted == list(self.workers)
        assert all(self.is_ready(name) for name in self.workers)


# tests/rebalance/test_assignments.py proves in short that static workers keep their partitions over restarts.
@pytest.mark.parametrize(
    "static", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["membership", "static-ids"]
)
def test_a_rolling_restart_loses_nothing_repeats_nothing_and_leaves_no_partition_alone(
    redis_url: str, crew: Forge, spawn: SpawnWorker, tmp_path: Path, *, static: bool
) -> None:
    """Each record that was sent is forwarded once. What moves has an owner within the grace period. What a
    static worker owned waits for that worker, at most as long as its seat is held.
    """
    scene = Scene(redis_url, crew, tmp_path, PARTITIONS)
    names = ("w1", "w2")
    roll = Roll(scene, spawn, {name: ("--static-id", name) if static else () for name in names})
    with scene.remembered_load(PER_SECOND) as told:
        roll.run()
    scene.wait_until_drained()
    there, gone = scene.judged(told)
    assert there and not gone
    grace_ms = Settings().grace_period_ms
    history = [each for each in scene.snapshot().rebalances if each.cause in {"join", "leave", "return"}]
    slowest_ms = max(each.ms for each in history if each.ms is not None)
    print(
        f"{len(there)} records of {told.sent} sent; without an owner for at most {roll.longest_ms} ms; "
        f"the slowest of {len(history)} rebalances took {slowest_ms} ms; grace {grace_ms} ms"
    )
    assert all(each.ms is not None for each in history)
    assert slowest_ms <= grace_ms
    if static:
        assert {number: owners for number, owners in roll.owned_by.items() if len(owners) > 1} == {}
        assert roll.longest_ms <= HOLD_MS
    else:
        assert roll.longest_ms <= grace_ms
