"""Measure the cost of joins, leaves and deaths with real worker processes on a real server.

Workers start beforehand and wait for a signal to join, so that no figure includes the start of a process.
A steady flow of records shows when each partition is handled. All times are the server's.

``docs/compare.py`` measures the same changes under each protocol, and draws them.
"""

import asyncio
import contextlib
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.measuring.ground import remove_keys
from benchmarks.rebalances.app import PREFIX, gate_key, make_app, send_ticks
from benchmarks.rebalances.command_count import CommandCount
from benchmarks.rebalances.facts import (
    Change,
    Commit,
    Held,
    all_committed_ms,
    least_moves,
    longest_of,
    percentile,
    spread,
)
from streamworker.core.control import GroupChanged
from streamworker.core.data.entries import EntryId
from streamworker.core.protocols.registry import from_fields
from streamworker.dev.children import Child
from streamworker.errors import StreamworkerError
from streamworker.redisio.group.control import fields_of
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend

POLL_S = 0.1
QUIET_S = 2.0
"""Pause after a start, until late commands such as the first trim and the second heartbeat are over."""
START_TIMEOUT_S = 90.0
CALL_TIMEOUT_MS = 20_000
"""Long, since the workers keep the machine busy."""
EVEN = 1
"""Largest difference between the shares of a balanced group."""


