"""Reads the partitions of a Cluster: node by node, without blocking at the server.

One ``XREAD`` may name keys of one slot only, so a Cluster has no read that blocks for all partitions at
once. The fetcher asks each node for its partitions in one round trip of many small reads, on a connection
of its own, and asks the nodes concurrently. After a round without entries, the pause before the node's next
round doubles, up to a tenth of a second; after a round with entries it is short. A partition that is added
or has room again is read at once. See docs/decisions/0025.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio

from streamworker.core.data.batching import ReadPlan
from streamworker.core.pauses import Pauses
from streamworker.declaring.specs import FunctionMode, ProcessorSpec
from streamworker.errors import BackendError, BackendUnavailable
from streamworker.records.entries import Entries
from streamworker.redisio.data import streams
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.clock import monotonic_s
from streamworker.runtime.observing import Observer
from streamworker.runtime.read.buffer import PartitionBuffer
from streamworker.runtime.read.fetcher import Fetcher, Reads, log
from streamworker.runtime.signals import Signal
from streamworker.runtime.telling import warn

if TYPE_CHECKING:
    from streamworker.runtime.read.cold import ColdReader

PAUSE_FIRST_S = 0.002
"""Pause after a round that brought entries."""
PAUSE_MAX_S = 0.1
"""Longest pause after rounds without entries; with little traffic an entry waits half of it on average."""
SPACING_S = 50e-6
"""Minimum spacing of rounds for each partition that they ask, as on one server (decision 0024)."""


@dataclass(slots=True, eq=False)
class _Pace:
    """How often one node is asked."""

    tries: Pauses
    busy: bool = False
    hurry: bool = False
    """Whether a partition needs a read that the running round does not ask for."""
    due_s: float = 0.0
    pause_s: float = PAUSE_FIRST_S
    all_at_s: float = 0.0
    """Before this time only partitions that are known to have more are read again."""
    asked: frozenset[int] = frozenset()
    """Partitions of the last round."""
    fails: bool = False
    """Whether the last round had no answer; if so, nothing makes the next one start sooner."""


def fetcher_for(backend: Backend) -> type[Reads]:
    """Return the fetcher for one server, or for a Cluster, where no read may ask for all partitions."""
    return Fetcher if backend.server.has_all_keys else PollingFetcher


def reader_of(spec: ProcessorSpec, observer: Observer | None = None) -> "ColdReader | None":
    """Return what reads the archive of a group's stream, if it has one and the group does not write it."""
    if spec.stream.archive is None or spec.mode is FunctionMode.ARCHIVE:
        return None
    from streamworker.runtime.read.cold import ColdReader  # Others load neither it nor obstore.

    return ColdReader(spec.stream, None if observer is None else partial(observer.read_archived, spec))


