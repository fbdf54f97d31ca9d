"""``streamworker dead``: lists, shows, replays and drops dead letters.

A dead letter is named ``PARTITION/ID``, as ``dead list`` prints it.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.support import (
    AsJson,
    ProcessorPath,
    connected,
    console,
    print_json,
    print_table,
    progress_bar,
    run_async,
    say,
)
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.errors import ConfigurationError, RecordError

if TYPE_CHECKING:
    from streamworker.importing import Selection
    from streamworker.processors import ProcessorSpec
    from streamworker.redisio.data.dead import StoredLetter
    from streamworker.redisio.keys import GroupKeys
    from streamworker.redisio.wire.client import Backend

PAGE = 500
"""Dead letters of one partition that one round trip reads."""

ROWS_SHOWN = 20
"""Rows of an entry that ``show`` prints; an entry may have ten thousand."""

app = typer.Typer(no_args_is_help=True, help="Look at dead letters, run them again, or drop them.")

Letters = Annotated[
    list[str] | None,
    typer.Argument(metavar="LETTER...", help="PARTITION/ID of each, as `dead list` shows them."),
]
All = Annotated[bool, typer.Option("--all", help="All dead letters of the processor.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_letters(
    processor: ProcessorPath,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most this many.")] = 50,
    json: AsJson = False,
) -> None:
    """List dead letters, oldest first.

    \b
    Examples:
      streamworker dead list shop:price
      streamworker dead list shop:price --json --limit 1000
    """
    from streamworker.importing import resolve_processor

    selection = resolve_processor(processor)
    letters, total = run_async(_first_letters, selection, limit)
    if json:
        print_json([_as_json(selection, letter) for letter in letters])
        return
    if not letters:
        say(f"{selection.processors[0].name} has no dead letters.")
        return
    rows = [(_name(letter), _time(letter.at_ms), letter.attempts, _short(letter.error)) for letter in letters]
    print_table(("letter", "time", "attempts", "error"), rows)
    if total > len(letters):
        say(f"{len(letters)} of {total}; --limit shows more.", error=True)


@app.command("show")
def show_letter(
    processor: ProcessorPath,
    letter: Annotated[str, typer.Argument(metavar="LETTER", help="PARTITION/ID, as `dead list` shows it.")],
    json: AsJson = False,
) -> None:
    """Show one dead letter: the record, and the error in full.

    \b
    Examples:
      streamworker dead show shop:price 3/1769860800000-0
    """
    from streamworker.importing import resolve_processor

    selection = resolve_processor(processor)
    partition, letter_id = parse_letter(letter, selection.processors[0])
    found = run_async(_one_letter, selection, partition, letter_id)
    if json:
        print_json(_as_json(selection, found))
        return
    for label, value in (
        ("letter", _name(found)),
        ("entry", f"{found.entry_id} in partition {found.partition}"),
        ("given up", f"{_time(found.at_ms)} by {found.by}, attempts: {found.attempts}"),
        ("error", found.error),
    ):
        say(f"{label:<9} {value.rstrip()}")
    say(*(f"{'field':<9} {name} = {content}" for name, content in _fields(selection, found).items()))
    record = _record(selection, found)
    if isinstance(record, list):
        say(*(f"{'row':<9} {row}" for row in record[:ROWS_SHOWN]))
        if len(record) > ROWS_SHOWN:
            say(f"{len(record):,} rows; --json shows all.")
        return
    say(f"{'record':<9} {record if record is not None else 'cannot be decoded'}")


@app.command("replay")
def replay_letters(processor: ProcessorPath, letters: Letters = None, every: All = False) -> None:
    """Send dead letters through the processor once more.

    Each letter becomes a new entry at the end of its partition, after records of the same key that
    were sent meanwhile. Other processors of the stream skip it. One step adds the entry and removes
    the letter, so a letter that is replayed twice runs once.

    \b
    Examples:
      streamworker dead replay shop:price 3/1769860800000-0
      streamworker dead replay shop:price --all
    """
    from streamworker.importing import resolve_processor

    selection = resolve_processor(processor)
    chosen = _chosen(selection.processors[0], letters, every)
    done, missing = run_async(_replay, selection, chosen)
    _summarise("Replayed", done, missing)


@app.command("drop")
def drop_letters(
    processor: ProcessorPath, letters: Letters = None, every: All = False, yes: Yes = False
) -> None:
    """Delete dead letters for good.

    \b
    Examples:
      streamworker dead drop shop:price 3/1769860800000-0
      streamworker dead drop shop:price --all --yes
    """
    from streamworker.importing import resolve_processor

    selection = resolve_processor(processor)
    chosen = _chosen(selection.processors[0], letters, every)
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("There is no terminal to ask at: give --yes.", param_hint="--yes")
        what = "all dead letters" if chosen is None else f"{sum(map(len, chosen.values()))} dead letters"
        typer.confirm(f"Delete {what} of {selection.processors[0].name} for good?", abort=True)
    done, missing = run_async(_drop, selection, chosen)
    _summarise("Dropped", done, missing)


def parse_letter(text: str, spec: "ProcessorSpec") -> tuple[int, EntryId]:
    """Parse ``PARTITION/ID``.

    Raises
    ------
    typer.BadParameter
        If the text has another form, or the stream has no such partition.
    """
    partition, slash, letter_id = text.partition("/")
    if not slash or not partition.isdecimal() or int(partition) >= spec.stream.partitions:
        raise typer.BadParameter(
            f"{text!r} is no PARTITION/ID such as 3/1769860800000-0, as `dead list` prints it.",
            param_hint="LETTER",
        )
    try:
        return int(partition), EntryId.parse(letter_id)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="LETTER") from None


Chosen = dict[int, list[EntryId]]


def _chosen(spec: "ProcessorSpec", letters: list[str] | None, every: bool) -> Chosen | None:
    """Return the ids of the chosen letters by partition; None for all letters."""
    if every == bool(letters):
        raise typer.BadParameter("Give the letters, or --all.", param_hint="LETTER")
    if every:
        return None
    chosen: Chosen = {}
    for text in letters or ():
        partition, letter_id = parse_letter(text, spec)
        chosen.setdefault(partition, []).append(letter_id)
    return chosen


def _keys(selection: "Selection") -> "GroupKeys":
    from streamworker.redisio.keys import GroupKeys

    spec = selection.processors[0]
    return GroupKeys(selection.app.name, spec.stream.name, spec.name)


async def _first_letters(selection: "Selection", limit: int) -> "tuple[list[StoredLetter], int]":
    from streamworker.redisio.data.dead import list_dead

    partitions = range(selection.processors[0].stream.partitions)
    keys = _keys(selection)
    async with connected(selection.app) as backend:
        letters = await list_dead(backend, keys, partitions, count=limit)
        return letters[:limit], await _count(backend, keys, partitions)


async def _count(backend: "Backend", keys: "GroupKeys", partitions: Sequence[int]) -> int:
    lengths = await backend.pipeline([("XLEN", keys.dead(partition)) for partition in partitions])
    return sum(length for length in lengths if isinstance(length, int))


async def _one_letter(selection: "Selection", partition: int, letter_id: EntryId) -> "StoredLetter":
    from streamworker.redisio.data.dead import show_dead

    async with connected(selection.app) as backend:
        found = await show_dead(backend, _keys(selection), partition, letter_id)
    if found is None:
        raise ConfigurationError(
            f"There is no dead letter {partition}/{letter_id} of {selection.processors[0].name}.",
            remedy="It may have been replayed or dropped; `streamworker dead list` shows the others.",
        )
    return found


async def _replay(selection: "Selection", chosen: Chosen | None) -> tuple[int, list[str]]:
    from streamworker.redisio.data.dead import replay_dead

    keys, done, missing = _keys(selection), 0, list[str]()
    async with connected(selection.app) as backend:
        total = await _total(backend, selection, chosen)
        with _counter("replaying", total) as advance:
            for partition in _partitions(selection, chosen):
                # A record that fails again becomes a new letter. Replaying those too would never end.
                last = await _last_letter(backend, keys, partition)
                async for ids in _pages(backend, keys, partition, chosen, last):
                    replayed = await replay_dead(backend, keys, partition, ids)
                    gone = [letter for letter, entry in replayed.items() if entry is None]
                    missing += [f"{partition}/{letter}" for letter in gone]
                    done += len(ids) - len(gone)
                    advance(len(ids))
    return done, missing


async def _drop(selection: "Selection", chosen: Chosen | None) -> tuple[int, list[str]]:
    from streamworker.redisio.data.dead import drop_dead

    keys, done, asked = _keys(selection), 0, 0
    async with connected(selection.app) as backend:
        for partition in _partitions(selection, chosen):
            last = await _last_letter(backend, keys, partition)
            async for ids in _pages(backend, keys, partition, chosen, last):
                done += await drop_dead(backend, keys, partition, ids)
                asked += len(ids)
    return done, ["some"] * (asked - done)


def _partitions(selection: "Selection", chosen: Chosen | None) -> Sequence[int]:
    return sorted(chosen) if chosen is not None else range(selection.processors[0].stream.partitions)


async def _total(backend: "Backend", selection: "Selection", chosen: Chosen | None) -> int:
    if chosen is not None:
        return sum(map(len, chosen.values()))
    return await _count(backend, _keys(selection), _partitions(selection, None))


async def _last_letter(backend: "Backend", keys: "GroupKeys", partition: int) -> EntryId:
    newest = await backend.execute("XREVRANGE", keys.dead(partition), "+", "-", "COUNT", 1)
    return EntryId.parse(newest[0][0]) if newest else ZERO


async def _pages(
    backend: "Backend", keys: "GroupKeys", partition: int, chosen: Chosen | None, last: EntryId
) -> "Any":
    """Yield the ids of the chosen letters of a partition, or of all up to ``last``, in pages."""
    from streamworker.redisio.data.dead import list_dead

    if chosen is not None:
        ids = chosen[partition]
        for at in range(0, len(ids), PAGE):
            yield ids[at : at + PAGE]
        return
    after = ZERO
    while page := await list_dead(backend, keys, [partition], after=after, count=PAGE):
        ids = [letter.id for letter in page if letter.id <= last]
        if not ids:
            return
        yield ids
        after = ids[-1]


@contextmanager
def _counter(label: str, total: int) -> Iterator[Any]:
    with progress_bar() as progress:
        task = progress.add_task(label, total=total)
        yield lambda count: progress.advance(task, count)


def _summarise(what: str, done: int, missing: list[str]) -> None:
    say(f"{what} {done} dead letters.")
    if missing:
        named = ", ".join(letter for letter in missing[:5] if letter != "some")
        say(f"{len(missing)} did not exist any more{': ' + named if named else ''}.", error=True)
        raise typer.Exit(ExitCode.FAILED)


def _name(letter: "StoredLetter") -> str:
    return f"{letter.partition}/{letter.id}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec="seconds")


def _text(value: bytes) -> str:
    """Decode UTF-8 bytes; return the ``repr`` of other bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return repr(value)


