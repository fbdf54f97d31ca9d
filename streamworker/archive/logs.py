"""The segments of an acked log: its rows, with the columns that Spark's source adds, and ids that count rows.

    ================  ==================  =============================================================
    ...               as the row's type   its fields
    ``_partition``    int32               the partition
    ``_offset``       int64               the row's number in the log, from 1
    ``_acked_at``     timestamp in µs     when it was committed, by the server's clock
    ``_entry_id``     string              the last source entry of its commit
    ``_epoch``        int64               the epoch of its commit
    ``_key``          string              with ``log_metadata``, as are ``_sent_at`` and ``_headers``
    ================  ==================  =============================================================

A segment lies between two numbers of rows: its ids are ``rows-0``. It holds whole commits.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamworker.archive.chain import Chain
from streamworker.archive.segments import footer_in, opened, parts_of, whole_of
from streamworker.core.data.archives import Footer, name_of
from streamworker.core.data.entries import EntryId
from streamworker.errors import ArchiveConflict
from streamworker.redisio.data.ackedlog import STORED

METADATA = pa.schema(
    [
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_acked_at", pa.timestamp("us", "UTC")),
        ("_entry_id", pa.string()),
        ("_epoch", pa.int64()),
    ]
)
OF_COMMIT = ["_offset", "_acked_at", "_entry_id", "_epoch"]
BATCH_ROWS = 65_536
"""How many rows of a segment are read at a time."""


class Commit(NamedTuple):
    """Rows that were committed together, or some of them."""

    end: int
    """The number of its last row."""
    rows: pa.RecordBatch
    last: str
    """The last source entry of the commit."""
    epoch: int
    at_ms: int

    @property
    def start(self) -> int:
        """Number of rows in the log before its first row."""
        return self.end - int(self.rows.num_rows)

    @property
    def tail(self) -> str:
        """What the footer of a segment that ends with it says of it."""
        return f"{self.last} {self.epoch}"


def union_of(schema: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """Return the columns of both; None if one segment cannot have both."""
    try:
        return pa.unify_schemas([schema, other])
    except pa.ArrowException:
        return None


def table_of(partition: int, commits: Sequence[Commit]) -> pa.Table:
    """Return the rows of a segment for some commits, of which ``union_of`` knows the columns."""
    rows = pa.concat_tables(
        [pa.Table.from_batches([each.rows]) for each in commits], promote_options="default"
    )
    rows = rows.rename_columns([STORED.get(name, name) for name in rows.schema.names])
    rows = rows.cast(pa.schema([field.with_nullable(True) for field in rows.schema]))
    ends = pa.array(accumulate(each.rows.num_rows for each in commits), pa.int32())

    def repeat(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind)))

    more = [
        repeat([partition] * len(commits), pa.int32()),
        pa.arange(commits[0].start + 1, commits[-1].end + 1),
        repeat([each.at_ms * 1000 for each in commits], METADATA.field("_acked_at").type),
        repeat([each.last for each in commits], pa.string()),
        repeat([each.epoch for each in commits], pa.int64()),
    ]
    for field, column in zip(METADATA, more, strict=True):
        rows = rows.append_column(field, column)
    return rows


def commits_in(table: pa.Table, after: int = 0, end: int = 2**63 - 1) -> Iterator[Commit]:
    """Yield the rows of a segment that have numbers above ``after`` and up to ``end``, by commit."""
    offsets = table["_offset"].to_numpy()
    first, stop = offsets.searchsorted([after, end], side="right")
    table, offsets = table.slice(first, stop - first), offsets[first:stop]
    if not table.num_rows:
        return
    times = table["_acked_at"].cast(pa.int64()).to_numpy()
    epochs = table["_epoch"].to_numpy()
    entries = table["_entry_id"].combine_chunks()
    which = entries.dictionary_encode().indices.to_numpy()
    changes = offsets[1:] != offsets[:-1] + 1  # Some rows may have been erased.
    for each in (times, epochs, which):
        changes |= each[1:] != each[:-1]
    (whole,) = _own(table).combine_chunks().to_batches()
    for start, until in pairwise([0, *(changes.nonzero()[0] + 1).tolist(), table.num_rows]):
        yield Commit(
            int(offsets[until - 1]),
            whole.slice(start, until - start),
            entries[start].as_py(),
            int(epochs[start]),
            int(times[start]) // 1000,
        )


def read_rows(chain: Chain, log: str, after: int, end: int) -> Iterator[Commit]:
    """Yield the rows of a log with numbers above ``after`` and up to ``end``, as far as the archive has them.

    It ends where the archive ends. Where rows were erased, a commit without rows may say how far it is.

    Raises
    ------
    ArchiveConflict
        If these are rows of another log.
    """
    found = chain.segments(EntryId(after, 0))
    at = found[0].after if found and found[0].after.ms <= after else None
    while at is not None and at.ms < end:
        name = name_of(chain.partition, at)
        if (got := chain.store.get(name)) is None:
            return
        file, footer = opened(got.body, name)
        check_log(chain, footer, log)
        for rows in parts_of(file, name, BATCH_ROWS):
            for commit in commits_in(rows, after, end):
                after = commit.end
                yield commit
        if after < (upto := min(footer.last.ms, end)):
            after = upto
            nothing = pa.RecordBatch.from_pylist([], _own(file.schema_arrow.empty_table()).schema)
            yield Commit(after, nothing, "0-0", 0, 0)
        at = footer.last


def row_at(chain: Chain, at_ms: int) -> int | None:
    """Return the number of rows before the first one that was committed at a time or later.

    None if all that is archived was committed before, or nothing is. It reads the footers of a few segments,
    and the times of one.
    """
    found = chain.segments()
    low, high = 0, len(found)
    while low < high:
        middle = (low + high) // 2
        if _newest_ms(chain, found[middle].after) < at_ms:
            low = middle + 1
        else:
            high = middle
    for each in found[low:]:
        name = name_of(chain.partition, each.after)
        if (got := chain.store.get(name)) is None:
            return None
        file, _ = opened(got.body, name)
        table = whole_of(file, name, ["_offset", "_acked_at"])
        if table.num_rows:  # Of others all rows were erased.
            row = (table["_acked_at"].cast(pa.int64()).to_numpy() // 1000).searchsorted(at_ms)
            return int(table["_offset"][int(row)].as_py()) - 1 if row < table.num_rows else None
    return None


def check_log(chain: Chain, footer: Footer, log: str) -> None:
    """Raise ArchiveConflict if a segment is not of a log."""
    if footer.log != log:
        raise ArchiveConflict(
            f"The archive {chain.store.url} of partition {chain.partition} has rows of the acked log "
            f"{footer.log!r}, and Redis has the log {log!r}: it was deleted or lost, and began anew.",
            remedy="Give log_archive= another URL; the files of the old one stay, and are plain Parquet. "
            "Nothing is trimmed meanwhile (docs: archive).",
        )


def _own(table: pa.Table) -> pa.Table:
    """Return the columns of a segment that its log has, under the names that they have there."""
    own = {value: name for name, value in STORED.items()}
    rows = table.drop_columns([name for name in METADATA.names if name in table.schema.names])
    return rows.rename_columns([own.get(name, name) for name in rows.schema.names])


def _newest_ms(chain: Chain, after: EntryId) -> int:
    """Return when the last row of a segment was committed, by the statistics in its footer."""
    name = name_of(chain.partition, after)
    if not (tail := chain.store.tail(name)):
        return 0
    about = pq.read_metadata(pa.BufferReader(tail))
    if not about.num_rows:  # All were erased: it is as new as the next one.
        return _newest_ms(chain, footer_in(tail, name).last) or 2**63
    group = about.row_group(0)
    columns = (group.column(index) for index in range(group.num_columns))
    found = next(each.statistics for each in columns if each.path_in_schema == "_acked_at")
    return int(found.max.timestamp() * 1000)
