"""Takes an archive for that of a stream, after a person has decided so."""

from collections.abc import Mapping

import anyio

from streamworker.app import App
from streamworker.cli.archive.places import Known, Place, known
from streamworker.cli.data.reset import refuse_if_run
from streamworker.cli.output import confirm, say
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.ownership.locks import Held
from streamworker.core.words import ranges
from streamworker.errors import ArchiveConflict, CoordinationError
from streamworker.redisio.data.streams import entries_up_to, store_fields
from streamworker.redisio.group.locks import move_checkpoint
from streamworker.redisio.wire.client import Backend


async def adopted(backend: Backend, app: App, place: Place, yes: bool) -> list[str]:
    """Say what adopting an archive means, do it, and return what was done."""
    from streamworker.archive.identity import put_identity, read_identity

    url, mine = place.archive.url, place.mine
    stored = await anyio.to_thread.run_sync(read_identity, place.store)
    has = ((await backend.execute("HGET", place.keys.meta, place.field)) or b"").decode("utf-8", "replace")
    here = await known(backend, place, place.stream.placement.all)
    behind = await anyio.to_thread.run_sync(_behind, place, here)
    if behind and place.log:
        raise ArchiveConflict(
            f"In partition {ranges(behind)} the archive of {place.whose} ends before what Redis takes for "
            "archived, and that of a log has no gap. Nothing was changed.",
            remedy="Restore its objects, or give log_archive= another URL.",
        )
    if stored is not None and stored.id == has and not behind:
        return [f"{url} is the archive of {stored.whose} already, and Redis knows it. Nothing was changed."]
    if stored is None:
        what = f"{url} has no archive. It becomes a new one of {mine.whose}."
    else:
        what = f"{url} is the archive of {stored.whose}, and becomes that of {mine.whose}."
        if stored[:3] != mine[:3]:
            what += " Its records become the beginning of this one's history: no other app may write there."
    if has and (stored is None or stored.id != has):
        what += f" Redis forgets the archive with the id {has}, whose objects stay where they are."
    say(what, *_lacks(here, behind))
    is_run = bool(behind) and await _is_run(backend, app, place, behind)
    if not yes:
        confirm("Go on?")
        is_run = bool(behind) and await _is_run(backend, app, place, behind)
    new = mine if stored is None else stored
    # Redis first: who finds an id in a store that Redis does not have refuses it.
    await store_fields(backend, place.keys.meta, {place.field: new.id})
    won = await anyio.to_thread.run_sync(put_identity, place.store, new)
    if won.id != new.id:
        raise ArchiveConflict(
            f"Meanwhile another program has made {url} the archive of {won.whose}.",
            remedy="Run `streamworker archive adopt` again to take it over.",
        )
    for partition, end in behind.items():
        lock = here[partition].lock
        await _go_back(backend, place, partition, end, "" if is_run or lock is None else lock.owner)
    begun = "It is a new archive" if stored is None else "It is adopted"
    return [f"{begun}, with the id {new.id}. Workers find it at their next try."]


def _behind(place: Place, here: Mapping[int, Known]) -> dict[int, EntryId]:
    """Return where the archive ends, for partitions of which Redis takes more for archived."""
    found = {}
    for partition, its in here.items():
        last = place.chain(partition).last() if its.end > ZERO else None
        if (end := last.last if last else ZERO) < its.end:
            found[partition] = end
    return found


def _lacks(here: Mapping[int, Known], behind: Mapping[int, EntryId]) -> list[str]:
    if not behind:
        return []
    partition, end = next(iter(behind.items()))
    first = f"in partition {partition} what lies behind {end}, up to {here[partition].end}"
    what = f"In partition {ranges(behind)} the archive lacks what Redis takes for archived: {first}."
    return [f"{what} Of that it gets what Redis still has; what was trimmed is lost."]


async def _is_run(backend: Backend, app: App, place: Place, partitions: Mapping[int, EntryId]) -> bool:
    return await refuse_if_run(backend, app, app.registry.archivers[place.stream.name], partitions)


async def _go_back(backend: Backend, place: Place, partition: int, end: EntryId, owner: str) -> None:
    """Let Redis take a partition for archived up to the end of its chain, and no further."""
    entries = await entries_up_to(backend, place.keys, partition, end)
    done = await move_checkpoint(backend, place.keys, partition, end, entries=entries, owner=owner)
    if isinstance(done, Held):
        raise CoordinationError(
            f"Partition {partition} was taken by {done.owner} meanwhile, so its archive does not go on.",
            remedy="Stop the workers, and run this again.",
        )
