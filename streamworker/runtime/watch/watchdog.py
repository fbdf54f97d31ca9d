"""Reports partitions that have work and make no progress, and what each waits for.

This is the only alarm for missing progress, and ``max_processing_time_ms`` its only setting. A partition
stalls if none of its records was committed for that long although it holds entries, or although entries
wait in Redis that its reads do not bring. The watchdog reports a stall once, and once more when it ends. It
reports partitions that wait for the same thing together: when Redis is away, there may be a thousand.

Once a second it checks the counters that the runners keep anyway, so it costs nothing for a record. It has
a thread and a connection of its own, so that it also detects a blocked event loop, and can report it.

It never looks at what another thread executes. The event loop reads the stacks of its own tasks, threads
register their calls, and of a function that blocks the event loop only the name and entries are known. It
cannot detect native code that holds the interpreter lock: then no thread of the process runs, heartbeats
are late, and the peers notice.
"""

import asyncio
import concurrent.futures
import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import CodeType

from streamworker.core.events import MarkLock
from streamworker.errors import BackendError
from streamworker.log import get_logger
from streamworker.redisio.group.locks import mark_many
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.scripts import COUNT
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.connecting import connected
from streamworker.runtime.run.runner import PartitionRunner
from streamworker.runtime.run.threads import name_of, running_calls
from streamworker.runtime.watch.keeper import JOIN_TIMEOUT_S
from streamworker.runtime.watch.stacks import Stack, stacks_of
from streamworker.settings import Settings

LOOK_MS = 1_000
IDLE_LOOKS_MAX = 64
"""How many idle partitions are checked at a time, in turn, for entries in Redis that are not read."""
STACKS_MAX = 32
"""For how many partitions one check looks for stacks; it reports further ones without a stack."""
DIFFERENT_MAX = 3
"""How many different stacks of one partition are shown, if its calls overlap."""

STALLED = "no progress since "
"""Begins the reason of a stall in the lock."""
UNREAD = "its entries: they are in Redis, and its reads do not bring them"

log = get_logger("streamworker.watchdog")


Runners = Callable[[], Mapping[int, PartitionRunner | None]]
"""Returns the runners of a group by partition, None while a state is being read."""


@dataclass(slots=True)
class _Seen:
    runner: PartitionRunner | None
    done: int
    since_ms: int
    """Since when the partition has had work and made no progress."""
    told: bool = False


@dataclass(frozen=True, slots=True)
class Cause:
    """What a partition waits for."""

    what: str
    stack: str = ""


