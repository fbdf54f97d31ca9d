"""Count the commands that clients send to a server, with MONITOR. Commands inside scripts do not count."""

import asyncio
import contextlib
import re
from collections import Counter
from typing import Self

from streamworker.redisio.group.operations import SCRIPTS
from streamworker.redisio.wire.link import Endpoint, Link, pack

_LINE = re.compile(rb'^[\d.]+ \[\d+ ([^\]]*)\] "([^"]*)"(?: "([^"]*)")?')
_SCRIPTS = {script.sha: script.name for script in SCRIPTS}
OURS = frozenset(
    {
        "hmget",
        "rpush",
        "smismember",
        "monitor",
        "client list",
        "client setname",
        "client setinfo",
        "blpop",
        "auth",
        "scard",
    }
)
"""Commands that only the observer sends, and those at the start of a connection; they do not count."""


class CommandCount:
    """Counts commands during an ``async with`` block; without a URL it counts nothing.

    MONITOR makes each command slower: do not measure times in the block.
    """

    def __init__(self, url: str | None) -> None:
        self.by_name: Counter[str] = Counter()
        """Counts by command or script."""
        self._link = None if url is None else Link(Endpoint(url, "monitor"))

    @property
    def total(self) -> int:
        """Number of commands so far."""
        return sum(self.by_name.values())

    async def __aenter__(self) -> Self:
        if self._link is not None:
            await self._link.ready()
            await self._link.roundtrip(pack(("MONITOR",)), 1)
            self._task = asyncio.create_task(self._read(self._link))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._link is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _read(self, link: Link) -> None:
        while True:
            (line,) = await link.roundtrip(b"", 1)
            self._take(line if isinstance(line, bytes) else str(line).encode())

    def _take(self, line: bytes) -> None:
        match = _LINE.match(line)
        name = "" if match is None else match[2].decode().lower()
        if name == "client" and match is not None:
            name = f"client {match[3].decode().lower()}"
        if match is None or match[1] == b"lua" or name in OURS:
            return
        if name == "evalsha" and match[3]:
            name = _SCRIPTS.get(match[3].decode(), name)
        self.by_name[name] += 1
