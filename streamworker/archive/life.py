"""Walks the chain of a partition, and removes its oldest segments."""

import io
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamworker.archive.chain import Chain, Segment
from streamworker.archive.segments import footer_in, opened, whole_of
from streamworker.core.data.archivelife import Fault, expired, faults_in
from streamworker.core.data.archives import Footer, after_of
from streamworker.core.data.entries import EntryId
from streamworker.errors import ArchiveConflict

EXPIRED_AT_ONCE = 100
"""Footers that ``expire`` reads before it deletes, and segments that it deletes one by one then."""
_NEVER = 2**63


class Linked(NamedTuple):
    """One segment of a chain, with what its footer says."""

    segment: Segment
    footer: Footer
    newest_ms: int
    """The time of its last record; of rows the last time at which some were acknowledged."""


class Walk(NamedTuple):
    """What was found in the folder of one partition."""

    links: list[Linked]
    faults: list[Fault]
    size: int
    """Bytes of its segments."""

    @property
    def footers(self) -> list[Footer]:
        """The footers of its segments, in order."""
        return [link.footer for link in self.links]

    @property
    def records(self) -> int:
        """Records that its segments have."""
        return sum(footer.records for footer in self.footers)


def walk(chain: Chain, *, deep: bool = False) -> Walk:
    """Look at each segment of a partition: name, footer and count; with ``deep`` at each record."""
    links: list[Linked] = []
    faults = [*_strays(chain)]
    for segment in chain.segments():
        try:
            body = chain.store.tail(segment.name)
            if body is None:
                continue  # It has expired meanwhile, or the chain has a gap, which its neighbours show.
            footer, rows, newest_ms = _told(body, segment.name)
            links.append(Linked(segment, footer, newest_ms))
            faults += [Fault("object", text, chain.partition) for text in _misnamed(segment, footer)]
            if rows != footer.records:
                text = f"{segment.name} has {rows:,} records, and its footer counts {footer.records:,}."
                faults.append(Fault("count", text, chain.partition))
            if deep:
                faults += [Fault("ids", text, chain.partition) for text in _wrong_ids(chain, segment)]
        except ArchiveConflict as error:
            faults.append(Fault("object", error.message, chain.partition))
    faults += faults_in([link.footer for link in links], chain.partition)
    return Walk(links, faults, sum(link.segment.size for link in links))


def _strays(chain: Chain) -> Iterator[Fault]:
    for each in chain.store.names(f"partition={chain.partition}"):
        if after_of(each.name) is None:
            text = f"{each.name} is no segment: who reads the whole folder reads it, too."
            yield Fault("stray", text, chain.partition)


def _told(tail: bytes, name: str) -> tuple[Footer, int, int]:
    """Return the footer of a segment, its rows, and the time of its last record."""
    footer = footer_in(tail, name)
    about = pq.read_metadata(io.BytesIO(tail))
    if not footer.log:
        return footer, about.num_rows, footer.last.ms
    # Where all rows were erased nothing says how old they were, and nothing is lost.
    return footer, about.num_rows, _acked_ms(about) if about.num_rows else 0


def _acked_ms(about: pq.FileMetaData) -> int:
    """Return when the last row of a segment was acknowledged; where no statistics tell, it never expires."""
    newest = 0
    for group in range(about.num_row_groups):
        for column in range(about.num_columns):
            its = about.row_group(group).column(column)
            if its.path_in_schema == "_acked_at" and its.is_stats_set and its.statistics.has_min_max:
                newest = max(newest, round(its.statistics.max.timestamp() * 1000))
    return newest or _NEVER


def _misnamed(segment: Segment, footer: Footer) -> Iterator[str]:
    if footer.after != segment.after:
        yield f"{segment.name} begins after {footer.after} by its footer."


def _wrong_ids(chain: Chain, segment: Segment) -> Iterator[str]:
    """Say where the ids of a segment's records do not increase, or are not those of its footer."""
    found = chain.store.get(segment.name)
    if found is None:
        return
    file, footer = opened(found.body, segment.name)
    names = file.schema_arrow.names
    if "_seq" not in names:
        ids = pa.table({"ms": whole_of(file, segment.name, ["_offset"])["_offset"].cast(pa.int64())})
        ids = ids.append_column("seq", pa.nulls(ids.num_rows, pa.int64()).fill_null(0))
    else:
        table = whole_of(file, segment.name, ["_time", "_seq"])
        ids = pa.table({"ms": table["_time"].cast(pa.int64()), "seq": table["_seq"]})
    if not ids.num_rows:
        return
    ms, seqs = ids["ms"].combine_chunks(), ids["seq"].combine_chunks()
    rises = pc.or_(
        pc.greater(ms[1:], ms[:-1]), pc.and_(pc.equal(ms[1:], ms[:-1]), pc.greater(seqs[1:], seqs[:-1]))
    )
    at = pc.index(rises, False).as_py()
    if at >= 0:
        first, second = (EntryId(ms[n].as_py(), seqs[n].as_py()) for n in (at, at + 1))
        yield f"{segment.name} has record {second} behind {first}."
    first, last = (EntryId(ms[n].as_py(), seqs[n].as_py()) for n in (0, len(ms) - 1))
    if first < footer.first or last > footer.last or (not footer.erased and (first, last) != footer[1:3]):
        yield (
            f"{segment.name} has records {first} to {last}, and its footer says {footer.first} to "
            f"{footer.last}."
        )


def expire(
    chain: Chain, before_ms: int, *, read: EntryId | None = None, dry_run: bool = False
) -> Iterator[tuple[Linked, bool]]:
    """Delete segments from the old end whose last record is older, and yield each, and whether it may go.

    Those with records behind ``read`` stay. The oldest goes first, each on its own: whenever this ends, what
    is left is a chain.
    """
    segments = chain.segments()
    last: list[Linked] = []
    for at in range(0, len(segments), EXPIRED_AT_ONCE):
        links = [*last, *_links(chain, segments[at : at + EXPIRED_AT_ONCE])]
        old = expired([link.newest_ms for link in links], before_ms)
        for link in links[:old]:
            goes = read is None or link.footer.last <= read
            if goes and not dry_run:
                chain.store.delete([link.segment.name])
            yield link, goes
        if old < len(links) - 1:
            return
        last = links[old:]


def _links(chain: Chain, segments: list[Segment]) -> Iterator[Linked]:
    for segment in segments:
        if (tail := chain.store.tail(segment.name)) is not None:
            footer, _, newest_ms = _told(tail, segment.name)
            yield Linked(segment, footer, newest_ms)
