"""Appending: all or none, once, and never over what a group still needs."""

import asyncio
from dataclasses import replace

import pytest

from streamworker.core.data.channel import AppendCode, AppendReply
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.outbox import START, Message, Target
from streamworker.errors import RecordError
from streamworker.redisio.data import later, streams
from streamworker.redisio.data.outbox import forward_many, pack_records
from streamworker.redisio.data.streams import Append, append_many
from streamworker.redisio.scripts import ARGS_MAX
from streamworker.redisio.wire.durability import MEMORY
from tests.contract.support import OTHER_GROUP, STREAM, Group, Raw, request

pytestmark = pytest.mark.anyio


async def test_entries_are_appended_in_order_with_consecutive_ids(group: Group) -> None:
    """One append is one time and numbers that follow each other, so its last id tells all of them."""
    payloads = [b"%d" % n for n in range(3_000)]
    (reply,) = await append_many(
        group.backend, STREAM, [Append(0, "p", 1, 0, [(payload, None) for payload in payloads])]
    )
    assert reply.last_id is not None
    stored = await streams.range_entries(group.backend, STREAM.events(0), ZERO, None, 5_000)
    assert [entry.fields[b"v"] for entry in stored] == payloads
    first = stored[0].id
    assert [entry.id for entry in stored] == [EntryId(first.ms, first.seq + n) for n in range(3_000)]
    assert (reply.code, reply.last_id, reply.length) == (AppendCode.OK, stored[-1].id, 3_000)


async def test_headers_and_plain_fields_are_kept_as_they_are(group: Group) -> None:
    """A payload with headers, and the field map of a stream that other programs write."""
    entries: list[tuple[streams.Payload, streams.Headers]] = [
        (b"\x00\xff", {b"trace": b"1"}),
        ({b"temperature": b"21", b"unit": b"C"}, None),
    ]
    await append_many(group.backend, STREAM, [Append(0, "p", 1, 0, entries)])
    stored = await streams.range_entries(group.backend, STREAM.events(0), ZERO, None, 5)
    assert [dict(entry.fields) for entry in stored] == [
        {b"v": b"\x00\xff", b"h.trace": b"1"},
        {b"temperature": b"21", b"unit": b"C"},
    ]
    assert stored[0].size == 1 + 2 + 7 + 1


async def test_repeats_of_the_last_two_appends_each_get_their_own_answer(group: Group) -> None:
    """Two are under way; the answers to both are lost, and both are sent again, the first one first."""
    await append_many(group.backend, STREAM, [Append(0, "p", 3, 0, [b"x"])])
    pair = [
        Append(0, "p", 4, 0, [b"a", b"b"], since=3),
        Append(0, "p", 5, 0, [b"c"], since=4),
    ]
    first = await append_many(group.backend, STREAM, pair)
    again = await append_many(group.backend, STREAM, pair)
    assert [reply.code for reply in first + again] == [AppendCode.OK] * 2 + [AppendCode.DUP] * 2
    assert [reply.last_id for reply in first] == [reply.last_id for reply in again]


async def test_an_append_is_refused_before_the_one_that_it_follows(group: Group) -> None:
    """It writes nothing unless that one is the last that was done; the answer says which one is."""
    second = Append(0, "p", 2, 0, [b"b"], since=1)
    (early,) = await append_many(group.backend, STREAM, [second])
    assert (early.code, early.last_id, early.value, early.length) == (AppendCode.OTHER, None, b"0", 0)
    await append_many(group.backend, STREAM, [Append(0, "p", 1, 0, [b"a"])])
    (done,) = await append_many(group.backend, STREAM, [second])
    assert (done.code, done.length) == (AppendCode.OK, 2)
    late = Append(0, "p", 4, 0, [b"d"], since=3)
    (refused,) = await append_many(group.backend, STREAM, [late])
    assert (refused.code, refused.value) == (AppendCode.OTHER, b"2")


async def test_two_appends_of_one_producer_keep_their_order_when_scripts_are_lost(
    group: Group, raw: Raw
) -> None:
    """Whatever the server forgets in between, each is done once, and the second never overtakes the first."""
    flushing = True

    async def flush() -> None:
        while flushing:
            raw.script_flush()
            await asyncio.sleep(0)

    task = asyncio.create_task(flush())
    try:
        for number in range(1, 30, 2):
            pair = [Append(0, "p", number + n, 0, [b"%d" % (number + n)], number + n - 1) for n in range(2)]
            sends = [append_many(group.backend, STREAM, [append]) for append in pair]
            ((first,), (second,)) = await asyncio.gather(*sends)
            # A flush between the load and the call leaves the call refused: nothing was written then.
            while first.code is AppendCode.REFUSED:
                (first,) = await append_many(group.backend, STREAM, pair[:1])
            assert first.code is AppendCode.OK
            while second.code in (AppendCode.OTHER, AppendCode.REFUSED):
                (second,) = await append_many(group.backend, STREAM, pair[1:])
            assert second.code is AppendCode.OK
    finally:
        flushing = False
        await task
    stored = await streams.range_entries(group.backend, STREAM.events(0), ZERO, None, 100)
    assert [int(entry.fields[b"v"]) for entry in stored] == list(range(1, 31))


