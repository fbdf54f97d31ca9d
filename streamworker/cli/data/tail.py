"""``streamworker tail`` and ``peek``: show records of a stream, and rows of an acked log."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Any

import anyio
import anyio.to_thread
import msgspec
import typer

from streamworker.cli.data.reset import parse_target
from streamworker.cli.data.wording import decoded, plain
from streamworker.cli.options import AsJson, ProcessorPath, argument, option
from streamworker.cli.output import print_json, say
from streamworker.cli.support import ask, group_keys, wanted_partitions
from streamworker.core.data.entries import SEQUENCE_MAX, Entry, EntryId
from streamworker.core.data.placement import canonical_key
from streamworker.core.units import duration_ms
from streamworker.core.words import counted, ranges
from streamworker.declaring.specs import ProcessorSpec
from streamworker.declaring.stream import Stream
from streamworker.errors import ConfigurationError, RecordError
from streamworker.importing import resolve_processor, resolve_stream
from streamworker.records.entries import Entries
from streamworker.records.rows import ids_of_rows
from streamworker.redisio.data import retention
from streamworker.redisio.group.locks import LockView, read_locks
from streamworker.redisio.keys import GroupKeys, StreamKeys, whole
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.runtime.read.archived import entries_after
from streamworker.tui.figures import local_time

FOLLOW_S = 0.5
"""How often ``--follow`` looks for new entries."""
LOOKED_AT = 1_000
"""The newest entries of a partition, among which ``--key`` looks."""

_Commit = tuple[int, int, int, Any]
"""Rows that were committed together: when, in which partition, the number of the last one, and the rows."""

StreamPath = Annotated[str, argument("STREAM", "MODULE:NAME of the stream, such as shop:orders.")]
Last = Annotated[int, option("--last -n N", "At most so many, the newest.", min=1)]


def tail(
    stream: StreamPath,
    key: Annotated[
        str | None, option("--key KEY", "Only records of this key, among the last 1,000 entries.")
    ] = None,
    last: Annotated[
        int, option("--last -n N", "At most so many: the newest, or with --since the first ones.", min=1)
    ] = 10,
    since: Annotated[
        str | None,
        option("--since TIME", "Records from a time on, such as 2026-01-31T12:00Z, or '2 hours' ago."),
    ] = None,
    follow: Annotated[bool, option("--follow -f", "Go on with new records, until Ctrl-C.")] = False,
    json: AsJson = False,
) -> None:
    """Show the newest records of a stream, or the first ones from a time on.

    Each line has the record's partition and id, its time and the record. With --since the command
    also reads what only the archive of the stream still has (docs: archive), and looks for a --key
    up to the end.

    \b
    Examples:
      streamworker tail shop:orders
      streamworker tail shop:orders --key bob --follow
      streamworker tail shop:orders --since 2026-01-01 --last 100
    """
    shown = resolve_stream(stream)
    if since is None:
        ask(shown.app, _tail, shown, key, last, follow, json, of=shown.spec)
        return
    if follow:
        raise typer.BadParameter("It shows what was; leave out --follow.", param_hint="--since")
    ask(shown.app, _since, shown, key, last, _position(since), json, of=shown.spec)


def peek(
    processor: ProcessorPath,
    partition: Annotated[int | None, typer.Argument(metavar="[PARTITION]", min=0)] = None,
    last: Last = 10,
) -> None:
    """Show the newest rows of the acked log as JSON, as Spark reads them: of one partition or of all.

    \b
    Examples:
      streamworker peek shop:price
      streamworker peek shop:price 7 --last 3
    """
    app, spec = resolve_processor(processor)
    rows, none = ask(app, _peek, spec, partition, last, of=spec.stream)
    if none:
        say(none, error=True)
    print_json(rows)


class _Lines:
    """Writes the records of a stream, of one key or of all."""

    def __init__(self, stream: Stream[Any], key: str | None, *, as_json: bool) -> None:
        self._spec, self._key, self._as_json = stream.spec, key, as_json
        placement = stream.spec.placement
        self.partitions: Sequence[int] = placement.all if key is None else placement.path_of(key.encode())

    def of(self, partition: int, entry: Entry) -> Iterator[tuple[EntryId, str]]:
        """Yield the ids and the lines of an entry's records."""
        found = decoded(self._spec, entry.fields)
        ids = ids_of_rows(entry) if isinstance(found, list) else iter([entry.id])
        for record, its in zip(found if isinstance(found, list) else [found], ids, strict=False):
            if self._key is None or self._is_of_key(record):
                yield its, self._line(f"{partition}/{its}", its.ms, record)

    def _is_of_key(self, record: Any) -> bool:
        if record is None or self._key is None:
            return False
        try:
            return canonical_key(self._spec.key(record)) == self._key.encode()
        except RecordError:
            return False

    def _line(self, name: str, at_ms: int, record: object) -> str:
        if self._as_json:
            return msgspec.json.encode({"id": name, "at_ms": at_ms, "record": plain(record)}).decode()
        return f"{name}  {local_time(at_ms)}  {'cannot be decoded' if record is None else record}"


