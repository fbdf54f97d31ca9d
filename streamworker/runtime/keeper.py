"""Heartbeats from a thread of their own, so that nothing a handler does can delay them.

A handler may block the event loop for a minute, or compute for one; the worker is alive all the
same, and its peers must not think otherwise. So the keeper has its own thread, event loop and
connection, and shares nothing with the worker but a table of what to renew. One heartbeat is one
command a group, whatever the number of partitions, and all groups of a worker share a round trip.

What it cannot do is run while native code holds the interpreter lock for seconds, as a long
regular expression does. Then heartbeats are late, peers find the connection alive and wait
``slow_after_ms``, and commits are fenced whoever is right.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence

from streamworker.core.events import HeartbeatDone
from streamworker.core.pulse import BEAT_RETRIES
from streamworker.errors import BackendError, BackendUnavailable
from streamworker.log import get_logger
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.membership import HeartbeatReply, Renewal, heartbeat
from streamworker.runtime.clock import monotonic_ms
from streamworker.settings import Settings

log = get_logger("streamworker.keeper")

Deliver = Callable[[HeartbeatDone], None]
Kept = tuple[GroupKeys, tuple[str, Deliver]]
"""A membership to renew: the group, the member, and who is told."""
JOIN_TIMEOUT_S = 5.0


class Keeper:
    """Renews the memberships of one worker process.

    Parameters
    ----------
    settings
        Connection and pace.
    name
        The worker's name, shown in ``CLIENT LIST``.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._lock = threading.Lock()
        self._kept: dict[GroupKeys, tuple[str, Deliver]] = {}
        self._loads: dict[GroupKeys, tuple[int, Mapping[int, int] | None]] = {}
        """The last load of each group, and by partition until a heartbeat has carried that."""
        self._foreign: dict[GroupKeys, str] = {}
        """Which key of a group was said to hold something else."""
        self._pending: dict[GroupKeys, tuple[Deliver, HeartbeatDone]] = {}
        self._late: dict[str, asyncio.Task[bool]] = {}
        """Heartbeats under way, by node; only where there are several."""
        self._scheduled_ms: int | None = None
        self._stalled = False
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name="streamworker-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread; it renews nothing yet."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its connection."""
        self._stopping = True
        self._poke()
        self._thread.join(JOIN_TIMEOUT_S)

    def keep(self, keys: GroupKeys, member: str, deliver: Deliver) -> None:
        """Renew a membership from now on, at once for the first time.

        ``deliver`` is called in the worker's event loop. While that is blocked only the newest
        answer is kept: the older ones have nothing to tell any more.
        """
        with self._lock:
            self._kept[keys] = (member, deliver)
        self._poke()

    def hurry(self) -> None:
        """Renew all memberships now, those of other groups too, and again an interval after that."""
        self._poke()

    def forget(self, keys: GroupKeys) -> None:
        """Renew a membership no longer."""
        with self._lock:
            self._kept.pop(keys, None)
            self._loads.pop(keys, None)
            self._foreign.pop(keys, None)

    def report(self, keys: GroupKeys, loads: Mapping[int, int]) -> None:
        """Let heartbeats carry what the partitions of a membership ask of us."""
        with self._lock:
            self._loads[keys] = (sum(loads.values()), loads)

    # -- in the keeper's thread ----------------------------------------------------------------

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception:
            # Without heartbeats the worker stops its batches by its own deadline, and peers take
            # over: safe, but somebody should know why.
            log.exception("keeper_failed")

    async def _run(self) -> None:
        self._own_loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        backend = Backend.open(
            self._settings.redis_url,
            name=f"{self._name}:heartbeat",
            call_timeout_ms=self._settings.call_timeout_ms,
            connections=1,
            allow_plaintext=self._settings.allow_plaintext,
        )
        interval_s = self._settings.heartbeat_interval_ms / 1000
        async with backend:
            while not self._stopping:
                started = time.monotonic()
                wait_s = interval_s if await self._beat_all(backend) else interval_s / BEAT_RETRIES
                self._watch_loop()
                pause_s = max(0.0, wait_s - (time.monotonic() - started))
                try:
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
            for task in self._late.values():
                task.cancel()
            await asyncio.gather(*self._late.values(), return_exceptions=True)

    async def _beat_all(self, backend: Backend) -> bool:
        """Renew all memberships; whether each had an answer."""
        with self._lock:
            kept = list(self._kept.items())
        places: dict[str, list[Kept]] = {}
        try:
            if not kept:  # There is a connection by the time when there is something to renew.
                await backend.identity()
            for each in kept:
                places.setdefault(await backend.place_of(each[0].members), []).append(each)
        except BackendError as error:
            log.warning("heartbeat_failed", error=str(error))
            return False
        if len(places) < 2 and not self._late:
            return all([await self._beat(backend, here) for here in places.values()])
        # On a Cluster groups are at several nodes, and one that hangs must not delay the others' heartbeats.
        for place, here in places.items():
            if place not in self._late:
                self._late[place] = asyncio.create_task(self._beat(backend, here))
        await self._wait(self._late.values(), self._settings.heartbeat_interval_ms / 1000)
        answered = [place for place, task in self._late.items() if task.done()]
        return all([await self._late.pop(place) for place in answered]) and not self._late

    async def _wait(self, tasks: Iterable["asyncio.Task[bool]"], seconds: float) -> None:
        """Wait until all tasks are done, the time is over, or there is something new to do."""
        assert self._wake is not None
        poked = asyncio.create_task(self._wake.wait())
        waiting, until_s = set(tasks), time.monotonic() + seconds
        while waiting and not poked.done() and (left_s := until_s - time.monotonic()) > 0:
            done, _ = await asyncio.wait(
                {poked, *waiting}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            waiting.difference_update(done)
        poked.cancel()

    async def _beat(self, backend: Backend, kept: Sequence[Kept]) -> bool:
        """Renew the memberships that are at one node; whether each had an answer."""
        try:
            # Peers find us by our connection, so its identity is asked for again when it is new.
            connection, run_id = await backend.identity(kept[0][0].members)
            with self._lock:
                loads = {keys: self._loads.get(keys, (0, None)) for keys, _ in kept}
                self._loads.update({keys: (load, None) for keys, (load, _) in loads.items()})
            sent_ms = monotonic_ms()
            replies = await heartbeat(
                backend,
                [Renewal(keys, member, connection, run_id, *loads[keys]) for keys, (member, _) in kept],
            )
        except BackendError as error:
            log.warning("heartbeat_failed", error=str(error))
            return False
        with self._lock:
            for (keys, (member, deliver)), reply in zip(kept, replies, strict=True):
                if isinstance(reply, BackendError):
                    log.warning("heartbeat_refused", processor=keys.group, error=str(reply))
                else:
                    self._name_foreign(keys, reply)
                    self._pending[keys] = (deliver, _event(member, reply, sent_ms, run_id))
            if self._pending and self._scheduled_ms is None:
                self._scheduled_ms = sent_ms
                self._loop.call_soon_threadsafe(self._deliver)
        return not any(isinstance(reply, BackendUnavailable) for reply in replies)

    def _name_foreign(self, keys: GroupKeys, reply: HeartbeatReply) -> None:
        """Say once which key another program wrote over, and when it is right again."""
        before, now = self._foreign.get(keys, ""), reply.foreign
        if now == keys.beats and reply.beats:
            log.warning("heartbeats_mended", processor=keys.group, key=now)
        elif now != before and not reply.lost:
            self._foreign[keys] = now
            if now:
                log.warning("key_of_another_type", processor=keys.group, key=now)
            else:
                log.info("key_right_again", processor=keys.group, key=before)

    def _watch_loop(self) -> None:
        """Say so, with the stack, when the worker's event loop has not run for very long."""
        since = self._scheduled_ms
        if since is None:
            self._stalled = False
            return
        blocked_ms = monotonic_ms() - since
        if self._stalled or blocked_ms < self._settings.max_processing_time_ms:
            return
        self._stalled = True
        frames = sys._current_frames()  # noqa: SLF001  (documented, for debuggers)
        frame = frames.get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame)[-8:]) if frame else "unknown"
        log.error("event_loop_blocked", blocked_ms=blocked_ms, stack=stack)

    def _poke(self) -> None:
        if self._own_loop is not None and self._wake is not None:
            try:
                self._own_loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:
                return  # its loop has ended already

    # -- in the worker's event loop ------------------------------------------------------------

    def _deliver(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
            self._scheduled_ms = None
        for deliver, event in pending.values():
            deliver(event)


def _event(member: str, reply: HeartbeatReply, sent_ms: int, run_id: str) -> HeartbeatDone:
    known = (reply.generation or 0, sent_ms, run_id, reply.beats, reply.fingerprint)
    return HeartbeatDone(member, reply.lost, *known)
