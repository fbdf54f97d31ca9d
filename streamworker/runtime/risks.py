"""Runs what may end the process: in its turn, and named before; ``core.ownership.risks`` has the rules."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.lowlevel

from streamworker.core.ownership.risks import TURN_MAX_MS, Risk, Runs, Turns, deaths_in_words, remedy_for
from streamworker.core.ownership.tries import DEATHS_MIN
from streamworker.errors import BackendError, ProcessDied
from streamworker.log import get_logger
from streamworker.redisio.group import risks
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.clock import monotonic_ms
from streamworker.runtime.signals import Signal
from streamworker.runtime.telling import warn

TURN_LOOK_S = 0.05
"""Interval of looks whether it is a suspect's turn."""
START_LOOK_S = 0.5
"""The same at the start of workers, which look in Redis."""
END_S = 1.0
"""How long a worker that is cancelled takes back a name at most; a name that stays counts as a death."""

_log = get_logger("streamworker.risks")


class ProcessTurns(Turns):
    """The turns of one process."""

    def __init__(self) -> None:
        self.ended = Signal()
        """Fires at the end of each turn."""
        super().__init__(self.ended.fire)


_turns: anyio.lowlevel.RunVar[ProcessTurns] = anyio.lowlevel.RunVar("turns")


def turns() -> ProcessTurns:
    """Return the turns of this process, which all groups of its worker share."""
    if (found := _turns.get(None)) is None:
        found = ProcessTurns()
        _turns.set(found)
    return found


class HeldBack(ProcessDied):
    """Worker after worker died in something that is no record, so it is not run."""


class OthersTurn(BackendError):
    """Another worker runs something in which a worker has died; this one may a little later."""


class StoppedAtStart(Exception):
    """The worker was told to stop while it waited for what it runs at its start."""


class Namer(Protocol):
    """Names a resource while it is made."""

    def taken(self, kind: str, name: str) -> AbstractAsyncContextManager[None]:
        """Name it while the block runs it."""


class _Other:
    """Something that runs and is no partition."""

    is_at_risk, takes_alone = True, False


@dataclass(frozen=True, slots=True)
class Risks:
    """What one owner of a partition runs beside records."""

    backend: Backend
    keys: GroupKeys
    partition: int
    owner: str

    @asynccontextmanager
    async def taken(self, kind: str, name: str, who: Runs | None = None) -> AsyncIterator[None]:
        """Name a timer or a resource while the block runs it; ``who`` is the partition that runs a timer.

        Raise HeldBack if several workers in a row have died in it; and BackendError if it cannot be named,
        since then nobody would know what a death was about.
        """
        its, by = turns(), who or _Other()
        try:
            if who is None:
                while not its.may_start(by, monotonic_ms()):
                    await its.ended.wait(TURN_LOOK_S)
                its.join(by)
            # A resource is made beside records that are named: each of many partitions has its own.
            is_alone = who is not None and its.is_careful
            while True:
                while is_alone and not its.ask(by, monotonic_ms()):
                    await its.ended.wait(TURN_LOOK_S)
                if await self.begin(kind, name, is_alone=is_alone):
                    break
                is_alone = True
            try:
                yield
            finally:
                await self.end(kind, name)
        finally:
            if who is None:
                its.leave(by, monotonic_ms())
            else:
                its.end(by, monotonic_ms())

    async def begin(self, kind: str, name: str, *, is_alone: bool) -> bool:
        """Name something that runs next; raise HeldBack if several workers in a row have died in it.

        Return False, and name nothing, if a worker has died in it and other calls may run beside it. Raise
        OthersTurn if another worker runs it after a death.
        """
        risk, most = Risk(kind, name, self.partition), DEATHS_MIN - 1 if is_alone else 0
        is_named, deaths = await risks.step(self.backend, self.keys, risk, self.owner, "begin", most)
        if deaths >= DEATHS_MIN:
            raise HeldBack(f"{deaths_in_words(risk.what, deaths)}.", remedy=remedy_for(risk.what))
        if is_alone and not is_named:
            raise OthersTurn(f"After a death one worker at a time runs {risk.what}, and another one does.")
        if is_named and deaths:
            _log.warning("workers_died_in_call", deaths=deaths, of=risk.what, partition=risk.place)
        return is_named

    async def end(self, kind: str, name: str) -> None:
        """Take the name back: it did not end the process. Also for a worker that is cancelled."""
        risk = Risk(kind, name, self.partition)
        with anyio.move_on_after(END_S, shield=True):
            try:
                await risks.step(self.backend, self.keys, risk, self.owner, "end")
            except BackendError as error:
                warn(_log, "risk_not_taken_back", error, of=risk.what, partition=risk.place)


@dataclass(frozen=True, slots=True)
class StartRisks:
    """What a worker runs before it joins its groups.

    It owns nothing yet, and many workers start at the same time. So each names it for itself, and has died if
    its connection is closed. After a death one worker at a time goes on, and the others wait.
    """

    backend: Backend
    keys: GroupKeys
    """Of one of its groups."""
    patiently: Callable[[Callable[[], Awaitable[None]]], Awaitable[bool]]
    """Repeats a call that fails, or raises its error; returns False if the worker was told to stop."""
    until_stopped: Callable[[], AbstractContextManager[None]]
    """Cancels its block if the worker is told to stop, and raises StoppedAtStart then."""

    @asynccontextmanager
    async def taken(self, kind: str, name: str) -> AsyncIterator[None]:
        """Name a resource while the block makes it, once that may begin.

        Raise HeldBack if several workers in a row have died in it, and StoppedAtStart if the worker was told
        to stop meanwhile.
        """
        what, mine = f"{kind} {name}", ""

        async def name_it() -> None:
            nonlocal mine
            mine = await self.begin(what)

        if not await self.patiently(name_it):
            raise StoppedAtStart
        try:
            with self.until_stopped():
                yield
        finally:
            with anyio.move_on_after(END_S, shield=True):
                try:
                    await risks.end_start(self.backend, self.keys, what, mine)
                except BackendError as error:
                    warn(_log, "risk_not_taken_back", error, of=what)

    async def begin(self, what: str) -> str:
        """Name it once that may begin, and return where; raise HeldBack if several workers died in it."""
        until_ms = monotonic_ms() + TURN_MAX_MS
        while True:
            starts = await risks.read_starts(self.backend, self.keys, what)
            if starts.deaths >= DEATHS_MIN:
                raise HeldBack(f"{deaths_in_words(what, starts.deaths)}.", remedy=remedy_for(what))
            is_alone = starts.deaths > 0 and monotonic_ms() < until_ms
            if not (is_alone and starts.others) and (
                mine := await risks.begin_start(self.backend, self.keys, what, starts, is_alone=is_alone)
            ):
                if starts.deaths:
                    _log.warning("workers_died_in_call", deaths=starts.deaths, of=what)
                return mine
            await anyio.sleep(START_LOOK_S)
