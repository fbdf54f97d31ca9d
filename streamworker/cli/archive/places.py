"""The archives of an app, each with its store and what Redis knows of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import anyio

from streamworker.app import App
from streamworker.core.data.archives import GROUP, Archive
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.readers import ReaderPosition
from streamworker.core.words import counted
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.errors import ArchiveConflict, ConfigurationError
from streamworker.importing import resolve_archived
from streamworker.redisio.data.streams import slowest_group
from streamworker.redisio.group import readers
from streamworker.redisio.group.locks import LockView, read_locks
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend

if TYPE_CHECKING:
    from streamworker.archive.chain import Chain
    from streamworker.archive.identity import ArchiveIdentity
    from streamworker.archive.store import Store

S = TypeVar("S")
T = TypeVar("T")

THREADS = 8
"""Calls of a store that are under way at a time."""


@dataclass(frozen=True)
class Place:
    """One archive that an app declares: of a stream, or of a processor's acked log."""

    stream: StreamSpec
    archive: Archive
    processor: ProcessorSpec | None = None

    @property
    def log(self) -> str:
        """The processor whose acked log it is; empty for the stream."""
        return "" if self.processor is None else self.processor.name

    @property
    def name(self) -> str:
        """The name of what it archives."""
        return self.log or self.stream.name

    @property
    def whose(self) -> str:
        """What it archives, in words."""
        return f"the acked log of {self.log}" if self.log else self.stream.name

    @property
    def unit(self) -> str:
        """What it counts."""
        return "row" if self.log else "record"

    @property
    def field(self) -> str:
        """The field of the stream's declaration with its id."""
        from streamworker.runtime.archive.identities import field_of

        return field_of(self.log)

    @cached_property
    def keys(self) -> GroupKeys:
        """The keys of the group whose locks say how far it is; of an acked log those of its processor."""
        return GroupKeys(self.stream.app, self.stream.name, self.log or GROUP)

    @cached_property
    def store(self) -> Store:
        """Its store."""
        from streamworker.archive.store import store_at

        return store_at(self.archive.url)

    def chain(self, partition: int) -> Chain:
        """Return the chain of a partition."""
        from streamworker.archive.chain import Chain

        return Chain(self.store, partition)

    @property
    def mine(self) -> ArchiveIdentity:
        """The identity of a new archive here."""
        from streamworker.archive.identity import ArchiveIdentity, new_id

        return ArchiveIdentity(self.stream.app, self.stream.name, self.log, self.stream.codec_name, new_id())


def place_of(path: str) -> tuple[App, Place]:
    """Return an app and the one archive that a path names."""
    app, places = places_of(path)
    if len(places) == 1:
        return app, places[0]
    module = path.partition(":")[0]
    raise ConfigurationError(
        f"App {app.name!r} has {counted(len(places), 'archive')}.",
        remedy=f"Name one of them: {', '.join(f'{module}:{each.name}' for each in places)}.",
    )


def places_of(path: str) -> tuple[App, list[Place]]:
    """Return an app and the archives that a path names; refuse an app without one."""
    app, found = resolve_archived(path)
    places = []
    for each in found:
        if not isinstance(each, ProcessorSpec):
            assert each.spec.archive is not None
            places.append(Place(each.spec, each.spec.archive))
        else:
            assert each.options.archive_of_log is not None
            places.append(Place(each.stream, each.options.archive_of_log, each))
    if not places:
        raise ConfigurationError(
            f"App {app.name!r} has no archive.", remedy="Declare one: app.stream(..., archive=...)."
        )
    return app, places


@dataclass(frozen=True)
class Known:
    """What Redis knows of the archive of one partition."""

    end: EntryId
    """Up to which id it holds the partition."""
    lock: LockView | None
    reason: str
    """Why nothing is archived, as the archiver said last."""
    log: str = ""
    """Of an acked log its identity, as the reader that archives has counted it."""


async def known(backend: Backend, place: Place, partitions: Sequence[int]) -> dict[int, Known]:
    """Return what Redis knows of some partitions of an archive."""
    locks = await read_locks(backend, place.keys, partitions)
    views = {p: lock if isinstance(lock := locks.get(p), LockView) else None for p in partitions}
    if not place.log:
        return {
            p: Known(lock.checkpoint, lock, lock.reason) if lock else Known(ZERO, None, "")
            for p, lock in views.items()
        }
    position = (await readers.positions(backend, place.keys)).get(GROUP) or ReaderPosition({}, {}, 0)
    rows, logs = position.rows, position.logs
    return {
        p: Known(EntryId(rows.get(p, 0), 0), lock, position.failed, logs.get(p, ""))
        for p, lock in views.items()
    }


async def slowest(backend: Backend, place: Place, partition: int) -> tuple[EntryId, str] | None:
    """Return up to where all have read a partition, and who has read no more; None if nobody reads it."""
    if place.log:
        rows = {name: its.rows for name, its in (await readers.positions(backend, place.keys)).items()}
        rows.pop(GROUP, None)
        return min(((EntryId(its.get(partition, 0), 0), name) for name, its in rows.items()), default=None)
    if not (name := await slowest_group(backend, place.keys, partition)):
        return None
    lock = GroupKeys(place.stream.app, place.stream.name, name).lock(partition)
    checkpoint = await backend.execute("HGET", lock, "checkpoint")
    return (EntryId.parse(checkpoint) if checkpoint else ZERO), name


async def not_its_own(backend: Backend, place: Place) -> str:
    """Return why the store does not hold the archive that Redis knows; empty if it does."""
    from streamworker.archive.identity import read_identity

    try:
        stored = await anyio.to_thread.run_sync(read_identity, place.store)
    except ArchiveConflict as error:
        return error.message
    has = ((await backend.execute("HGET", place.keys.meta, place.field)) or b"").decode("utf-8", "replace")
    mine = place.mine
    if stored is None:
        return "The store has no _stream.json, which says whose archive it is."
    if stored[:3] != mine[:3]:
        return f"It is the archive of {stored.whose}, and not of {mine.whose}."
    if stored.id != has:
        return f"Its id is {stored.id}, and Redis knows it by the id {has or 'none'}."
    return ""


async def check_own(backend: Backend, place: Place) -> None:
    """Raise ArchiveConflict if the store does not hold the archive that Redis knows."""
    if wrong := await not_its_own(backend, place):
        raise ArchiveConflict(
            f"{place.archive.url} is left alone. {wrong}",
            remedy="Correct the URL; or, if this is the right one, run `streamworker archive adopt`.",
        )


async def each_of(
    function: Callable[[S], Awaitable[T]], items: Iterable[S], at_once: int = THREADS
) -> list[T]:
    """Call a function for each item, some at a time, and return the results in order."""
    limit, found = anyio.Semaphore(at_once), dict[int, T]()

    async def one(at: int, item: S) -> None:
        async with limit:
            found[at] = await function(item)

    try:
        async with anyio.create_task_group() as group:
            for at, item in enumerate(items):
                group.start_soon(one, at, item)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [found[at] for at in sorted(found)]


async def in_threads(function: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """Call a function that blocks for each item, some at a time, and return the results in order."""

    async def one(item: S) -> T:
        return await anyio.to_thread.run_sync(function, item)

    return await each_of(one, items)
