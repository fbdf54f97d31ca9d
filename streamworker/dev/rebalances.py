"""Measure what joins, leaves and deaths cost: real worker processes on a real server.

Workers are started beforehand and wait at a gate, so that a figure holds no start of a process. A
steady trickle of records makes each partition show when it was worked on. All times are the server's.

``docs/compare.py`` tells the same story under each protocol, and draws it.
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

from streamworker.core.control import GroupChanged, from_fields
from streamworker.core.entries import EntryId
from streamworker.core.partitioner import canonical_key, partition_for
from streamworker.dev.children import Child
from streamworker.dev.command_count import CommandCount
from streamworker.dev.rebalance_app import PREFIX, Tick, gate_key, make_app
from streamworker.dev.rebalance_facts import (
    Change,
    Commit,
    Held,
    all_committed_ms,
    least_moves,
    longest_of,
    percentile,
    spread,
)
from streamworker.errors import StreamworkerError
from streamworker.redisio.client import Backend
from streamworker.redisio.control import fields_of
from streamworker.redisio.keys import GroupKeys

POLL_S = 0.1
QUIET_S = 2.0
"""After a start, until what comes late is over: a first trim, a second heartbeat."""
START_TIMEOUT_S = 90.0
CALL_TIMEOUT_MS = 20_000
"""The machine is busy with the workers."""
SLICES = 8
"""A round of records goes out in so many parts, so that it makes no wave."""
EVEN = 1
"""Shares that differ by no more than this are balanced."""


class Rebalances:
    """A group under measurement; an async context manager.

    Parameters
    ----------
    url
        The server. What is written there has an app name of its own, and is removed in the end.
    protocol, assignment
        How the group shares partitions.
    partitions
        How many there are.
    per_second
        Records a second for each partition, while :meth:`load` lasts.
    settle_s
        For how long no lock may change hands until the group counts as at rest.
    timeout_s
        How long balance is waited for.
    name
        The app's name, which all its keys begin with; made up if None.
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
        self.protocol, self.partitions = protocol, partitions
        self.commits: dict[int, list[Commit]] = {p: [] for p in range(partitions)}
        """Of each partition; :meth:`read_commits` adds to it."""
        self.acts: list[tuple[str, str, int]] = []
        """What was done to whom, and when."""
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
            await self._remove_keys()
        await self._stack.aclose()

    # -- workers -------------------------------------------------------------------------------

    @property
    def live(self) -> tuple[str, ...]:
        """The workers that take part."""
        return tuple(self._live)

    async def prepare(self, *names: str) -> None:
        """Start workers, and return when they wait at the gate."""
        for name in names:
            self._children[name] = Child(
                [sys.executable, "-m", "streamworker.dev.rebalance_app", name],
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
        """Let prepared workers go; return when that was, by the server's clock."""
        at_ms = await self._backend.time_ms()
        gates = [gate_key(self._name, name) for name in names]
        await self._backend.pipeline([("RPUSH", gate, "go") for gate in gates])
        self._live += names
        return at_ms

    async def leave(self, name: str) -> int:
        """Ask a worker to leave (SIGTERM); return when that was."""
        at_ms = await self._backend.time_ms()
        self._live.remove(name)
        self._children[name].terminate()
        return at_ms

    async def kill(self, name: str) -> int:
        """Kill a worker (SIGKILL); return when that was."""
        at_ms = await self._backend.time_ms()
        self._live.remove(name)
        self._children[name].kill()
        return at_ms

    async def _do(self, what: str, who: str) -> int:
        if what == "join":
            return await self.join(who)
        return await (self.leave(who) if what == "leave" else self.kill(who))

    # -- looking -------------------------------------------------------------------------------

    async def look(self) -> list[Held]:
        """Return all locks as they stand."""
        fields = ("owner", "epoch", "since")
        commands = [("HMGET", self._keys.lock(p), *fields) for p in range(self.partitions)]
        found = []
        for owner, epoch, since in await self._backend.pipeline(commands):
            name = (owner or b"").decode()
            found.append(Held(name.rpartition(".")[0], int(epoch or 0), int(since or 0)))
        return found

    async def rest(self, timeout_s: float | None = None) -> tuple[list[Held], bool]:
        """Wait until all locks are held by live workers and none changes hands any more.

        Returns
        -------
        tuple
            The locks, and whether the shares are even.
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
        """Read what was committed since the last time."""
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
        """Return the control stream's messages from a time on."""
        entries = await self._backend.execute("XRANGE", self._keys.control, since_ms, "+")
        return [(EntryId.parse(i).ms, from_fields(fields_of(flat))) for i, flat in entries]

    # -- load ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Send records to all partitions meanwhile, each at the same pace."""
        task = asyncio.create_task(self._send())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _send(self) -> None:
        keys = self._key_of_each_partition()
        parts = [keys[part::SLICES] for part in range(SLICES)]
        stream = self._app.streams["ticks"]
        pause_s = 1 / self._per_second / SLICES
        due = time.monotonic()
        while True:
            for part in parts:
                await stream.send_many(Tick(key) for key in part)
                due = max(due + pause_s, time.monotonic() - 1)
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    def _key_of_each_partition(self) -> list[str]:
        found: dict[int, str] = {}
        number = 0
        while len(found) < self.partitions:
            key = f"k{number}"
            found.setdefault(partition_for(canonical_key(key) or b"", self.partitions), key)
            number += 1
        return [found[p] for p in range(self.partitions)]

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
        """Let a worker join, leave or die, and return what that was like.

        Parameters
        ----------
        what
            ``join``, ``leave`` or ``death``.
        who
            The worker.
        quiet_s
            How long the group is watched before.
        is_loaded
            Whether :meth:`load` lasts. If not, commands are counted instead of pauses.
        before_s
            How long balance is waited for before, if not for as long as after.
        """
        locks, _ = await self.rest(before_s)
        workers = len(self._live)
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
            moves=sum(now.epoch - was.epoch for was, now in zip(locks, after, strict=True)),
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
        """Wait until each partition was committed to; return when the last one was.

        A pause is seen by the commit that ends it: one that lasts when we look would be none.
        """

        async def are_all() -> bool:
            await self.read_commits()
            return all_committed_ms(self.commits, since_ms) is not None

        await self._until("each partition is committed to again", are_all, self._timeout_s)
        return all_committed_ms(self.commits, since_ms) or since_ms

    async def _handovers(self, at_ms: int, after: Sequence[Held], moved: Sequence[int]) -> list[int]:
        """Return how long after the news of its move each partition's lock was taken."""
        told: dict[int, int] = {}
        for then_ms, message in await self.messages(at_ms):
            if isinstance(message, GroupChanged):
                for partition in message.moved:
                    told.setdefault(partition, then_ms)
        return [after[p].since_ms - told[p] for p in moved if p in told]

    async def at_rest(self, seconds: float) -> float:
        """Return how many commands a second a worker sends when nothing happens."""
        async with CommandCount(self._url) as count:
            await asyncio.sleep(seconds)
            return count.total / seconds / len(self._live)

    # -- small things --------------------------------------------------------------------------

    async def _until(self, what: str, condition: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not await condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"Waited {timeout_s:.0f} s in vain until {what}.")
            await asyncio.sleep(POLL_S)

    async def _remove_keys(self) -> None:
        cursor = b"0"
        while True:
            cursor, names = await self._backend.execute(
                "SCAN", cursor, "MATCH", f"sw:{{{self._name}[.:]*", "COUNT", 1000
            )
            if names:
                await self._backend.execute("UNLINK", *names)
            if int(cursor) == 0:
                return


@dataclass(frozen=True, slots=True)
class Story:
    """What a whole story came to: all start, one joins, one leaves, one is killed."""

    protocol: str
    assignment: str
    workers: int
    partitions: int
    start_ms: int | None
    """Until the partitions were shared by all workers, which were let go at once."""
    at_rest: float
    """Commands that a worker sends in a second when nothing happens."""
    changes: tuple[Change, ...]
    commits: Mapping[int, Sequence[Commit]]
    acts: tuple[tuple[str, str, int], ...]
    """What was done to whom, and when."""


async def tell(
    url: str,
    *,
    protocol: str = "membership",
    assignment: str = "range",
    workers: int = 8,
    partitions: int = 256,
    per_second: float = 4.0,
    timeout_s: float = 120.0,
    count: bool = True,
    name: str | None = None,
    say: Callable[[Change], None] = lambda _: None,
) -> Story:
    """Let workers start, one more join, one leave and one be killed, under load; measure each.

    Parameters
    ----------
    count
        Whether a join and a leave without load come first, to count commands.
    name
        What all keys begin with; made up if None.
    say
        Called with each :class:`Change` as soon as it is known.
    """
    names = [f"w{number}" for number in range(workers + 1 + count)]
    first, spare = names[:workers], names[workers:]
    changes: list[Change] = []
    async with Rebalances(
        url,
        protocol=protocol,
        assignment=assignment,
        partitions=partitions,
        per_second=per_second,
        timeout_s=timeout_s,
        name=name,
    ) as scene:
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
            protocol,
            assignment,
            workers,
            partitions,
            start_ms,
            at_rest,
            tuple(changes),
            scene.commits,
            tuple(scene.acts),
        )
