"""Reads a stream through its archive, for commands: what the archive alone has first, then Redis.

A worker's fetcher does the same into its buffers; see ``cold.py``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import anyio.to_thread

from streamworker.core.data.archives import Footer
from streamworker.core.data.entries import EntryId
from streamworker.declaring.specs import StreamSpec
from streamworker.records.entries import Entries
from streamworker.redisio.group import archiving
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend

if TYPE_CHECKING:
    from streamworker.archive.chain import Chain


async def entries_after(
    backend: Backend, stream: StreamSpec, partition: int, position: EntryId, at_once: int
) -> AsyncGenerator[Entries]:
    """Yield what a partition has after a position, in order, up to its end at this time."""
    keys = StreamKeys(stream.app, stream.name)
    while True:
        reply = await backend.execute("XRANGE", keys.events(partition), f"({position}", "+", "COUNT", at_once)
        # Redis first: what is archived by then and not behind the position was not trimmed when it was read.
        if stream.archive and await archiving.overtaken(backend, keys, {partition: position}):
            from streamworker.runtime.read.cold import ColdReader

            reader, begin = ColdReader(stream), position
            while (found := await reader.next(partition, position)) is not None:
                position = found.id_at(len(found) - 1)
                yield found
            if position == begin:
                raise reader.ended(partition, position)
            continue
        if not reply:
            return
        entries = Entries.of(reply).after(position)
        yield entries
        position = EntryId.parse(reply[-1][0])


async def oldest_archived(stream: StreamSpec, partition: int) -> Footer | None:
    """Return the footer of the oldest segment of a partition; None if it has none."""

    def read() -> Footer | None:
        chain = _chain(stream, partition)
        segments = chain.segments()
        return chain.footer(segments[0].after) if segments else None

    return await anyio.to_thread.run_sync(read, abandon_on_cancel=True)


async def archived_up_to(stream: StreamSpec, partition: int, position: EntryId) -> int:
    """Return how many records a partition ever had up to a position that the archive holds.

    That is what the footer of its segment counts, without the records behind the position.
    """

    def read() -> int:
        behind: int = 0
        for part in _chain(stream, partition).read(position, ("_time", "_seq")):
            behind += part.table.num_rows
            if part.position == part.footer.last:
                return int(part.footer.total) - behind
        return 0

    return await anyio.to_thread.run_sync(read)


def records_before(footer: Footer) -> int:
    """Return how many records a partition had before the first one of its archive."""
    return footer.total - footer.records - footer.erased


def _chain(stream: StreamSpec, partition: int) -> Chain:
    from streamworker.archive.chain import Chain
    from streamworker.archive.store import store_at

    assert stream.archive is not None
    return Chain(store_at(stream.archive.url), partition)
