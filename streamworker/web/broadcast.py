"""One look for all tabs: takes snapshots, keeps the history, and passes on frames as server-sent events."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec

from streamworker.core.snapshot import GroupSnapshot
from streamworker.errors import StreamworkerError
from streamworker.web.history import History

LOOK_EVERY_S = 1.0
LOOKING_SHARE = 0.2
"""The share of the time that looking may take: if a look takes long, there are fewer."""
BEAT_EVERY_S = 5.0
"""How often a tab hears something at least: one that does not knows that the server, or the way, is gone."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look has found."""

    groups: Sequence[GroupSnapshot]
    edges: Sequence[Any] = ()
    """The edges of the graph, which JSON can hold."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What changes seldom: the tabs get it when it has changed."""


class Broadcast:
    """The frames of an app for any number of tabs.

    Each frame is encoded once. A tab that is slow gets the newest one, and misses those before.
    """

    def __init__(
        self, app: str, look: Callable[[], Awaitable[Seen]], *, every_s: float = LOOK_EVERY_S
    ) -> None:
        self.app = app
        self._look = look
        self._every_s = every_s
        self._histories: dict[str, History] = {}
        self._frames: dict[str, bytes] = {}
        self._facts = self._problem = b""
        self._rung = anyio.Event()

    async def run(self) -> None:
        """Look again and again; while looks fail, the tabs are told why."""
        while True:
            began_s = time.monotonic()
            try:
                self.arrived(await self._look())
            except StreamworkerError as error:
                self.failed(error.message)
            took_s = time.monotonic() - began_s
            await anyio.sleep(max(self._every_s - took_s, took_s * (1 / LOOKING_SHARE - 1), 0))

    def arrived(self, seen: Seen) -> None:
        """Keep what a look has found, and pass it on."""
        for group in seen.groups:
            self._histories.setdefault(group.processor, History()).add(group)
        record = [each for history in self._histories.values() for each in history.record]
        self._facts = _event("facts", {**seen.facts, "record": record})
        names = ("processor", "stream", "lag", "committed", "state")
        every = [{name: each.frame[name] for name in names} for each in self._histories.values()]
        common = {"every": every, "edges": seen.edges}
        for processor, history in self._histories.items():
            self._frames[processor] = _event("frame", {**common, "group": history.frame})
        self._problem = b""
        self._ring()

    def failed(self, problem: str) -> None:
        """Pass on why a look failed; the last frame stays."""
        self._problem = _event("problem", problem)
        self._ring()

    def at(self, processor: str, ms: int) -> bytes | None:
        """Return the matrix of a processor at a time as JSON; None if that is not known."""
        found = self._histories[processor].at(ms) if processor in self._histories else None
        return None if found is None else msgspec.json.encode(found)

    async def events(self, processor: str) -> AsyncIterator[bytes]:
        """Yield the last hour, and then each frame and what else has changed, until the tab goes."""
        while not self._histories:
            yield self._problem or _event("problem", "Waiting for Redis to answer.")
            await _within_beat(self._rung)
        if processor not in self._histories:
            processor = next(iter(self._histories))
        hello = {"app": self.app, "processor": processor, "points": self._histories[processor].points}
        yield _event("hello", hello)
        known: list[bytes] = []
        while True:
            rung, newest = self._rung, [self._facts, self._frames[processor], self._problem]
            for event in newest:
                if event and event not in known:
                    yield event
            known = newest
            while not await _within_beat(rung):
                yield BEAT

    def _ring(self) -> None:
        self._rung.set()
        self._rung = anyio.Event()


def _event(name: str, data: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


BEAT = _event("beat", None)


async def _within_beat(rung: anyio.Event) -> bool:
    """Wait until there is news, and at most until the next beat; return whether there is news."""
    with anyio.move_on_after(BEAT_EVERY_S):
        await rung.wait()
        return True
    return False
