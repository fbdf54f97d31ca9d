"""Entries of many records at a server: ids, counts of records, trimming, limits, and commits within them."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.records.entries import Entries, StoredEntry, origin_at, stored
from streamworker.redisio.data import streams
from streamworker.redisio.data.commit import CommitCode, CommitRequest
from streamworker.redisio.data.streams import Append, AppendCode, AppendReply, append_many
from streamworker.redisio.group.loads import read_lags
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.info import groups_by_name
from tests.contract.support import GROUP, OTHER_GROUP, STREAM, Group, Raw, request

pytestmark = pytest.mark.anyio

KEY = STREAM.events(0)


class Sender:
    """Sends numbers, each append as many records that share entries."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._seq = self.sent = 0

    async def __call__(self, count: int, *, limit: int = 0) -> AppendReply:
        self._seq += 1
        payloads = [b'{"n":%d}' % n for n in range(self.sent, self.sent + count)]
        append = Append(0, "packer", self._seq, limit, payloads, pack="json")
        (reply,) = await append_many(self._group.backend, STREAM, [append])
        self.sent += count if reply.code is AppendCode.OK else 0
        return reply


@pytest.fixture
async def send(group: Group) -> Sender:
    await streams.declare(group.backend, STREAM, 1, "json")
    return Sender(group)


async def records(group: Group, after: EntryId = ZERO) -> Sequence[Entry]:
    found = await streams.range_entries(group.backend, KEY, after.successor(), None, 10_000)
    return [entry for entry in found if entry.id > after]


def numbers(entries: Sequence[Entry]) -> list[int]:
    return [msgspec.json.decode(entry.fields[b"v"])["n"] for entry in entries]


def committing(lock: Any, entries: Sequence[Entry], **more: Any) -> CommitRequest:
    """Return a commit of records as a worker makes it: exact entries, with their contents."""
    asked = request(lock, entries, **more)
    asked.reads = [(asked.previous, stored(*origin_at(entries, 0)))] if "previous" not in more else ()
    asked.last = stored(*origin_at(entries, -1))
    return asked


async def lag_of(group: Group) -> int:
    """Return the lag that the snapshot shows, which is the one that the load is measured by."""
    (view,) = (await take_snapshot(group.backend, "shop", "orders", "price")).partitions[:1]
    assert await read_lags(group.backend, GROUP, [0]) in ({0: view.lag}, {})
    return view.lag


async def test_an_append_is_one_entry_beside_its_first_record(group: Group, send: Sender) -> None:
    """Consecutive ids, of which the last is answered; a repeat of the append writes nothing."""
    reply = await send(500)
    entries = await records(group)
    first = entries[0].id
    assert numbers(entries) == list(range(500))
    assert [entry.id for entry in entries] == [EntryId(first.ms, first.seq + n) for n in range(500)]
    assert (reply.last_id, reply.length) == (entries[-1].id, 500)
    assert await group.backend.execute("XLEN", KEY) == 2
    again = Append(0, "packer", 1, 0, [b"{}"] * 500, pack="json")
    (dup,) = await append_many(group.backend, STREAM, [again])
    assert (dup.code, dup.last_id, dup.length) == (AppendCode.DUP, reply.last_id, 500)


async def test_few_records_and_records_with_headers_stay_single(group: Group) -> None:
    """Below four an entry each; records with headers stand between entries of many, in order."""
    await append_many(group.backend, STREAM, [Append(0, "p", 1, 0, [b"{}"] * 3, pack="json")])
    assert await group.backend.execute("XLEN", KEY) == 3
    mixed: list[Any] = [b'{"n":%d}' % n for n in range(9)]
    mixed[5] = (mixed[5], {b"trace": b"x"})
    await append_many(group.backend, STREAM, [Append(0, "p", 2, 0, mixed, pack="json")])
    assert await group.backend.execute("XLEN", KEY) == 3 + 4
    entries = (await records(group))[3:]
    assert numbers(entries) == list(range(9))
    assert entries[5].fields[b"h.trace"] == b"x"


@pytest.mark.parametrize("cut", [1, 2, 57, 99])
async def test_a_commit_within_an_entry_lets_the_next_owner_go_on_there(
    group: Group, send: Sender, cut: int
) -> None:
    """The checkpoint names a record; what is read behind it begins with the next."""
    await group.register()
    await send(100)
    entries, lock = await records(group), await group.own()
    assert (await group.commit(committing(lock, entries[:cut]))).code is CommitCode.OK
    assert await lag_of(group) == 100 - cut
    read = await streams.read_each(group.backend, STREAM, {0: entries[cut - 1].id}, 10)
    rest = read[0]
    assert isinstance(rest, Entries)
    assert numbers(list(rest.after(entries[cut - 1].id))) == list(range(cut, 100))
    more = committing(lock, entries[cut:], previous=entries[cut - 1].id)
    assert (await group.commit(more)).code is CommitCode.OK
    assert (await group.lock()).entries == 100 and await lag_of(group) == 0