class PollingFetcher(Reads):
    """The reads on a Cluster, in rounds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pause_max_s = min(self.settings.fetch_block_ms / 1000, PAUSE_MAX_S)
        self._paces: dict[str, _Pace] = {}
        self._addresses: dict[int, str] = {}
        """Address of each partition's node, in version ``_version`` of the slot map."""
        self._version = -1
        self._away: set[int] = set()
        """Partitions whose last read had no answer."""
        self._changed = Signal()

    def _wake(self, buffer: PartitionBuffer, *, is_new: bool = False) -> None:
        """Read a partition at once, unless its node's last round read it and it had no more entries."""
        if not (is_new or buffer.needs_more):
            return
        partition = buffer.partition
        pace = self._paces.get(self._addresses.get(partition, ""))
        if pace is None:
            self._changed.fire()
            return
        if (is_new or partition not in pace.asked) and not pace.fails:
            pace.due_s, pace.hurry = 0.0, pace.busy
        if not pace.busy and pace.due_s <= monotonic_s():
            self._changed.fire()

    async def _read_for_ever(self) -> None:
        async with anyio.create_task_group() as tasks:
            backend = self.backend.apart(connections=1)
            try:
                await self._rounds(backend, tasks)
            finally:
                with anyio.CancelScope(shield=True):
                    await backend.aclose()

    async def _rounds(self, backend: Backend, tasks: anyio.abc.TaskGroup) -> None:
        tries = self._pauses()
        while True:
            self.plan(())  # Updates the candidates; chooses nothing.
            try:
                parts = await self._by_address(backend)
            except BackendError as error:
                pause_ms = tries.next_ms()
                warn(log, "fetch_failed", error, retry_in_ms=pause_ms)
                await anyio.sleep(pause_ms / 1000)
                continue
            tries.reset()
            now_s = monotonic_s()
            due_s = now_s + 1.0
            for address, partitions in parts.items():
                if (pace := self._paces.get(address)) is None:
                    pace = self._paces[address] = _Pace(self._pauses())
                if pace.busy:
                    continue
                if pace.due_s <= now_s:
                    pace.busy = True
                    tasks.start_soon(self._round, backend, pace, partitions, len(parts))
                else:
                    due_s = min(due_s, pace.due_s)
            await self._changed.wait(max(0.0, due_s - now_s))

    async def _by_address(self, backend: Backend) -> dict[str, list[int]]:
        """Return the partitions that have room, by the address of their node."""
        if self._version != backend.server.map_version:
            self._addresses.clear()
            # A node that does not answer is not asked sooner because other slots have moved.
            self._paces = {address: pace for address, pace in self._paces.items() if pace.busy or pace.fails}
            self._version = backend.server.map_version
        addresses = self._addresses
        parts: dict[str, list[int]] = {}
        for partition in list(self.candidates.known):
            if (address := addresses.get(partition)) is None:
                address = addresses[partition] = await backend.server.address_of(self.keys.events(partition))
            parts.setdefault(address, []).append(partition)
        return parts

    async def _round(self, backend: Backend, pace: _Pace, partitions: list[int], nodes: int) -> None:
        """Ask one node for its partitions, and set when to ask it next."""
        began_s = monotonic_s()
        is_brief = began_s < pace.all_at_s
        behind = [p for p in partitions if p in self.behind] if is_brief else []
        plan = self.plan(behind or partitions, shares=nodes)
        if plan is None:
            pace.asked, pace.busy = frozenset(), False
            pace.due_s = began_s + self._pause_max_s
            return
        pace.asked = frozenset(plan.partitions)
        try:
            brought = await self._ask(backend, plan)
        except BackendUnavailable as error:
            pace.fails = True
            pause_ms = pace.tries.next_ms()
            warn(log, "fetch_failed", error, retry_in_ms=pause_ms)
            pace.due_s = monotonic_s() + pause_ms / 1000
        except BackendError as error:
            await self.sort_out(plan, error, pace.tries.next_ms())
        else:
            pace.fails = False
            pace.tries.reset()
            self._set_next(pace, plan, brought, began_s, is_brief=bool(behind))
        finally:
            pace.busy = False
            self._changed.fire()

    def _set_next(self, pace: _Pace, plan: ReadPlan, brought: int, began_s: float, *, is_brief: bool) -> None:
        spacing_s = SPACING_S * len(plan.partitions)
        if not is_brief and brought < len(plan.partitions):
            pace.all_at_s = began_s + spacing_s
        if any(partition in self.behind for partition in plan.partitions):
            pace.pause_s, pace.due_s = PAUSE_FIRST_S, 0.0
            return
        soon = brought or plan.is_partial
        pace.pause_s = PAUSE_FIRST_S if soon else min(2 * pace.pause_s, self._pause_max_s)
        pace.due_s = 0.0 if pace.hurry else monotonic_s() + max(pace.pause_s, spacing_s)
        pace.hurry = False

    async def _ask(self, backend: Backend, plan: ReadPlan) -> int:
        """Make one round; return how many entries it brought.

        It raises the first error of partitions that could not be read, after all others were read.
        """
        asked = self.asked(plan)
        positions = {partition: buffer.position for partition, buffer in asked.items()}
        try:
            answer = await streams.read_each(backend, self.keys, positions, plan.count)
        except BackendUnavailable:
            self._away.update(asked)
            raise
        read = {p: found for p, found in answer.items() if isinstance(found, Entries)}
        warm = await self.warm(positions, {p: found for p, found in read.items() if found})
        brought = self.put(asked, plan.count, warm)
        errors = {p: found for p, found in answer.items() if isinstance(found, BackendError)}
        if back := self._away.intersection(read):
            self._away -= back
            self.on_back()
        self._away.update(p for p, error in errors.items() if isinstance(error, BackendUnavailable))
        for error in errors.values():
            raise error
        return brought