async def _tail(
    backend: Backend, stream: Stream[Any], key: str | None, last: int, follow: bool, as_json: bool
) -> None:
    lines, keys = _Lines(stream, key, as_json=as_json), StreamKeys(stream.app.name, stream.name)
    count = last if key is None else LOOKED_AT
    newest = await _newest(backend, keys, lines, count)
    shown = [pair for p, entries in newest.items() for each in entries for pair in lines.of(p, each)]
    say(*(line for _, line in sorted(shown)[-last:]))
    if not shown:
        say(await _why_none(backend, stream, lines, key), error=True)
    after = {p: entries[-1].id if entries else EntryId(0, 0) for p, entries in newest.items()}
    while follow:
        await anyio.sleep(FOLLOW_S)
        commands = [("XRANGE", keys.events(p), f"({after[p]}", "+", "COUNT", LOOKED_AT) for p in after]
        fresh: list[tuple[EntryId, str]] = []
        for p, reply in zip(after, all_answered(await backend.pipeline(commands)), strict=True):
            for entry in Entries.of(reply):
                after[p] = entry.id
                fresh += lines.of(p, entry)
        say(*(line for _, line in sorted(fresh)))


def _position(since: str) -> Callable[[int], EntryId]:
    """Return what computes from the time of the server after which id a time, or one ago, begins."""
    with suppress(ConfigurationError):
        ago_ms = duration_ms(since, "--since")
        return lambda now_ms: EntryId(max(0, now_ms - ago_ms - 1), SEQUENCE_MAX)
    if (position := parse_target(since, "--since")) is None:
        raise typer.BadParameter("After the latest there is nothing to show yet.", param_hint="--since")
    return lambda _: position


async def _since(
    backend: Backend,
    stream: Stream[Any],
    key: str | None,
    first: int,
    position: Callable[[int], EntryId],
    as_json: bool,
) -> None:
    lines, after = _Lines(stream, key, as_json=as_json), position(await backend.time_ms())
    found: list[tuple[EntryId, str]] = []
    for p in lines.partitions:
        its: list[tuple[EntryId, str]] = []
        async with aclosing(entries_after(backend, stream.spec, p, after, LOOKED_AT)) as parts:
            async for entries in parts:
                its += (pair for each in entries for pair in lines.of(p, each))
                if len(its) >= first:
                    break
        found += its[:first]
    say(*(line for _, line in sorted(found)[:first]))
    if not found:
        say(f"{stream.name} has no {'record' if key is None else f'record of {key!r}'} since.", error=True)


async def _why_none(backend: Backend, stream: Stream[Any], lines: "_Lines", key: str | None) -> str:
    """Say why there is nothing to show, as far as Redis has counted it."""
    keys = GroupKeys(stream.app.name, stream.name, stream.name)
    parts = [await retention.edges(backend, keys, p) for p in lines.partitions]
    sent, held = sum(each.sent for each in parts), sum(each.held for each in parts)
    which = f"partition {ranges(lines.partitions)} of {stream.name}, that of {key!r}"
    where = stream.name if key is None else which
    if not sent:
        return f"Redis knows of no record that was sent to {where}."
    if held and key is None:
        return f"{counted(held, 'record')} came to {stream.name} meanwhile: look again."
    if held:
        return f"No record of key {key!r} is among the newest {LOOKED_AT:,} entries of its partition."
    told = f"{counted(sent, 'record')} of {where} were here, and none is left"
    if stream.spec.archive is not None:
        return f"{told} in Redis. The archive may have them: --since TIME."
    declared = (await retention.read(backend, keys)).stream
    older = f", and passed its retention of {declared}" if declared else ""
    return (
        f"{told}: all groups had committed them{older}, and they were trimmed; or another program deleted "
        "them. app.stream(..., retention=...) says what is kept longer."
    )


