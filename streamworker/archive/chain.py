"""The chain of one partition's segments in a store, and what reads it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from streamworker.archive.segments import encoded, footer_in, ids_above, opened, parts_of
from streamworker.archive.store import Store
from streamworker.core.data.archives import Footer, after_of, name_of, start_in
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.errors import ArchiveConflict

COMPARED = ("_time", "_seq", "_payload", "_entry")
READ = ("_time", "_seq", "_headers", "_payload", "_entry")
BATCH_RECORDS = 4_000
BATCH_BYTES = 4 * 1024 * 1024
"""How many records of a segment are read at a time, and how much, of all columns: large ones would take more
memory than a worker has for its reads."""
NEAR_MS = 86_400_000
"""How far before an id the segment with it is looked for first: of a year a store lists 52,000."""


class Segment(NamedTuple):
    """One segment as a list of the store shows it."""

    name: str
    after: EntryId
    size: int


class Excerpt(NamedTuple):
    """Some records of a segment, in order; the last part of a segment may have none."""

    table: pa.Table
    position: EntryId
    """Up to which id the chain is read with them."""
    footer: Footer


@dataclass(frozen=True, slots=True)
class Chain:
    """The segments of one partition of a stream or acked log."""

    store: Store
    partition: int

    def segments(self, since: EntryId = ZERO, near_ms: int = NEAR_MS) -> list[Segment]:
        """Return in order the segments that may have records after an id; all if none begins before it.

        Those that begin up to ``near_ms`` before it are listed first, and all only if there is none.
        """
        begin = EntryId(max(0, since.ms - near_ms), 0)
        folder, above = f"partition={self.partition}", name_of(self.partition, begin) if begin > ZERO else ""
        listed = self.store.names(folder, above)
        # Others may write beside them, such as an optimizer of tables.
        found = [
            Segment(each.name, after, each.size)
            for each in listed
            if (after := after_of(each.name)) is not None
        ]
        at = start_in([each.after for each in found], since)
        return self.segments(since, since.ms) if at is None and above else found[at or 0 :]

    def footer(self, after: EntryId) -> Footer | None:
        """Return the footer of the segment that begins after an id; None if there is none."""
        name = name_of(self.partition, after)
        tail = self.store.tail(name)
        return None if tail is None else footer_in(tail, name)

    def last(self, since: EntryId = ZERO) -> Footer | None:
        """Return the footer of the last segment; None if there is none.

        A list may be older than the store, so the chain is followed from its end. ``since`` is an id at which
        a segment is known to begin, if any is.
        """
        found = self.segments(since)
        link = self.footer(found[-1].after if found else ZERO)
        while link is not None and (following := self.footer(link.last)) is not None:
            link = following
        return link

    def put(self, table: pa.Table, footer: Footer) -> int:
        """Put the next segment and return its bytes; 0 if another one begins after the same id."""
        body = encoded(table, footer)
        return len(body) if self.store.put_new(name_of(self.partition, footer.after), body) else 0

    def read(
        self,
        position: EntryId,
        columns: Sequence[str] | None = READ,
        batch: int = BATCH_RECORDS,
        bytes_max: int = BATCH_BYTES,
    ) -> Iterator[Excerpt]:
        """Yield the records after a position, some at a time, with some columns or all.

        If the oldest segment begins above the position, the older ones are gone, and it begins there.

        Raises
        ------
        ArchiveConflict
            If a segment is missing between two others, or an object is none.
        """
        # At the border of two segments the name is known without a list.
        at, got = position, self.store.get(name_of(self.partition, position))
        if got is None:
            if not (found := self.segments(position)):
                return
            at = found[0].after
        while True:
            name = name_of(self.partition, at)
            if (got := got or self.store.get(name)) is None:
                later = next((each for each in self.segments(at) if each.after > at), None)
                if later is not None:
                    raise missing(self.partition, at, later.after)
                return
            (file, footer), got = opened(got.body, name), None
            if footer.last > position:
                names = file.schema_arrow.names
                its = names if columns is None else [name for name in columns if name in names]
                reached = position
                about = file.metadata
                size = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
                most = bytes_max * about.num_rows // max(1, size)
                for table in parts_of(file, name, max(1, min(batch, most)), its):
                    if footer.after < position:
                        table = table.filter(ids_above(table, position))
                    if table.num_rows:
                        reached = id_at(table, table.num_rows - 1)
                        yield Excerpt(table, reached, footer)
                if reached < footer.last:  # Its last records were erased.
                    yield Excerpt(file.schema_arrow.empty_table(), footer.last, footer)
            at = footer.last

    def compare(self, mine: pa.Table) -> int:
        """Compare records with what the chain holds from the first to the last of them.

        The result is how many records the chain alone has there.

        Raises
        ------
        ArchiveConflict
            If it lacks one of them, or has other contents.
        """
        if not mine.num_rows:
            return 0
        first, last = id_at(mine, 0), id_at(mine, mine.num_rows - 1)
        held: dict[EntryId, object] = {}
        erased: list[Footer] = []
        for part in self.read(_before(first), COMPARED, batch=50_000):
            held |= contents_of(part.table)
            erased += [part.footer] if part.footer.erased else []
            if part.position >= last:
                break
        alone = sum(first <= each <= last for each in held)
        for its, content in contents_of(mine).items():
            if its not in held and any(each.after < its <= each.last for each in erased):
                continue
            if held.get(its) != content:
                what = "another than in" if its in held else "not in"
                raise ArchiveConflict(
                    f"Partition {self.partition}: record {its} of the stream is {what} the archive "
                    f"{self.store.url}, which goes up to {last} and beyond.",
                    remedy="Two histories share ids. Nothing is trimmed meanwhile; `streamworker archive "
                    "check` shows both (docs: archive).",
                )
            alone -= its in held
        return alone


def contents_of(table: pa.Table) -> dict[EntryId, object]:
    """Return payload or entry of each record by its id."""
    ms, seqs = table["_time"].cast(pa.int64()).to_pylist(), table["_seq"].to_pylist()
    payloads = table["_payload"].to_pylist()
    entries = table["_entry"].to_pylist()
    return {
        EntryId(*its): payload if entry is None else entry
        for *its, payload, entry in zip(ms, seqs, payloads, entries, strict=True)
    }


def id_at(table: pa.Table, row: int) -> EntryId:
    """Return the id of a record in a table."""
    return EntryId(table["_time"][row].cast(pa.int64()).as_py(), table["_seq"][row].as_py())


def missing(partition: int, end: EntryId, begins: EntryId) -> ArchiveConflict:
    """Return the error for a chain with a gap."""
    return ArchiveConflict(
        f"Partition {partition}: the archive has no segment after {end}; the next one begins after {begins}.",
        remedy=f"Restore {name_of(partition, end)} from the store's versions (docs: archive).",
    )


def _before(its: EntryId) -> EntryId:
    return EntryId(its.ms, its.seq - 1) if its.seq else EntryId(max(0, its.ms - 1), 2**63 - 1)
