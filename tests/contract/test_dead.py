"""Dead letters: looked at, run again, dropped."""

import pytest

from streamworker.core.data.entries import EntryId
from streamworker.records.entries import REPLAYED_FOR
from streamworker.redisio.data import dead, streams
from streamworker.redisio.data.commit import DeadEntry
from tests.contract.support import GROUP, STREAM, Group, Raw, everything, request

pytestmark = pytest.mark.anyio


async def bury(group: Group, partition: int = 0, count: int = 2) -> list[dead.StoredLetter]:
    """Commit some entries as dead letters and return the letters."""
    entries = await group.send(count, partition)
    lock = await group.own(partition=partition)
    letters = [DeadEntry(entry.id, entry.fields, f"ValueError: {entry.id}", 3) for entry in entries]
    await group.commit(request(lock, entries, partition=partition, dead=letters))
    return await dead.list_dead(group.backend, GROUP, [partition])


async def test_a_dead_letter_shows_its_entry_and_its_reason(group: Group) -> None:
    first, second = await bury(group)
    assert first.fields == {b"v": b"0"}
    assert first.error == f"ValueError: {first.entry_id}"
    assert (first.attempts, first.by, first.partition) == (3, "w1", 0)
    assert first.at_ms > 0
    assert first.id < second.id
    assert await dead.show_dead(group.backend, GROUP, 0, [second.id, EntryId(1, 1)]) == {second.id: second}


async def test_letters_of_several_partitions_are_listed_by_age(group: Group) -> None:
    old, new = await bury(group, 1), await bury(group, 0)
    assert await dead.list_dead(group.backend, GROUP, [0, 1]) == sorted(
        old + new, key=lambda letter: (letter.id, letter.partition)
    )
    assert await dead.list_dead(group.backend, GROUP, [0], after=new[0].id) == new[1:]
    assert await dead.list_dead(group.backend, GROUP, [0], count=1) == new[:1]


async def test_a_replayed_letter_is_an_entry_again_once(group: Group, raw: Raw) -> None:
    """With the fields that it had, behind all others, and its group in the first; the letter is gone."""
    first, second = await bury(group)
    new_id = (await dead.replay_dead(group.backend, GROUP, 0, [first.id]))[first.id]
    assert new_id is not None
    (entry,) = await streams.range_entries(group.backend, STREAM.events(0), new_id, None, 10)
    assert list(entry.fields.items()) == [(REPLAYED_FOR, b"price"), *first.fields.items()]
    assert await dead.list_dead(group.backend, GROUP, [0]) == [second]
    before = everything(raw)
    assert await dead.replay_dead(group.backend, GROUP, 0, [first.id]) == {first.id: None}
    assert everything(raw) == before


async def test_a_letter_of_somebody_else_is_shown_and_not_replayed(group: Group, raw: Raw) -> None:
    """It has no fields of an entry; nothing is made of it."""
    raw.xadd(GROUP.dead(0), {"note": "hello"}, id="5-0")
    (letter,) = await dead.list_dead(group.backend, GROUP, [0])
    assert (letter.fields, letter.error, letter.attempts) == ({}, "", 0)
    assert await dead.replay_dead(group.backend, GROUP, 0, [letter.id]) == {letter.id: None}
    assert raw.xlen(GROUP.dead(0)) == 1
