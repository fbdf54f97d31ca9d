"""Outboxes: messages that are committed with a batch, and that their targets take once."""

from dataclasses import replace

import pytest

from streamworker.core.data.channel import AppendCode
from streamworker.core.data.entries import ZERO
from streamworker.core.data.outbox import START, Message, OutboxPosition, Target
from streamworker.core.events import StartRunner
from streamworker.errors import BackendRefused
from streamworker.redisio.data import outbox, streams
from streamworker.redisio.data.commit import CommitCode
from streamworker.redisio.data.outbox import OutboxWrite, Replaced
from streamworker.redisio.keys import StreamKeys
from streamworker.redisio.wire.durability import MEMORY
from tests.contract.support import GROUP, TO, Group, Raw, chain, message, request

pytestmark = pytest.mark.anyio

PRICED = StreamKeys("shop", "priced")
OUTBOX = GROUP.outbox(0)


def write(messages: list[Message], *, after: str = "", limit: int = 100) -> OutboxWrite:
    return OutboxWrite(after, messages, limit)


async def forward(group: Group, *messages: Message, source: str = "orders/0/price") -> list[AppendCode]:
    replies = await outbox.forward_many(group.backend, "shop", [(source, each) for each in messages])
    return [reply.code for reply in replies]


async def payloads(group: Group) -> list[bytes]:
    found = await streams.range_entries(group.backend, PRICED.events(5), ZERO, None, 5_000)
    return [entry.fields[b"v"] for entry in found]


# -- at the source ---------------------------------------------------------------------------


async def test_a_commit_behind_which_the_log_is_ahead_leaves_no_message_that_counts(group: Group) -> None:
    """It adds them before it is refused, and the next owner drops them, if it is not done after all."""
    entries, lock = await group.begun(1)
    await group.backend.execute("XADD", GROUP.acked(0), "99-0", "x", "y")
    refused = replace(request(lock, entries, rows=1), outbox=write(chain(2)))
    assert (await group.commit(refused)).code is CommitCode.AHEAD
    assert (await group.commit(refused)).code is CommitCode.AHEAD
    await group.backend.execute("HSET", OUTBOX.heads, "#", "0-0")  # It sent something before.
    heads = await outbox.open_outbox(group.backend, OUTBOX)
    assert heads.last == str(chain(2)[-1].id)
    assert await outbox.read_messages(group.backend, OUTBOX, 0, 10, 10) == []


async def test_an_outbox_whose_heads_were_deleted_goes_on_behind_its_last_message(group: Group) -> None:
    """What is in it is kept, and the next message gets an id that Redis takes."""
    entries, lock = await group.begun(1)
    messages = chain(2)
    await group.commit(replace(request(lock, entries), outbox=write(messages)))
    await group.backend.execute("HDEL", OUTBOX.heads, "#", str(TO))
    heads = await outbox.open_outbox(group.backend, OUTBOX)
    assert (heads.last, heads.positions) == (str(messages[-1].id), {})
    assert await outbox.read_messages(group.backend, OUTBOX, 0, 9, 10) == messages


async def test_what_a_target_lost_is_kept_by_range(group: Group) -> None:
    """Noted twice, it is the same loss."""
    for _ in range(2):
        await outbox.note_lost(group.backend, OUTBOX, TO, OutboxPosition(3, "aa"), OutboxPosition(7, "bb"))
    heads = await outbox.open_outbox(group.backend, OUTBOX)
    assert heads.lost == {(TO, 4): 7}


async def test_messages_are_replaced_once_and_by_the_owner_behind_the_last_one_alone(group: Group) -> None:
    """Whoever comes late, or again, changes nothing."""
    entries, lock = await group.begun(1)
    old, new = chain(2), Message(3, Target("priced", 9), START, OutboxPosition(2, "ab"), b"data")
    await group.commit(replace(request(lock, entries), outbox=write(old)))
    start = StartRunner(0, request(lock, entries).owner, lock)
    its = Replaced(str(old[-1].id), [each.id for each in old], {"moved:x/1": "1-aa"}, [str(TO)], [new])

    async def move(its: Replaced, start: StartRunner = start) -> str:
        return await outbox.move_messages(group.backend, GROUP, start, its, MEMORY)

    assert await move(its, replace(start, lock=replace(lock, epoch=lock.epoch - 1))) == "FENCED"
    assert await move(replace(its, after="1-0")) == "GAP"
    assert [await move(its), await move(its), await move(replace(its, messages=[]))] == ["OK", "OK", "GAP"]
    heads = await outbox.open_outbox(group.backend, OUTBOX)
    assert (heads.last, heads.positions) == (str(new.id), {new.to: new.through})
    assert heads.moved == {Target("x", 1): OutboxPosition(1, "aa")}
    assert await outbox.read_messages(group.backend, OUTBOX, 0, 10, 10) == [new]


# -- at the target ---------------------------------------------------------------------------


async def test_a_target_that_is_full_takes_nothing_and_later_all(group: Group, raw: Raw) -> None:
    """All records of a message or none, by the limit of its stream."""
    await streams.append_many(group.backend, PRICED, [streams.Append(5, "p", 1, 0, [b"x"] * 3)])
    sent = message(1, START, b"a", b"b", limit=4)
    assert await forward(group, sent) == [AppendCode.FULL]
    assert await payloads(group) == [b"x"] * 3
    raw.xtrim(PRICED.events(5), maxlen=2, approximate=False)
    assert await forward(group, sent) == [AppendCode.OK]
    assert await payloads(group) == [b"x", b"x", b"a", b"b"]


async def test_a_message_of_another_history_is_not_taken_though_its_number_fits(group: Group) -> None:
    """After a failover a source may send other records under the same numbers."""
    first, second = chain(2)
    other = replace(second, since=OutboxPosition(second.since.records, "0" * 12))
    assert await forward(group, first) == [AppendCode.OK]
    assert await forward(group, other) == [AppendCode.OTHER]
    assert await forward(group, second) == [AppendCode.OK]
    assert len(await payloads(group)) == 2


async def test_what_another_program_wrote_there_is_named(group: Group, raw: Raw) -> None:
    """In place of where a target stands, and as a message: no worker ends by it, nor does `doctor`."""
    taken = PRICED.taken(5)
    raw.hset(taken, OUTBOX.source, "foreign")
    (reply,) = await outbox.forward_many(group.backend, "shop", [(OUTBOX.source, message(1))])
    assert reply.code is AppendCode.REFUSED
    assert taken in str(reply.error)
    with pytest.raises(BackendRefused, match=taken):
        await outbox.read_stands(group.backend, "shop", OUTBOX.source, TO)
    raw.xadd(OUTBOX.messages, {"of": "another"}, id="1-1")
    with pytest.raises(BackendRefused, match=OUTBOX.messages):
        await outbox.read_messages(group.backend, OUTBOX, 0, 1, 10)
