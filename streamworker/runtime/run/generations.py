"""What one group does in one worker while its stream grows (``core/data/placement.py``).

The partitions that a stream had take nothing more, and their keys are in others. In each group by itself a
key must not be handled in its new partition before all its records in the old one are. So

1. the owner of an old partition notes when the group is done with it (``growth/finish.lua``);
2. the owner of a new one acquires it as any other, reads nothing until the group is done with all of its
   parents, takes over their tables and keyed state (``growth/fill.lua``), and opens it then
   (``growth/open.lua``);
3. workers that see that the group is done with a whole generation tell that to their cores, and nobody owns
   its partitions any more. What was taken over is removed there.

A worker reads the map when it starts, when a message tells that the stream has grown, and at intervals. It
registers the group in new partitions before it tells its core of them. A failover may lose any step, and each
is repeated until it is seen to be done. Where the command that lets a stream grow has died, a worker goes on.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio
from structlog.stdlib import BoundLogger

from streamworker.core.data.placement import Placement
from streamworker.core.events import Event, PartitionsSeen, StartRunner
from streamworker.core.pauses import Pauses
from streamworker.core.words import ranges
from streamworker.declaring.specs import ProcessorSpec
from streamworker.errors import BackendError, BackendUnavailable, StreamworkerError
from streamworker.redisio.admin import growth, inheriting
from streamworker.redisio.data import streams
from streamworker.redisio.group import following
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.durability import durability_of
from streamworker.runtime.provisioning import provision
from streamworker.runtime.run.runner import PartitionRunner
from streamworker.runtime.run.trims import Trims
from streamworker.runtime.signals import Signal
from streamworker.runtime.telling import warn
from streamworker.settings import Settings

LOOK_S, LOOK_S_PER_PARTITION = 10.0, 0.1
"""How often a worker looks at the map. A look also asks for the lock of each old partition, so that with more
than 100 of them it is more seldom."""
STEP_MIN_MS, STEP_MAX_MS = 100, 1_000
"""How often a worker looks whether it can go on with a partition."""
SHOWN_S = 1.0
"""How often a partition shows how much it has taken over."""
TAKE_OVER_MAX = 2
"""How many partitions take over at a time: each has two calls at Redis, of which one copies."""


@dataclass(eq=False)
class Generations:
    """The old and the new partitions of one group's stream in one worker."""

    backend: Backend
    keys: GroupKeys
    spec: ProcessorSpec
    settings: Settings
    rng: random.Random
    log: BoundLogger
    runners: Callable[[], Mapping[int, PartitionRunner | None]]
    """Returns the runners of this worker's partitions, None for one that waits or reads its state."""
    deliver: Callable[[Event], None]

    def __post_init__(self) -> None:
        self._placement = self.spec.stream.placement
        self._registered = self._placement.total
        self._wanted = Signal()
        self._is_wanted = False
        self._grown = Signal()
        self._done: dict[int, int] = {}
        """The epochs at which this worker has noted that the group is done with a partition."""
        self._trims: dict[int, Trims] = {}
        self._taken_over, self._moved = dict[int, bytes](), set[int]()
        """The old partitions of which all that follow were open at the last look, with their epochs, and
        those of them whose tables and keyed state are removed."""
        self._copies = anyio.Semaphore(TAKE_OVER_MAX)
        self.ends_ms: dict[int, int] = {}
        """By old partition up to when timers run there."""
        self._changing: tuple[int, ...] = ()
        """The map that was to follow at the last look, if a change was under way."""
        self.first = -1 if self._placement.base else 0
        """Where the oldest generation begins with which the group is not done; -1 if not looked."""

    def look(self) -> None:
        """Look soon where the group works."""
        self._is_wanted = True
        self._wanted.fire()

    async def follow(self) -> None:
        """Look until cancelled where the group works, and tell the core."""
        while True:
            is_wanted, self._is_wanted = self._is_wanted, False
            try:
                await self._look(must_tell=is_wanted)
            except StreamworkerError as error:
                warn(self.log, "map_unread", error)
            if not self._is_wanted:
                await self._wanted.wait(max(LOOK_S, LOOK_S_PER_PARTITION * self._placement.base))

    async def _look(self, *, must_tell: bool) -> None:
        now, after = await following.read_maps(self.backend, self.keys)
        if max(sum(after), self._placement.total) > self._registered:
            self._registered = await provision(self.backend, self.spec, self.log, again=True)
        if len(now) > len(self._placement.counts):
            self._placement.become(*now)
            self.log.info("stream_grown", partitions=str(self._placement))
        if self._placement.base:
            if self._placement.base - 1 not in self.ends_ms:
                self.ends_ms |= await following.read_opened(self.backend, self.keys, self._placement)
            self._grown.fire()
            await self._look_for_done()
        # A producer of this process may have read a newer map since.
        is_known = self.first >= 0 and self._placement.total <= self._registered
        if is_known and (must_tell or self._placement.base):
            self.deliver(PartitionsSeen(self.first, self._placement.total))
        if self._placement.base in self.runners():
            await self._mend(now, after)
            if self.first > 0:
                await self._remove_moved()

    async def _look_for_done(self) -> None:
        try:
            left = await following.unfinished(self.backend, self.keys, range(self._placement.base))
        except BackendUnavailable as error:  # One node of a Cluster may be away, and others go on.
            warn(self.log, "map_unread", error)
        else:
            self._done = {p: epoch for p, epoch in self._done.items() if p not in left}
            self.first = following.first_of(self._placement, left)
            self._moved.intersection_update(range(self.first))  # A reset begins anew.

    async def _mend(self, now: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Go on with a change that has stood since the last look, and mend what a failover has lost of one.

        The worker with the first partition that takes records does that; more than one may.
        """
        changing, self._changing = self._changing, after if after != now else ()
        # A failover may have left one seal of many. One more partition at each look finds it.
        looked = sorted({*range(self._placement.base + 1), self.rng.choice(self._placement.active)})
        durability = durability_of(self.settings)
        if lost := await growth.heal(self.backend, self.keys, looked, durability):
            self.log.error("growth_lost", lost=lost)
        if changing and changing == self._changing:
            await growth.go_on(self.backend, self.keys, durability, self.keys.group)
            self.look()
        mine = self._placement.counts
        if now and now == after == mine[: len(now)] != mine:  # Redis has lost the end of the map.
            follows = str(Placement(*mine[: len(now) + 1]))
            for seen in ("", str(Placement(*now))):
                await streams.set_field(self.backend, self.keys.meta, "growing", seen, follows)

    async def _remove_moved(self) -> None:
        """Remove what all partitions that follow have taken over.

        They have to be open at two looks in a row: a failover may lose what was written last.
        """
        before, children = self._taken_over, self._placement.children_of
        old = await following.done_at(self.backend, self.keys, set(range(self.first)) - self._moved)
        asked = {child for p in old for child in children(p)}
        waiting = await following.not_open(self.backend, self.keys, asked)
        self._taken_over = {p: epoch for p, epoch in old.items() if waiting.isdisjoint(children(p))}
        if gone := {p: epoch for p, epoch in self._taken_over.items() if before.get(p) == epoch}:
            tables = self.spec.lifetimes
            self._moved |= await following.remove_moved(self.backend, self.keys, gone, tables)

    async def finish(self) -> None:
        """Note until cancelled with which of this worker's old partitions the group is done."""
        pauses = Pauses(self.rng.random, first_ms=STEP_MIN_MS, max_ms=STEP_MAX_MS)
        while True:
            old = {p: each for p, each in self.runners().items() if each and p < self._placement.base}
            left = {p: each for p, each in old.items() if self._done.get(p) != each.commits.epoch}
            if not left:
                pauses.reset()
                await self._grown.wait(STEP_MAX_MS / 1000 if self._placement.base else None)
                continue
            at_end = {p: each.commits.start for p, each in left.items() if each.is_at_end}
            try:
                done = await following.finish_many(
                    self.backend, self.keys, at_end, durability_of(self.settings)
                )
            except BackendError as error:
                warn(self.log, "finish_failed", error)
                done = set()
            if done:
                self.log.info("partitions_done", partitions=ranges(done))
                self._done |= {p: at_end[p].lock.epoch for p in done}
                self.look()
            await anyio.sleep(pauses.next_ms() / 1000)

    async def opened(self, start: StartRunner, drained: anyio.Event, show: Callable[[str], None]) -> bool:
        """Wait until the group is done with the parents of a partition, and open it.

        The result is False if the partition drains meanwhile, or must be acquired again.
        """
        parents, told, told_s = start.lock.waits_for, "", 0.0
        pauses = Pauses(self.rng.random, first_ms=STEP_MIN_MS, max_ms=STEP_MAX_MS)

        def goes_on(reason: str) -> bool:
            nonlocal told, told_s
            if (now_s := anyio.current_time()) > told_s + SHOWN_S:
                told, told_s = reason, now_s
                show(reason)
            return not drained.is_set()

        while not drained.is_set():
            try:
                if start.partition in parents:
                    if await following.parents_in(self.backend, self.keys, start.partition) != parents:
                        return False
                    reason = "a reset of its checkpoint was not finished: run `streamworker reset` again"
                elif not (reason := await self._waits(start)):
                    async with self._copies:
                        is_open = await self._take_over(start, goes_on)
                    if told:
                        show("")
                    return is_open
            except BackendError as error:
                reason = f"cannot be opened: {error}"
            pause_ms = pauses.next_ms()
            if reason != told and pauses.failures > 3:  # Most wait for a moment only.
                told = reason
                self.log.warning("partition_waits", partition=start.partition, reason=reason)
                show(reason)
            with anyio.move_on_after(pause_ms / 1000):
                await drained.wait()
        return False

    async def _waits(self, start: StartRunner) -> str:
        """Return what a partition waits for before it can take over; empty if nothing is left."""
        if left := await inheriting.waits_for(self.backend, self.keys, self._placement, start):
            return f"waits until the group is done with partition {ranges(left)}"
        if lost := await following.moved(self.backend, self.keys, start.lock.waits_for):
            return (
                f"a failure has lost its tables and state, which partition {ranges(lost)} no longer has: "
                "restore a backup, or remove the field `from` of its lock to go on without them"
            )
        return ""

    async def _take_over(self, start: StartRunner, goes_on: Callable[[str], bool]) -> bool:
        tables = {table.name: (table.lifetime, table.leading) for table in self.spec.tables}
        durability = durability_of(self.settings)
        has_all = await inheriting.take_over(
            self.backend, self.keys, self._placement, start, tables, goes_on, durability
        )
        return has_all and await following.open_partition(self.backend, self.keys, start, durability)

    def unowned(self) -> Mapping[int, Trims]:
        """Return the partitions that nobody owns any more, if this worker has the first of all others.

        Their records stay as long as another group needs them, or retention keeps them.
        """
        if self._placement.base not in self.runners():
            return {}
        interval_ms = self.settings.trim_interval_ms
        return {p: self._trims.setdefault(p, Trims(interval_ms)) for p in range(self.first)}
