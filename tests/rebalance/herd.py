"""Many workers that join at once: how long until they agree, and what it costs Redis.

Real workers, each with its connections and its heartbeat thread, but many in a process: on two cores
fifty processes would take a minute to start. They wait where they have declared what they need, and
join in the same millisecond.
"""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.rebalances.app import PREFIX, gate_key, make_app, wait_at_the_gate
from benchmarks.rebalances.command_count import CommandCount
from streamworker import App
from streamworker.core.protocols.membership.document import Membership
from streamworker.dev.server import EmbeddedServer
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.worker import Worker
from tests.chaos.forked import Forge, Forked
from tests.helpers import wait_for_async

PROCESSES = 2
POLL_S = 0.05
START_TIMEOUT_S = 90.0
AGREE_TIMEOUT_S = 60.0
SETTLE_S = 0.5
"""Counted is until so long after they agreed: what still comes then belongs to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Herd:
    """What it was like when many workers joined at once."""

    workers: int
    agree_ms: int | None
    """Until the document had all of them and each lock was held by whom it names; None: not in time."""
    generations: int
    """Versions of the document that it took."""
    commands: Mapping[str, int]
    """What the workers sent, by command or script, until half a second after they agreed."""

    @property
    def commands_a_worker(self) -> float:
        return sum(self.commands.values()) / self.workers


class _Waiting(Worker):
    """A worker that joins when it is let go."""

    async def _prepare(self, backend: Backend) -> None:
        await super()._prepare(backend)
        assert isinstance(self._app, App)
        await wait_at_the_gate(self._app, self.name)


async def run_herd(forge: Forge, *, workers: int, partitions: int) -> Herd:
    """Let workers join at once on a server of their own; return what that was like."""
    with EmbeddedServer() as server:
        name = f"herd-{secrets.token_hex(4)}"
        environ = {
            "STREAMWORKER_REDIS_URL": server.url,
            f"{PREFIX}APP": name,
            f"{PREFIX}PARTITIONS": str(partitions),
            "WORKER_APP": __name__,
        }
        bounds = [workers * n // PROCESSES for n in range(PROCESSES + 1)]
        processes = [
            forge.fork(f"{name}-{first}", {**environ, "FORKED_PROGRAM": f"{first} {last}"})
            for first, last in pairwise(bounds)
        ]
        keys = GroupKeys(name, "ticks", "handled")
        try:
            async with Backend.open(server.url, name="observer") as backend:
                await _all_ready(backend, gate_key(name, "ready"), workers, processes)
                async with CommandCount(server.url) as count:
                    gates = [gate_key(name, f"w{n}") for n in range(workers)]
                    begun_ms = await backend.time_ms()
                    await backend.pipeline([("RPUSH", gate, "go") for gate in gates])
                    agreed_ms = await _until_agreed(backend, keys, workers, partitions)
                    await asyncio.sleep(SETTLE_S)
                messages = await backend.execute("XRANGE", keys.control, "-", "+")
        finally:
            for process in processes:
                process.kill()
    return Herd(
        workers=workers,
        agree_ms=None if agreed_ms is None else agreed_ms - begun_ms,
        generations=sum(b"changed" in flat for _, flat in messages),
        commands=dict(count.by_name),
    )


async def _all_ready(backend: Backend, ready: str, workers: int, processes: Sequence[Forked]) -> None:
    async def are_ready() -> bool:
        for process in processes:
            assert process.running, process.log()
        return bool(await backend.execute("SCARD", ready) >= workers)

    await wait_for_async(are_ready, "all workers wait at the gate", START_TIMEOUT_S)


async def _until_agreed(backend: Backend, keys: GroupKeys, workers: int, partitions: int) -> int | None:
    """Wait until all have joined and all have what they should; return when that was."""
    asked = [("HMGET", keys.lock(p), "owner", "since") for p in range(partitions)]
    deadline = time.monotonic() + AGREE_TIMEOUT_S
    while time.monotonic() < deadline:
        document, *locks = await backend.pipeline([("GET", keys.members), *asked])
        if document is not None:
            membership = Membership.parse(document)
            owners = [(owner or b"").decode() for owner, _ in locks]
            if len(membership.active_ids) == workers and list(membership.owners) == owners:
                return max(membership.generation, *(int(since or 0) for _, since in locks))
        await asyncio.sleep(POLL_S)
    return None


async def main() -> None:
    """Run the workers of some numbers, with the variables of ``benchmarks.rebalances.app``."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(*map(int, sys.argv[1:])):
            tasks.create_task(_Waiting(make_app(os.environ), name=f"w{number}").run())