async def test_a_full_partition_without_a_group_takes_nothing(group: Group) -> None:
    """Nobody has said what may go. Not even the part is written that would fit."""
    await group.send(8, limit=10)
    reply = await _append(group, 3, limit=10)
    assert (reply.code, reply.last_id, reply.length) == (AppendCode.FULL, None, 8)
    assert (await _append(group, 2, limit=10)).code is AppendCode.OK


async def test_a_full_partition_makes_room_of_what_every_group_has_done(group: Group) -> None:
    """The append drops it itself, down to the last entry of a node: senders need no janitor."""
    entries = await group.send(10, limit=10)
    other = group.other(OTHER_GROUP)
    lock, other_lock = await group.own(), await other.own("w2")
    await group.commit(request(lock, entries))
    assert (await _append(group, 1, limit=10)).code is AppendCode.FULL
    await other.commit(request(other_lock, entries[:3], owner="w2"))
    reply = await _append(group, 3, limit=10)
    assert (reply.code, reply.length) == (AppendCode.OK, 10)
    left = await streams.range_entries(group.backend, STREAM.events(0), ZERO, None, 100)
    assert [entry.id for entry in left][:7] == [entry.id for entry in entries[3:]]


@pytest.mark.parametrize("fields", [0, ARGS_MAX])
async def test_an_entry_that_no_script_can_store_is_refused_here(group: Group, fields: int) -> None:
    payload = {b"%d" % n: b"" for n in range(fields)}
    with pytest.raises(RecordError):
        await append_many(group.backend, STREAM, [Append(0, "p", 1, 0, [(payload, None)])])


async def test_the_memory_of_a_send_expires(group: Group, raw: Raw) -> None:
    """A producer that is gone leaves nothing behind after an hour."""
    await group.send(1, producer="p1")
    assert 3_500_000 < raw.pttl(STREAM.producer(0, "p1")) <= 3_600_000


async def _append(group: Group, count: int, limit: int) -> AppendReply:
    append = Append(0, "q", 1, limit, [(b"x", None)] * count)
    (reply,) = await append_many(group.backend, STREAM, [append])
    return reply


async def test_a_sealed_partition_takes_nothing_and_still_knows_what_it_took(group: Group, raw: Raw) -> None:
    """From no source: so a message that it refuses follows all that it took of that source."""
    end = START.after(1, b"x")
    message = Message(1, Target(STREAM.stream, 0), START, end, pack_records(0, [1, "v", b"x"]))
    further = replace(message, since=end, through=end.after(1, b"y"))
    digest = later.digest_of(b"ann", "a")

    async def answers(through: int, message: Message, call: str) -> list[AppendCode]:
        append = Append(0, "p", through, 0, [b"x"], through - 1)
        sent = later.send_once(STREAM, 0, digest, call, [b"v", b"x"], window_ms=60_000, limit=0)
        return [
            *(reply.code for reply in await append_many(group.backend, STREAM, [append])),
            *(reply.code for reply in await forward_many(group.backend, STREAM.app, [("orders/0", message)])),
            (await sent.run(group.backend, MEMORY)).code,
        ]

    assert await answers(1, message, "call") == [AppendCode.OK] * 3
    raw.hset(STREAM.counts(0), "sealed", "1")
    assert await answers(1, message, "call") == [AppendCode.DUP] * 3
    assert await answers(2, further, "next") == [AppendCode.SEALED, AppendCode.SEALED, AppendCode.OTHER]
    assert await answers(3, message, "call") == [AppendCode.OTHER, AppendCode.DUP, AppendCode.DUP]
    first = later.send_once(STREAM, 0, later.digest_of(b"ann", "b"), "c", [b"v", b"x"], window_ms=9, limit=0)
    refused = await first.run(group.backend, MEMORY)
    assert refused.code is AppendCode.SEALED and "is sealed" in str(refused.error)
    assert raw.xlen(STREAM.events(0)) == 3
