"""One processor in one worker: passes events to the protocol core and performs its effects.

The keeper, the listener, the runners and answered calls deliver events, which the group handles one
after the other. It performs the effects in order: effects on runners at once, effects on Redis as tasks
whose answers become events. The group itself decides nothing.
"""

import logging
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup

from streamworker.core import events as ev
from streamworker.core.control import ControlMessage, GroupChanged
from streamworker.core.data.load import LoadMeter
from streamworker.core.ownership.locks import Refused
from streamworker.core.ownership.merging import merged
from streamworker.core.pauses import Pauses
from streamworker.core.protocols.membership import events as calls
from streamworker.core.protocols.registry import PROTOCOLS, Coordinator
from streamworker.core.transcript import is_news, step_in_words
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.errors import BackendError, BackendRefused, BackendUnavailable, InternalError
from streamworker.log import get_logger
from streamworker.redisio.group.control import post
from streamworker.redisio.group.loads import read_lags
from streamworker.redisio.group.locks import mark_many
from streamworker.redisio.group.operation import Access, Operation
from streamworker.redisio.group.operations import OPERATIONS
from streamworker.redisio.group.requests import read_versions
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.observing import Observer
from streamworker.runtime.partitions import Partitions
from streamworker.runtime.provisioning import provision
from streamworker.runtime.resources import Resources
from streamworker.runtime.run import trail
from streamworker.runtime.telling import warn
from streamworker.runtime.watch.keeper import Keeper
from streamworker.settings import Settings

REQUESTS_LOOK_S = 5.0
"""How often the worker looks for requests in its locks: the delay that a lost message causes."""
REQUESTS_LOOKS = 32
"""In how many locks it looks each time, in turn. A look takes a command a lock: with a thousand
partitions, looks into all locks were most of what an idle worker sent."""


