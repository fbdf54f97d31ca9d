"""Finds and erases the records of one key: in one stream, and in all that processors made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import msgspec

from streamworker.app import App
from streamworker.cli.archive.places import Place, check_own, each_of
from streamworker.cli.data.letters import stored
from streamworker.cli.data.wording import MAY_KILL, as_written
from streamworker.cli.support import group_keys
from streamworker.core.data.entries import SEQUENCE_MAX, ZERO, EntryId
from streamworker.core.data.placement import canonical_key, leading_key
from streamworker.core.words import counted
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.declaring.stream import Stream
from streamworker.errors import ArchiveConflict, RecordError, StreamworkerError
from streamworker.records.entries import Entries
from streamworker.records.statetables import typed
from streamworker.records.types import read_hint
from streamworker.redisio.data import later, retention
from streamworker.redisio.data.dead import StoredLetter, drop_dead
from streamworker.redisio.data.state import TIMERS, read_state, scan_hash
from streamworker.redisio.group.archiving import archiver_keys, read_raw
from streamworker.redisio.keys import StreamKeys, whole
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.link import Argument

if TYPE_CHECKING:
    import pyarrow as pa

    from streamworker.archive.chain import Chain, Segment
    from streamworker.archive.erasing import Finder, Without

BYTES_AT_ONCE = 8 * 1024 * 1024
SEGMENTS_AT_ONCE = 2
"""Each is in memory as a table, and written anew."""
END = EntryId(SEQUENCE_MAX, SEQUENCE_MAX)


class Went(NamedTuple):
    """What was erased in one place, or would be."""

    place: str
    number: int
    what: str


class Stays(NamedTuple):
    """What is still there, and goes later."""

    place: str
    number: int
    what: str
    when_ms: int | None
    """When it goes at the earliest, or can be erased; None if no time is known."""
    why: str


@dataclass
class Report:
    """What became of the records of a key."""

    went: list[Went] = field(default_factory=list)
    later: list[Stays] = field(default_factory=list)
    untouched: list[str] = field(default_factory=list)
    """What was not looked at, or cannot be erased."""
    failed: list[str] = field(default_factory=list)


def key_in(stream: StreamSpec, texts: Sequence[str]) -> bytes | str:
    """Return the key that words of a command line name, in canonical bytes; or why it is none here."""
    names = stream.key_fields
    if names == ():
        return "its records have no key"
    if names is None:
        return canonical_key(texts[0] if len(texts) == 1 else tuple(texts)) or b""
    parts = (names,) if isinstance(names, str) else names
    if len(parts) != len(texts):
        return f"its key has {counted(len(parts), 'part')}: {', '.join(parts)}"
    values = []
    for name, text in zip(parts, texts, strict=True):
        kind = read_hint(stream.record.hints[name]).base
        try:
            values.append(typed(kind, text.encode()) if isinstance(kind, type) else text)
        except (msgspec.ValidationError, ValueError):
            return f"its key {name} is of type {kind.__name__}, and {text!r} is none"
    return canonical_key(values[0] if isinstance(names, str) else tuple(values)) or b""


class Eraser:
    """Erases the records of one key of a stream, place by place, and says what it found."""

    def __init__(
        self, backend: Backend, app: App, stream: Stream[Any], key: bytes, report: Report, *, dry_run: bool
    ) -> None:
        from streamworker.archive.erasing import Finder

        self._backend, self._app, self._stream, self._key = backend, app, stream, key
        self._spec: StreamSpec = stream.spec
        self._keys = StreamKeys(app.name, stream.name)
        self._finder: Finder = Finder(stream.spec, key)
        self._partitions = stream.spec.placement.path_of(key)
        self._processors = [p for p in app.registry.processors.values() if p.stream is stream.spec]
        self._report = report
        self._dry_run = dry_run

    async def run(self) -> None:
        """Erase in all places; what fails in one is told, and the others follow."""
        places: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            (f"scheduled records of {self._spec.name}", self._scheduled)
        ]
        for spec in self._processors:
            places.append((f"dead letters of {spec.name}", partial(self._letters, spec)))
            places.append((f"tables and state of {spec.name}", partial(self._tables, spec)))
            if spec.forward and spec.output is not None:
                places.append((f"acked log of {spec.name}", partial(self._log, spec)))
        places.append((f"stream {self._spec.name}", self._entries))
        if self._spec.archive is not None:
            places.append((f"archive of {self._spec.name}", self._archive))
        for place, erase in places:
            try:
                await erase()
            except StreamworkerError as error:
                self._report.failed.append(f"{place}: {error.message}")

    def _went(self, place: str, count: int, what: str) -> None:
        if count:
            self._report.went.append(Went(place, count, what))

    # -- what Redis lets go --------------------------------------------------------------------

    async def _scheduled(self) -> None:
        """Cancel what waits to be sent."""
        text = self._key.decode("utf-8", "replace")
        gone = 0
        for partition in self._partitions:
            for each in await later.waiting(self._backend, self._keys, partition):
                if each.key == text and (self._dry_run or await self._stream.cancel(each.id, key=self._key)):
                    gone += 1
        self._went(f"{self._spec.name}, scheduled", gone, "record")

    async def _letters(self, spec: ProcessorSpec) -> None:
        keys, gone, unreadable, mixed = group_keys(spec), 0, 0, list[str]()
        for partition in self._partitions:
            async for page in stored(self._backend, keys, partition):
                mine = []
                for letter in page:
                    is_mine = self._is_of_key(letter)
                    unreadable += is_mine is None
                    if is_mine == "mixed":
                        mixed.append(letter.name)
                    elif is_mine:
                        mine.append(letter.id)
                gone += len(mine) if self._dry_run else await drop_dead(self._backend, keys, partition, mine)
        self._went(f"dead letters of {spec.name}", gone, "letter")
        if mixed:
            names = ", ".join(mixed)
            why = "have rows of this key and of others: `dead drop` drops them"
            self._report.untouched.append(f"dead letters {names} of {spec.name} {why}")
        if unreadable:
            which = f"{counted(unreadable, 'dead letter')} of {spec.name}"
            self._report.untouched.append(
                f"{which} in the same partition cannot be read: `dead show` shows them"
            )

    def _is_of_key(self, letter: StoredLetter) -> bool | str | None:
        """Return whether a letter is of the key, "mixed" with other rows, None if it cannot be read."""
        if letter.error.startswith(MAY_KILL):  # To decode it may end this process.
            written, names = as_written(self._spec, letter.fields), self._spec.key_fields
            if not isinstance(written, dict) or not names:
                return None
            wire = {each.name: each.wire_name for each in self._spec.record.declared}
            values = [written.get(wire[name]) for name in ((names,) if isinstance(names, str) else names)]
            try:
                return canonical_key(values[0] if isinstance(names, str) else tuple(values)) == self._key
            except RecordError:
                return None
        flat = [part for pair in letter.fields.items() for part in pair]
        table = self._table(Entries.of([[str(letter.entry_id).encode(), flat]]))
        kept, unreadable = self._finder.without(table)
        if kept.num_rows < table.num_rows:
            return "mixed" if kept.num_rows else True
        return None if unreadable else False

    def _table(self, entries: Entries) -> pa.Table:
        from streamworker.archive.columns import packing_of, rows_reader
        from streamworker.archive.segments import table_of

        return table_of(entries, packing_of(self._spec), None, rows_reader(self._spec))

    async def _tables(self, spec: ProcessorSpec) -> None:
        keys = group_keys(spec)
        for table in spec.tables:
            gone = 0
            for partition in self._partitions:
                values, ends = keys.tables(partition, {table.name: table.lifetime})
                fields = [
                    name
                    async for page in scan_hash(self._backend, values)
                    for name in page
                    if leading_key(name, table.leading) == self._key
                ]
                if fields and not self._dry_run:
                    # The value first: one that nobody can find by its end would never go.
                    asked: list[Sequence[Argument]] = [("HDEL", values, *fields), ("ZREM", ends, *fields)]
                    gone += all_answered(await self._backend.pipeline(asked))[0]
                else:
                    gone += len(fields)
            self._went(f"table {table.name}", gone, "key")
        states = [await read_state(self._backend, keys, p) for p in self._partitions]
        if names := {name for state in states for name in state if not name.startswith(TIMERS)}:
            text = self._key.decode("utf-8", "replace")
            has = f", among it {text!r}" if text in names else ""
            self._report.untouched.append(f"ctx.state of {spec.name}: {counted(len(names), 'value')}{has}")

    # -- what goes with its retention -----------------------------------------------------------

    async def _entries(self) -> None:
        """Count what the stream itself has: an entry goes when its retention is over."""
        count, newest_ms = 0, 0
        for partition in self._partitions:
            position = ZERO
            while entries := await read_raw(
                self._backend, self._keys, partition, position, END, BYTES_AT_ONCE
            ):
                table = await anyio.to_thread.run_sync(self._table, entries)
                position = entries.id_at(len(entries) - 1)
                mine = await anyio.to_thread.run_sync(self._mine, table)
                if mine:
                    count, newest_ms = count + len(mine), max(newest_ms, *mine)
        if count:
            keeps = (await retention.read(self._backend, archiver_keys(self._keys))).stream
            self._stays(f"stream {self._spec.name}", count, "record", newest_ms, keeps, "groups")

    def _mine(self, table: pa.Table) -> list[int]:
        """Return the times of the records of the key."""
        kept, _ = self._finder.without(table)
        if kept.num_rows == table.num_rows:
            return []
        held = set(zip(kept["_time"].to_pylist(), kept["_seq"].to_pylist(), strict=True))
        ids = zip(table["_time"].to_pylist(), table["_seq"].to_pylist(), strict=True)
        return [round(each[0].timestamp() * 1000) for each in ids if each not in held]

    def _stays(self, place: str, count: int, what: str, newest_ms: int, keeps: Any, who: str) -> None:
        when = None if keeps is None or keeps.ms is None else newest_ms + keeps.ms
        limit = f" and its retention of {keeps} is over" if keeps is not None else ""
        why = f"once all {who} have passed it{limit}"
        self._report.later.append(Stays(place, count, what, when, why))

    async def _log(self, spec: ProcessorSpec) -> None:
        """Count the rows that have the key in columns of its name, and erase those that are archived."""
        import pyarrow as pa

        from streamworker.redisio.data.ackedlog import STORED, decode_entry
        from streamworker.redisio.data.schemas import stored_schemas

        without, keys = self._of_rows(), group_keys(spec)
        schemas = await stored_schemas(self._backend, keys)
        count = unknown = newest_ms = 0
        for partition in self._partitions:
            position = ZERO
            while reply := await self._backend.execute(
                "XRANGE", keys.acked(partition), f"({position}", "+", "COUNT", 100
            ):
                for entry in Entries.of(reply):
                    position = entry.id
                    rows = pa.Table.from_batches([decode_entry(entry.id, entry.fields, schemas)])
                    rows = rows.rename_columns([STORED.get(name, name) for name in rows.schema.names])
                    kept, unread = without(rows)
                    count, unknown = count + rows.num_rows - kept.num_rows, unknown + unread
                    if kept.num_rows < rows.num_rows:
                        newest_ms = max(newest_ms, whole(entry.fields.get(b"at", b"")) or 0)
        if count:
            keeps = (await retention.read(self._backend, keys)).log
            self._stays(f"acked log of {spec.name}", count, "row", newest_ms, keeps, "readers")
        if unknown:
            rows = counted(unknown, "row")
            self._report.untouched.append(f"{rows} in the acked log of {spec.name} do not say their key")
        if spec.options.archive_of_log is not None:
            place = Place(self._spec, spec.options.archive_of_log, spec)
            keeps = (await retention.read(self._backend, keys)).log
            await self._segments(place, without, keeps.ms if keeps else None)

    def _of_rows(self) -> Without:
        from streamworker.archive.erasing import rows_without

        names = self._spec.key_fields or ()  # A function may make the key: then the row's `_key` tells.
        wire = {each.name: each.wire_name for each in self._spec.record.declared}
        parts = [wire[name] for name in ((names,) if isinstance(names, str) else names)]
        return rows_without(parts, self._key, single=isinstance(names, str))

    # -- archives -------------------------------------------------------------------------------

    async def _archive(self) -> None:
        assert self._spec.archive is not None
        keeps = (await retention.read(self._backend, archiver_keys(self._keys))).stream
        place = Place(self._spec, self._spec.archive)
        await self._segments(place, self._finder.without, keeps.ms if keeps else None)

    async def _segments(self, place: Place, without: Without, keep_ms: int | None) -> None:
        """Rewrite the segments of which Redis holds nothing any more, and name the others."""
        from streamworker.archive.erasing import erase

        begins = {p: await self._begin(place, p) for p in self._partitions}
        work = [
            (p, segment)
            for p in self._partitions
            for segment in await anyio.to_thread.run_sync(place.chain(p).segments)
        ]
        if work or await self._backend.execute("HGET", place.keys.meta, place.field):
            await check_own(self._backend, place)  # An empty store may be the wrong one.
        gone = segments = unreadable = 0

        async def one(at: tuple[int, Segment]) -> None:
            partition, segment = at
            try:
                await rewrite(place.chain(partition), segment, begins[partition])
            except ArchiveConflict as error:  # The others go on: else each run would end here.
                self._report.failed.append(error.message)

        async def rewrite(chain: Chain, segment: Segment, begin: EntryId | None) -> None:
            nonlocal gone, segments, unreadable
            footer = await anyio.to_thread.run_sync(chain.footer, segment.after)
            if footer is None:
                return
            is_young = begin is not None and begin <= footer.last
            dry_run = self._dry_run or is_young
            found = await anyio.to_thread.run_sync(lambda: erase(chain, segment, without, dry_run=dry_run))
            unreadable += found.unreadable
            if is_young and found.records:
                until = None if keep_ms is None or place.log else footer.last.ms + keep_ms
                why = "its records are still in Redis: run this again once they are gone"
                self._report.later.append(
                    Stays(f"archive {segment.name}", found.records, place.unit, until, why)
                )
            elif found.records:
                gone, segments = gone + found.records, segments + 1

        try:
            await each_of(one, work, SEGMENTS_AT_ONCE)
        finally:
            self._went(f"archive {place.archive.url}, {counted(segments, 'segment')}", gone, place.unit)
        if unreadable:
            which = f"{counted(unreadable, place.unit)} in the archive {place.archive.url}"
            self._report.untouched.append(f"{which} cannot be read, so nobody knows whose they are")

    async def _begin(self, place: Place, partition: int) -> EntryId | None:
        """Return the first id of a partition that Redis has, None if it has nothing."""
        from streamworker.redisio.data.ackedlog import entry_rows

        if not place.log:
            reply = await self._backend.execute("XRANGE", self._keys.events(partition), "-", "+", "COUNT", 1)
            return Entries.of(reply).id_at(0) if reply else None
        key = place.keys.acked(partition)
        reply = await self._backend.execute("XRANGE", key, "-", "+", "COUNT", 1)
        if not reply:
            return None
        (entry,) = Entries.of(reply)
        return EntryId(entry.id.ms - entry_rows(entry.id, entry.fields) + 1, 0)
