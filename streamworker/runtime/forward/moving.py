"""Moves messages that wait for partitions that take no more to those that follow them.

A stream that grows seals its partitions and opens others (``core/data/placement.py``). What waits for a
sealed one in an outbox is taken apart, and goes to the partitions that have its keys now. These rules keep
the records of a key in order, and each once:

1. A sealed partition never changes, so where it stands says which messages it has. What it lacks is moved,
   and only once the map says which partitions follow.
2. One script removes messages and adds those that replace them, behind the last one of the outbox. Nothing is
   committed to the outbox meanwhile, and nothing for the partitions that follow before all is moved. The
   heads lose the field of a sealed partition then, so that each owner knows what is left.
3. Rows of a commit that were routed by an older map are routed again when they become messages.

The script is fenced by owner and epoch. Whatever ends this worker, the next owner finds what is left.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import anyio
from structlog.stdlib import BoundLogger

from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import START, Message, OutboxPosition, Standing, Target, left_of
from streamworker.core.events import StartRunner
from streamworker.core.pauses import Pauses
from streamworker.errors import BackendError, BackendUnavailable
from streamworker.redisio.data import outbox
from streamworker.redisio.data.outbox import MOVED, Heads, OutboxWrite, Replaced
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.durability import durability_of
from streamworker.runtime.forward.forwarder import DIVERGED_PAUSE_MS, Source, diverged
from streamworker.runtime.forward.routing import IN_TURN, OutboxWriter, Route, Routed, Routes
from streamworker.runtime.send.growth import follow_map, map_pauses
from streamworker.runtime.signals import Signal
from streamworker.runtime.telling import CountLost, tell_lost, warn
from streamworker.settings import Settings

MOVE_BYTES = 1024 * 1024
"""About so many bytes of messages are moved in one step, which blocks Redis."""


class _Left(NamedTuple):
    """What is left for a partition that takes no more."""

    lost: Sequence[tuple[OutboxPosition, OutboxPosition]]
    first: int
    """Number of the first message that it lacks."""


class OwnedOutbox(OutboxWriter):
    """The outbox of one partition while this worker owns it."""

    def __init__(
        self,
        routes: Routes,
        source: Source,
        heads: Heads,
        start: StartRunner,
        backend: Backend,
        keys: GroupKeys,
        settings: Settings,
        rng: random.Random,
        log: BoundLogger,
        count_lost: CountLost | None,
    ) -> None:
        super().__init__(routes, source, heads, turn=start.partition, limit=settings.outbox_messages_max)
        self._backend, self._keys, self._start = backend, keys, start
        self._durability, self._rng = durability_of(settings), rng
        self._log, self._count_lost = log.bind(source=source.keys.source), count_lost
        self._moving = anyio.Lock()
        self._is_writing = False
        """Whether a commit with messages is under way."""
        self._written = Signal()
        self._pauses: Pauses | None = None
        self._is_fenced = False
        self._told: set[tuple[Target, OutboxPosition]] = set()
        source.sealed = self.sealed

    # -- commits -----------------------------------------------------------------------------

    async def ready(self, routed: Routed) -> None:
        """Wait until rows may become messages: nothing older may wait for a partition that takes no more."""
        streams = {stream for stream, _ in routed}
        while (behind := next(filter(self._is_behind, streams), "")) or self._moving.locked():
            if self.source.closed or self._is_fenced:
                break
            async with self._moving:
                reason, pause_ms = await self._move(self.routes.named(behind)) if behind else ("", 0)
            self.source.hold(reason)
            if not reason:
                self._pauses = None
                continue
            self._pauses = self._pauses or map_pauses(self._rng.random)
            await anyio.sleep(max(pause_ms, self._pauses.next_ms()) / 1000)

    def write(self, routed: Routed) -> OutboxWrite:
        """Number and pack rows for the next commit, as it is :meth:`ready` for them."""
        self._is_writing = True
        return super().write(self._by_now(routed))

    def again(self, write: OutboxWrite, routed: Routed) -> OutboxWrite:
        """Return the messages of a commit that was not done, once it is :meth:`ready` for them again."""
        if str(write.messages[-1].id) != self.last:
            return self.write(routed)
        self._is_writing = True
        return write

    def release(self) -> None:
        """Note that no commit is under way: its last try was not done, and the next one is not begun."""
        self._is_writing = False
        self._written.fire()

    def committed(self, write: OutboxWrite) -> None:
        """Forward the messages of a commit that is confirmed."""
        self.release()
        self.source.committed(write)

    def _is_behind(self, stream: str) -> bool:
        base = self.routes.named(stream).spec.placement.base
        return bool(base) and any(to.stream == stream and to.partition < base for to in self.positions)

    def _by_now(self, routed: Routed) -> Routed:
        """Route rows again that were routed by an older map; they come before the others."""
        late: Routed = {}
        for (stream, partition), entries in routed.items():
            route = self.routes.named(stream)
            if IN_TURN < partition < route.spec.placement.base:
                self._route(late, route, partition, entries)
        for place, entries in routed.items() if late else ():
            if place[1] == IN_TURN or place[1] >= self.routes.named(place[0]).spec.placement.base:
                late.setdefault(place, []).extend(entries)
        return late or routed

    def _route(self, to: Routed, route: Route, old: int, entries: Sequence[Any]) -> None:
        found, unread = route.anew(old, entries)
        for place, its in found.items():
            to.setdefault(place, []).extend(its)
        if unread:
            self._log.warning("rows_not_routed", stream=route.spec.name, partition=old, records=unread)

    # -- moving ------------------------------------------------------------------------------

    async def sealed(self, to: Target, is_wanted: Callable[[], bool]) -> tuple[str, int]:
        """Move what waits for a partition that takes no more; return what it waits for, and for how long."""
        if (route := self.routes.find(to.stream)) is None:
            return f"{to.in_words} takes no more, and this app declares no stream {to.stream}", 0
        if to.partition in route.spec.placement.active:
            await follow_map(self._backend, route.spec)
        if to.partition in route.spec.placement.active:
            return f"{to.in_words} takes no more, and nothing says yet which partitions follow", 0
        async with self._moving:
            while self._is_writing and is_wanted():
                await self._written.wait(1.0)
            return await self._move(route) if is_wanted() else ("", 0)

    async def _move(self, route: Route) -> tuple[str, int]:
        try:
            return await self._moved(route)
        except BackendError as error:
            warn(self._log, "messages_not_moved", error, stream=route.spec.name)
            return f"what waits for {route.spec.name} cannot be moved to its new partitions: {error}", 0

    async def _moved(self, route: Route) -> tuple[str, int]:
        """Move what waits for partitions of a stream that take no more, as far as that can be done now."""
        code = "GAP"
        while code == "GAP" and not self.source.closed:
            heads = await outbox.open_outbox(self._backend, self.source.keys, self._durability)
            self.go_on(heads)
            through = EntryId.parse(heads.last).ms if heads.last else 0
            left, waits = await self._look(route, heads, through)
            code = await self._move_left(route, left, through) if left else "OK"
        self._is_fenced = code == "FENCED"
        if self._is_fenced:
            return "another worker has this partition", DIVERGED_PAUSE_MS
        self.source.confirmed = EntryId.parse(self.last).ms if self.last else 0
        self.source.look_again()
        return waits

    async def _look(
        self, route: Route, heads: Heads, through: int
    ) -> tuple[dict[Target, _Left], tuple[str, int]]:
        """Return what is left for partitions that take no more, and why and how long some of it waits."""
        name, base = route.spec.name, route.spec.placement.base
        chains: dict[Target, list[Message]] = {
            to: [] for to in heads.positions if to.stream == name and to.partition < base
        }
        async for message in outbox.each_message(self._backend, self.source.keys, through):
            if message.to.stream == name and message.to.partition < base:
                chains.setdefault(message.to, []).append(replace(message, data=b""))
        source, waits = self.source.keys.source, ("", 0)
        ends = await outbox.read_ends(self._backend, self._keys.app, source, list(chains)) if chains else {}
        found: dict[Target, _Left] = {}
        for to, chain in chains.items():
            is_sealed, stands = ends[to]
            head = heads.positions.get(to, START)
            left = left_of(stands := heads.moved.get(to, stands), chain, head)
            if left.why is Standing.DIVERGED:
                since = chain[left.taken].since if chain else head
                if (to, stands) not in self._told:
                    self._told.add((to, stands))
                    log = self._log.bind(to=str(to), stands=str(stands))
                    tell_lost(log, "outbox_diverged", self._count_lost, 0, since=str(since))
                waits = diverged(to, stands, since), DIVERGED_PAUSE_MS
            elif len(chain) > left.taken and not is_sealed:
                waits = waits if waits[0] else (f"{to.in_words} is not sealed yet", 0)
            else:
                # The forwarder has told some of it, or an earlier owner that was killed then.
                told = {(since, up_to) for (its, since), up_to in heads.lost.items() if its == to}
                lost = [each for each in left.lost if (each[0].records + 1, each[1].records) not in told]
                lacked = [message.number for message in chain[left.taken :]]
                found[to] = _Left(lost, min(lacked, default=through + 1))
        return found, waits

    async def _move_left(self, route: Route, left: dict[Target, _Left], through: int) -> str:
        """Replace messages in steps of limited size; return the answer to the last one."""
        noted = {
            outbox.lost_field(to, since): str(up_to.records)
            for to, its in left.items()
            for since, up_to in its.lost
        }
        moved: Routed = {}
        removed: list[EntryId] = []
        size = messages = records = 0
        async for message in outbox.each_message(self._backend, self.source.keys, through):
            if message.to not in left:
                continue
            removed.append(message.id)
            noted[f"{MOVED}{message.to}"] = str(message.through)
            if message.number < left[message.to].first:
                continue
            packed = outbox.unpack_records(message.data, route.packing)
            self._route(moved, route, message.to.partition, packed)
            size, messages = size + len(message.data), messages + 1
            records += message.through.records - message.since.records
            if span := self.source.spans.pop(message.number, None):
                span.end()
            if size >= MOVE_BYTES:
                code = await self._step(Replaced(self.last, removed, noted, (), self.messages(moved)))
                if code != "OK":
                    return code
                moved, removed, noted, size = {}, [], {}, 0
        gone = [field for to in left for field in (str(to), f"{MOVED}{to}")]
        noted = {field: value for field, value in noted.items() if field not in gone}
        code = await self._step(Replaced(self.last, removed, noted, gone, self.messages(moved)))
        if code == "OK":
            self.positions = {to: each for to, each in self.positions.items() if to not in left}
            if messages:
                told = {"stream": route.spec.name, "messages": messages, "records": records}
                self._log.info("messages_moved", **told)
            self._tell_lost(left)
        return code

    async def _step(self, step: Replaced) -> str:
        pauses = Pauses(self._rng.random, max_ms=self._backend.server.pause_max_ms)
        while True:
            try:
                return await outbox.move_messages(
                    self._backend, self._keys, self._start, step, self._durability
                )
            except BackendUnavailable as error:
                if self.source.closed:
                    raise
                warn(self._log, "messages_not_moved", error)
                await anyio.sleep(pauses.next_ms() / 1000)

    def _tell_lost(self, left: dict[Target, _Left]) -> None:
        """Tell what targets had confirmed and lost; the heads keep it."""
        reason = "the target confirmed them and lost them"
        for to, its in left.items():
            for since, up_to in its.lost:
                lost = up_to.records - since.records
                log = self._log.bind(to=str(to), stands=str(since))
                tell_lost(log, "forwarded_records_lost", self._count_lost, lost, records=lost, reason=reason)