class Rebalances:
    """A measured group; an async context manager. Its keys begin with ``name``, and are removed at the end.

    Each partition gets ``per_second`` records during :meth:`load`. The group counts as settled when no lock
    has changed its owner for ``settle_s``; balance is waited for for ``timeout_s``.
    """

    def __init__(
        self,
        url: str,
        *,
        protocol: str = "membership",
        assignment: str = "range",
        partitions: int = 256,
        per_second: float = 4.0,
        settle_s: float = 1.0,
        timeout_s: float = 120.0,
        name: str | None = None,
    ) -> None:
        self.protocol, self.assignment, self.partitions = protocol, assignment, partitions
        self.commits: dict[int, list[Commit]] = {p: [] for p in range(partitions)}
        """The commits of each partition, which :meth:`read_commits` reads."""
        self.acts: list[tuple[str, str, int]] = []
        """The measured changes: kind, worker and time."""
        self._url = url
        self._per_second, self._settle_s, self._timeout_s = per_second, settle_s, timeout_s
        self._read_to = ["-"] * partitions
        self._name = name or f"rebalances-{secrets.token_hex(4)}"
        self._environ = {
            "STREAMWORKER_REDIS_URL": url,
            f"{PREFIX}APP": self._name,
            f"{PREFIX}PROTOCOL": protocol,
            f"{PREFIX}ASSIGNMENT": assignment,
            f"{PREFIX}PARTITIONS": str(partitions),
        }
        self._app = make_app(self._environ)
        self._keys = GroupKeys(self._name, "ticks", "handled")
        self._children: dict[str, Child] = {}
        self._acquired: set[tuple[int, int]] = set()
        """Partition and epoch of each acquisition that a look has seen."""
        self._live: list[str] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._where = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rebalances-")))
        self._backend = await self._stack.enter_async_context(
            Backend.open(self._url, name="observer", call_timeout_ms=CALL_TIMEOUT_MS)
        )
        await self._stack.enter_async_context(self._app)
        return self

    async def __aexit__(self, *_: object) -> None:
        for child in self._children.values():
            child.kill()
        with contextlib.suppress(StreamworkerError):
            await remove_keys(self._backend, self._name)
        await self._stack.aclose()

    # -- workers -------------------------------------------------------------------------------

    @property
    def live(self) -> tuple[str, ...]:
        """The workers that are in the group."""
        return tuple(self._live)

    async def prepare(self, *names: str) -> None:
        """Start workers, and wait until they are ready to join."""
        for name in names:
            self._children[name] = Child(
                [sys.executable, "-m", "benchmarks.rebalances.app", name],
                log_path=self._where / f"{name}.log",
                environ=self._environ,
            )
        ready = gate_key(self._name, "ready")
        await self._until(
            f"the workers {', '.join(names)} have started",
            lambda: self._all_in(ready, names),
            START_TIMEOUT_S,
        )

    async def _all_in(self, ready: str, names: Sequence[str]) -> bool:
        self._look_after_children()
        return all(await self._backend.execute("SMISMEMBER", ready, *names))

    def _look_after_children(self) -> None:
        for name in {*self._live, *self._children}:
            child = self._children[name]
            if not child.running and name in self._live:
                raise RuntimeError(f"Worker {name} ended with {child.exit_code}:\n{child.log_tail()}")

    async def join(self, *names: str) -> int:
        """Signal prepared workers to join; return the server's time of the signal."""
        at_ms = await self._backend.time_ms()
        gates = [gate_key(self._name, name) for name in names]
        await self._backend.pipeline([("RPUSH", gate, "go") for gate in gates])
        self._live += names
        return at_ms

    async def leave(self, name: str) -> int:
        """Ask a worker to leave (SIGTERM); return the server's time."""
        at_ms = await self._backend.time_ms()
        self._live.remove(name)
        self._children[name].terminate()
        return at_ms

    async def kill(self, name: str) -> int:
        """Kill a worker (SIGKILL); return the server's time."""
        at_ms = await self._backend.time_ms()
        self._live.remove(name)
        self._children[name].kill()
        return at_ms

    async def _do(self, what: str, who: str) -> int:
        if what == "join":
            return await self.join(who)
        return await (self.leave(who) if what == "leave" else self.kill(who))

    # -- observation ---------------------------------------------------------------------------

    async def look(self) -> list[Held]:
        """Return the current state of all locks."""
        fields = ("owner", "epoch", "since")
        commands = [("HMGET", self._keys.lock(p), *fields) for p in range(self.partitions)]
        found = []
        for owner, epoch, since in await self._backend.pipeline(commands):
            name = (owner or b"").decode()
            found.append(Held(name.rpartition(".")[0], int(epoch or 0), int(since or 0)))
        self._acquired.update((p, held.epoch) for p, held in enumerate(found))
        return found

    async def rest(self, timeout_s: float | None = None) -> tuple[list[Held], bool]:
        """Wait until live workers hold all locks in even shares and no lock changes its owner.

        Return the locks, and whether this happened within the timeout.
        """
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        before, since = await self.look(), time.monotonic()
        while True:
            await asyncio.sleep(POLL_S)
            self._look_after_children()
            locks, now = await self.look(), time.monotonic()
            if [each.epoch for each in locks] != [each.epoch for each in before]:
                since = now
            before = locks
            whole = all(each.owner in self._live for each in locks)
            even = whole and spread((each.owner for each in locks), self._live) <= EVEN
            if even and now - since >= self._settle_s:
                return locks, True
            if now > deadline:
                return locks, False

    async def read_commits(self) -> None:
        """Read the commits since the last call."""
        logs = [self._keys.acked(p) for p in range(self.partitions)]
        for first in range(0, self.partitions, 32):
            some = range(first, min(first + 32, self.partitions))
            commands = [("XRANGE", logs[p], self._read_to[p], "+") for p in some]
            for p, entries in zip(some, await self._backend.pipeline(commands), strict=True):
                for entry_id, flat in entries:
                    fields = dict(zip(flat[::2], flat[1::2], strict=True))
                    sent = EntryId.parse(fields[b"first"]).ms
                    owner = fields[b"owner"].decode().rpartition(".")[0]
                    self.commits[p].append(Commit(int(fields[b"at"]), sent, owner, int(fields[b"epoch"])))
                    self._read_to[p] = f"({entry_id.decode()}"

    async def messages(self, since_ms: int) -> list[tuple[int, object]]:
        """Return the messages of the control stream since a time."""
        entries = await self._backend.execute("XRANGE", self._keys.control, since_ms, "+")
        return [(EntryId.parse(i).ms, from_fields(fields_of(flat))) for i, flat in entries]

    # -- load ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Send records to all partitions during the block, at the same rate to each."""
        task = asyncio.create_task(send_ticks(self._app, self.partitions, self._per_second))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # -- one change ----------------------------------------------------------------------------

    async def measure(
        self,
        what: str,
        who: str,
        *,
        quiet_s: float = 2.0,
        is_loaded: bool = True,
        before_s: float | None = None,
    ) -> Change:
        """Let a worker join, leave or die (``death``), and return the measurement.

        The group is observed for ``quiet_s`` before the change; balance is waited for for ``before_s``, or as
        after it. Unless :meth:`load` is active, commands are counted instead of pauses.
        """
        locks, _ = await self.rest(before_s)
        workers, seen = len(self._live), len(self._acquired)
        async with CommandCount(self._url if not is_loaded else None) as count:
            await asyncio.sleep(quiet_s)
            at_rest = count.total / quiet_s
            begun_with = count.total
            at_ms = await self._do(what, who)
            after, is_even = await self.rest()
            commands = count.total - begun_with
            seconds = (await self._backend.time_ms() - at_ms) / 1000
        self.acts.append((what, who, at_ms))
        moved = [p for p in range(self.partitions) if after[p].epoch != locks[p].epoch]
        last_ms = max((after[p].since_ms for p in moved), default=at_ms)
        resumed_ms = await self._all_committed_ms(last_ms) if is_loaded else last_ms
        until_ms = max(last_ms + 1_000, resumed_ms)
        stayed = set(range(self.partitions)) - set(moved)
        handovers = await self._handovers(at_ms, after, moved)
        return Change(
            what=what,
            protocol=self.protocol,
            workers=workers,
            partitions=self.partitions,
            moves=len(self._acquired) - seen,
            least=least_moves([each.owner for each in locks], self.live),
            spread=spread((each.owner for each in after), self._live),
            balance_ms=last_ms - at_ms if is_even else None,
            handover_p50_ms=percentile(handovers, 50),
            handover_p99_ms=percentile(handovers, 99),
            pause_moved_ms=longest_of(self.commits, moved, at_ms, until_ms) if is_loaded else None,
            pause_unmoved_ms=longest_of(self.commits, stayed, at_ms, until_ms) if is_loaded else None,
            pause_before_ms=longest_of(
                self.commits, range(self.partitions), at_ms - int(quiet_s * 1000), at_ms
            )
            if is_loaded
            else None,
            commands=None if is_loaded else max(0, round(commands - at_rest * seconds)),
        )

    async def _all_committed_ms(self, since_ms: int) -> int:
        """Wait until each partition has a commit after a time; return the time of the last one's commit.

        A pause is measured up to the commit that ends it, so a pause that still lasts would be missed.
        """

        async def are_all() -> bool:
            await self.read_commits()
            return all_committed_ms(self.commits, since_ms) is not None

        await self._until("each partition is committed to again", are_all, self._timeout_s)
        return all_committed_ms(self.commits, since_ms) or since_ms

    async def _handovers(self, at_ms: int, after: Sequence[Held], moved: Sequence[int]) -> list[int]:
        """Return the time from the message about each partition's move to the acquisition of its lock."""
        told: dict[int, int] = {}
        for then_ms, message in await self.messages(at_ms):
            if isinstance(message, GroupChanged):
                for partition in message.moved:
                    told.setdefault(partition, then_ms)
        return [after[p].since_ms - told[p] for p in moved if p in told]

    async def at_rest(self, seconds: float) -> float:
        """Return the commands per second of an idle worker."""
        async with CommandCount(self._url) as count:
            await asyncio.sleep(seconds)
            return count.total / seconds / len(self._live)

    # -- small things --------------------------------------------------------------------------

    async def _until(self, what: str, condition: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not await condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"Timeout after {timeout_s:.0f} s: waited until {what}.")
            await asyncio.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class Story:
    """The measurements of a series: workers start, one joins, one leaves, one is killed."""

    protocol: str
    assignment: str
    workers: int
    partitions: int
    start_ms: int | None
    """Time from the simultaneous start of all workers until balance; None if there was none in time."""
    at_rest: float
    """Commands per second of an idle worker."""
    changes: tuple[Change, ...]
    commits: Mapping[int, Sequence[Commit]]
    acts: tuple[tuple[str, str, int], ...]
    """The measured changes: kind, worker and time."""


