"""What is wrong with an archive: its chains, and whether Redis holds the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from streamworker.cli.archive.places import Known, Place, each_of, known, not_its_own
from streamworker.core.data.archivelife import Fault, beyond_end
from streamworker.core.data.archives import Footer
from streamworker.errors import ArchiveConflict
from streamworker.records.entries import Entries
from streamworker.redisio.group.archiving import read_raw
from streamworker.redisio.wire.client import Backend

if TYPE_CHECKING:
    import pyarrow as pa

    from streamworker.archive.life import Walk

BYTES_AT_ONCE = 8 * 1024 * 1024
"""How much of Redis is compared at a time."""
ENTRIES_AT_ONCE = 200
"""Entries of an acked log that are compared at a time."""
Row = dict[str, Any]
BESIDE = ("_delta_log/", "_new/", "_stream.json", "_probe")
"""Objects of an archive that are in no chain."""


@dataclass
class Checked:
    """What a check has found."""

    records: int = 0
    erased: int = 0
    segments: int = 0
    bytes: int = 0
    compared: int = 0
    """Records that Redis still has, and the archive has alike."""
    alone: int = 0
    """Records between them that the archive alone has."""
    faults: list[Fault] = field(default_factory=list)


async def check_archive(backend: Backend, place: Place, deep: bool) -> Checked:
    """Look at all that an archive has, and at what Redis says of it."""
    found = Checked()
    if wrong := await not_its_own(backend, place):
        found.faults.append(Fault("identity", wrong))
    partitions = place.stream.placement.all
    here = await known(backend, place, partitions)  # Before the chains, which only grow.
    found.faults += await anyio.to_thread.run_sync(_beside, place)

    async def one(partition: int) -> Checked:
        return await _check(backend, place, partition, here[partition], deep)

    for each in await each_of(one, partitions):
        for name in ("records", "erased", "segments", "bytes", "compared", "alone", "faults"):
            setattr(found, name, getattr(found, name) + getattr(each, name))
    return found


def _beside(place: Place) -> list[Fault]:
    """Return the objects that are in no folder of a partition."""
    folders = tuple(f"partition={p}/" for p in place.stream.placement.all)
    return [
        Fault("stray", f"{each.name} is no part of the archive.")
        for each in place.store.names("")
        if not each.name.startswith((*folders, *BESIDE))
    ]


async def _check(backend: Backend, place: Place, partition: int, here: Known, deep: bool) -> Checked:
    from streamworker.archive.life import walk

    found: Walk = await anyio.to_thread.run_sync(lambda: walk(place.chain(partition), deep=deep))
    footers = found.footers
    end = footers[-1].last if footers else None
    faults = [*found.faults, *filter(None, [beyond_end(here.end, end, partition)])]
    checked = Checked(
        found.records, sum(each.erased for each in footers), len(footers), found.size, faults=faults
    )
    if end is not None and not any(fault.kind == "missing" for fault in found.faults):
        compare = _compare_log if place.log else _compare
        await compare(backend, place, partition, footers, checked)
    return checked


async def _compare(
    backend: Backend, place: Place, partition: int, footers: Sequence[Footer], checked: Checked
) -> None:
    """Compare what Redis still has of the records of a chain."""
    position, end = footers[0].after, footers[-1].last
    chain = place.chain(partition)
    while mine := await read_raw(backend, place.keys, partition, position, end, BYTES_AT_ONCE):
        table = await anyio.to_thread.run_sync(_table, place, mine)
        try:
            checked.alone += await anyio.to_thread.run_sync(chain.compare, table)
        except ArchiveConflict as error:
            text = error.message.removeprefix(f"Partition {partition}: ")
            checked.faults.append(Fault("records", text, partition))
            return
        checked.compared += len(mine)
        position = mine.id_at(len(mine) - 1)


def _table(place: Place, mine: Entries) -> pa.Table:
    from streamworker.archive.columns import packing_of, rows_reader
    from streamworker.archive.segments import table_of

    return table_of(mine, packing_of(place.stream), None, rows_reader(place.stream))


async def _compare_log(
    backend: Backend, place: Place, partition: int, footers: Sequence[Footer], checked: Checked
) -> None:
    """Compare the rows of a chain that Redis still has."""
    from streamworker.redisio.data.ackedlog import decode_entry
    from streamworker.redisio.data.schemas import stored_schemas

    schemas = await stored_schemas(backend, place.keys)
    identity = ((await backend.execute("HGET", place.keys.lock(partition), "log")) or b"").decode()
    key, position, end = place.keys.acked(partition), footers[0].after, footers[-1].last
    erased = [(each.after.ms, each.last.ms) for each in footers if each.erased]
    while reply := await backend.execute("XRANGE", key, f"({position}", str(end), "COUNT", ENTRIES_AT_ONCE):
        entries = Entries.of(reply)
        mine: dict[int, Row] = {}
        for entry in entries:
            rows = decode_entry(entry.id, entry.fields, schemas).to_pylist()
            mine |= {entry.id.ms - len(rows) + 1 + at: row for at, row in enumerate(rows)}
        try:
            theirs = await anyio.to_thread.run_sync(
                _archived_rows, place, partition, identity, min(mine) - 1, max(mine)
            )
        except ArchiveConflict as error:
            checked.faults.append(Fault("records", error.message, partition))
            return
        for number, row in mine.items():
            its = theirs.get(number)
            if its is None and any(after < number <= last for after, last in erased):
                continue
            if its is None or _given(its) != _given(row):
                what = "another than in" if its is not None else "not in"
                text = f"row {number} of the acked log is {what} the archive."
                checked.faults.append(Fault("records", text, partition))
                return
        checked.compared += len(mine.keys() & theirs.keys())
        position = entries[-1].id


def _archived_rows(place: Place, partition: int, log: str, after: int, end: int) -> dict[int, Row]:
    from streamworker.archive.logs import read_rows

    found: dict[int, Row] = {}
    for commit in read_rows(place.chain(partition), log, after, end):
        found |= {commit.start + 1 + at: row for at, row in enumerate(commit.rows.to_pylist())}
    return found


def _given(row: Row) -> Row:
    """Return the columns that a row has: a segment has those of all its rows. A NaN is equal to another."""
    return {name: repr(value) for name, value in row.items() if value is not None}