@dataclass(eq=False)
class Group:
    """One processor's group as seen by one worker."""

    name: str
    """The worker's name."""
    spec: ProcessorSpec
    core: Coordinator
    backend: Backend
    keeper: Keeper
    settings: Settings
    rng: random.Random
    resources: Resources
    observer: Observer | None = None
    streams: Mapping[str, StreamSpec] = field(default_factory=dict)
    """All of the app, by name."""

    def __post_init__(self) -> None:
        stream = self.spec.stream
        self.keys = GroupKeys(stream.app, stream.name, self.spec.name)
        self._access = Access(
            self.backend, self.keys, self.settings.drain_deadline_ms, stream.placement.parents_of
        )
        self._log = get_logger("streamworker.group").bind(processor=self.spec.name)
        self._events: deque[ev.Event] = deque()
        self._arrived = anyio.Event()
        self._measuring = anyio.CancelScope()
        self.partitions = Partitions(
            spec=self.spec,
            keys=self.keys,
            backend=self.backend,
            settings=self.settings,
            rng=self.rng,
            deliver=self.deliver,
            mark=lambda view: self._show([view]),
            spawn=self._spawn,
            log=self._log,
            resources=self.resources,
            observer=self.observer,
            streams=self.streams,
        )
        self.drained = self._finished = False
        """``drained``: whether the worker has drained and left the group."""
        self._has_joined = False
        self.joined = False
        """Whether the worker takes part in the group."""
        self._views: dict[int, ev.MarkLock] = {}
        """The newest state of each partition whose lock does not show it yet."""
        self._tasks: TaskGroup | None = None

    # -- from outside --------------------------------------------------------------------------

    def deliver(self, event: ev.Event) -> None:
        """Queue an event. Call it in the worker's event loop."""
        self._events.append(event)
        self._arrived.set()

    def control_received(self, event: ev.ControlReceived) -> None:
        """Deliver messages of the control stream."""
        for message in event.messages:
            if isinstance(message, GroupChanged):
                self._log.info(
                    "rebalance",
                    generation=message.generation,
                    cause=message.cause,
                    member=message.member,
                    moved=list(message.moved),
                )
        self.deliver(event)

    def stop(self) -> None:
        """Drain the partitions, release them and leave the group; ``run`` returns after that."""
        self.deliver(ev.StopRequested())

    async def run(self) -> None:
        """Take part in the group until stopped; raise if it runs with another number of partitions."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            for keep_running in (*self.partitions.services(), self._look_at_requests):
                tasks.start_soon(keep_running)
            self.deliver(ev.Started())
            self.joined = not PROTOCOLS[self.settings.coordination.name].has_document
            try:
                while not self._finished:
                    await self._next_event()
                    on_redis: list[ev.Effect] = []
                    while self._events and not self._finished:
                        on_redis += self._step(self._events.popleft())
                    self._call(on_redis)
            finally:
                self._finished = True
                self.keeper.forget(self.keys)
            tasks.cancel_scope.cancel()

    async def _next_event(self) -> None:
        """Wait for an event; add a ``DeadlinePassed`` if the core's deadline passes first."""
        if self._events:
            return
        self._arrived = anyio.Event()
        deadline_ms = self.core.next_deadline_ms()
        wait_s = math.inf if deadline_ms is None else max(0.0, (deadline_ms - monotonic_ms()) / 1000)
        with anyio.move_on_after(wait_s):
            await self._arrived.wait()
            return
        self._events.append(ev.DeadlinePassed())

    def _step(self, event: ev.Event) -> list[ev.Effect]:
        """Pass an event to the core; perform the effects on this process and return those on Redis."""
        effects = self.core.handle(event, monotonic_ms())
        self._trace(event, effects)
        on_redis: list[ev.Effect] = []
        for effect in effects:
            if isinstance(effect, ev.MarkLock | ev.PostControl) or type(effect) in OPERATIONS:
                on_redis.append(effect)
            else:
                self._perform(effect)
        return on_redis

    def _call(self, effects: Sequence[ev.Effect]) -> None:
        """Start the Redis calls for one turn of the event loop: views and messages first, then the rest.

        When a hundred partitions drain in one turn, one call releases them and one message reports it,
        which wakes each of the other workers once.
        """
        if marks := [effect for effect in effects if isinstance(effect, ev.MarkLock)]:
            self._show(marks)
        if posts := [effect.message for effect in effects if isinstance(effect, ev.PostControl)]:
            self._spawn(self._post, posts)
        for effect in merged(effects):
            if operation := OPERATIONS.get(type(effect)):
                self._spawn(self._operate, operation, effect)

    def _trace(self, event: ev.Event, effects: Sequence[ev.Effect]) -> None:
        """Log a step in the format of the simulator's ``--trace``."""
        if self._log.is_enabled_for(logging.DEBUG) and is_news(event, effects):
            for words in step_in_words(event, effects):
                self._log.debug(f"{self.name}  {words}")

    def _spawn(self, function: Callable[..., Coroutine[Any, Any, object]], *arguments: object) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(function, *arguments)

    def _perform(self, effect: ev.Effect) -> None:
        match effect:
            case calls.StartHeartbeat(member):
                self.keeper.keep(self.keys, member, self._heartbeat_done)
                if self._has_joined:
                    self._spawn(self._declare_again)
                self._has_joined = self.joined = True
            case calls.SendHeartbeat():
                self.keeper.hurry()
            case calls.StopHeartbeat():
                self.joined = False
                self.keeper.forget(self.keys)
            case calls.ReportLoad(every_ms):
                self._measuring.cancel()
                self._measuring = anyio.CancelScope()
                if every_ms:
                    self._spawn(self._measure, every_ms, self._measuring)
            case ev.StartRunner():
                self.partitions.start(effect)
            case ev.DrainRunner(partition, epoch):
                self.partitions.drain(partition, epoch)
            case ev.CancelRunner(partition, epoch):
                self.partitions.cancel(partition, epoch, dropped=False)
            case ev.DropRunner(partition, epoch):
                self.partitions.cancel(partition, epoch, dropped=True)
            case ev.LookAtPartitions():
                self.partitions.generations.look()
            case ev.PauseBatches():
                self.partitions.gate.close()
            case ev.ResumeBatches():
                self.partitions.gate.open()
            case ev.Note(event, fields):
                self._log.info(event, **fields)
            case ev.Finished():
                self.drained = self._finished = True
            case _:
                raise InternalError(f"Nobody performs the effect {effect!r}.")

    async def _declare_again(self) -> None:
        """Declare stream and group again: this member was removed, and the database may be empty."""
        pauses = Pauses(self.rng.random)
        while True:
            try:
                await provision(self.backend, self.spec, self._log, again=True)
            except BackendError as error:
                warn(self._log, "declare_failed", error)
                await anyio.sleep(pauses.next_ms() / 1000)
            else:
                return

    def _heartbeat_done(self, event: calls.HeartbeatDone) -> None:
        if self.partitions.witness.is_another(event.run_id) and not self._finished:
            self._spawn(self.partitions.witness.compare)
        self.deliver(event)

    async def _operate(self, operation: Operation, effect: ev.Effect) -> None:
        """Call Redis for an effect and deliver the answer as an event, also if there is no answer."""
        try:
            event = await operation(self._access, effect)
        except BackendError as error:
            warn(self._log, "call_unanswered", error, call=type(effect).__name__)
            event = ev.Unanswered(effect)
            if isinstance(error, BackendRefused) and isinstance(effect, ev.AcquireLocks):
                replies = dict.fromkeys(effect.partitions, Refused())
                event = ev.LocksAnswered(effect.owner, effect.partitions, replies)
        trail.locks_answered(effect, event)
        self.deliver(event)

    def _show(self, marks: Sequence[ev.MarkLock]) -> None:
        """Let locks show states of partitions. One call at a time: an older state must not overtake."""
        is_idle = not self._views
        self._views |= {mark.partition: mark for mark in marks}
        if is_idle:
            self._spawn(self._write_views)

    async def _write_views(self) -> None:
        pauses = Pauses(self.rng.random)
        while written := dict(self._views):
            try:
                await mark_many(self.backend, self.keys, list(written.values()), clock_ms=monotonic_ms())
            except BackendError as error:
                warn(self._log, "marking_failed", error)
                if isinstance(error, BackendUnavailable):
                    await anyio.sleep(pauses.next_ms() / 1000)
                    continue
            for partition, view in written.items():
                if self._views[partition] is view:
                    del self._views[partition]

    async def _post(self, messages: Sequence[ControlMessage]) -> None:
        """Post messages; losing one loses only a hint."""
        try:
            await post(self.backend, self.keys, [message.fields() for message in messages])
        except BackendError as error:
            self._log.warning("posting_failed", error=str(error))

    async def _look_at_requests(self) -> None:
        """Look at intervals for requests of which no message told."""
        turn = 0
        while True:
            await anyio.sleep(REQUESTS_LOOK_S)
            if held := sorted(self.core.held):
                first = turn % len(held)
                turn += REQUESTS_LOOKS
                looked = [*held[first:], *held[:first]][:REQUESTS_LOOKS]
                try:
                    seen = await read_versions(self.backend, self.keys, looked)
                except BackendError as error:
                    self._log.debug("orders_unreadable", error=str(error))
                else:
                    self.deliver(ev.RequestsSeen(seen))

    async def _measure(self, every_ms: int, scope: anyio.CancelScope) -> None:
        """Measure the load of each partition until cancelled, a round trip each; heartbeats report it."""
        meter, running = LoadMeter(), self.partitions.running
        with scope:
            try:
                while True:
                    await anyio.sleep(every_ms / 1000)
                    try:
                        lags = await read_lags(self.backend, self.keys, tuple(running()))
                    except BackendError as error:
                        self._log.warning("lags_unread", error=str(error))
                        continue
                    counters = {p: runner.counters(lags.get(p)) for p, runner in running().items()}
                    self.keeper.report(self.keys, meter.look(counters))
            finally:
                # Otherwise heartbeats would report the last load for as long as the worker lives.
                self.keeper.report(self.keys, {})
