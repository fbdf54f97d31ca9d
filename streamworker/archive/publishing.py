"""Publishes an archive as a Delta table over the same files: it copies no record, and moves none.

The table's log names each segment. One app transaction a partition holds the count of records up to its last
published segment. So a segment is added once, whoever publishes, however often, and whatever others do with
the table since: one whose files somebody has compacted is not added a second time. A commit of Delta is
atomic, so whenever this ends, a table has all segments of a commit or none.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from streamworker.archive.chain import Chain, Segment
from streamworker.archive.segments import footer_in
from streamworker.core.data.archives import Footer, after_of
from streamworker.core.units import moment
from streamworker.errors import ArchiveUnavailable, ConfigurationError

if TYPE_CHECKING:
    from deltalake import DeltaTable


class Published(NamedTuple):
    """What one call has changed in a table."""

    added: int
    records: int
    """Records in the segments that were added."""
    replaced: int
    """Segments of which records were erased since they were added."""
    removed: int
    """Segments that have expired."""


class _Change(NamedTuple):
    """A segment to add, and how far its partition is published then."""

    partition: int
    segment: Segment
    footer: Footer
    schema: pa.Schema
    is_new: bool


def publish(chains: Sequence[Chain], url: str, identity: str, now_ms: int) -> Published:
    """Bring the Delta table in an archive's folder to what its chains hold. The call may be repeated.

    Raises
    ------
    ConfigurationError
        If the package deltalake is missing, or Delta has no such store or type.
    ArchiveUnavailable
        If the store does not answer, or another program commits to the table all the time.
    """
    try:
        from deltalake.exceptions import DeltaError
    except ModuleNotFoundError:
        raise ConfigurationError(
            "A Delta table needs the package deltalake.", remedy="Install streamworker[deltalake]."
        ) from None
    if url.startswith("memory://"):
        raise ConfigurationError(
            f"No other program can read {url}.", remedy="Publish an archive in a bucket or a folder."
        )
    where = url if "://" in url and not url.startswith("file://") else Path(url.removeprefix("file://"))
    try:
        return _publish(chains, str(where.absolute()) if isinstance(where, Path) else where, identity, now_ms)
    except (DeltaError, OSError) as error:
        raise ArchiveUnavailable(
            f"The Delta table in {url} was not changed: {' '.join(str(error).split())[:300]}",
            remedy="Run this again; nothing is added twice.",
        ) from None


def _publish(chains: Sequence[Chain], where: str, identity: str, now_ms: int) -> Published:
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.transaction import create_table_with_add_actions

    options = {"allow_http": "true"} if "://" in where else None
    table = DeltaTable(where, storage_options=options) if DeltaTable.is_deltatable(where, options) else None
    known = _known(table)
    changes = [each for chain in chains for each in _changes(chain, table, known, identity)]
    there = {segment.name for chain in chains for segment in chain.segments()}
    gone = [name for name in known if after_of(name) is not None and name not in there]
    new = [each for each in changes if each.is_new]
    done = Published(len(new), sum(each.footer.records for each in new), len(changes) - len(new), len(gone))
    if not changes and not gone:
        return done
    # Of a file that is there already the newer entry counts.
    actions = [*(_remove(name, known[name], now_ms) for name in gone), *(_add(c, now_ms) for c in changes)]
    schema = _schema([each.schema for each in changes])
    totals: dict[int, int] = {}
    for each in new:
        totals[each.partition] = max(totals.get(each.partition, 0), each.footer.total)
    transactions = [Transaction(_app_id(identity, p), total) for p, total in totals.items()]
    properties = CommitProperties(app_transactions=transactions, max_commit_retries=0)
    fields = Schema.from_arrow(schema)
    if table is None:
        create_table_with_add_actions(
            where,
            fields,
            actions,
            partition_by=["partition"],
            storage_options=options,
            commit_properties=properties,
        )
        return done
    has = {field.name for field in table.schema().fields}
    if more := [field for field in fields.fields if field.name not in has]:
        table.alter.add_columns(more)
    table.create_write_transaction(
        actions, "append", table.schema(), partition_by=["partition"], commit_properties=properties
    )
    return done


def _app_id(identity: str, partition: int) -> str:
    return f"streamworker/{identity}/{partition}"


def _known(table: "DeltaTable | None") -> dict[str, int]:
    """Return the files of a table with their sizes."""
    if table is None:
        return {}
    found = pa.table(table.get_add_actions(flatten=True))
    return dict(zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(), strict=True))


def _changes(
    chain: Chain, table: "DeltaTable | None", known: dict[str, int], identity: str
) -> Iterator[_Change]:
    """Yield the segments of a partition that the table lacks, or has as they were before an erasure."""
    version = table.transaction_version(_app_id(identity, chain.partition)) if table else None
    is_behind = True
    for segment in reversed(chain.segments()):
        if (size := known.get(segment.name)) is not None:
            is_behind = False  # It and all before it were added.
        if size == segment.size or (size is None and not is_behind):
            continue
        tail = chain.store.tail(segment.name)
        if tail is None:
            continue  # It expires just now.
        footer = footer_in(tail, segment.name)
        if size is None and footer.total <= (version or 0):
            is_behind = False  # Somebody has compacted it, or taken it out of the table.
            continue
        schema = pq.read_schema(pa.BufferReader(tail))
        yield _Change(chain.partition, segment, footer, schema, size is None)


def _add(change: _Change, now_ms: int) -> Any:
    from deltalake.transaction import AddAction

    footer = change.footer
    stats: dict[str, Any] = {"numRecords": footer.records}
    if not footer.log and footer.records:
        times = (moment(its.ms).isoformat(timespec="milliseconds") for its in (footer.first, footer.last))
        stats["minValues"], stats["maxValues"] = ({"_time": each.replace("+00:00", "Z")} for each in times)
    partition = {"partition": str(change.partition)}
    return AddAction(change.segment.name, change.segment.size, partition, now_ms, True, json.dumps(stats))


def _remove(name: str, size: int, now_ms: int) -> Any:
    from deltalake.transaction import RemoveAction

    partition = name.removeprefix("partition=").partition("/")[0]
    return RemoveAction(name, True, now_ms, size, {"partition": partition})


def _schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of some segments, as Delta has them."""
    fields: dict[str, pa.Field] = {}
    for schema in schemas:
        for field in schema:
            kind = pa.timestamp("us", field.type.tz) if pa.types.is_timestamp(field.type) else field.type
            fields.setdefault(field.name, pa.field(field.name, kind))
    return pa.schema([*fields.values(), pa.field("partition", pa.int32())])
