"""The ground that a bench stands on: a server, and keys that nobody else has.

All keys are ``sw:{bench-NONCE...``. They are removed however a bench ends, and no other key is touched.
"""

import asyncio
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import cycle, islice

from streamworker.dev.bench.record import payloads
from streamworker.errors import ConfigurationError
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import StreamKeys
from streamworker.settings import plaintext_allowed

CALL_TIMEOUT_MS = 30_000
"""Other programs may keep the server busy, and UNLINK of a long stream takes its time."""
BUSY_PER_S = 50
"""Commands of others in a second above which a figure is no longer ours alone."""
LOOK_S = 0.5
FILL = 500
"""Entries in one round trip; the server's answers are short."""
KEEPER = "bench-keeper"
"""A group that never reads: with it, nothing is trimmed, and each run finds all entries."""
_NAME = re.compile(r"bench-[a-z0-9]{4,32}")


class Ground:
    """A server, and the keys of one bench on it.

    Parameters
    ----------
    backend
        The connection.
    url
        Where it leads; given to the processes that are measured, never printed.
    name
        The app's name, which all keys begin with.
    """

    def __init__(self, backend: Backend, url: str, name: str) -> None:
        self.backend = backend
        self.url = url
        self.name = name
        self.server = "unknown server"
        self.others_per_s = 0.0
        """Commands a second that others sent before the bench began."""

    @property
    def is_shared(self) -> bool:
        """Whether other clients keep the server busy."""
        return self.others_per_s > BUSY_PER_S

    def events(self, stream: str, partition: int = 0) -> str:
        """Return the key of a partition's entries."""
        return StreamKeys(self.name, stream).events(partition)

    def keys(self, stream: str, partitions: int) -> list[str]:
        """Return the keys of all partitions."""
        return [self.events(stream, partition) for partition in range(partitions)]

    async def info(self, section: str) -> dict[str, str]:
        """Return a part of INFO."""
        text: bytes = await self.backend.execute("INFO", section)
        pairs = (line.partition(":") for line in text.decode().splitlines() if ":" in line)
        return {name: value for name, _, value in pairs}

    async def cpu_s(self) -> float:
        """Return the CPU seconds that the server has used."""
        info = await self.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    async def fill(self, key: str, entries: Iterable[bytes], field: str = "v") -> None:
        """Append entries of one field each, in order, and keep them until the bench ends."""
        await self.append([key], entries, field)
        await self.group(key, KEEPER)

    async def append(self, keys: Sequence[str], entries: Iterable[bytes], field: str = "v") -> None:
        """Append entries of one field each to some streams in turn; workers may trim them."""
        where = cycle(keys)
        left = iter(entries)
        while chunk := list(islice(left, FILL)):
            await self.backend.pipeline([("XADD", next(where), "*", field, each) for each in chunk])

    async def fill_records(
        self, stream: str, count: int, *, partitions: int = 1, keys: int = 1000
    ) -> list[str]:
        """Append the bench's records to a stream, evenly; return the keys of its partitions."""
        names = self.keys(stream, partitions)
        for at, name in enumerate(names):
            await self.fill(name, payloads(count // partitions, keys=keys, first=at * (count // partitions)))
        return names

    async def group(self, key: str, name: str) -> None:
        """Make a group that begins with the first entry."""
        await self.backend.execute("XGROUP", "CREATE", key, name, "0", "MKSTREAM")

    async def forget(self, keys: list[str], group: str) -> None:
        """Remove a group, so that the server does not carry the runs before."""
        for at in range(0, len(keys), FILL):
            await self.backend.pipeline([("XGROUP", "DESTROY", key, group) for key in keys[at : at + FILL]])
        # What taskiq locks is the one key that a peer makes outside of ours.
        await self.backend.execute("UNLINK", *[f"autoclaim:{group}:{key}" for key in keys])

    async def clients(self) -> set[str]:
        """Return the ids of the clients that are connected now, but for those of the bench itself."""
        text: bytes = await self.backend.execute("CLIENT", "LIST")
        lines = (line.split(" ") for line in text.decode().splitlines())
        return {fields[0] for fields in lines if f"name={self.name}:bench" not in fields}

    async def length(self, keys: list[str]) -> int:
        """Return how many entries some streams have."""
        return sum(await self.backend.pipeline([("XLEN", key) for key in keys]))

    async def undone(self, keys: Sequence[str], group: str) -> list[str]:
        """Return the streams of which a group has not taken and acknowledged all entries."""
        looks = [(("XINFO", "GROUPS", key), ("XINFO", "STREAM", key)) for key in keys]
        answers = await self.backend.pipeline([look for both in looks for look in both])
        return [
            key
            for key, groups, info in zip(keys, answers[::2], answers[1::2], strict=True)
            if _place_of(group, groups) != (_pairs(info)[b"last-generated-id"], 0)
        ]

    async def progress(self, keys: Sequence[str], group: str) -> list[object]:
        """Return something that changes while entries are added to some streams, or taken from them."""
        looks = [(("XLEN", key), ("XINFO", "GROUPS", key)) for key in keys]
        answers = await self.backend.pipeline([look for both in looks for look in both])
        # A stream that is not there yet has no groups, which is an error.
        return [
            (length, None if isinstance(groups, Exception) else _place_of(group, groups))
            for length, groups in zip(answers[::2], answers[1::2], strict=True)
        ]

    async def remove_keys(self) -> int:
        """Remove the keys of this bench; return how many there were."""
        removed = 0
        async for names in self._keys():
            removed += await self.backend.execute("UNLINK", *names)
        return removed

    async def _keys(self) -> AsyncIterator[list[bytes]]:
        cursor = b"0"
        while True:
            cursor, names = await self.backend.execute(
                "SCAN", cursor, "MATCH", f"sw:{{{self.name}[.:]*", "COUNT", 1000
            )
            if names:
                yield names
            if int(cursor) == 0:
                return

    async def _begin(self) -> None:
        async for names in self._keys():
            raise ConfigurationError(
                f"The bench was to use keys like {names[0].decode()}, and they are there already.",
                remedy="They may be somebody's: leave out --name, so that one is made up that is free.",
            )
        about = await self.info("server")
        version = about.get("valkey_version") or about.get("redis_version", "?")
        self.server = f"{about.get('server_name', 'redis')} {version}"
        before = int((await self.info("stats"))["total_commands_processed"])
        await asyncio.sleep(LOOK_S)
        after = int((await self.info("stats"))["total_commands_processed"])
        self.others_per_s = max(0, after - before - 1) / LOOK_S


def _place_of(group: str, groups: Iterable[list[object]]) -> tuple[object, object] | None:
    """Return the last entry that a group was given, and how many it has not acknowledged."""
    for each in map(_pairs, groups):
        if each[b"name"] == group.encode():
            return each[b"last-delivered-id"], each[b"pending"]
    return None


def _pairs(flat: list[object]) -> dict[object, object]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


@asynccontextmanager
async def open_ground(url: str, name: str | None = None) -> AsyncIterator[Ground]:
    """Open the server for one bench, and leave nothing behind on it.

    Parameters
    ----------
    url
        The server.
    name
        What the keys begin with: ``bench-`` and letters or digits; made up if None.

    Raises
    ------
    ConfigurationError
        If the name is not a bench's, or there are keys under it.
    """
    name = name or f"bench-{secrets.token_hex(5)}"
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"A bench cannot use the keys of {name!r}: it removes them when it ends.",
            remedy="Leave out --name, or give bench- and 4 to 32 small letters and digits.",
        )
    allowed = plaintext_allowed(os.environ)
    async with Backend.open(
        url, name=f"{name}:bench", call_timeout_ms=CALL_TIMEOUT_MS, allow_plaintext=allowed
    ) as backend:
        ground = Ground(backend, url, name)
        await ground._begin()  # noqa: SLF001
        try:
            yield ground
        finally:
            # Also after Ctrl-C, which cancels this task once.
            await ground.remove_keys()