async def _newest(backend: Backend, keys: StreamKeys, lines: _Lines, count: int) -> Mapping[int, Entries]:
    """Return the newest entries of each partition, oldest first."""
    commands = [("XREVRANGE", keys.events(p), "+", "-", "COUNT", count) for p in lines.partitions]
    replies = all_answered(await backend.pipeline(commands))
    return {p: Entries.of(reply[::-1]) for p, reply in zip(lines.partitions, replies, strict=True)}


async def _peek(
    backend: Backend, spec: ProcessorSpec, partition: int | None, last: int
) -> tuple[list[dict[str, Any]], str]:
    """Return the newest rows of some partitions, and why there are none."""
    from streamworker.redisio.data.ackedlog import decode_entry, without_metadata
    from streamworker.redisio.data.schemas import stored_schemas

    asked = wanted_partitions(spec.stream, None if partition is None else [partition], "PARTITION")
    keys, names_them = group_keys(spec), partition is None
    schemas = await stored_schemas(backend, keys)
    replies = await backend.pipeline([("XREVRANGE", keys.acked(p), "+", "-", "COUNT", last) for p in asked])
    commits: list[_Commit] = []
    starts: dict[int, int] = {}
    for p, reply in zip(asked, all_answered(replies), strict=True):
        for entry in Entries.of(reply):
            at_ms = whole(entry.fields.get(b"at", b"")) or 0
            batch = without_metadata(decode_entry(entry.id, entry.fields, schemas))
            starts[p] = entry.id.ms - batch.num_rows
            commits.append((at_ms, p, entry.id.ms, batch))
    if spec.options.archive_of_log and sum(each[3].num_rows for each in commits) < last:
        commits += await _archived(backend, spec, asked, starts, last)
    rows: list[dict[str, Any]] = []
    # Newest first; the entries of one partition in their order.
    for _, p, end, batch in sorted(commits, key=lambda each: each[:3], reverse=True):
        found = batch.to_pylist()
        which = {"partition": p} if names_them else {}
        rows += [{**which, "row": end - len(found) + at, **row} for at, row in enumerate(found)][::-1]
        if len(rows) >= last:
            break
    return rows[:last][::-1], "" if rows else await _why_no_rows(backend, spec, asked)


async def _archived(
    backend: Backend, spec: ProcessorSpec, asked: Sequence[int], starts: Mapping[int, int], last: int
) -> list[_Commit]:
    """Return the newest rows below those that Redis has."""
    from streamworker.archive.chain import Chain
    from streamworker.archive.logs import read_rows
    from streamworker.archive.store import store_at
    from streamworker.redisio.data.ackedlog import without_metadata

    archive = spec.options.archive_of_log
    assert archive is not None
    locks = await read_locks(backend, group_keys(spec), asked)

    def read() -> list[_Commit]:
        found: list[_Commit] = []
        for p, lock in locks.items():
            if isinstance(lock, LockView):
                chain, end = Chain(store_at(archive.url), p), starts.get(p, lock.rows)
                after = max(0, end - last, *(each.after.ms for each in chain.segments()[:1]))
                found += (
                    (commit.at_ms, p, commit.end, without_metadata(commit.rows))
                    for commit in read_rows(chain, lock.log, after, end)
                )
        return found

    return await anyio.to_thread.run_sync(read)


async def _why_no_rows(backend: Backend, spec: ProcessorSpec, asked: Sequence[int]) -> str:
    locks = (await read_locks(backend, group_keys(spec), asked)).values()
    there = [lock for lock in locks if isinstance(lock, LockView)]
    if not spec.forward:
        return f"{spec.name} forwards no rows, so it has no acked log."
    if not there:
        return f"{spec.name} has never run there, so its acked log has no rows."
    if not (had := sum(lock.rows for lock in there)):
        return f"{spec.name} has forwarded no rows yet."
    return (
        f"{counted(had, 'row')} were in the acked log of {spec.name}, and none is left. Rows go when all "
        "readers have read them, or without a reader after a day; log_retention= keeps them longer."
    )