def _short(error: str) -> str:
    """Return the last line of a traceback, which names the error; on a terminal cut to the table's width."""
    line = (error.strip().splitlines() or [""])[-1]
    width = max(40, console().width - 60)
    return line if len(line) <= width or not sys.stdout.isatty() else line[: width - 3] + "..."


def _fields(selection: "Selection", letter: "StoredLetter") -> dict[str, str]:
    """Return the fields of a letter's entry; for Arrow columns and their schema, the size in bytes."""
    is_arrow = selection.processors[0].stream.codec == "arrow"
    return {
        _text(name): f"{len(value):,} bytes" if is_arrow and name in (b"v", b"schema") else _text(value)
        for name, value in letter.fields.items()
    }


def _record(selection: "Selection", letter: "StoredLetter") -> object:
    spec = selection.processors[0].stream
    try:
        if spec.codec == "arrow":
            from streamworker.redisio.data.columns import unpacked

            return spec.record.from_arrow(spec.record.fit_arrow(unpacked(letter.fields), extra="drop"))
        return spec.record.decoder(spec.codec)(letter.fields)
    except RecordError:
        return None


def _as_json(selection: "Selection", letter: "StoredLetter") -> dict[str, object]:
    import msgspec

    record = _record(selection, letter)
    return {
        "letter": _name(letter),
        "partition": letter.partition,
        "entry": str(letter.entry_id),
        "error": letter.error,
        "attempts": letter.attempts,
        "at_ms": letter.at_ms,
        "by": letter.by,
        "fields": _fields(selection, letter),
        "record": None if record is None else msgspec.to_builtins(record, enc_hook=str),
    }
