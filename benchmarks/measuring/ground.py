"""The server of a bench, and the keys that the bench creates there.

All keys begin with ``sw:{bench-NONCE``. The bench removes them at its end, also after an error or Ctrl-C,
and touches no other key.
"""

import asyncio
import os
import re
import secrets
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import islice

from benchmarks.measuring.task import payloads
from streamworker.errors import ConfigurationError
from streamworker.redisio.data.streams import Append, append_many
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.info import RecordCounts, groups_by_name, pairs_of
from streamworker.variables import plaintext_allowed

CALL_TIMEOUT_MS = 30_000
"""Long, since other programs may keep the server busy, and UNLINK of a long stream takes time."""
BUSY_PER_S = 50
"""Commands a second from other clients above which they distort the figures."""
LOOK_S = 0.5
FILL_PACKED = 1_000
"""Records of an append that share entries."""
KEEPER = "bench-keeper"
"""A group that never reads. It prevents trimming, so that each run finds all entries."""
_NAME = re.compile(r"bench-[a-z0-9]{4,32}")


@dataclass(frozen=True, slots=True)
class BenchGround:
    """A server, and the keys of one bench on it."""

    backend: Backend
    url: str
    """Passed to the measured processes, never printed."""
    name: str
    """Name of the bench's app, a part of all keys."""

    def keys(self, stream: str, partitions: int) -> list[str]:
        """Return the keys of a stream's partitions."""
        return [StreamKeys(self.name, stream).events(partition) for partition in range(partitions)]

    async def info(self, section: str) -> dict[str, str]:
        """Return a section of INFO."""
        text: bytes = await self.backend.execute("INFO", section)
        pairs = (line.partition(":") for line in text.decode().splitlines() if ":" in line)
        return {name: value for name, _, value in pairs}

    async def cpu_s(self) -> float:
        """Return the CPU seconds that the server has used."""
        info = await self.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    async def fill_packed(self, stream: str, count: int, *, partitions: int = 1) -> list[str]:
        """Append the bench's records as ``send_many`` does, and return the partitions' keys.

        ``KEEPER`` keeps them until the bench ends.
        """
        at = StreamKeys(self.name, stream)
        for p, key in enumerate(self.keys(stream, partitions)):
            left = payloads(count // partitions, first=p * (count // partitions))
            number = 0
            while chunk := list(islice(left, FILL_PACKED)):
                number += 1
                await append_many(self.backend, at, [Append(p, KEEPER, number, 0, chunk, number - 1, "json")])
            await self.backend.execute("XGROUP", "CREATE", key, KEEPER, "0", "MKSTREAM")
        return self.keys(stream, partitions)

    async def forget(self, keys: list[str], group: str) -> None:
        """Remove a group, so that groups of earlier runs do not cost server time."""
        await self.backend.pipeline([("XGROUP", "DESTROY", key, group) for key in keys])

    async def length(self, keys: list[str]) -> int:
        """Return the number of records in some streams."""
        counts = [RecordCounts.command(key.removesuffix("events") + "counts") for key in keys]
        found = await self.backend.pipeline([*[("XLEN", key) for key in keys], *counts])
        packed = map(RecordCounts.of, found[len(keys) :])
        entries: int = sum(found[: len(keys)])
        return entries + sum(each.extra - each.before for each in packed)

    async def undone(self, keys: Sequence[str], group: str) -> list[str]:
        """Return the streams whose entries a group has not all read and acknowledged."""
        streams = await self.backend.pipeline([("XINFO", "STREAM", key) for key in keys])
        places = await self._places(keys, group)
        lasts = [pairs_of(info)[b"last-generated-id"] for info in streams]
        return [key for key, place, last in zip(keys, places, lasts, strict=True) if place != (last, 0)]

    async def _places(self, keys: Sequence[str], group: str) -> list[tuple[object, object] | None]:
        """Return for each stream how far a group is: by its lock if it is ours, as Redis counts if not."""
        locks = [("HGET", f"{key.removesuffix('events')}lock:{group}", "checkpoint") for key in keys]
        groups = [("XINFO", "GROUPS", key) for key in keys]
        found = await self.backend.pipeline([*locks, *groups])
        pairs = zip(found[: len(keys)], found[len(keys) :], strict=True)
        return [(done, 0) if isinstance(done, bytes) else _place_of(group, its) for done, its in pairs]

    async def progress(self, keys: Sequence[str], group: str) -> list[object]:
        """Return a value that changes while entries are added to some streams, or read from them."""
        lengths = await self.backend.pipeline([("XLEN", key) for key in keys])
        return [*lengths, *await self._places(keys, group)]

    async def remove_keys(self) -> None:
        """Remove the keys of this bench."""
        await remove_keys(self.backend, self.name)

    async def server(self) -> str:
        """Return name and version of the server."""
        about = await self.info("server")
        version = about.get("valkey_version") or about.get("redis_version", "?")
        return f"{about.get('server_name', 'redis')} {version}"

    async def others_per_s(self) -> float:
        """Return the commands a second that other clients send."""
        before = int((await self.info("stats"))["total_commands_processed"])
        await asyncio.sleep(LOOK_S)
        after = int((await self.info("stats"))["total_commands_processed"])
        return max(0, after - before - 1) / LOOK_S


async def remove_keys(backend: Backend, app: str) -> None:
    """Remove all keys of an app."""
    async for names in _keys(backend, app):
        await backend.execute("UNLINK", *names)


async def _keys(backend: Backend, app: str) -> AsyncIterator[list[bytes]]:
    cursor = b"0"
    while True:
        cursor, names = await backend.execute("SCAN", cursor, "MATCH", f"sw:{{{app}[.:]*", "COUNT", 1000)
        if names:
            yield names
        if int(cursor) == 0:
            return


def _place_of(group: str, groups: object) -> tuple[object, object] | None:
    """Return the last entry delivered to a group, and the number of its unacknowledged entries."""
    found = groups_by_name(groups).get(group.encode())
    return None if found is None else (found[b"last-delivered-id"], found[b"pending"])


@asynccontextmanager
async def open_ground(
    url: str, name: str | None = None, *, warn: Callable[[str], None] = lambda _: None
) -> AsyncIterator[BenchGround]:
    """Connect to the server for one bench, and remove the bench's keys at the end, also after a signal.

    ``name`` is that of the bench's app, ``bench-`` and letters or digits, and random if None; it is refused
    if it has another form, or if it has keys. ``warn`` is told of a server that other clients keep busy.
    """
    name = name or f"bench-{secrets.token_hex(5)}"
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"A bench cannot use the keys of {name!r}: it removes them when it ends.",
            remedy="Leave out --name, or give bench- and 4 to 32 small letters and digits.",
        )
    allowed = plaintext_allowed(os.environ)
    with _sigterm_as_ctrl_c():
        async with Backend.open(
            url, name=f"{name}:bench", call_timeout_ms=CALL_TIMEOUT_MS, allow_plaintext=allowed
        ) as backend:
            async for names in _keys(backend, name):
                raise ConfigurationError(
                    f"The bench would use keys such as {names[0].decode()}, but they exist already.",
                    remedy="Another program may need them: leave out --name, which then is random.",
                )
            ground = BenchGround(backend, url, name)
            others_per_s = await ground.others_per_s()
            if others_per_s > BUSY_PER_S:
                warn(f"Other clients send {others_per_s:.0f} commands/s to this server: figures will differ.")
            try:
                yield ground
            finally:
                # This also runs after Ctrl-C, which cancels this task once.
                await ground.remove_keys()


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM cancel the bench as SIGINT does, so that the bench removes its keys."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    # A shell script starts background processes with SIGINT ignored. SIGTERM must cancel them even then.
    before = signal.signal(signal.SIGTERM, on_ctrl_c if callable(on_ctrl_c) else signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
