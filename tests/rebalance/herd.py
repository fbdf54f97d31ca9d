"""Many workers that join at once: how long until they agree, and what it costs Redis.

Real workers, each with its connections and its heartbeat thread, but many in a process: on two cores
fifty processes would take a minute to start. They wait where they have declared what they need, and
join in the same millisecond.

The processes are ``python -m tests.rebalance.herd FIRST COUNT``, with the variables of
``benchmarks.rebalances.app``.
"""

import asyncio
import contextlib
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from benchmarks.rebalances.app import PREFIX, gate_key, make_app, wait_at_the_gate
from benchmarks.rebalances.command_count import CommandCount
from streamworker import App
from streamworker.core.protocols.membership.document import Membership
from streamworker.dev.children import Child
from streamworker.dev.server import EmbeddedServer
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.worker import Worker

POLL_S = 0.05
START_TIMEOUT_S = 90.0
SETTLE_S = 0.5
"""Counted is until so long after they agreed: what still comes then belongs to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Herd:
    """What it was like when many workers joined at once."""

    protocol: str
    workers: int
    partitions: int
    agree_ms: int | None
    """Until the document had all of them and each lock was held by whom it names; None: not in time."""
    generations: int
    """Versions of the document that it took."""
    acquisitions: int
    """Locks taken until then; as many as there are partitions if none was taken twice."""
    commands: Mapping[str, int]
    """What the workers sent, by command or script, until half a second after they agreed."""
    commands_of_one: int
    """What the worker sent that sent most, on connections that were still open."""

    @property
    def commands_a_worker(self) -> float:
        return sum(self.commands.values()) / self.workers


class _Waiting(Worker):
    """A worker that joins when it is let go."""

    async def _prepare(self, backend: Backend) -> bool:
        goes_on = await super()._prepare(backend)
        assert isinstance(self._app, App)
        await wait_at_the_gate(self._app, self.name)
        return goes_on


async def run_herd(
    *,
    workers: int = 50,
    partitions: int = 256,
    protocol: str = "membership",
    assignment: str = "range",
    processes: int = 2,
    timeout_s: float = 60.0,
) -> Herd:
    """Let workers join at once on a server of their own; return what that was like."""
    # By TCP: MONITOR tells clients apart by their ports, and not at all on a unix socket.
    with EmbeddedServer(port=0) as server, tempfile.TemporaryDirectory(prefix="herd-") as where:
        name = f"herd-{secrets.token_hex(4)}"
        environ = {
            "STREAMWORKER_REDIS_URL": server.url,
            f"{PREFIX}APP": name,
            f"{PREFIX}PROTOCOL": protocol,
            f"{PREFIX}ASSIGNMENT": assignment,
            f"{PREFIX}PARTITIONS": str(partitions),
        }
        bounds = [workers * n // processes for n in range(processes + 1)]
        children = [
            Child(
                [sys.executable, "-m", "tests.rebalance.herd", str(first), str(last - first)],
                log_path=Path(where) / f"{first}.log",
                environ=environ,
            )
            for first, last in pairwise(bounds)
        ]
        try:
            async with Backend.open(server.url, name="observer") as backend:
                await _all_ready(backend, gate_key(name, "ready"), workers, children)
                watch = _Watch(backend, GroupKeys(name, "ticks", "handled"), workers, partitions)
                async with CommandCount(server.url) as count:
                    gates = [gate_key(name, f"w{n}") for n in range(workers)]
                    begun_ms = await backend.time_ms()
                    await backend.pipeline([("RPUSH", gate, "go") for gate in gates])
                    agreed_ms = await watch.until_agreed(timeout_s)
                    await asyncio.sleep(SETTLE_S)
                    names = await _names_by_address(backend)
                return Herd(
                    protocol=protocol,
                    workers=workers,
                    partitions=partitions,
                    agree_ms=None if agreed_ms is None else agreed_ms - begun_ms,
                    generations=await watch.generations(),
                    acquisitions=await watch.acquisitions(),
                    commands=dict(count.by_name),
                    commands_of_one=_most_of_one(count.by_client, names),
                )
        finally:
            for child in children:
                child.kill()


async def _all_ready(backend: Backend, ready: str, workers: int, children: list[Child]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while await backend.execute("SCARD", ready) < workers:
        ended = [child for child in children if not child.running]
        if ended or time.monotonic() > deadline:
            logs = "\n".join(child.log_tail() for child in ended or children)
            raise RuntimeError(f"The workers did not start:\n{logs}")
        await asyncio.sleep(POLL_S)


async def _names_by_address(backend: Backend) -> dict[str, str]:
    listed = (await backend.execute("CLIENT", "LIST")).decode()
    fields = [dict(pair.split("=", 1) for pair in line.split(" ")) for line in listed.splitlines() if line]
    return {each["addr"]: each.get("name", "").partition(":")[0] for each in fields}


def _most_of_one(by_client: Mapping[str, int], names: Mapping[str, str]) -> int:
    totals: Counter[str] = Counter()
    for address, number in by_client.items():
        if names.get(address, "").startswith("w"):
            totals[names[address]] += number
    return max(totals.values(), default=0)


class _Watch:
    def __init__(self, backend: Backend, keys: GroupKeys, workers: int, partitions: int) -> None:
        self._backend, self._keys = backend, keys
        self._workers, self._partitions = workers, partitions

    async def until_agreed(self, timeout_s: float) -> int | None:
        """Wait until all have joined and all have what they should; return when that was."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            at_ms = await self._agreed_ms()
            if at_ms is not None:
                return at_ms
            await asyncio.sleep(POLL_S)
        return None

    async def _agreed_ms(self) -> int | None:
        document, *locks = await self._backend.pipeline(
            [
                ("GET", self._keys.members),
                *(("HMGET", self._keys.lock(p), "owner", "since") for p in range(self._partitions)),
            ]
        )
        owners = [(owner or b"").decode() for owner, _ in locks]
        since_ms = max(int(since or 0) for _, since in locks)
        if document is None:  # The other protocols have none: shares that are even will do.
            sizes = Counter(owners)
            even = len(sizes) == min(self._workers, self._partitions) and "" not in sizes
            return since_ms if even and max(sizes.values()) - min(sizes.values()) <= 1 else None
        membership = Membership.parse(document)
        if len(membership.active_ids) < self._workers or list(membership.owners) != owners:
            return None
        return max(since_ms, membership.generation)

    async def generations(self) -> int:
        entries = await self._backend.execute("XRANGE", self._keys.control, "-", "+")
        return sum(b"changed" in flat for _, flat in entries)

    async def acquisitions(self) -> int:
        """Return how many locks were taken, by what was posted."""
        entries = await self._backend.execute("XRANGE", self._keys.control, "-", "+")
        fields = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in entries]
        return sum(len(each[b"partitions"].split(b",")) for each in fields if each[b"kind"] == b"acquired")


async def _run_some(first: int, count: int) -> None:
    pa.array([0])  # Loads pandas where that is installed, which takes a second.
    async with asyncio.TaskGroup() as tasks:
        for number in range(first, first + count):
            tasks.create_task(_Waiting(make_app(os.environ), name=f"w{number}").run())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run_some(int(sys.argv[1]), int(sys.argv[2])))
