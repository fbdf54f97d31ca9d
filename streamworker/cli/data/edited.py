"""``dead replay --from FILE``: letters of `dead export`, whose records an operator may have edited."""

import codecs
from pathlib import Path

import msgspec
import typer

from streamworker.cli.data.letters import Chosen, Fields, as_json, parse_name
from streamworker.cli.data.lines import checked_text
from streamworker.cli.output import say
from streamworker.cli.support import give_up, group_keys
from streamworker.core.data.entries import EntryId
from streamworker.core.data.placement import canonical_key
from streamworker.core.words import counted
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.errors import RecordError, StreamworkerError
from streamworker.records.codecs import PAYLOAD_FIELD
from streamworker.redisio.data.dead import StoredLetter, show_dead
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.send.producer import Producer
from streamworker.settings import Settings

Lines = dict[int, dict[EntryId, tuple[int, msgspec.Raw]]]
"""The number and the record of each line, by partition and letter."""


class _Letter(msgspec.Struct):
    letter: str
    record: msgspec.Raw


async def edits_in(backend: Backend, spec: ProcessorSpec, path: Path, settings: Settings) -> Chosen:
    """Read the letters of a file; end the command, and change nothing, if a line cannot be replayed.

    A record that is as it was exported keeps the bytes that it has.
    """
    lines, bad = _lines(spec.stream, path)
    edits, producer = Chosen(), Producer(backend, spec.stream, settings)
    for partition, its in sorted(lines.items()):
        there = await show_dead(backend, group_keys(spec), partition, sorted(its))
        edits[partition] = {}
        for name, (number, record) in sorted(its.items()):
            letter = there.get(name)  # The replay tells of one that is not there any more.
            try:
                edits[partition][name] = _edited(spec.stream, producer, letter, record) if letter else None
            except StreamworkerError as error:
                bad[number] = str(error)
    if bad:
        say(*(f"Line {number}: {problem}" for number, problem in sorted(bad.items())), error=True)
        give_up(f"{counted(len(bad), 'line')} of {path} cannot be replayed. Nothing was changed.")
    return edits


def _lines(stream: StreamSpec, path: Path) -> tuple[Lines, dict[int, str]]:
    """Return the lines of a file, and what is wrong with the others."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--from") from None
    found, bad = Lines(), dict[int, str]()
    for number, text in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(checked_text(text), type=_Letter)
            msgspec.json.decode(line.record)  # It is read further only when its letter is found.
            partition, letter = parse_name(line.letter, stream)
        except (msgspec.DecodeError, typer.BadParameter, RecordError) as error:
            bad[number] = f"It is no line of `dead export`: {error}"
            continue
        first, _ = found.setdefault(partition, {}).setdefault(letter, (number, line.record))
        if first != number:
            bad[number] = f"It is the letter of line {first} again."
    return found, bad


def _edited(spec: StreamSpec, producer: Producer, letter: StoredLetter, raw: msgspec.Raw) -> Fields | None:
    """Return the fields of an entry with an edited record; None if it was not edited."""
    stored = msgspec.json.encode(as_json(spec, letter)["record"])
    if (edited := msgspec.json.decode(raw)) == msgspec.json.decode(stored):
        return None
    text, own = bytes(raw), {PAYLOAD_FIELD, *(name.encode() for name in spec.record.fields)}
    if spec.codec == "arrow":
        if not isinstance(edited, list) or len(edited) != 1:
            raise RecordError("The record of a stream of columns is a list of one row.")
        text, own = msgspec.json.encode(edited[0]), set(letter.fields)
    record = spec.record.decoder("json")({PAYLOAD_FIELD: text})
    headers = {name: value for name, value in letter.fields.items() if name not in own}
    partition, entry, _ = producer.prepared(record, headers)
    key = canonical_key(spec.key(record))
    if key is not None and letter.partition not in spec.placement.path_of(key):
        raise RecordError(
            f"Key {spec.key(record)!r} belongs to partition {partition}, and the letter to "
            f"{letter.partition}: send the record with `streamworker send`, and drop the letter."
        )
    payload = entry if isinstance(entry, bytes) else entry[0]
    return {**headers, **({PAYLOAD_FIELD: payload} if isinstance(payload, bytes) else payload)}
