"""Archives for tests of commands: segments of what Redis holds, put as the archiver puts them."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from streamworker.archive.chain import Chain, id_at
from streamworker.archive.columns import columns_for, packing_of, rows_reader
from streamworker.archive.identity import ArchiveIdentity, put_identity
from streamworker.archive.segments import opened as opened_segment
from streamworker.archive.segments import table_of
from streamworker.archive.store import Store, store_at
from streamworker.core.data.archives import GROUP, Footer
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.placement import canonical_key
from streamworker.declaring.stream import Stream
from streamworker.importing import resolve_app, resolve_stream
from streamworker.records.entries import Entries
from streamworker.redisio.keys import GroupKeys
from streamworker.testing import local_worker
from tests.helpers import wait_for_async
from tests.raw import opened

ID = "0123456789abcdef"
"""The identity of archives that tests make."""


def chain_of(path: str, partition: int) -> Chain:
    """Return the chain of a partition of a stream."""
    spec = resolve_stream(path).spec
    assert spec.archive is not None
    return Chain(store_at(spec.archive.url), partition)


def archived(redis_url: str, path: str, *, at_once: int = 1_000, trim: bool = False) -> dict[int, int]:
    """Archive what Redis holds of a stream, in segments of so many records; return how many by partition.

    With ``trim`` it is no more in Redis then.
    """
    stream: Stream[Any] = resolve_stream(path)
    spec = stream.spec
    keys = GroupKeys(stream.app.name, stream.name, GROUP)
    assert spec.archive is not None
    store = store_at(spec.archive.url)
    put_identity(store, ArchiveIdentity(keys.app, keys.stream, "", spec.codec_name, ID))
    put: dict[int, int] = {}
    with opened(redis_url) as raw:
        declared = {"archive": str(spec.archive), "archive_id": ID, "retention": str(spec.retention)}
        raw.hset(keys.meta, mapping=declared)
        for p in spec.placement.all:
            last = Chain(store, p).last()
            end, total = (last.last, last.total) if last else (ZERO, 0)
            reply = raw.xrange(keys.events(p), f"({end}")
            flat = [[its, [part for pair in fields.items() for part in pair]] for its, fields in reply]
            entries = Entries.of(flat)
            put[p] = len(entries)
            for at in range(0, len(entries), at_once):
                end, total = segment(Chain(store, p), spec, entries[at : at + at_once], end, total)
            raw.hset(
                keys.lock(p), mapping={"checkpoint": str(end), "entries": total, "epoch": 1, "owner": ""}
            )
            if trim:
                raw.xtrim(keys.events(p), maxlen=0, approximate=False)
    return put


def segment(chain: Chain, spec: Any, entries: Any, end: EntryId, total: int) -> tuple[EntryId, int]:
    """Put the next segment; return where it ends, and how many records there are up to there."""
    table = table_of(entries, packing_of(spec), columns_for(spec), rows_reader(spec))
    first, last = id_at(table, 0), id_at(table, table.num_rows - 1)
    total += table.num_rows
    assert chain.put(table, Footer(end, first, last, table.num_rows, total, "w1", 1))
    return last, total


def damage(store: Store, name: str, column: str = "_time") -> None:
    """Let a segment have a wrong byte at the end of a column."""
    found = store.get(name)
    assert found is not None
    file, _ = opened_segment(found.body, name)
    its = file.metadata.row_group(0).column(file.schema_arrow.get_field_index(column))
    last = its.data_page_offset + its.total_compressed_size - 1
    store.delete([name])
    store.put_new(name, found.body[:last] + bytes([found.body[last] ^ 1]) + found.body[last + 1 :])


def work(redis_url: str, is_done: Callable[[], bool], description: str) -> None:
    """Let a worker of the shop run in this process until something is so."""

    async def run() -> None:
        async with local_worker(resolve_app("shop:app"), url=redis_url, name="w1"):
            await wait_for_async(is_done, description)

    anyio.run(run)


def all_of(path: str) -> list[Any]:
    """Return the payloads in the archive of a stream, partition by partition."""
    partitions: Sequence[int] = resolve_stream(path).spec.placement.all
    parts = (part for p in partitions for part in chain_of(path, p).read(ZERO))
    return [payload for part in parts for payload in part.table["_payload"].to_pylist()]


def old_records(redis_url: str, path: str, records: Sequence[Any], at_ms: int) -> None:
    """Add records with ids that lie so far back, from a time on, one a millisecond."""
    stream: Stream[Any] = resolve_stream(path)
    spec = stream.spec
    assert spec.codec != "arrow"
    encode = spec.record.encoder(spec.codec)
    with opened(redis_url) as raw:
        for n, record in enumerate(records):
            key = canonical_key(spec.key(record)) or b""
            events = GroupKeys(stream.app.name, stream.name, GROUP).events(spec.placement.partition_of(key))
            raw.xadd(events, {"v": encode(record)}, id=f"{at_ms + n}-0")
