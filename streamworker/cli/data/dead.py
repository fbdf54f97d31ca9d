"""``streamworker dead``: sets records aside; lists, shows, replays and drops dead letters.

A dead letter is named ``PARTITION/ID``, as ``dead list`` prints it, or by the record in it.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Annotated

import anyio
import msgspec
import typer

from streamworker.cli.data.edited import edits_in
from streamworker.cli.data.letters import (
    PAGE,
    By,
    Chosen,
    Fields,
    as_json,
    fields_of,
    matching,
    parse_name,
    stored,
    surveyed,
)
from streamworker.cli.data.replaying import replay
from streamworker.cli.data.wording import as_written, letter_decoded, shortened
from streamworker.cli.options import AsJson, Limit, ProcessorPath, Yes, argument, option, seconds_of
from streamworker.cli.output import confirm, console, print_found, print_json, progress_bar, say
from streamworker.cli.requests import POLL_S, Wait, Why, operator
from streamworker.cli.support import ask, give_up, group_keys, halves_told
from streamworker.core.data.entries import EntryId
from streamworker.core.text import printable_lines
from streamworker.core.words import counted, name_of
from streamworker.declaring.specs import ProcessorSpec
from streamworker.errors import StreamworkerError
from streamworker.importing import resolve_processor
from streamworker.redisio.data.dead import StoredLetter, drop_dead, show_dead
from streamworker.redisio.data.streams import record_at
from streamworker.redisio.group.control import newest_id
from streamworker.redisio.group.locks import read_lock
from streamworker.redisio.group.requests import make_request
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.settings import Settings
from streamworker.tui.figures import local_time

_NONE = "There are no such dead letters."
ROWS_SHOWN = 20
"""Rows of an entry that ``show`` prints; an entry may have ten thousand."""

app = typer.Typer(
    no_args_is_help=True, help="Set records aside; look at dead letters, run them again, drop them."
)

Letters = Annotated[
    list[str] | None, argument("LETTER...", "PARTITION/ID of each letter, or of the record in it.")
]
ErrorClass = Annotated[str | None, option("--error CLASS", "Only letters with this class of error.")]
Since = Annotated[str | None, option("--since TIME", "Only letters of this time, such as '2 hours'.")]
All = Annotated[bool, option("--all", "All dead letters of the processor.")]


@app.command("list")
def list_letters(
    processor: ProcessorPath,
    error: ErrorClass = None,
    since: Since = None,
    by: Annotated[By | None, option("--by error|hour", "Only count them, by error or by hour.")] = None,
    limit: Limit = 50,
    json: AsJson = False,
) -> None:
    """Count dead letters by their error, and list the newest first.

    \b
    Examples:
      streamworker dead list shop:price
      streamworker dead list shop:price --by hour --since "2 days"
      streamworker dead list shop:price --error TimeoutError --since "2 hours"
      streamworker dead list shop:price --json --limit 1000
    """
    app, spec = resolve_processor(processor)
    letters, such = ask(app, surveyed, spec, error, since, by or By.ERROR, 0 if by else limit, of=spec.stream)
    counts = [(each.what, each.letters, local_time(each.first_ms), local_time(each.last_ms)) for each in such]
    nothing = f"{spec.name} has no{' such' if error or since else ''} dead letters."
    if by or (such and not json):
        facts = [asdict(each) for each in such]
        print_found(json, facts, nothing, ((by or By.ERROR).value, "letters", "first", "last"), counts)
    if by:
        return
    if such and not json:
        say("")
    facts = [as_json(spec.stream, letter) for letter in letters]
    rows = ((each.name, local_time(each.at_ms), each.attempts, _short(each.error)) for each in letters)
    print_found(json, facts, nothing, ("letter", "time", "attempts", "error"), rows)
    if (total := sum(each.letters for each in such)) > len(letters):
        say(f"The newest {len(letters):,} of {total:,}; --limit shows more.", error=True)


@app.command("show")
def show_letter(
    processor: ProcessorPath,
    letter: Annotated[str, argument("LETTER", "PARTITION/ID of the letter, or of the record in it.")],
    json: AsJson = False,
) -> None:
    """Show one dead letter: the record, and the error in full.

    \b
    Examples:
      streamworker dead show shop:price 3/1769860800000-0
    """
    app, spec = resolve_processor(processor)
    found = ask(app, _one_letter, spec, letter, of=spec.stream)
    if found is None:
        raise StreamworkerError(
            f"There is no dead letter {letter} of {spec.name}.",
            remedy="It may have been replayed or dropped; `streamworker dead list` shows the others.",
        )
    if json:
        print_json(as_json(spec.stream, found))
        return
    for label, value in (
        ("letter", found.name),
        ("entry", f"{found.entry_id} in partition {found.partition}"),
        ("given up", f"{local_time(found.at_ms)} by {found.by}, attempts: {found.attempts}"),
        ("error", found.error),
    ):
        say(f"{label:<9} {value.rstrip()}")
    if found.traceback:
        say(*printable_lines(found.traceback))
    say(*(f"{'field':<9} {name} = {content}" for name, content in fields_of(spec.stream, found).items()))
    record = letter_decoded(spec.stream, found)
    if isinstance(record, list):
        say(*(f"{'row':<9} {row}" for row in record[:ROWS_SHOWN]))
        if len(record) > ROWS_SHOWN:
            say(f"{len(record):,} rows; --json shows all.")
        return
    say(f"{'record':<9} {record if record is not None else 'cannot be decoded'}")


@app.command("export")
def export_letters(processor: ProcessorPath, error: ErrorClass = None, since: Since = None) -> None:
    """Print dead letters as JSON, one a line, for an editor and `dead replay --from`.

    The field "record" is what may be edited.

    \b
    Examples:
      streamworker dead export shop:price > letters.jsonl
      streamworker dead export shop:price --error ValueError | jq -c '.record.amount = 0' > letters.jsonl
    """
    app, spec = resolve_processor(processor)
    if not ask(app, _export, spec, error, since, of=spec.stream):
        say(_NONE, error=True)


async def _export(backend: Backend, spec: ProcessorSpec, error: str | None, since: str | None) -> int:
    """Print letters; return how many."""
    exported = 0
    async for letter in matching(backend, spec, error, since):
        say(msgspec.json.encode(as_json(spec.stream, letter)).decode())
        exported += 1
    return exported


@app.command("replay")
def replay_letters(
    processor: ProcessorPath,
    letters: Letters = None,
    every: All = False,
    error: ErrorClass = None,
    since: Since = None,
    file: Annotated[
        Path | None, option("--from FILE", "The letters of a file that `dead export` wrote, as edited since.")
    ] = None,
) -> None:
    """Send dead letters through the processor once more.

    Each letter becomes a new entry at the end of its partition; other processors skip it. A letter
    that is replayed twice runs once.

    Letters are replayed oldest first. If a line of --from holds no record of the stream, or one
    whose key belongs to another partition, nothing is replayed.

    \b
    Examples:
      streamworker dead replay shop:price 3/1769860800000-0
      streamworker dead replay shop:price --all
      streamworker dead replay shop:price --error TimeoutError --since "2 hours"
      streamworker dead replay shop:price --from letters.jsonl
    """
    app, spec = resolve_processor(processor)
    if sum(map(bool, (letters, every, error or since, file))) != 1:
        raise typer.BadParameter("Give letters, --all, --from, or --error and --since.", param_hint="LETTER")
    if file:
        chosen = ask(app, edits_in, spec, file, app.settings, of=spec.stream)
    else:
        chosen = ask(app, _chosen, spec, letters, error, since, of=spec.stream)
    if not chosen:
        give_up(f"{file} has no letter. Nothing was changed." if file else f"{_NONE} Nothing was changed.")
    began_s = monotonic()
    missing = ask(app, _replay, spec, app.settings, chosen)
    asked = _count(chosen)
    done = asked - len(missing)
    per_second = f"{done / (monotonic() - began_s):,.0f}/s"
    _summarise(
        "Replayed", done, asked, missing, f' to the group "{spec.name}", and to no other: {per_second}'
    )


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
    app, spec = resolve_processor(processor)
    if every == bool(letters):
        raise typer.BadParameter("Give the letters, or --all.", param_hint="LETTER")
    chosen = ask(app, _chosen, spec, letters, of=spec.stream)
    if not chosen:
        give_up(f"{_NONE} Nothing was changed.")
    if not yes:
        what = "all dead letters" if every else counted(_count(chosen), "dead letter")
        confirm(f"Delete {what} of {spec.name} for good?")
    done = ask(app, _drop, spec, chosen)
    _summarise("Dropped", done, _count(chosen))


@app.command("put")
def put_record(
    processor: ProcessorPath,
    record: Annotated[
        str, argument("RECORD", "PARTITION/ID of the record, as `status` and the log name it.")
    ],
    why: Why = "",
    wait: Wait = "10 seconds",
    yes: Yes = False,
) -> None:
    """Set one record aside, on a group that runs.

    The owner of the partition makes the record a dead letter, without calling the function for it,
    and goes on: whether the record halts its partition, is tried again and again, was not reached
    yet, or is one of many in an entry.

    \b
    Examples:
      streamworker dead put shop:price 7/1795383533683-0
      streamworker dead put shop:price 7/1795383533683-0 --yes --why "order without a customer"
    """
    app, spec = resolve_processor(processor)
    partition, record_id, text = ask(app, _text_of, spec, record, of=spec.stream)
    if not yes:
        confirm(f"Sets record {record_id} of partition {partition} aside ({text}), and no other. Go on?")
    letter, problem = ask(app, _put, group_keys(spec), partition, record_id, why, wait)
    if letter is None:
        give_up(f"Record {record_id} of partition {partition} was not set aside: {problem}")
    say(
        f"Done by worker {name_of(letter.by)} at {local_time(letter.at_ms)}: "
        f"streamworker dead show {processor} {letter.name}"
    )


async def _text_of(backend: Backend, spec: ProcessorSpec, name: str) -> tuple[int, EntryId, str]:
    """Return where a record is, and its text; raise StreamworkerError if the stream does not hold it."""
    partition, record_id = parse_name(name, spec.stream, "RECORD")
    found = await record_at(backend, group_keys(spec), partition, record_id)
    if found is None:
        raise StreamworkerError(
            f"Partition {partition} of {spec.stream.name} has no record {record_id}.",
            remedy="`streamworker status` and the log name the record that fails.",
        )
    fields: Mapping[bytes, bytes] = found.fields
    if spec.stream.codec == "arrow":
        from streamworker.redisio.data.columns import alone  # loads pyarrow

        fields = alone(found)
    record = as_written(spec.stream, fields)
    if isinstance(record, list):
        record = record[0]
    return partition, record_id, "it cannot be decoded" if record is None else shortened(repr(record))


async def _put(
    backend: Backend, keys: GroupKeys, partition: int, record_id: EntryId, why: str, wait: str
) -> tuple[StoredLetter | None, str]:
    """Make the request, and wait until it is obeyed; return the dead letter, or why there is none."""
    wait_s = seconds_of(wait, "--wait")
    newest = await newest_id(backend, keys.dead(partition))
    given = await make_request(backend, keys, [partition], "put", who=operator(), why=why, record=record_id)
    if partition not in given:
        return None, "the group has never run in this partition."
    if not given[partition].is_new:
        return None, "the group has committed it already, or a reset has skipped it."
    until_s = monotonic() + wait_s
    while lock := await read_lock(backend, keys, partition):
        if record_id not in lock.aside or not lock.owner or lock.pause is not None or monotonic() > until_s:
            break
        await anyio.sleep(POLL_S)
    async for page in stored(backend, keys, partition, newest):
        if letter := next((each for each in page if each.entry_id == record_id), None):
            return letter, ""
    if lock is None:
        return None, "the group was removed meanwhile, and the request with it."
    if record_id not in lock.aside:
        return None, "its worker committed it before it knew of the request."
    if lock.pause is not None:
        holds = "an operator has paused the partition"
    elif not lock.owner:
        holds = "no worker owns the partition"
    else:
        knows = lock.obeyed >= given[partition].version
        has = "knows of it, and has not come to it" if knows else "has not confirmed it"
        why = lock.reason or ("records before it are handled" if knows else "a call runs, or it is away")
        holds = f"{name_of(lock.owner)} {has} within {wait}: {why.rstrip('.')}"
    return None, f"{holds}. The request stands, and a worker obeys it when it comes to the record."


async def _chosen(
    backend: Backend,
    spec: ProcessorSpec,
    letters: list[str] | None,
    error: str | None = None,
    since: str | None = None,
) -> Chosen:
    """Return the chosen letters; without ``letters`` all, or those of the options.

    Letters that come later are not among them: a record that is replayed and fails again becomes one.
    """
    chosen: Chosen = {}
    for text in letters or ():
        partition, letter_id = parse_name(text, spec.stream)
        found = await _one_letter(backend, spec, text)
        chosen.setdefault(partition, {})[found.id if found else letter_id] = None
    if not letters:
        async for letter in matching(backend, spec, error, since):
            chosen.setdefault(letter.partition, {})[letter.id] = None
    return chosen


def _count(chosen: Chosen) -> int:
    return sum(map(len, chosen.values()))


async def _one_letter(backend: Backend, spec: ProcessorSpec, name: str) -> StoredLetter | None:
    """Return the letter of this name, or that of the record of this name; None if there is neither."""
    partition, letter_id = parse_name(name, spec.stream)
    if found := await show_dead(backend, group_keys(spec), partition, [letter_id]):
        return found[letter_id]
    async for page in stored(backend, group_keys(spec), partition):
        for letter in page:
            if letter.entry_id == letter_id:
                return letter
    return None


async def _replay(backend: Backend, spec: ProcessorSpec, settings: Settings, chosen: Chosen) -> list[str]:
    """Replay letters; return the names of those that did not exist."""
    missing: list[str] = []
    passed = 0
    with _halves_told("Replayed", lambda: passed - len(missing)), progress_bar() as progress:
        task = progress.add_task("replaying", total=_count(chosen))
        for partition, page in _pages(chosen):
            replayed = await replay(backend, spec, settings, partition, page)
            missing += [f"{partition}/{letter}" for letter, entry in replayed.items() if entry is None]
            progress.advance(task, len(page))
            passed += len(page)
    return missing


async def _drop(backend: Backend, spec: ProcessorSpec, chosen: Chosen) -> int:
    """Delete letters; return how many existed."""
    done = 0
    with _halves_told("Dropped", lambda: done):
        for partition, page in _pages(chosen):
            done += await drop_dead(backend, group_keys(spec), partition, list(page))
    return done


def _halves_told(verb: str, done: Callable[[], int]) -> AbstractContextManager[None]:
    """Say how many letters are done if not all are; of the page that failed Redis may have done some."""

    def told() -> str:
        more = f"and perhaps some of the next {PAGE}. The same command goes on with the others."
        return f"{verb} {counted(done(), 'dead letter')}, {more}" if done() else ""

    return halves_told(told)


def _pages(chosen: Chosen) -> Iterator[tuple[int, dict[EntryId, Fields | None]]]:
    """Yield the chosen letters in pages of one partition."""
    for partition, its in sorted(chosen.items()):
        for at in range(0, len(its), PAGE):
            yield partition, dict(islice(its.items(), at, at + PAGE))


def _summarise(verb: str, done: int, asked: int, missing: Sequence[str] = (), where: str = "") -> None:
    """Say what was done, and fail if not everything was."""
    say(f"{verb} {done:,} of {counted(asked, 'dead letter')}{where}.")
    if done < asked:
        more = " and others" if missing[5:] else ""
        named = f": {', '.join(missing[:5])}{more}" if missing else ""
        give_up(f"{asked - done} did not exist{named}. `streamworker dead list` shows those that do.")


def _short(error: str) -> str:
    """Return the last line of a traceback, which names the error; on a terminal cut to the table's width."""
    line = (error.strip().splitlines() or [""])[-1]
    width = max(40, console().width - 60)
    return shortened(line, width) if sys.stdout.isatty() else line
