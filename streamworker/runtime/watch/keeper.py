"""Sends heartbeats from a separate thread, so that handlers cannot delay them.

A handler may block the event loop or compute for a minute. The worker is still alive, and its peers must
not take it for dead. So the keeper has its own thread, event loop and connection, and shares only a table
of memberships with the worker. One heartbeat is one command for each group, whatever the number of
partitions, and all groups of a worker share a round trip.

The keeper cannot run while native code holds the interpreter lock for seconds, as a long regular
expression does. Then heartbeats are late, peers see that the connection is alive and wait
``slow_after_ms``, and fencing protects the commits in any case.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from streamworker.core.ownership.pulse import BEAT_RETRIES
from streamworker.core.protocols.membership.events import HeartbeatDone
from streamworker.errors import BackendError, BackendUnavailable
from streamworker.log import get_logger
from streamworker.redisio.group.membership import Renewal, heartbeat
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.clock import monotonic_ms, monotonic_s
from streamworker.runtime.connecting import connected
from streamworker.runtime.telling import TELL_EVERY_S
from streamworker.settings import Settings

log = get_logger("streamworker.keeper")

Deliver = Callable[[HeartbeatDone], None]
Kept = tuple[GroupKeys, tuple[str, Deliver]]
"""A membership to renew: the group, the member, and the callback for answers."""
JOIN_TIMEOUT_S = 5.0


class Keeper:
    """Renews the memberships of one worker process."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._lock = threading.Lock()
        self._kept: dict[GroupKeys, tuple[str, Deliver]] = {}
        self._loads: dict[GroupKeys, tuple[int, Mapping[int, int] | None]] = {}
        """The last load of each group, and its loads by partition until a heartbeat has sent them."""
        self._foreign: dict[GroupKeys, str] = {}
        """The key of each group that was reported to hold another type."""
        self._told_s: float | None = None
        """When it was last told that heartbeats fail; None if they do not."""
        self._pending: dict[GroupKeys, tuple[Deliver, HeartbeatDone]] = {}
        self._late: dict[str, asyncio.Task[bool]] = {}
        """Heartbeats in flight by node; only used if there are several nodes."""
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._stopping = False
        self._turned_ms = monotonic_ms()
        """When it last had tried to renew all memberships."""
        self._thread = threading.Thread(target=self._main, name="streamworker-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread; it renews no membership yet."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its connection."""
        self._stopping = True
        self.hurry()
        if self._thread.ident is not None:
            self._thread.join(JOIN_TIMEOUT_S)

    @property
    def silent_ms(self) -> int:
        """How long it is overdue to try to renew the memberships, with or without an answer."""
        return max(0, monotonic_ms() - self._turned_ms - self._settings.heartbeat_interval_ms)

    def keep(self, keys: GroupKeys, member: str, deliver: Deliver) -> None:
        """Start to renew a membership, the first time at once.

        The keeper calls ``deliver`` in the worker's event loop. While that loop is blocked, it keeps only
        the newest answer, which replaces the older ones.
        """
        with self._lock:
            self._kept[keys] = (member, deliver)
        self.hurry()

    def hurry(self) -> None:
        """Renew the memberships of all groups now, and then again after an interval."""
        if self._own_loop is not None and self._wake is not None:
            with suppress(RuntimeError):  # Its loop has ended already.
                self._own_loop.call_soon_threadsafe(self._wake.set)

    def forget(self, keys: GroupKeys) -> None:
        """Stop renewing a membership."""
        with self._lock:
            self._kept.pop(keys, None)
            self._loads.pop(keys, None)
            self._foreign.pop(keys, None)

    def report(self, keys: GroupKeys, loads: Mapping[int, int]) -> None:
        """Let heartbeats report the load of each partition of a membership."""
        with self._lock:
            self._loads[keys] = (sum(loads.values()), loads)

    # -- in the keeper's thread ----------------------------------------------------------------

    def _main(self) -> None:
        try:
            asyncio.run(self.run())
        except Exception:
            # Without heartbeats the worker stops its batches at its own deadline, and peers take over.
            # This is safe, but the log should say why.
            log.exception("keeper_failed")

    async def run(self) -> None:
        """Send heartbeats until stopped."""
        self._own_loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        interval_s = self._settings.heartbeat_interval_ms / 1000
        async with connected(self._settings, f"{self._name}:heartbeat", connections=1) as backend:
            while not self._stopping:
                started = monotonic_s()
                answered = await self._beat_all(backend)
                self._turned_ms = monotonic_ms()
                if answered and self._told_s is not None:
                    self._told_s = None
                    log.info("heartbeats_answered")
                wait_s = interval_s if answered else interval_s / BEAT_RETRIES
                pause_s = max(0.0, wait_s - (monotonic_s() - started))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
                self._wake.clear()
            for task in self._late.values():
                task.cancel()
            await asyncio.gather(*self._late.values(), return_exceptions=True)

    async def _beat_all(self, backend: Backend) -> bool:
        """Renew all memberships; return whether each had an answer."""
        with self._lock:
            kept = list(self._kept.items())
        addresses: dict[str, list[Kept]] = {}
        try:
            if not kept:  # Connect early, so that the first heartbeat finds a connection.
                await backend.identity()
            for each in kept:
                addresses.setdefault(await backend.server.address_of(each[0].members), []).append(each)
        except BackendError as error:
            self._failed(error)
            return False
        if len(addresses) < 2 and not self._late:
            return all([await self._beat(backend, here) for here in addresses.values()])
        # On a Cluster the groups are on several nodes; one that hangs must not delay heartbeats to others.
        for address, here in addresses.items():
            if address not in self._late:
                self._late[address] = asyncio.create_task(self._beat(backend, here))
        assert self._wake is not None
        woken: asyncio.Future[Any] = asyncio.create_task(self._wake.wait())
        all_done = asyncio.gather(*self._late.values(), return_exceptions=True)
        await asyncio.wait(
            (woken, all_done),
            timeout=self._settings.heartbeat_interval_ms / 1000,
            return_when=asyncio.FIRST_COMPLETED,
        )
        woken.cancel()
        answered = [address for address, task in self._late.items() if task.done()]
        return all([await self._late.pop(address) for address in answered]) and not self._late

    async def _beat(self, backend: Backend, kept: Sequence[Kept]) -> bool:
        """Renew the memberships on one node; return whether each had an answer."""
        try:
            # Peers identify this worker by its connection, so ask for the identity of each new one.
            connection, run_id = await backend.identity(kept[0][0].members)
            with self._lock:
                loads = {keys: self._loads.get(keys, (0, None)) for keys, _ in kept}
                self._loads.update({keys: (load, None) for keys, (load, _) in loads.items()})
            renewals = [Renewal(keys, member, connection, run_id, *loads[keys]) for keys, (member, _) in kept]
            replies = await heartbeat(backend, renewals, monotonic_ms())
        except BackendError as error:
            self._failed(error)
            return False
        with self._lock:
            for (keys, (_, deliver)), reply in zip(kept, replies, strict=True):
                if isinstance(reply, BackendError):
                    log.warning("heartbeat_refused", processor=keys.group, error=str(reply))
                else:
                    self._name_foreign(keys, reply)
                    self._pending[keys] = (deliver, reply)
            if self._pending and not self._scheduled:
                self._scheduled = True
                self._loop.call_soon_threadsafe(self._deliver)
        return not any(isinstance(reply, BackendUnavailable) for reply in replies)

    def _failed(self, error: BackendError) -> None:
        """Log that heartbeats fail, at most once in ``TELL_EVERY_S`` while they do."""
        now_s = monotonic_s()
        if self._told_s is None or now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            log.warning("heartbeat_failed", error=str(error))

    def _name_foreign(self, keys: GroupKeys, reply: HeartbeatDone) -> None:
        """Log once which key another program has overwritten, and when it is restored."""
        before, now = self._foreign.get(keys, ""), reply.foreign
        if now == keys.beats and reply.beats:
            log.warning("heartbeats_mended", processor=keys.group, key=now)
        elif now != before and not reply.lost:
            self._foreign[keys] = now
            if now:
                log.warning("key_of_another_type", processor=keys.group, key=now)
            else:
                log.info("key_right_again", processor=keys.group, key=before)

    # -- in the worker's event loop ------------------------------------------------------------

    def _deliver(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
            self._scheduled = False
        for deliver, event in pending.values():
            deliver(event)
