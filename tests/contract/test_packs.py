"""Entries of many records at a server: ids, counts of records, trimming, limits, and commits within them."""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamworker.core.data.channel import AppendCode, AppendReply
from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.core.data.placement import Placement
from streamworker.records.entries import Entries, StoredEntry, as_stored, origin_at
from streamworker.records.packs import ENTRY_BYTES_MAX, FIRST, pack, pack_headers
from streamworker.redisio.data import streams, trimming
from streamworker.redisio.data.commit import CommitCode, CommitRequest
from streamworker.redisio.data.streams import Append, Packing, append_many
from streamworker.redisio.group.loads import read_lags
from streamworker.redisio.snapshot import take_snapshot
from tests.contract.support import GROUP, OTHER_GROUP, STREAM, Group, Raw, request

pytestmark = pytest.mark.anyio

KEY = STREAM.events(0)
KEYS_PAGE = Path(__file__).parents[2] / "docs" / "redis-keys.md"


class Sender:
    """Sends numbers, each append as many records that share entries."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._seq = self._last = self.sent = 0

    async def __call__(self, count: int, *, limit: int = 0) -> AppendReply:
        self._seq += 1
        payloads = [b'{"n":%d}' % n for n in range(self.sent, self.sent + count)]
        append = Append(0, "packer", self._seq, limit, payloads, self._last, "json")
        (reply,) = await append_many(self._group.backend, STREAM, [append])
        if reply.code is AppendCode.OK:
            self._last, self.sent = self._seq, self.sent + count
        return reply


@pytest.fixture
async def send(group: Group) -> Sender:
    await streams.provision(group.backend, STREAM, 1, "json")
    return Sender(group)


async def records(group: Group, after: EntryId = ZERO) -> Sequence[Entry]:
    found = await streams.range_entries(group.backend, KEY, after.successor(), None, 10_000)
    return [entry for entry in found if entry.id > after]


def numbers(entries: Sequence[Entry]) -> list[int]:
    return [msgspec.json.decode(entry.fields[b"v"])["n"] for entry in entries]


def committing(lock: Any, entries: Sequence[Entry], **more: Any) -> CommitRequest:
    """Return a commit of records as a worker makes it: exact entries, with their contents."""
    asked = request(lock, entries, **more)
    asked.reads = [(asked.previous, as_stored(*origin_at(entries, 0)))] if "previous" not in more else ()
    asked.last = as_stored(*origin_at(entries, -1))
    return asked


async def lag_of(group: Group) -> int:
    """Return the lag that the snapshot shows, which is the one that the load is measured by."""
    (view,) = (await take_snapshot(group.backend, "shop", "orders", "price")).partitions[:1]
    assert await read_lags(group.backend, GROUP, [0]) in ({0: view.lag}, {})
    return view.lag


async def test_an_append_is_one_entry(group: Group, send: Sender) -> None:
    """Consecutive ids, of which the last is answered; a repeat of the append writes nothing."""
    reply = await send(500)
    entries = await records(group)
    first = entries[0].id
    assert numbers(entries) == list(range(500))
    assert [entry.id for entry in entries] == [EntryId(first.ms, first.seq + n) for n in range(500)]
    assert (reply.last_id, reply.length) == (entries[-1].id, 500)
    assert await group.backend.execute("XLEN", KEY) == 1
    again = Append(0, "packer", 1, 0, [b"{}"] * 500, pack="json")
    (dup,) = await append_many(group.backend, STREAM, [again])
    assert (dup.code, dup.last_id) == (AppendCode.DUP, reply.last_id)


async def test_few_records_stay_single(group: Group) -> None:
    """Below four an entry each."""
    await append_many(group.backend, STREAM, [Append(0, "p", 1, 0, [b"{}"] * 3, pack="json")])
    assert await group.backend.execute("XLEN", KEY) == 3


@pytest.mark.parametrize("codec", ["json", "msgpack"])
async def test_records_with_headers_share_entries_and_keep_them(group: Group, codec: Packing) -> None:
    """Each record has its own again, or none."""
    encode = msgspec.json.encode if codec == "json" else msgspec.msgpack.encode
    headers = {n: {b"trace": b"\xff%d" % n, b"empty": b""} for n in range(200) if n % 5 != 1}
    mixed: list[Any] = [(encode({"n": n}), headers.get(n)) for n in range(200)]
    (reply,) = await append_many(group.backend, STREAM, [Append(0, "p", 1, 0, mixed, pack=codec)])
    assert await group.backend.execute("XLEN", KEY) == 1
    entries = await records(group)
    assert (entries[-1].id, len(entries)) == (reply.last_id, 200)
    for n, entry in enumerate(entries):
        named = {b"h." + name: value for name, value in headers.get(n, {}).items()}
        assert dict(entry.fields) == {b"v": encode({"n": n}), **named}


async def test_headers_count_for_the_bytes_of_an_entry(group: Group, raw: Raw) -> None:
    """No entry has more than the limit, and a record that has more by itself stays single."""
    rng = random.Random(19)
    sizes = [10, *rng.choices([10, 900, 5_000, 30_000], k=150), ENTRY_BYTES_MAX, 10, 10]
    mixed: list[Any] = [(b'{"n":%d}' % n, {b"h": rng.randbytes(size)}) for n, size in enumerate(sizes)]
    await append_many(group.backend, STREAM, [Append(0, "p", 1, 0, mixed, pack="json")])
    assert [len(entry.fields[b"h.h"]) for entry in await records(group)] == sizes
    found: Any = raw.xrange(KEY)
    packed = [int(fields[b"size"]) for _, fields in found if FIRST in fields]
    assert max(packed) <= ENTRY_BYTES_MAX < min(map(sum, pairwise(packed[:-1]))) + 30_000
    assert [len(fields[b"h.h"]) for _, fields in found if FIRST not in fields][-1] == ENTRY_BYTES_MAX


async def test_the_reader_and_the_writer_of_the_docs_are_right(group: Group, send: Sender, raw: Raw) -> None:
    """They read what a producer wrote, and write what a worker reads; the test vectors are right, too."""
    page = KEYS_PAGE.read_text("utf-8")
    for headers in ({}, {1: pack_headers({b"trace": b"x"})}):
        flat = pack([b'{"n":1}', b'{"n":2}'], headers, is_json=True)
        of = {
            name.decode(): value.decode("latin1") for name, value in zip(flat[::2], flat[1::2], strict=True)
        }
        assert f"`size` {of['size']}" in page and f"`crc` {of['crc']}" in page
    names: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    await send(200)
    headed: list[Any] = [(b'{"n":%d}' % n, {b"trace": b"%d" % n} if n % 3 else None) for n in range(200, 300)]
    await append_many(group.backend, STREAM, [Append(0, "p", 1, 0, headed, pack="json")])
    more = [b'{"n":%d}' % n for n in range(300, 310)]
    names["append"](raw, KEY.removesuffix(":events"), more, [{}, {"trace": b"301"}, *[{}] * 8])
    names["append"](raw, KEY.removesuffix(":events"), more[:5], [{"trace": b"300"}, *[{}] * 4])
    entries = await records(group)
    assert numbers(entries) == [*range(310), *range(300, 305)]
    shown = [
        (str(entry.id), n, {name[2:].decode(): value for name, value in entry.fields.items() if name != b"v"})
        for entry, n in zip(entries, numbers(entries), strict=True)
    ]
    read = names["records"]
    assert [(id_, record["n"], its) for id_, record, its in read(raw, KEY)] == shown
    assert [id_ for id_, _, _ in read(raw, KEY, str(entries[249].id))] == [id_ for id_, _, _ in shown[250:]]
    assert [its for _, _, its in shown[300:302]] == [{}, {"trace": b"301"}]


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
    await send(1)
    await send(49)
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
    await trimming.trim_many(group.backend, GROUP, {0: 0})
    assert numbers(await records(group)) == list(range(25, 100))
    await group.commit(committing(lock, entries[49:51], previous=entries[48].id))
    await trimming.trim_many(group.backend, GROUP, {0: 0})
    left = numbers(await records(group))
    assert left == list(range(left[0], 100)) and left[0] == 50
    assert await lag_of(group) == 49


async def test_lag_counts_records_whoever_looks(group: Group, send: Sender, raw: Raw) -> None:
    """With entries of strangers; of what they deleted it is told when the group has come to the end."""
    await group.register()
    lock = await group.own()
    await send(100)
    raw.xadd(KEY, {"v": '{"n":-1}'})
    await send(100)
    assert await lag_of(group) == 201
    entries = await records(group)
    await group.commit(committing(lock, entries[:150]))
    assert await lag_of(group) == 51
    await send(30)
    assert await lag_of(group) == 81
    raw.xdel(KEY, str(origin_at(entries, -1)[0]))  # It holds the last 51 of these.
    assert 30 <= await lag_of(group) <= 81
    assert (await trimming.trim_many(group.backend, GROUP, {0: 0}))[0].gone == 0
    await group.commit(committing(lock, await records(group, entries[149].id), previous=entries[149].id))
    assert (await trimming.trim_many(group.backend, GROUP, {0: 0}))[0].gone == 51
    assert await lag_of(group) == 0


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


async def present(group: Group) -> tuple[int, int]:
    """Return the number of records that the snapshot shows, and of those that are there."""
    (view,) = (await take_snapshot(group.backend, "shop", "orders", "price")).partitions[:1]
    return view.length, len(await records(group))


@pytest.mark.usefixtures("small_nodes")
@pytest.mark.parametrize("seed", range(4))
async def test_records_are_counted_wherever_those_that_share_entries_are(
    group: Group, send: Sender, raw: Raw, seed: int
) -> None:
    """Behind hundreds of single ones, in front of them, and when all of either kind were trimmed."""
    rng = random.Random(seed)
    await group.register()
    lock, previous = await group.own(), ZERO
    for _ in range(12):
        if rng.random() < 0.5:
            await send(rng.randint(4, 150))
        else:
            for _ in range(rng.choice([1, 40, 120, 300])):
                raw.xadd(KEY, {"v": '{"n":-1}'})
        await trimming.trim_many(group.backend, GROUP, {0: 0})
        shown, there = await present(group)
        assert shown == there
        left = [entry for entry in await records(group) if entry.id > previous]
        if done := left[: rng.choice([0, 10, 100, 1_000])]:
            assert (await group.commit(committing(lock, done, previous=previous))).code is CommitCode.OK
            previous = done[-1].id
            await trimming.trim_many(group.backend, GROUP, {0: 0})
            shown, there = await present(group)
            assert shown == there


async def test_the_count_looks_at_no_entry_twice(group: Group, send: Sender, raw: Raw) -> None:
    """Behind more single records than one call looks at, each call looks on where the last one ended."""
    await group.register()
    with raw.pipeline(transaction=False) as pipe:
        for _ in range(10_300):
            pipe.xadd(KEY, {"v": '{"n":-1}'})
        ids = [each.decode() for each in pipe.execute()]
    await send(50)
    await trimming.trim_many(group.backend, GROUP, {0: 0})

    def looked_up_to() -> int:
        return ids.index(raw.hget(STREAM.counts(0), "single").decode())  # type: ignore[union-attr]

    assert 10_000 <= looked_up_to() < 10_299
    await trimming.trim_many(group.backend, GROUP, {0: 0})
    assert looked_up_to() == 10_299
    (view,) = (await take_snapshot(group.backend, "shop", "orders", "price")).partitions[:1]
    assert view.length == 10_350


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
        await streams.register(group.backend, keys, Placement(1), start)
        view = (await take_snapshot(group.backend, "shop", "orders", name)).partitions[0]
        assert (view.lag, view.records) == (lag, 100 - lag), name
    assert await streams.entries_up_to(group.backend, STREAM, 0, entries[29].id) == 30


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {b"crc": b"1"},
        {b"crc": "\u0661".encode()},
        {b"sw:first": b"x"},
        {b"h": b"3"},
        {b"n": None, b"extra": None, b"codec": None, b"size": None},
    ],
    ids=["a copy", "damaged", "no CRC", "no number", "no headers", "few fields"],
)
async def test_an_entry_that_cannot_be_read_is_committed_as_one_record(
    group: Group, send: Sender, raw: Raw, changed: dict[bytes, bytes | None]
) -> None:
    """First or last in a commit, before or after the group registers: it does not hold up the partition."""
    await group.register()
    await send(10)
    found: Any = raw.xrange(KEY)
    flawed = {n: value for n, value in {**found[0][1], **changed}.items() if value is not None}
    for _ in range(2):
        raw.xadd(KEY, flawed)
    lock, entries = await group.own(), await records(group)
    assert len(entries) == 12
    assert (await group.commit(committing(lock, entries[:-1]))).code is CommitCode.OK
    assert (await group.commit(committing(lock, entries[-1:], previous=entries[-2].id))).code is CommitCode.OK
    other = group.other(OTHER_GROUP)
    await other.register(start="earliest")
    done = await other.commit(committing(await other.own("w2"), entries, owner="w2"))
    assert done.code is CommitCode.OK


async def test_a_commit_of_an_entry_that_is_gone_is_refused(group: Group, send: Sender, raw: Raw) -> None:
    """Also when the checkpoint would be within it."""
    await group.register()
    await send(50)
    entries, lock = await records(group), await group.own()
    raw.xdel(KEY, str(entries[-1].id))
    assert (await group.commit(committing(lock, entries[:20]))).code is CommitCode.GAP
    assert StoredEntry(entries[-1].id, "") != origin_at(entries, 20)


async def test_an_entry_that_was_copied_counts_as_one_and_its_removal_can_be_committed(
    group: Group, send: Sender, raw: Raw
) -> None:
    """Also where it is the last: a worker that refuses it must not stop there."""
    await group.register()
    await send(50)
    found: Any = raw.xrange(KEY)
    raw.xadd(KEY, found[0][1])
    entries, lock = await records(group), await group.own()
    assert len(entries) == 51 and await lag_of(group) == 51
    assert await streams.entries_up_to(group.backend, STREAM, 0, entries[49].id) == 50
    assert (await group.commit(committing(lock, entries))).code is CommitCode.OK
    assert await lag_of(group) == 0


async def test_counts_of_an_earlier_release_are_taken_as_they_are(
    group: Group, send: Sender, raw: Raw
) -> None:
    """It made entries-added count records, and noted numbers in `groups`; a worker of it may go on beside."""
    await group.register()
    lock = await group.own()
    await send(100)
    entries = await records(group)
    await group.commit(committing(lock, entries[:30]))
    raw.hdel(STREAM.counts(0), "dropped")
    raw.hset(STREAM.groups(0), mapping={"price": "0", "#trimmed": "0"})
    for _ in range(2):
        extra = int(raw.hget(STREAM.counts(0), "extra") or 0)
        added = raw.xlen(KEY) + extra
        raw.execute_command(
            "XSETID",
            KEY,
            str(raw.xinfo_stream(KEY)["last-generated-id"].decode()),
            "ENTRIESADDED",
            added,
            "MAXDELETEDID",
            "0-0",
        )
        raw.hset(STREAM.counts(0), "folded", extra)
        assert (await group.own()).gone == 0
        assert (await trimming.trim_many(group.backend, GROUP, {0: 0}))[0].gone == 0
        assert await lag_of(group) == len(await records(group, entries[29].id))
        await send(50)
