"""Waits on the control streams of a worker's groups, and brings their messages.

One connection and one blocking read serve all groups; on a Cluster there is one for each. The stream is
a hint: whatever is missed while Redis is away is made up for by the next heartbeat, so the listener only
has to come back.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Sequence

import anyio

from streamworker.core.control import ControlMessage, from_fields
from streamworker.core.entries import EntryId
from streamworker.core.events import ControlReceived
from streamworker.errors import BackendError
from streamworker.log import get_logger
from streamworker.redisio.client import Backend
from streamworker.redisio.control import last_control_id, read_control
from streamworker.redisio.keys import GroupKeys

log = get_logger("streamworker.listener")

BLOCK_MS = 5_000
"""Long, since a message ends the wait at once; short enough that a dead server is noticed."""
PAUSE_MAX_S = 1.0
CALM = 4
"""So many messages a second are read as they come: more than a change of the group has, as a rule."""
PAUSE_STEP_S = 0.005
"""For each one more, the next read waits this much longer, and takes all that has come by then. When
fifty workers join at once, each message would else wake all of them."""
PAUSE_BUSY_S = 0.05

Deliver = Callable[[ControlReceived], None]


class Listener:
    """Reads the control streams of some groups from where they were when it was made."""

    def __init__(self, backend: Backend, rng: random.Random) -> None:
        self._backend = backend
        self._rng = rng
        self._positions: dict[GroupKeys, EntryId] = {}
        self._deliver: dict[str, Deliver] = {}

    async def add(self, keys: GroupKeys, deliver: Deliver) -> None:
        """Listen to one more group, from now on. Call it before ``run``, and before joining."""
        self._positions[keys] = await last_control_id(self._backend, keys)
        self._deliver[keys.control] = deliver

    async def run(self) -> None:
        """Read until cancelled; never ends by itself, whatever Redis does."""
        by_name = {keys.control: keys for keys in self._positions}
        async with anyio.create_task_group() as tasks:
            # One read for all groups; on a Cluster one for each, since they are in different slots.
            for names in self._backend.by_slot(list(by_name)):
                tasks.start_soon(self._listen, [by_name[name] for name in names])

    async def _listen(self, groups: Sequence[GroupKeys]) -> None:
        """Read the control streams of some groups, which are in one place."""
        by_name = {keys.control: keys for keys in groups}
        connection = self._backend.blocking(groups[0].control)
        woken: deque[float] = deque(maxlen=CALM + round(PAUSE_BUSY_S / PAUSE_STEP_S))
        try:
            while True:
                try:
                    positions = {keys: self._positions[keys] for keys in groups}
                    entries = await read_control(connection, positions, BLOCK_MS)
                except BackendError as error:
                    log.warning("control_stream_unreadable", error=str(error))
                    await anyio.sleep(self._rng.uniform(PAUSE_MAX_S / 4, PAUSE_MAX_S))
                    continue
                messages: dict[str, list[ControlMessage]] = {}
                for name, entry_id, fields in entries:
                    self._positions[by_name[name]] = entry_id
                    message = from_fields(fields)
                    if message is not None:
                        messages.setdefault(name, []).append(message)
                for name, batch in messages.items():
                    self._deliver[name](ControlReceived(tuple(batch)))
                if entries:
                    await anyio.sleep(_pause_s(woken))
        finally:
            with anyio.CancelScope(shield=True):
                await connection.aclose()


def _pause_s(woken: deque[float]) -> float:
    """Return how long to wait for company, after one more read that brought something."""
    now = time.monotonic()
    woken.append(now)
    while woken[0] < now - 1:
        woken.popleft()
    return PAUSE_STEP_S * max(0, len(woken) - CALM)
