"""Names partitions that have something to do and do not get on with it, and what each waits for.

It looks from outside, from a thread of its own, once a second: at numbers that the runners keep
anyway, so that no record costs anything by it. Because of the thread it sees a blocked event loop
too, and because of a connection of its own it can say so in Redis.

A partition stalls when nothing of it was committed for ``stalled_after_ms`` although it holds entries,
or entries wait for it in Redis that nobody reads. A stall is told once, and once more when it is over.
Partitions that wait for the same thing are told together: when Redis is away, a thousand do.

What it cannot see is native code that holds the interpreter lock: then no thread of the process runs,
heartbeats are late, and the peers notice.
"""

import asyncio
import inspect
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import CodeType
from typing import Protocol

from streamworker.errors import BackendError
from streamworker.log import get_logger
from streamworker.processors import ProcessorSpec
from streamworker.redisio.client import Backend, ScriptCall
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.scripts import COUNT
from streamworker.redisio.stalls import Stall, show_stalls
from streamworker.runtime import stacks
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.keeper import JOIN_TIMEOUT_S
from streamworker.runtime.runner import PartitionRunner
from streamworker.runtime.stacks import Stack
from streamworker.settings import Settings

LOOK_MS = 1_000
IDLE_LOOKS_MAX = 64
"""Idle partitions that Redis is asked about at a time, in turn: is there anything that we do not read?"""
STACKS_MAX = 32
"""Partitions whose stacks are looked for in one look; further ones are told without."""
DIFFERENT_MAX = 3
"""Different stacks that are shown of one partition, where calls overlap."""

log = get_logger("streamworker.watchdog")


class Watched(Protocol):
    """A group, as far as it is watched."""

    spec: ProcessorSpec
    keys: GroupKeys

    def runners(self) -> dict[int, PartitionRunner | None]:
        """Return the runners by partition; None while its state is read."""


@dataclass(slots=True)
class _Seen:
    """What was seen of one partition."""

    runner: PartitionRunner | None
    done: int
    since_ms: int
    """Since when it has had something to do and did not get on."""
    told: bool = False


@dataclass(frozen=True, slots=True)
class Cause:
    """What a partition waits for."""

    what: str
    stack: str = ""


