"""Runs what may end the process: in its turn, and named before; ``core.ownership.risks`` has the rules."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from streamworker.core.ownership.risks import Risk, Runs, Turns, deaths_in_words, remedy_for
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
        """Name a timer, a resource or middleware while the block runs it; ``who`` is the partition that does.

        Raise ProcessDied if it is held back, since several workers in a row have died in it; and BackendError
        if it cannot be named, since then nobody would know what a death was about.
        """
        risk, its, by = Risk(kind, name, self.partition), turns(), who or _Other()
        try:
            if who is None:
                while not its.may_start(by, monotonic_ms()):
                    await its.ended.wait(TURN_LOOK_S)
                its.join(by)
            await self._begin(risk, its, by)
            try:
                yield
            finally:
                await self._end(risk)
        finally:
            if who is None:
                its.leave(by, monotonic_ms())
            else:
                its.end(by, monotonic_ms())

    async def _begin(self, risk: Risk, its: ProcessTurns, by: Runs) -> None:
        is_alone = its.is_careful
        while True:
            while is_alone and not its.ask(by, monotonic_ms()):
                await its.ended.wait(TURN_LOOK_S)
            most = DEATHS_MIN - 1 if is_alone else 0
            is_named, deaths = await risks.step(self.backend, self.keys, risk, self.owner, "begin", most)
            if deaths >= DEATHS_MIN:
                raise ProcessDied(f"{deaths_in_words(risk.what, deaths)}.", remedy=remedy_for(risk.what))
            if is_named:
                if deaths:
                    _log.warning("workers_died_in_call", deaths=deaths, of=risk.what, partition=risk.place)
                return
            is_alone = True  # A death counted against it: it is run while nothing else is.

    async def _end(self, risk: Risk) -> None:
        """Take the name back: it did not end the process. Also for a worker that is cancelled."""
        with anyio.move_on_after(END_S, shield=True):
            try:
                await risks.step(self.backend, self.keys, risk, self.owner, "end")
            except BackendError as error:
                warn(_log, "risk_not_taken_back", error, of=risk.what, partition=risk.place)