async def test_a_commit_finds_that_an_entry_has_other_contents(group: Group, send: Sender, raw: Raw) -> None:
    """A failover to a slower clock gives lost ids to other records: the id alone does not tell."""
    await group.register()
    await send(50)
    await group.backend.execute("XADD", KEY, "*", "v", '{"n":50}')
    entries, lock = await records(group), await group.own()
    found: Any = raw.xrange(KEY)
    for place in (0, 1, 2):
        asked = committing(lock, entries[: (1, 50, 51)[place]])
        id_, fields = found[place]
        raw.delete(KEY)
        for other_id, others in found:
            changed = dict(others)
            if other_id == id_:
                changed[b"v"] += b" "
                if b"crc" in changed:
                    changed[b"crc"] = b"1"
            raw.xadd(KEY, changed, id=other_id)
        assert (await group.commit(asked)).code is CommitCode.GAP, fields
        raw.delete(KEY)
        for other_id, others in found:
            raw.xadd(KEY, others, id=other_id)
    assert (await group.commit(committing(lock, entries))).code is CommitCode.OK


@pytest.mark.usefixtures("small_nodes")
async def test_trimming_keeps_an_entry_with_an_uncommitted_record(group: Group, send: Sender) -> None:
    """It goes when the last of its records is committed by the slowest group."""
    await group.register()
    other = group.other(OTHER_GROUP)
    await other.register()
    for _ in range(4):
        await send(25)
    entries, lock, other_lock = await records(group), await group.own(), await other.own("w2")
    await other.commit(committing(other_lock, entries, owner="w2"))
    await group.commit(committing(lock, entries[:49]))
    await streams.trim_many(group.backend, GROUP, {0: 0})
    assert numbers(await records(group)) == list(range(26, 100)) or numbers(await records(group))[0] <= 49
    await group.commit(committing(lock, entries[49:51], previous=entries[48].id))
    await streams.trim_many(group.backend, GROUP, {0: 0})
    left = numbers(await records(group))
    assert left == list(range(left[0], 100)) and left[0] == 51
    assert await lag_of(group) == 49


async def test_lag_counts_records_whoever_looks(group: Group, send: Sender, raw: Raw) -> None:
    """Ours, and XINFO GROUPS after each commit; with entries of strangers, and some that they deleted."""
    await group.register()
    lock = await group.own()
    await send(100)
    raw.xadd(KEY, {"v": '{"n":-1}'})
    await send(100)
    assert await lag_of(group) == 201
    entries = await records(group)
    await group.commit(committing(lock, entries[:150]))
    shown = groups_by_name(await group.backend.execute("XINFO", "GROUPS", KEY))[b"price"]
    assert (shown[b"entries-read"], shown[b"lag"]) == (150, 51)
    await send(30)
    assert await lag_of(group) == 81
    raw.xdel(KEY, str(origin_at(entries, -1)[0]))  # It holds the last 51 of these.
    assert await lag_of(group) == 30
    dropped = await streams.trim_many(group.backend, GROUP, {0: 0})
    assert dropped[0].gone == 51
    assert await lag_of(group) == 30


@pytest.mark.usefixtures("small_nodes")
async def test_a_limit_counts_records_and_refuses_an_append_as_a_whole(group: Group, send: Sender) -> None:
    """What is committed makes room; an append that does not fit writes nothing."""
    await group.register()
    lock = await group.own()
    for _ in range(5):
        assert (await send(20, limit=100)).code is AppendCode.OK
    refused = await send(5, limit=100)
    assert (refused.code, refused.length) == (AppendCode.FULL, 100)
    assert len(await records(group)) == 100
    await group.commit(committing(lock, (await records(group))[:60]))
    accepted = await send(5, limit=100)
    assert (accepted.code, accepted.length) == (AppendCode.OK, 45)


async def test_a_group_that_registers_late_counts_the_records_that_are_there(
    group: Group, send: Sender
) -> None:
    """From the beginning, from the end, and from the middle of an entry."""
    await send(100)
    entries = await records(group)
    for name, start, lag in (
        ("price", "earliest", 100),
        ("audit", "latest", 0),
        ("third", str(entries[29].id), 70),
    ):
        keys = type(GROUP)("shop", "orders", name)
        await streams.register(group.backend, keys, 1, start)
        view = (await take_snapshot(group.backend, "shop", "orders", name)).partitions[0]
        assert (view.lag, view.entries) == (lag, 100 - lag), name
    assert await streams.entries_up_to(group.backend, STREAM, 0, entries[29].id) == 30


async def test_a_commit_of_an_entry_that_is_gone_is_refused(group: Group, send: Sender, raw: Raw) -> None:
    """Also when the checkpoint would be within it."""
    await group.register()
    await send(50)
    entries, lock = await records(group), await group.own()
    raw.xdel(KEY, str(entries[-1].id))
    assert (await group.commit(committing(lock, entries[:20]))).code is CommitCode.GAP
    assert StoredEntry(entries[-1].id, "") != origin_at(entries, 20)