class Watchdog:
    """Watches the groups of one worker process.

    Make it in the worker's event loop.

    Parameters
    ----------
    settings
        ``stalled_after_ms``, and the connection.
    name
        The worker's name, shown in ``CLIENT LIST``.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._after_ms = settings.stalled_after_ms
        self._look_ms = min(LOOK_MS, max(1, settings.stalled_after_ms // 4))
        self._groups: list[Watched] = []
        self._seen: dict[GroupKeys, dict[int, _Seen]] = {}
        self._unread: dict[tuple[GroupKeys, int], str] = {}
        """Idle partitions with entries in Redis, and up to where each was read at that time."""
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._asked_ms: int | None = None
        """Since when the worker's event loop has not answered."""
        self._failed = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._main, name="streamworker-watchdog", daemon=True)

    def watch(self, group: Watched) -> None:
        """Watch a group from now on."""
        self._groups.append(group)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its connection."""
        self._stopping.set()
        self._thread.join(JOIN_TIMEOUT_S)

    # -- in the watchdog's thread --------------------------------------------------------------

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        asked_ms = monotonic_ms()
        # The thread sleeps here and not in its event loop: nothing else runs in that.
        while not self._stopping.wait(self._look_ms / 1000):
            self._ask_loop()
            now_ms = monotonic_ms()
            try:
                for group in list(self._groups):
                    await self._look(group, now_ms)
                if now_ms - asked_ms >= self._after_ms:
                    asked_ms = now_ms
                    await self._look_for_unread()
            except Exception:
                # What it looks at changes meanwhile. One look that fails by it is no reason to end.
                if not self._failed:
                    log.exception("watchdog_failed")
                self._failed = True

    def _connect(self) -> Backend:
        """Open a connection for the moment: there is seldom something to say."""
        return Backend.open(
            self._settings.redis_url,
            name=f"{self._name}:watchdog",
            call_timeout_ms=self._settings.call_timeout_ms,
            connections=1,
            allow_plaintext=self._settings.allow_plaintext,
        )

    def _ask_loop(self) -> None:
        """Let the event loop answer by itself; how long it has not is how long it is blocked."""
        if self._asked_ms is None:
            self._asked_ms = monotonic_ms()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                self._asked_ms = None  # it has ended

    def _answer(self) -> None:
        self._asked_ms = None

    @property
    def _blocked_ms(self) -> int:
        asked_ms = self._asked_ms
        return 0 if asked_ms is None else monotonic_ms() - asked_ms

    async def _look(self, group: Watched, now_ms: int) -> None:
        runners = group.runners()
        known = self._seen.setdefault(group.keys, {})
        for partition in known.keys() - runners.keys():
            del known[partition]
        stalled, over = [], []
        for partition, runner in runners.items():
            done = runner.records_done if runner else 0
            seen = known.get(partition)
            if seen is None or seen.runner is not runner:
                known[partition] = _Seen(runner, done, now_ms)
            elif seen.done != done or not self._has_work(group, partition, runner):
                if seen.told:
                    over.append((partition, seen, now_ms - seen.since_ms))
                    known[partition] = _Seen(runner, done, now_ms)
                seen.done, seen.since_ms = done, now_ms
            elif not seen.told and now_ms - seen.since_ms >= self._after_ms:
                stalled.append((partition, seen))
        if stalled:
            await self._tell(group, stalled, now_ms)
        if over:
            await self._tell_of_end(group, over)

    async def _look_for_unread(self) -> None:
        """Find partitions that look idle, and are not: entries wait that their reads do not bring.

        What has just come is no sign of that: it is one when it lies there at the next look too.
        """
        idle: list[tuple[GroupKeys, int, str]] = []
        for group in self._groups:
            for partition, runner in group.runners().items():
                if runner is None or _holds_work(runner):
                    continue
                if not (runner.buffer.closed or runner.buffer.held):
                    idle.append((group.keys, partition, str(runner.buffer.position)))
        if not idle:
            return
        first = self._turn % len(idle)
        self._turn += IDLE_LOOKS_MAX
        idle = [*idle[first:], *idle[:first]]
        idle.sort(key=lambda each: each[:2] not in self._unread)
        idle = idle[:IDLE_LOOKS_MAX]
        calls: list[ScriptCall] = [((keys.events(p),), (position, 1)) for keys, p, position in idle]
        try:
            async with self._connect() as backend:
                replies = await backend.run_many(COUNT, calls)
        except BackendError:
            return  # Whoever reads finds out too, and says so.
        self._unread = {
            (keys, partition): position
            for (keys, partition, position), reply in zip(idle, replies, strict=True)
            if not isinstance(reply, BackendError) and reply[0] == b"OK" and reply[1]
        }

    def _has_work(self, group: Watched, partition: int, runner: PartitionRunner | None) -> bool:
        if runner is None or _holds_work(runner):
            return True
        unread = self._unread.get((group.keys, partition)) if self._unread else None
        return unread is not None and unread == str(runner.buffer.position)

    # -- telling -------------------------------------------------------------------------------

    async def _tell(self, group: Watched, stalled: Sequence[tuple[int, _Seen]], now_ms: int) -> None:
        alike: dict[Cause, list[tuple[int, _Seen]]] = {}
        tasks = stacks.task_stacks(self._loop)
        threads = stacks.handler_threads()
        for at, (partition, seen) in enumerate(stalled):
            looked = (tasks, threads) if at < STACKS_MAX else ([], [])
            seen.told = True
            alike.setdefault(self._cause(seen.runner, *looked), []).append((partition, seen))
        for cause, those in alike.items():
            oldest = [seen.runner.oldest for _, seen in those if seen.runner and seen.runner.oldest]
            log.warning(
                "partitions_stalled",
                processor=group.spec.name,
                partitions=[partition for partition, _ in those],
                stalled_ms=max(now_ms - seen.since_ms for _, seen in those),
                waits_for=cause.what,
                **({"entry": oldest[0]} if oldest else {}),
                **({"stack": cause.stack} if cause.stack else {}),
            )
        shown = []
        for cause, those in alike.items():
            for partition, seen in those:
                if seen.runner is None:
                    continue
                since_s = time.time() - (now_ms - seen.since_ms) / 1000
                moment = datetime.fromtimestamp(since_s, UTC).isoformat(timespec="seconds")
                shown.append(_stall(partition, seen.runner, moment, cause.what))
        await self._show(group, shown)

    async def _tell_of_end(self, group: Watched, over: Sequence[tuple[int, _Seen, int]]) -> None:
        log.info(
            "partitions_go_on",
            processor=group.spec.name,
            partitions=[partition for partition, _, _ in over],
            stalled_ms=max(ms for _, _, ms in over),
        )
        await self._show(
            group, [_stall(partition, seen.runner, "", "") for partition, seen, _ in over if seen.runner]
        )

    async def _show(self, group: Watched, stalls: Sequence[Stall]) -> None:
        """Show it in the locks; the log has it anyway."""
        if not stalls:
            return
        try:
            async with self._connect() as backend:
                await show_stalls(backend, group.keys, stalls)
        except BackendError as error:
            log.warning("stall_not_shown", error=str(error))

    # -- what it waits for ---------------------------------------------------------------------

    def _cause(
        self,
        runner: PartitionRunner | None,
        tasks: Sequence[Stack],
        threads: Sequence[Stack],
    ) -> Cause:
        """Return what a partition waits for."""
        if runner is None:
            return Cause("its stored state, from Redis")
        if runner.halted:
            return Cause(f"somebody to look at it: it is halted: {runner.halted}")
        if self._blocked_ms > self._after_ms / 2:
            return self._blocked_cause(runner)
        if not _holds_work(runner):
            return Cause(runner.trouble or "its entries: they are in Redis, and its reads do not bring them")
        own = stacks.of_runner(tasks, runner)
        called = self._handler_cause(runner, own, stacks.of_runner(threads, runner))
        if called is not None:
            return called
        if runner.trouble:
            return Cause(runner.trouble)
        if runner.is_committing:
            return Cause("Redis: the answer to a commit")
        if not runner.gate_is_open:
            return Cause("heartbeats that get through: until then nothing new is begun")
        if any(stack.has(PartitionRunner.pause.__code__) for stack in own):
            return Cause("its next attempt, after a failed one")
        return Cause("what its tasks wait for", _different(own))

    def _blocked_cause(self, runner: PartitionRunner) -> Cause:
        stack = stacks.thread_stack(self._loop_thread)
        if stacks.of_runner([stack], runner):
            return Cause(f"{_handler(runner, stack)}, which keeps the event loop", stack.text)
        return Cause("the event loop, which something else keeps")

    def _handler_cause(
        self, runner: PartitionRunner, tasks: Sequence[Stack], threads: Sequence[Stack]
    ) -> Cause | None:
        """Return what a call of the function waits for; None if there is none."""
        if threads:
            return Cause(f"{_handler(runner, *threads)}, in a thread", _different(threads))
        in_thread = [stack for stack in tasks if stack.has(type(runner.invoker).in_thread.__code__)]
        if in_thread:
            return Cause(f"a free thread: all {self._settings.handler_threads} of handler_threads are taken")
        if runner.busy_since_ms is None:
            return None
        code = _code(runner)
        calls = [stack for stack in tasks if code is not None and stack.has(code)]
        return Cause(_handler(runner, *calls), _different(calls or tasks))


def _stall(partition: int, runner: PartitionRunner, since: str, waits_for: str) -> Stall:
    state = "draining" if runner.draining else "running"
    return Stall(partition, runner.owner, runner.epoch, state, since, waits_for)


def _holds_work(runner: PartitionRunner) -> bool:
    """Whether a partition has something that it should get on with.

    What waits for others to make a batch is nothing of that kind yet.
    """
    busy = runner.busy_since_ms is not None or runner.is_committing
    if busy or runner.halted:
        return True
    return runner.buffer.held > 0 and runner.buffer.gathers_until_ms <= monotonic_ms()


def _code(runner: PartitionRunner) -> CodeType | None:
    found: CodeType | None = getattr(inspect.unwrap(runner.spec.function), "__code__", None)
    return found


def _handler(runner: PartitionRunner, *found: Stack) -> str:
    """Name the function, and where in its file it stands."""
    code = _code(runner)
    places = [place for stack in found if code is not None and (place := stack.place(code))]
    return f"its function ({places[0]})" if places else "its function"


def _different(found: Sequence[Stack]) -> str:
    """Return the different stacks, the most frequent first."""
    counts: dict[str, int] = {}
    for stack in found:
        counts[stack.text] = counts.get(stack.text, 0) + 1
    shown = sorted(counts, key=lambda text: -counts[text])[:DIFFERENT_MAX]
    return "\n\n".join(text if counts[text] == 1 else f"{counts[text]} calls:\n{text}" for text in shown)
