"""Dead letters, the entries that a processor gave up on: list, show, replay, drop."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.records.entries import REPLAYED_FOR, Entries
from streamworker.redisio.keys import GroupKeys, number
from streamworker.redisio.scripts import REPLAY_DEAD, checked, sealed
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered
from streamworker.redisio.wire.link import Argument

_FIELD = b"f."


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter: a record that its processor gave up on, with the error."""

    partition: int
    """The partition of the record."""
    id: EntryId
    """Id of the letter, as the other functions take it."""
    entry_id: EntryId
    """Id of the source entry."""
    error: str
    """The class and the message of the last error."""
    attempts: int
    """How many calls the record had."""
    at_ms: int
    """When the processor gave up, in ms by the server's clock."""
    by: str
    """Member that gave up on the entry."""
    fields: Mapping[bytes, bytes]
    """Fields of the source entry."""
    traceback: str = ""
    """The end of the last attempt's traceback."""

    @property
    def name(self) -> str:
        """Its name in commands."""
        return f"{self.partition}/{self.id}"

    @property
    def kind(self) -> str:
        """The class of the error."""
        return re.split(r"[:( ]", self.error, maxsplit=1)[0]


async def list_dead(
    backend: Backend, keys: GroupKeys, partitions: Sequence[int], *, after: EntryId = ZERO, count: int = 100
) -> list[StoredLetter]:
    """Return dead letters of some partitions, oldest first, in one round trip."""
    commands = [("XRANGE", keys.dead(p), f"({after}", "+", "COUNT", count) for p in partitions]
    letters = await _letters(backend, partitions, commands)
    return sorted(letters, key=lambda letter: (letter.id, letter.partition))


async def newest_dead(
    backend: Backend, keys: GroupKeys, partitions: Sequence[int], count: int
) -> list[StoredLetter]:
    """Return the newest dead letters of some partitions, newest first."""
    commands = [("XREVRANGE", keys.dead(p), "+", "-", "COUNT", count) for p in partitions]
    letters = await _letters(backend, partitions, commands)
    return sorted(letters, key=lambda letter: (letter.id, letter.partition), reverse=True)[:count]


async def show_dead(
    backend: Backend, keys: GroupKeys, partition: int, ids: Sequence[EntryId]
) -> dict[EntryId, StoredLetter]:
    """Return the dead letters of a partition that have these ids, in one round trip."""
    commands = [("XRANGE", keys.dead(partition), str(each), str(each)) for each in ids]
    return {each.id: each for each in await _letters(backend, [partition] * len(ids), commands)}


async def _letters(
    backend: Backend, partitions: Sequence[int], commands: Sequence[Sequence[Argument]]
) -> list[StoredLetter]:
    """Return the letters that some commands find, each in one partition."""
    replies = zip(partitions, all_answered(await backend.pipeline(commands)), strict=True)
    return [_letter(partition, entry) for partition, reply in replies for entry in Entries.of(reply)]


async def replay_dead(
    backend: Backend,
    keys: GroupKeys,
    partition: int,
    ids: Sequence[EntryId],
    edited: Mapping[EntryId, Mapping[bytes, bytes] | None] | None = None,
) -> dict[EntryId, EntryId | None]:
    """Append dead letters to the end of their partition as new entries, and delete the letters.

    Other groups of the stream skip the new entries. The script appends the entry and deletes the letter
    atomically, so a repeated call replays no letter twice. The result has the id of each new entry, None for
    a letter that did not exist. If Redis refuses a letter, others may have been replayed. ``edited`` has the
    fields of those entries that are not to be as the letter has them.
    """
    named = {"first": REPLAYED_FOR, "group": keys.group}
    changed = {letter: fields.items() for letter, fields in (edited or {}).items() if fields}
    calls = [
        REPLAY_DEAD.at(
            keys, partition, **named, id=str(letter), edited=[*chain.from_iterable(changed.get(letter, ()))]
        )
        for letter in ids
    ]
    replayed: dict[EntryId, EntryId | None] = {}
    replies = all_answered(await backend.run_many(REPLAY_DEAD, calls))
    for letter, reply in zip(ids, replies, strict=True):
        done = checked(reply)
        if done[0] == b"SEALED":
            raise sealed()
        replayed[letter] = EntryId.parse(done[1]) if done[0] == b"OK" else None
    return replayed


async def drop_dead(backend: Backend, keys: GroupKeys, partition: int, ids: Sequence[EntryId]) -> int:
    """Delete dead letters permanently; return how many existed. The call may be repeated."""
    return int(await backend.execute("XDEL", keys.dead(partition), *map(str, ids))) if ids else 0


def _letter(partition: int, entry: Entry) -> StoredLetter:
    def text(name: bytes) -> str:
        return entry.fields.get(name, b"").decode("utf-8", "replace")

    return StoredLetter(
        partition=partition,
        id=entry.id,
        entry_id=EntryId.parse(entry.fields.get(b"id", b"0-0")),
        error=text(b"error"),
        attempts=number(entry.fields.get(b"attempts")),
        at_ms=number(entry.fields.get(b"at")),
        by=text(b"by"),
        fields={
            name.removeprefix(_FIELD): value
            for name, value in entry.fields.items()
            if name.startswith(_FIELD)
        },
        traceback=text(b"traceback"),
    )
