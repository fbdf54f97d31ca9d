"""Records with an id are sent once within a window, by calls that may each be repeated."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from streamworker.core.data.channel import AppendCode, AppendReply
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.redisio.data import later, streams
from streamworker.redisio.data.later import digest_of
from streamworker.redisio.data.streams import Append, append_many
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from tests.contract.support import STREAM, Group, Raw
from tests.helpers import wait_for_async

pytestmark = pytest.mark.anyio


async def once(
    backend: Backend,
    value: bytes,
    *,
    id: str = "a",
    call: str = "call",
    window_ms: int = 60_000,
    limit: int = 0,
) -> AppendReply:
    """Send a record of the key `ann` with an id."""
    digest = digest_of(b"ann", id)
    sent = later.send_once(STREAM, 0, digest, call, [b"v", value], window_ms=window_ms, limit=limit)
    return await sent.run(backend, MEMORY)


async def test_the_second_record_of_an_id_is_answered_with_the_first_ones_entry(group: Group) -> None:
    """Another id is another record, and a repeat of the same call is no duplicate."""
    first = await once(group.backend, b"1")
    assert first.code is AppendCode.OK
    assert await once(group.backend, b"1") == replace(first, code=AppendCode.DUP)
    assert await once(group.backend, b"2", call="other") == AppendReply(AppendCode.OTHER, first.value)
    assert (await once(group.backend, b"3", id="b")).code is AppendCode.OK
    stored = await streams.range_entries(group.backend, STREAM.events(0), ZERO, None, 9)
    assert [entry.fields[b"v"] for entry in stored] == [b"1", b"3"]
    assert stored[0].id == EntryId.parse(first.value)


async def test_after_the_window_an_id_is_free_again_and_its_calls_are_known(group: Group) -> None:
    """A duplicate does not lengthen it, and a repeat is answered as the call was, however late it comes."""
    calls = [await once(group.backend, b"1", call="call0", window_ms=60)]

    async def is_free() -> bool:
        name = f"call{len(calls)}"
        sent = await once(group.backend, b"2", call=name, window_ms=60)
        if sent.code is AppendCode.OK:
            calls.append(sent)
        return sent.code is AppendCode.OK

    for _ in range(2):
        await wait_for_async(is_free, "the id is free again")
    for number, sent in enumerate(calls):
        assert await once(group.backend, b"3", call=f"call{number}", window_ms=60) == replace(
            sent, code=AppendCode.DUP
        )
    stored = await streams.range_entries(group.backend, STREAM.events(0), ZERO, None, 9)
    assert [str(entry.id).encode() for entry in stored] == [sent.value for sent in calls]


async def test_a_call_without_a_record_asks_for_an_id_and_writes_nothing(group: Group) -> None:
    """A window that has passed leaves the id free, and the call that wrote the record is known."""

    async def asks(call: str, id: str = "a") -> AppendReply:
        digest = digest_of(b"ann", id)
        asked = later.send_once(STREAM, 0, digest, call, (), window_ms=60, limit=0)
        return await asked.run(group.backend, MEMORY)

    assert (await asks("one")).code is AppendCode.SEALED
    first = await once(group.backend, b"1", call="one")
    assert await asks("one") == replace(first, code=AppendCode.DUP)
    assert await asks("two") == AppendReply(AppendCode.OTHER, first.value)
    second = await once(group.backend, b"2", id="b", call="one", window_ms=60)

    async def is_free() -> bool:
        return (await asks("two", "b")).code is AppendCode.SEALED

    await wait_for_async(is_free, "the id is free")
    assert await asks("one", "b") == replace(second, code=AppendCode.DUP)
    stored = await streams.range_entries(group.backend, STREAM.events(0), ZERO, None, 9)
    assert [entry.fields[b"v"] for entry in stored] == [b"1", b"2"]


async def test_a_full_partition_takes_no_record_with_an_id_and_knows_a_duplicate(group: Group) -> None:
    """What is refused leaves no trace of its id; what is there needs no room."""
    await group.register()
    await group.send(9)
    assert (await once(group.backend, b"1", limit=10)).code is AppendCode.OK
    assert (await once(group.backend, b"2", id="b", limit=10)).code is AppendCode.FULL
    assert (await once(group.backend, b"1", call="other", limit=10)).code is AppendCode.OTHER
    assert (await once(group.backend, b"2", id="b", limit=11)).code is AppendCode.OK


async def test_records_with_an_id_stand_between_entries_of_many(group: Group) -> None:
    """The numbering is one: ids grow, and the limit counts records."""
    many: Sequence[bytes] = [b'{"n":%d}' % n for n in range(50)]
    for number in (1, 2):
        append = Append(0, "p", number, 0, many, number - 1, "json")
        (reply,) = await append_many(group.backend, STREAM, [append])
        assert reply.last_id is not None
        mine = await once(group.backend, b"x", id=str(number))
        assert EntryId.parse(mine.value) > reply.last_id
    assert (await once(group.backend, b"x", id="3", limit=102)).code is AppendCode.FULL
    assert (await once(group.backend, b"x", id="3", limit=103)).code is AppendCode.OK


async def test_when_memory_is_full_only_a_duplicate_is_answered(group: Group, full_memory: Raw) -> None:
    """It says that it wrote nothing, so a sender that waits for durability does not take it for safe."""
    await once(group.backend, b"1")
    full_memory.config_set("maxmemory", 1)
    assert (await once(group.backend, b"2", id="b")).code is AppendCode.REFUSED
    duplicate = await once(group.backend, b"2", call="other")
    assert duplicate.code in (
        AppendCode.OTHER,
        AppendCode.REFUSED,
    )  # Valkey and Redis 7 refuse the script itself
