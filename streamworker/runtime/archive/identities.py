"""Whether the store behind an archive is the one that Redis knows.

The store and the declaration in Redis hold the same id. It is in Redis first: whoever finds it in the store
and not in Redis knows that Redis has lost it, or that the store is another app's.
"""

from streamworker.archive.identity import ArchiveIdentity, new_id, put_identity, read_identity
from streamworker.archive.store import Store
from streamworker.errors import ArchiveConflict
from streamworker.redisio.data.streams import store_fields
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.archive.turns import in_thread

_ADOPT = "Give the archive a URL of its own; or, if this one is right, run `streamworker archive adopt`."


def field_of(log: str) -> str:
    """Return the field of a stream's declaration that holds the id of its archive, or of an acked log's."""
    return f"archive_id:{log}" if log else "archive_id"


async def verified(
    backend: Backend,
    keys: StreamKeys,
    store: Store,
    *,
    log: str,
    codec: str,
    has_archived: bool,
    known: str,
) -> str:
    """Return the id of an archive if store and Redis agree about it; give a new archive one.

    ``has_archived`` says whether Redis knows of archived records. ``known`` is what this process was told
    before, or empty: a Redis that was emptied under running workers is told again.

    Raises
    ------
    ArchiveConflict
        If they do not agree.
    ArchiveUnavailable
        If the store does not answer.
    """
    field = field_of(log)
    # The store first: an id that is in the store was in Redis before.
    if not known:
        await in_thread(store.check_conditions)
    stored = await in_thread(read_identity, store)
    found = await _in_redis(backend, keys, field)
    mine = ArchiveIdentity(keys.app, keys.stream, log, codec, "")
    if stored is None and (known or (found and has_archived)):
        raise ArchiveConflict(
            f"The archive {store.url} of {mine.whose} is empty, and held records before.",
            remedy="Restore its objects, or correct the URL. If it is to begin anew, "
            f"{'give log_archive= another URL' if log else 'run `streamworker archive adopt`'}.",
        )
    if not found:
        if stored is not None and stored.id != known:
            raise ArchiveConflict(
                f"{store.url} is the archive of {stored.whose} already, and Redis knows nothing of it.",
                remedy=_ADOPT,
            )
        await store_fields(backend, keys.meta, {field: known or new_id()}, again=False)
        found = await _in_redis(backend, keys, field)
    if stored is None:
        stored = await in_thread(put_identity, store, mine._replace(id=found))
    if stored.id != found:
        raise ArchiveConflict(
            f"{store.url} is the archive of {stored.whose} with the id {stored.id}, and Redis knows the "
            f"archive of {mine.whose} by the id {found or 'none'}.",
            remedy=_ADOPT,
        )
    return found


async def _in_redis(backend: Backend, keys: StreamKeys, field: str) -> str:
    value = await backend.execute("HGET", keys.meta, field)
    return (value or b"").decode("utf-8", "replace")
