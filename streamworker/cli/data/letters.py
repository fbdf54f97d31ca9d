"""Dead letters as `streamworker dead` finds and shows them."""

import heapq
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import typer

from streamworker.cli.data.wording import letter_decoded, plain
from streamworker.cli.options import seconds_of
from streamworker.cli.support import check_partitions, group_keys
from streamworker.core.data.entries import SEQUENCE_MAX, ZERO, EntryId
from streamworker.declaring.specs import ProcessorSpec, StreamSpec
from streamworker.errors import ConfigurationError
from streamworker.redisio.data.dead import StoredLetter, list_dead
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.tui.figures import local_time

PAGE = 500
"""Dead letters of one partition that one round trip reads."""

Fields = Mapping[bytes, bytes]
Chosen = dict[int, dict[EntryId, Fields | None]]
"""The ids of some letters by partition; with the fields of those that were edited."""

By = StrEnum("By", ["ERROR", "HOUR"])
"""What a summary counts letters by."""


@dataclass(slots=True)
class Such:
    """Dead letters that have something in common."""

    what: str
    letters: int
    first_ms: int
    last_ms: int


def parse_name(text: str, spec: StreamSpec, hint: str = "LETTER") -> tuple[int, EntryId]:
    """Parse ``PARTITION/ID``; refuse another form, and a partition that the stream does not have."""
    partition, slash, letter_id = text.partition("/")
    if not slash or not partition.isdecimal():
        raise typer.BadParameter(
            f"{text!r} is no PARTITION/ID such as 3/1769860800000-0, as `dead list` prints it.",
            param_hint=hint,
        )
    check_partitions(spec, [int(partition)], hint)
    try:
        return int(partition), EntryId.parse(letter_id)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


async def matching(
    backend: Backend, spec: ProcessorSpec, error: str | None, since: str | None
) -> AsyncIterator[StoredLetter]:
    """Yield the letters of a class of error, or of the last so much time; oldest first in each partition."""
    from_ms = await backend.time_ms() - round(seconds_of(since, "--since") * 1000) if since is not None else 0
    # The id of a letter is no older than its time.
    after = EntryId(from_ms - 1, SEQUENCE_MAX) if from_ms > 0 else ZERO
    for partition in spec.stream.placement.all:
        async for page in stored(backend, group_keys(spec), partition, after):
            for letter in page:
                if letter.at_ms >= from_ms and error in (None, letter.kind):
                    yield letter


async def surveyed(
    backend: Backend, spec: ProcessorSpec, error: str | None, since: str | None, by: By, limit: int
) -> tuple[list[StoredLetter], list[Such]]:
    """Return the newest letters, newest first, and all such letters counted."""
    newest: list[tuple[EntryId, int, StoredLetter]] = []
    such: dict[str, Such] = {}
    async for letter in matching(backend, spec, error, since):
        push = heapq.heappush if len(newest) < limit else heapq.heappushpop
        push(newest, (letter.id, letter.partition, letter))
        at = local_time(letter.at_ms)
        what = letter.kind if by is By.ERROR else f"{at[:13]}:00:00{at[19:]}"
        seen = such.setdefault(what, Such(what, 0, letter.at_ms, letter.at_ms))
        seen.letters += 1
        seen.first_ms, seen.last_ms = min(seen.first_ms, letter.at_ms), max(seen.last_ms, letter.at_ms)
    counts = sorted(such.values(), key=lambda each: each.letters if by is By.ERROR else each.last_ms)
    return [letter for _, _, letter in sorted(newest, reverse=True)], counts[::-1]


async def stored(
    backend: Backend, keys: GroupKeys, partition: int, after: EntryId = ZERO
) -> AsyncIterator[list[StoredLetter]]:
    """Yield the letters of a partition in pages, oldest first, those after an id."""
    while page := await list_dead(backend, keys, [partition], after=after, count=PAGE):
        yield page
        after = page[-1].id


def _text(value: bytes) -> str:
    """Decode UTF-8 bytes; return the ``repr`` of other bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return repr(value)


def fields_of(stream: StreamSpec, letter: StoredLetter) -> dict[str, str]:
    """Return the fields of a letter's entry; for Arrow columns and their schema, the size in bytes."""
    is_arrow = stream.codec == "arrow"
    return {
        _text(name): f"{len(value):,} bytes" if is_arrow and name in (b"v", b"schema") else _text(value)
        for name, value in letter.fields.items()
    }


def as_json(stream: StreamSpec, letter: StoredLetter) -> dict[str, object]:
    """Return a letter as plain values; ``dead replay --from`` reads its name and its record."""
    record = letter_decoded(stream, letter)
    return {
        "letter": letter.name,
        "partition": letter.partition,
        "entry": str(letter.entry_id),
        **{name: getattr(letter, name) for name in ("error", "traceback", "attempts", "at_ms", "by")},
        "fields": fields_of(stream, letter),
        "record": plain(record),
    }
