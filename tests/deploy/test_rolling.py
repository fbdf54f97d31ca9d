"""deploy/rolling.sh restarts real workers one after the other, while records flow."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from streamworker.dev.server import free_port
from streamworker.errors import BackendUnavailable
from streamworker.settings import Settings
from tests.chaos.forked import ROOT, Forge, Forked
from tests.chaos.team import APP, Team
from tests.cli.test_probes import ask
from tests.conftest import SpawnWorker

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.full("starts of Python, one after the other"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

ROLLING = ROOT / "deploy" / "rolling.sh"
PARTITIONS = 12
WORKERS = ("w1", "w2")
PER_SECOND = 400
LOOK_EVERY_S = 0.05
MOVES = {"join", "leave", "return"}
RESTART = """#!/bin/sh
touch "$1.wanted"
while [ -e "$1.wanted" ]; do sleep 0.1; done
"""
"""Asks the test for a restart, and returns when it has ended the old process and started the new one."""


class Ports(dict[str, str]):
    """A free port for each name."""

    def __missing__(self, name: str) -> str:
        return self.setdefault(name, str(free_port()))


class Roll:
    """Workers, what is seen of them, and the restarts that the script asks for."""

    def __init__(self, team: Team, spawn: SpawnWorker, folder: Path) -> None:
        self.team, self.folder = team, folder
        self.ports = Ports()
        self.restarted: list[str] = []
        self.without_owner: dict[int, tuple[int, int]] = {}
        """When each partition that has no owner was seen so first and last, by the server's clock."""
        self.longest_ms = 0
        self._spawn = spawn
        self.workers = {name: self._start(name) for name in WORKERS}

    def _start(self, name: str) -> Forked:
        arguments = ("run", APP, "--name", name, "--health-port", self.ports[name])
        return self._spawn(*arguments, cwd=ROOT, environ={**self.team.environ})

    def is_ready(self, name: str) -> bool:
        return ask(self.ports[name], "/readyz") == (200, "ok")

    def step(self) -> None:
        """Go on with the restart that is wanted."""
        for name, worker in self.workers.items():
            wanted = self.folder / f"{name}.wanted"
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

    async def look(self) -> None:
        try:
            snapshot = await self.team.snapshot()
        except BackendUnavailable:  # The machine is busy: the next look tells.
            return
        for view in snapshot.partitions:
            if view.owner:
                self.without_owner.pop(view.partition, None)
            else:
                first, _ = self.without_owner.get(view.partition, (snapshot.taken_ms, 0))
                self.without_owner[view.partition] = first, snapshot.taken_ms
                self.longest_ms = max(self.longest_ms, snapshot.taken_ms - first)

    def begin(self) -> "subprocess.Popen[bytes]":
        """Start the script."""
        restart = self.folder / "restart"
        restart.write_text(RESTART, "utf-8")
        restart.chmod(0o755)
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        return subprocess.Popen(
            [ROLLING, APP, *(f"{name}={self.ports[name]}" for name in self.workers)],
            cwd=self.folder,
            env={**self.team.environ, "PATH": path, "PYTHONPATH": str(ROOT), "RESTART": str(restart)},
        )

    async def run(self) -> None:
        """Run the script to its end."""
        script = self.begin()
        try:
            while script.poll() is None:
                await self.look()
                await asyncio.to_thread(self.step)
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            script.kill()
            script.wait()
        assert script.returncode == 0
        assert self.restarted == list(self.workers)
        assert all(self.is_ready(name) for name in self.workers)


async def test_a_rolling_restart_loses_nothing_repeats_nothing_and_leaves_no_partition_alone(
    redis_url: str, crew: Forge, spawn: SpawnWorker, tmp_path: Path
) -> None:
    """Each record that was sent is forwarded once. What moves has an owner within the grace period. That
    static workers keep their partitions meanwhile is in tests/rebalance/test_assignments.py.
    """
    async with Team(redis_url, crew, tmp_path, name="rolled", partitions=PARTITIONS, environ={}) as team:
        roll = Roll(team, spawn, tmp_path)

        async def is_shared() -> bool:
            return await team.shares() == dict.fromkeys(WORKERS, PARTITIONS // len(WORKERS))

        await team.until("they share the partitions", is_shared)
        async with team.load(PER_SECOND):
            await roll.run()
        await team.finished()
        history = [each for each in (await team.snapshot()).rebalances if each.cause in MOVES]
    assert team.sends.confirmed
    grace_ms = Settings().grace_period_ms
    slowest_ms = max(each.ms for each in history if each.ms is not None)
    print(
        f"{len(team.sends.confirmed)} records sent; without an owner for at most {roll.longest_ms} ms; "
        f"the slowest of {len(history)} rebalances took {slowest_ms} ms; grace {grace_ms} ms"
    )
    assert all(each.ms is not None for each in history)
    assert slowest_ms <= grace_ms
    assert roll.longest_ms <= grace_ms