async def tell(
    measured: Rebalances,
    *,
    workers: int = 8,
    count: bool = True,
    say: Callable[[Change], None] = lambda _: None,
) -> Story:
    """Let workers start, one more join, one leave and one be killed, under load; measure each.

    With ``count`` a join and a leave are measured without load first, to count commands. ``say`` is called
    with each :class:`Change` after its measurement.
    """
    names = [f"w{number}" for number in range(workers + 1 + count)]
    first, spare = names[:workers], names[workers:]
    changes: list[Change] = []
    async with measured as scene:
        await scene.prepare(*names)
        begun_ms = await scene.join(*first)
        locks, is_even = await scene.rest()
        start_ms = max(each.since_ms for each in locks) - begun_ms if is_even else None
        await asyncio.sleep(QUIET_S)
        at_rest = await scene.at_rest(3.0)

        async def measure(what: str, who: str, *, is_loaded: bool) -> None:
            changes.append(await scene.measure(what, who, is_loaded=is_loaded, before_s=20.0))
            say(changes[-1])

        if count:
            await measure("join", spare[1], is_loaded=False)
            await measure("leave", spare[1], is_loaded=False)
        async with scene.load():
            await asyncio.sleep(1.0)
            await measure("join", spare[0], is_loaded=True)
            await measure("leave", first[1], is_loaded=True)
            await measure("death", first[2], is_loaded=True)
        return Story(
            scene.protocol,
            scene.assignment,
            workers,
            scene.partitions,
            start_ms,
            at_rest,
            tuple(changes),
            scene.commits,
            tuple(scene.acts),
        )