class Watchdog:
    """Watches the groups of one worker process. Create it in the worker's event loop."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name
        self.after_ms = settings.max_processing_time_ms
        self._look_ms = min(LOOK_MS, max(1, settings.max_processing_time_ms // 4))
        self._groups: dict[GroupKeys, Runners] = {}
        self._seen: dict[GroupKeys, dict[int, _Seen]] = {}
        self._unread: dict[tuple[GroupKeys, int], str] = {}
        """Idle partitions with unread entries in Redis, and the read position of each at that time."""
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        self._asked_ms: int | None = None
        """Since when the worker's event loop has not answered; None if it has."""
        self._lag_ms = 0
        self._told_blocked = False
        self._failed = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name="streamworker-watchdog", daemon=True
        )

    def watch(self, keys: GroupKeys, runners: Runners) -> None:
        """Watch a group, too. Call it before ``start``."""
        self._groups[keys] = runners

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its connection."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_TIMEOUT_S)

    # -- in the watchdog's thread --------------------------------------------------------------

    async def _run(self) -> None:
        asked_ms = monotonic_ms()
        # The thread may block here instead of awaiting: its event loop runs nothing else.
        while not self._stopping.wait(self._look_ms / 1000):
            self._ask_loop()
            now_ms = monotonic_ms()
            try:
                for keys, runners in self._groups.items():
                    await self._look(keys, runners(), now_ms)
                if now_ms - asked_ms >= self.after_ms:
                    asked_ms = now_ms
                    await self._look_for_unread()
            except Exception:
                # The runners change during the check. One failed check must not end the watchdog.
                if not self._failed:
                    log.exception("watchdog_failed")
                self._failed = True

    def _connect(self) -> Backend:
        """Open a connection for a short time: the watchdog rarely needs one."""
        return connected(self._settings, f"{self._name}:watchdog", connections=1)

    def _ask_loop(self) -> None:
        """Ask the event loop for an answer; the time without one is how long it is blocked."""
        if self._asked_ms is None:
            self._told_blocked = False
            self._asked_ms = monotonic_ms()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                self._asked_ms = None  # it has ended
        elif self.blocked_ms >= self.after_ms and not self._told_blocked:
            self._told_blocked = True
            log.error("event_loop_blocked", blocked_ms=self.blocked_ms, task=self._keeps_loop())

    def _answer(self) -> None:
        self._lag_ms, self._asked_ms = self.blocked_ms, None

    @property
    def lag_ms(self) -> int:
        """How late the event loop runs what is due, at the last look or now."""
        return max(self._lag_ms, self.blocked_ms)

    @property
    def blocked_ms(self) -> int:
        """How long the worker's event loop has not answered."""
        asked_ms = self._asked_ms
        return 0 if asked_ms is None else monotonic_ms() - asked_ms

    def _keeps_loop(self) -> str:
        """Return the name of the task that runs in the event loop now; empty if none does."""
        task = asyncio.current_task(self._loop)
        return "" if task is None else task.get_name()

    async def _look(
        self, keys: GroupKeys, runners: Mapping[int, PartitionRunner | None], now_ms: int
    ) -> None:
        known = self._seen.setdefault(keys, {})
        for partition in known.keys() - runners.keys():
            del known[partition]
        stalled, over = [], []
        for partition, runner in runners.items():
            done = runner.commits.records_done if runner else 0
            seen = known.get(partition)
            if seen is None or seen.runner is not runner:
                known[partition] = _Seen(runner, done, now_ms)
            elif seen.done != done or not self._has_work(keys, partition, runner):
                known[partition] = _Seen(runner, done, now_ms)
                if seen.told:
                    over.append((partition, seen))
            elif not seen.told and now_ms - seen.since_ms >= self.after_ms:
                stalled.append((partition, seen))
        if stalled:
            await self._tell(keys, stalled, now_ms)
        if over:
            log.info(
                "partitions_go_on",
                processor=keys.group,
                partitions=[partition for partition, _ in over],
                stalled_ms=max(now_ms - seen.since_ms for _, seen in over),
            )
            await self._show(keys, [mark for p, seen in over for mark in _marks(p, seen.runner, "")])

    async def _look_for_unread(self) -> None:
        """Find partitions that look idle although entries wait in Redis that their reads do not bring.

        Entries that have just arrived do not count; they count if they still wait at the next check.
        """
        idle: list[tuple[GroupKeys, int, str]] = []
        for keys, runners in self._groups.items():
            for partition, runner in runners().items():
                if runner is None or _holds_work(runner):
                    continue
                if not (runner.intake.buffer.closed or runner.intake.buffer.held):
                    idle.append((keys, partition, str(runner.intake.buffer.position)))
        if not idle:
            return
        first = self._turn % len(idle)
        self._turn += IDLE_LOOKS_MAX
        in_turn = [*idle[first:], *idle[:first]]
        idle = sorted(in_turn, key=lambda each: each[:2] not in self._unread)[:IDLE_LOOKS_MAX]
        calls = [COUNT.at(keys, p, after=position, since=position, most=1) for keys, p, position in idle]
        try:
            async with self._connect() as backend:
                replies = await backend.run_many(COUNT, calls)
        except BackendError:
            return  # The fetcher gets the same error and logs it.
        self._unread = {
            (keys, partition): position
            for (keys, partition, position), reply in zip(idle, replies, strict=True)
            if not isinstance(reply, BackendError) and reply[0] == b"OK" and reply[1]
        }

    def _has_work(self, keys: GroupKeys, partition: int, runner: PartitionRunner | None) -> bool:
        if runner is None or _holds_work(runner):
            return True
        return self._unread.get((keys, partition)) == str(runner.intake.buffer.position)

    # -- telling -------------------------------------------------------------------------------

    async def _tell(self, keys: GroupKeys, stalled: Sequence[tuple[int, _Seen]], now_ms: int) -> None:
        alike: dict[Cause, list[tuple[int, _Seen]]] = {}
        shown: list[MarkLock] = []
        stacks = self._stacks([seen.runner for _, seen in stalled if seen.runner][:STACKS_MAX])
        for partition, seen in stalled:
            seen.told = True
            alike.setdefault(self._cause(seen.runner, stacks), []).append((partition, seen))
        for cause, those in alike.items():
            runners = [seen.runner for _, seen in those if seen.runner]
            calls = [(runner.activity.busy_since_ms, runner.mode.oldest) for runner in runners]
            begun_ms, entry = min(
                ((since_ms, entry) for since_ms, entry in calls if since_ms is not None), default=(now_ms, "")
            )
            log.warning(
                "partitions_stalled",
                processor=keys.group,
                partitions=[partition for partition, _ in those],
                stalled_ms=max(now_ms - seen.since_ms for _, seen in those),
                waits_for=cause.what,
                **({"entry": entry, "busy_ms": now_ms - begun_ms} if entry else {}),
                **({"stack": cause.stack} if cause.stack else {}),
            )
            for partition, seen in those:
                since_s = time.time() - (now_ms - seen.since_ms) / 1000
                moment = datetime.fromtimestamp(since_s, UTC).isoformat(sep=" ", timespec="seconds")
                shown += _marks(partition, seen.runner, f"{STALLED}{moment}: waits for {cause.what}")
        await self._show(keys, shown)

    async def _show(self, keys: GroupKeys, stalls: Sequence[MarkLock]) -> None:
        """Write the stalls to the locks; the log has them in any case."""
        if not stalls:
            return
        try:
            async with self._connect() as backend:
                await mark_many(backend, keys, stalls, only_over=STALLED)
        except BackendError as error:
            log.warning("stall_not_shown", error=str(error))

    # -- what it waits for ---------------------------------------------------------------------

    def _stacks(self, runners: Sequence[PartitionRunner]) -> dict[str, list[Stack]]:
        """Let the event loop read the stacks of these partitions' tasks; none if it does not answer."""
        if self._is_blocked:
            return {}
        names = {runner.activity.name for runner in runners}
        asked = asyncio.run_coroutine_threadsafe(stacks_of(names), self._loop)
        try:
            return asked.result(self._look_ms / 1000)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            asked.cancel()
            return {}

    @property
    def _is_blocked(self) -> bool:
        return self.blocked_ms > self.after_ms / 2

    def _cause(self, runner: PartitionRunner | None, stacks: Mapping[str, Sequence[Stack]]) -> Cause:
        if runner is None:
            return Cause("its stored state, from Redis; or until the group is done with older partitions")
        if runner.ending.halted:
            return Cause(f"an operator: it is halted: {runner.ending.halted}")
        if self._is_blocked:
            if self._keeps_loop() != runner.activity.name:
                return Cause("the event loop, which something else keeps")
            return Cause(f"{_function(runner)}, which keeps the event loop")
        if not _holds_work(runner):
            return Cause(runner.activity.trouble or UNREAD)
        own = stacks.get(runner.activity.name, ())
        if (called := self._call_cause(runner, own)) is not None:
            return called
        if runner.activity.trouble:
            return Cause(runner.activity.trouble)
        if runner.commits.is_committing:
            return Cause("Redis: the answer to a commit")
        if not runner.intake.gate.is_open:
            return Cause("heartbeats that get through: until then nothing new is begun")
        if runner.intake.pauses:
            return Cause("its next attempt, after a failed one")
        return Cause("what its tasks wait for", _different(own))

    def _call_cause(self, runner: PartitionRunner, tasks: Sequence[Stack]) -> Cause | None:
        """Return what a call of the function waits for; None if no call runs."""
        if runner.invoker.calls_in_threads:
            if any(call.owned is runner.invoker.owned for call in running_calls()):
                return Cause(f"{_function(runner)}, in a thread")
            return Cause(f"a free thread: all {self._settings.handler_threads} of handler_threads are taken")
        if runner.activity.busy_since_ms is None:
            return None
        code: CodeType | None = getattr(inspect.unwrap(runner.invoker.spec.function), "__code__", None)
        calls = [] if code is None else [stack for stack in tasks if stack.line_of(code)]
        what = f"its function ({calls[0].line_of(code)})" if code and calls else _function(runner)
        return Cause(what, _different(calls or tasks))


def _marks(partition: int, runner: PartitionRunner | None, reason: str) -> list[MarkLock]:
    """Return what shows a reason in the lock of a partition; nothing without a runner."""
    if runner is None:
        return []
    state = "draining" if runner.intake.draining else "running"
    return [MarkLock(partition, runner.commits.start.owner, runner.commits.epoch, state, reason)]


def _holds_work(runner: PartitionRunner) -> bool:
    """Whether a partition has work on which it should make progress.

    Entries that wait for more to fill a batch do not count yet.
    """
    if runner.activity.busy_since_ms is not None or runner.commits.is_committing or runner.ending.halted:
        return True
    return runner.intake.buffer.held > 0 and runner.intake.buffer.gathers_until_ms <= monotonic_ms()


def _function(runner: PartitionRunner) -> str:
    return f"its function ({name_of(runner.invoker.spec.function)})"


def _different(found: Sequence[Stack]) -> str:
    """Return the different stacks, the most frequent first."""
    shown = Counter(stack.text for stack in found).most_common(DIFFERENT_MAX)
    return "\n\n".join(text if count == 1 else f"{count} calls:\n{text}" for text, count in shown)
