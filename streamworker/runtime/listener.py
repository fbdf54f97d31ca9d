"""Reads the control streams of a worker's groups, and delivers their messages.

One connection and one blocking read serve all groups; on a Cluster there is one for each. The messages are
hints: the next heartbeat makes up for messages that are missed while Redis is away, so the listener only
has to reconnect. If another program has overwritten a control stream, the listener logs which one, continues
without it, and checks at intervals whether it is a stream again.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence

import anyio

from streamworker.core.control import ControlMessage
from streamworker.core.data.entries import EntryId
from streamworker.core.events import ControlReceived
from streamworker.core.protocols.registry import from_fields
from streamworker.errors import BackendError, BackendRefused
from streamworker.log import get_logger
from streamworker.redisio.admin.health import wrong_types
from streamworker.redisio.group.control import ControlEntry, newest_id, read_control
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend, BlockingConnection
from streamworker.runtime.clock import monotonic_s
from streamworker.runtime.telling import warn

log = get_logger("streamworker.listener")

BLOCK_MS = 5_000
"""How long a read blocks. It is long because a message ends it at once, and short enough that the listener
notices a dead server."""
BLOCK_SHORT_MS = 1_000
"""How long a read blocks while one of the keys is no stream."""
PAUSE_MAX_S = 1.0
CALM = 4
"""Up to this many reads a second the listener reads on without a pause. A change of the group usually causes
fewer."""
PAUSE_STEP_S = 0.005
"""For each further read in a second, the next read waits this much longer, and takes all messages that have
arrived by then. Otherwise, when fifty workers join at once, each message would wake all of them."""
PAUSE_BUSY_S = 0.05

Deliver = Callable[[ControlReceived], None]


class Listener:
    """Reads the control streams of some groups, from the last message at the time of ``add``."""

    def __init__(self, backend: Backend, rng: random.Random) -> None:
        self._backend = backend
        self._rng = rng
        self._positions: dict[GroupKeys, EntryId | None] = {}
        """Id of the last message of each group; None while its key holds no stream."""
        self._foreign: set[GroupKeys] = set()
        """Groups whose control stream key holds another type."""
        self._deliver: dict[str, Deliver] = {}

    async def add(self, keys: GroupKeys, deliver: Deliver) -> None:
        """Listen to one more group. Call it before ``run``, and before joining."""
        self._deliver[keys.control] = deliver
        self._positions[keys] = None
        try:
            self._positions[keys] = await newest_id(self._backend, keys.control)
        except BackendRefused:
            await self._look([keys])
            if keys not in self._foreign:
                raise

    async def run(self) -> None:
        """Read until cancelled; errors from Redis do not end it."""
        by_name = {keys.control: keys for keys in self._positions}
        async with anyio.create_task_group() as tasks:
            # One read for all groups; on a Cluster one for each, since they are in different slots.
            for names in self._backend.server.by_slot(list(by_name)):
                tasks.start_soon(self._listen, [by_name[name] for name in names])

    async def _listen(self, groups: Sequence[GroupKeys]) -> None:
        """Read the control streams of some groups, which one read can ask for."""
        by_name = {keys.control: keys for keys in groups}
        connection = self._backend.blocking(groups[0].control)
        woken: deque[float] = deque(maxlen=CALM + round(PAUSE_BUSY_S / PAUSE_STEP_S))
        is_lost, key = False, " ".join(by_name)
        try:
            while True:
                try:
                    entries = await self._read(connection, groups)
                except BackendError as error:
                    warn(log, "control_stream_unreadable", error, key=key)
                    is_lost = True
                    await self._pause()
                    continue
                if is_lost:
                    is_lost = False
                    log.info("control_stream_readable", key=key)
                messages: dict[str, list[ControlMessage]] = {}
                for name, entry_id, fields in entries:
                    self._positions[by_name[name]] = entry_id
                    if (message := from_fields(fields)) is not None:
                        messages.setdefault(name, []).append(message)
                for name, batch in messages.items():
                    self._deliver[name](ControlReceived(tuple(batch)))
                if entries:
                    await anyio.sleep(_pause_s(woken))
        finally:
            with anyio.CancelScope(shield=True):
                await connection.aclose()

    async def _read(self, connection: BlockingConnection, groups: Sequence[GroupKeys]) -> list[ControlEntry]:
        """Wait for messages of the groups whose key holds a control stream."""
        if aside := [keys for keys in groups if keys in self._foreign]:
            await self._look(aside)
        positions = {
            keys: position
            for keys in groups
            if keys not in self._foreign and (position := self._positions[keys]) is not None
        }
        if not positions:
            await self._pause()
            return []
        try:
            return await read_control(connection, positions, BLOCK_SHORT_MS if aside else BLOCK_MS)
        except BackendRefused:
            await self._look(list(positions))
            if self._foreign.isdisjoint(positions):
                raise
            return []

    async def _look(self, groups: Sequence[GroupKeys]) -> None:
        """Check which control stream keys hold another type, and log each change once."""
        found = await wrong_types(self._backend, {keys.control: "stream" for keys in groups})
        for keys in groups:
            if keys.control in found and keys not in self._foreign:
                self._foreign.add(keys)
                error = f"It holds a {found[keys.control]}."
                log.warning("control_stream_unreadable", processor=keys.group, key=keys.control, error=error)
            elif keys.control not in found and keys in self._foreign:
                if self._positions[keys] is None:
                    self._positions[keys] = await newest_id(self._backend, keys.control)
                self._foreign.discard(keys)
                log.info("control_stream_readable", processor=keys.group, key=keys.control)

    async def _pause(self) -> None:
        await anyio.sleep(self._rng.uniform(PAUSE_MAX_S / 4, PAUSE_MAX_S))


def _pause_s(woken: deque[float]) -> float:
    """Return how long to wait for more messages after one more read that brought some."""
    now = monotonic_s()
    woken.append(now)
    while woken[0] < now - 1:
        woken.popleft()
    return PAUSE_STEP_S * max(0, len(woken) - CALM)
