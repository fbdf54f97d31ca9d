"""Dead letters: entries that a processor gave up on; look at them, run them again, drop them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamworker.core.entries import ZERO, Entry, EntryId
from streamworker.errors import BackendError
from streamworker.records.entries import Entries
from streamworker.redisio.client import Backend, ScriptCall
from streamworker.redisio.keys import GroupKeys, whole
from streamworker.redisio.link import Argument
from streamworker.redisio.scripts import REPLAY_DEAD, checked

_FIELD = b"f."


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter as Redis holds it."""

    partition: int
    id: EntryId
    """Of the letter; what the other functions take."""
    entry_id: EntryId
    """Of the entry that it was."""
    error: str
    attempts: int
    at_ms: int
    by: str
    """Member that gave it up."""
    fields: Mapping[bytes, bytes]
    """The entry as it was."""


async def list_dead(
    backend: Backend, keys: GroupKeys, partitions: Sequence[int], *, after: EntryId = ZERO, count: int = 100
) -> list[StoredLetter]:
    """Return dead letters of some partitions, oldest first, in one round trip.

    Parameters
    ----------
    after
        Id of a letter; those behind it are listed.
    count
        Most letters of each partition.

    Raises
    ------
    BackendError
        Without an answer, or if a key is no stream.
    """
    commands: list[Sequence[Argument]] = [
        ("XRANGE", keys.dead(p), f"({after}", "+", "COUNT", count) for p in partitions
    ]
    letters: list[StoredLetter] = []
    for partition, reply in zip(partitions, await backend.pipeline(commands), strict=True):
        if isinstance(reply, BackendError):
            raise reply
        letters += [_letter(partition, entry) for entry in Entries.of(reply)]
    return sorted(letters, key=lambda letter: (letter.id, letter.partition))


async def show_dead(backend: Backend, keys: GroupKeys, partition: int, id: EntryId) -> StoredLetter | None:
    """Return one dead letter; None if there is none of that id.

    Raises
    ------
    BackendError
        Without an answer, or if the key is no stream.
    """
    found = Entries.of(await backend.execute("XRANGE", keys.dead(partition), str(id), str(id)))
    return _letter(partition, found[0]) if found else None


async def replay_dead(
    backend: Backend, keys: GroupKeys, partition: int, ids: Sequence[EntryId]
) -> dict[EntryId, EntryId | None]:
    """Send dead letters through their partition once more, as new entries behind all others.

    Letter and new entry change places in one step, so asking again replays nothing twice.

    Returns
    -------
    dict
        Letter to the id of its new entry; None for a letter that was not there.

    Raises
    ------
    BackendError
        Without an answer, or when Redis refused one; others may have been replayed.
    """
    calls: list[ScriptCall] = [
        ((keys.dead(partition), keys.events(partition)), (str(letter),)) for letter in ids
    ]
    replayed: dict[EntryId, EntryId | None] = {}
    for letter, reply in zip(ids, await backend.run_many(REPLAY_DEAD, calls), strict=True):
        if isinstance(reply, BackendError):
            raise reply
        done = checked(reply)
        replayed[letter] = EntryId.parse(done[1]) if done[0] == b"OK" else None
    return replayed


async def drop_dead(backend: Backend, keys: GroupKeys, partition: int, ids: Sequence[EntryId]) -> int:
    """Delete dead letters for good; returns how many were there. May be repeated.

    Raises
    ------
    BackendError
        Without an answer, or if the key is no stream.
    """
    return int(await backend.execute("XDEL", keys.dead(partition), *map(str, ids))) if ids else 0


def _letter(partition: int, entry: Entry) -> StoredLetter:
    def text(name: bytes) -> str:
        return entry.fields.get(name, b"").decode("utf-8", "replace")

    def number(name: bytes) -> int:
        return whole(entry.fields.get(name, b"")) or 0

    return StoredLetter(
        partition=partition,
        id=entry.id,
        entry_id=EntryId.parse(entry.fields.get(b"id", b"0-0")),
        error=text(b"error"),
        attempts=number(b"attempts"),
        at_ms=number(b"at"),
        by=text(b"by"),
        fields={
            name.removeprefix(_FIELD): value
            for name, value in entry.fields.items()
            if name.startswith(_FIELD)
        },
    )
