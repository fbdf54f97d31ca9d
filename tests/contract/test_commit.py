"""The commit: what it writes, and each reason for which it writes nothing."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from streamworker.core.data.entries import EntryId
from streamworker.core.ownership.locks import Acquired
from streamworker.errors import BackendRefused, RecordError
from streamworker.redisio.data.ackedlog import decode_entry, encode_batch
from streamworker.redisio.data.commit import CommitCode, CommitRequest, DeadEntry
from streamworker.redisio.data.state import read_state
from streamworker.redisio.data.streams import range_entries
from streamworker.redisio.data.trimming import trim_many
from streamworker.redisio.keys import TICK
from streamworker.redisio.scripts import ARGS_MAX
from tests.contract.support import GROUP, STREAM, Group, Raw, batch_of, everything, request

pytestmark = pytest.mark.anyio


async def test_a_commit_moves_the_checkpoint_and_appends_its_rows(group: Group, raw: Raw) -> None:
    """One step: checkpoint, counts and acked log; the position that stock tools show follows with a trim.

    What it wrote is what a reader gets, and the id of an entry counts the rows of the log.
    """
    entries, lock = await group.begun(5)
    reply = await group.commit(request(lock, entries[:3], rows=30))
    assert (reply.code, reply.checkpoint, reply.rows) == (CommitCode.OK, entries[2].id, 30)

    view = await group.lock()
    assert (view.checkpoint, view.entries, view.rows) == (entries[2].id, 3, 30)
    await trim_many(group.backend, GROUP, {0: 0})
    (info,) = raw.xinfo_groups(STREAM.events(0))
    assert EntryId.parse(info["last-delivered-id"]) == entries[2].id

    (acked,) = await range_entries(group.backend, GROUP.acked(0), EntryId(0, 1), None, 10)
    assert acked.id == EntryId(30, 0)
    assert acked.fields[b"prev"] == b"0-0"
    assert acked.fields[b"last"] == str(entries[2].id).encode()
    assert acked.fields[b"first"] == str(entries[0].id).encode()
    assert acked.fields[b"owner"] == b"w1"
    assert acked.fields[b"epoch"] == b"%d" % lock.epoch
    assert acked.fields[b"at"].isdigit()

    await group.commit(request(lock, entries[3:], rows=6, previous=entries[2].id))
    (second,) = await range_entries(group.backend, GROUP.acked(0), acked.id.successor(), None, 10)
    assert second.id == EntryId(36, 0)
    schemas = {batch_of(1).schema: pa.schema({"n": pa.int64()})}
    assert decode_entry(second.id, second.fields, schemas).column(0).to_pylist() == list(range(6))


ROW = {
    "event_id": "5d2e7f52-0a77-4d60-8f38-6a1d4c1f7b11",
    "garage": "garage-3",
    "plate": "M-AB 1234",
    "kind": "enter",
    "at": datetime(2026, 1, 1, tzinfo=UTC),
    "received_at": datetime(2026, 1, 1, tzinfo=UTC),
    "fee": 1.5,
    "spot": 17,
    "valid": True,
}


@pytest.mark.parametrize(("rows", "most"), [(1, 350), (10, 120), (100, 60)])
async def test_a_row_takes_few_bytes_also_where_a_commit_has_few(
    group: Group, raw: Raw, rows: int, most: int
) -> None:
    """At a low rate a commit has one row: a log that nobody reads must not be the largest thing in Redis."""
    entries, lock = await group.begun(100)
    for place, entry in enumerate(entries):
        table = [
            ROW | {"event_id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{place} {row}")), "fee": 0.1 * row}
            for row in range(rows)
        ]
        batch = encode_batch(pa.RecordBatch.from_pylist(table), entry.id)
        previous = entries[place - 1].id if place else None
        sent = replace(request(lock, [entry], previous=previous), batch=batch)
        assert (await group.commit(sent)).code is CommitCode.OK
    used = raw.memory_usage(GROUP.acked(0), samples=0)
    assert used is not None and used / (100 * rows) <= most


async def test_committing_twice_is_one_commit(group: Group, raw: Raw) -> None:
    """A commit whose answer was lost is sent again, recognised, and changes nothing."""
    entries, lock = await group.begun(2)
    sent = request(lock, entries, rows=2, state={"a": b"1"}, dead=[_letter(entries[0].id)])
    assert (await group.commit(sent)).code is CommitCode.OK
    before = everything(raw)
    again = await group.commit(sent)
    assert (again.code, again.checkpoint, again.rows) == (CommitCode.DUP, entries[-1].id, 2)
    assert everything(raw) == before


@pytest.mark.parametrize("read_twice", [False, True])
async def test_what_was_trimmed_while_somebody_else_had_the_lock_is_not_skipped_when_it_is_back(
    group: Group, raw: Raw, read_twice: bool
) -> None:
    """A failover takes back the other's commits and what was trimmed for them, and the lock is ours again.

    We had read on meanwhile, past what was not there (simulator, seed 1045498).
    """
    entries, lock = await group.begun(4)
    before = everything(raw)
    if read_twice:  # the first before the lock was lost, the second after
        seen, reads = (
            [entries[0], *entries[2:]],
            [(lock.checkpoint, entries[0].id), (entries[0].id, entries[2].id)],
        )
    else:
        seen, reads = entries[2:], [(lock.checkpoint, entries[2].id)]
    reply = await group.commit(request(lock, seen, rows=2, reads=reads))
    assert (reply.code, reply.checkpoint) == (CommitCode.GAP, lock.checkpoint)
    assert everything(raw) == before
    whole = [(lock.checkpoint, entries[0].id), (entries[0].id, entries[1].id)]
    assert (await group.commit(request(lock, entries, rows=4, reads=whole))).code is CommitCode.OK


@pytest.mark.parametrize("handled_before", [0, 1])
async def test_a_batch_of_two_reads_is_refused_when_the_end_of_the_first_is_lost(
    group: Group, raw: Raw, handled_before: int
) -> None:
    """A failover lost what one read brought last, and the next read brought what came in its place.

    Each read begins where it says, and the last entry is there; what is gone lies between them.
    """
    entries, lock = await group.begun(3)
    reads = [(lock.checkpoint, entries[0].id)]
    if handled_before:  # The first read's beginning was committed, and its end is in this batch.
        await group.commit(request(lock, entries[:1], rows=1))
        reads = []
    raw.xdel(GROUP.events(0), str(entries[2].id))
    later = await group.send(2)
    reads.append((entries[2].id, later[0].id))
    seen = [*entries[handled_before:], *later]
    previous = entries[0].id if handled_before else None
    reply = await group.commit(request(lock, seen, rows=len(seen), reads=reads, previous=previous))
    assert reply.code is CommitCode.GAP

    there = [*entries[handled_before:2], *later]
    reads[-1] = (entries[1].id, later[0].id)
    whole = request(lock, there, rows=len(there), reads=reads, previous=previous)
    assert (await group.commit(whole)).code is CommitCode.OK


@pytest.mark.usefixtures("small_nodes")
async def test_a_full_acked_log_makes_commits_wait_until_readers_move_on(group: Group) -> None:
    """At the limit nothing is written; once the readers are past the first batch it goes.

    What forwards nothing needs no room.
    """
    entries, lock = await group.begun(4)
    await group.commit(request(lock, entries[:1], rows=10))
    await group.commit(request(lock, entries[1:2], rows=10, previous=entries[0].id))

    third = request(lock, entries[2:3], rows=10, previous=entries[1].id, acked_limit=2)
    reply = await group.commit(third)
    assert (reply.code, reply.checkpoint, reply.rows) == (CommitCode.FULL, entries[1].id, 20)
    assert (await group.commit(replace(third, acked_trim_rows=9))).code is CommitCode.FULL

    assert (await group.commit(replace(third, acked_trim_rows=10))).code is CommitCode.OK
    assert await group.backend.execute("XLEN", GROUP.acked(0)) == 2
    without = request(lock, entries[3:], previous=entries[2].id, acked_limit=1)
    assert (await group.commit(without)).code is CommitCode.OK


async def test_state_and_dead_letters_are_part_of_the_commit(group: Group) -> None:
    """State is set and deleted, and a dead letter carries its entry and why it was given up."""
    entries, lock = await group.begun(3)
    await group.commit(request(lock, entries[:1], state={"seen": b"1", "gone": b"x"}))
    letter = DeadEntry(entries[1].id, {b"v": b"\xff\x00", b"h.a": b"b"}, "ValueError: no", 3)
    await group.commit(
        request(
            lock, entries[1:2], previous=entries[0].id, state={"seen": b"\x002", "gone": None}, dead=[letter]
        )
    )
    assert await read_state(group.backend, GROUP, 0) == {"seen": b"\x002"}
    (stored,) = await range_entries(group.backend, GROUP.dead(0), EntryId(0, 1), None, 10)
    fields = dict(stored.fields)
    assert fields.pop(b"at").isdigit()
    assert fields == {
        b"by": b"w1",
        b"id": str(entries[1].id).encode(),
        b"error": b"ValueError: no",
        b"attempts": b"3",
        b"f.v": b"\xff\x00",
        b"f.h.a": b"b",
    }


async def test_a_commit_of_thousands_of_states_and_letters_is_one_step(group: Group) -> None:
    """Lua passes 8,000 values on at once; more than that goes in parts, in the same step."""
    entries, lock = await group.begun(1)
    state: dict[str, bytes | None] = {f"key-{n}": b"%d" % n for n in range(9_000)}
    dead = [_letter(entries[0].id)] * 900
    reply = await group.commit(request(lock, entries, rows=1, state=state, dead=dead))
    assert reply.code is CommitCode.OK
    assert await read_state(group.backend, GROUP, 0) == state
    assert await group.backend.execute("XLEN", GROUP.dead(0)) == 900

    entries = await group.send(1)
    gone: dict[str, bytes | None] = dict.fromkeys(state)
    previous = reply.checkpoint
    assert (await group.commit(request(lock, entries, state=gone, previous=previous))).code is CommitCode.OK
    assert await read_state(group.backend, GROUP, 0) == {}


async def test_a_dead_letter_with_too_many_fields_is_refused_here(group: Group) -> None:
    """It cannot be passed on by a script; the message names the entry."""
    entries, lock = await group.begun(1)
    wide = DeadEntry(entries[0].id, {b"%d" % n: b"" for n in range(ARGS_MAX // 2)}, "no", 1)
    with pytest.raises(RecordError, match=f"Entry {entries[0].id} has {ARGS_MAX // 2} fields"):
        await group.commit(request(lock, entries, dead=[wide]))


async def test_an_acked_log_that_is_ahead_of_its_lock_is_not_written_to(group: Group, raw: Raw) -> None:
    """Redis refuses an id that does not grow. The commit is refused whole, and says what is where."""
    entries, lock = await group.begun(1)
    raw.xadd(GROUP.acked(0), {"a": "b"}, id="500-0")
    before = everything(raw)
    reply = await group.commit(request(lock, entries, rows=1, state={"a": b"1"}))
    assert reply.code is CommitCode.AHEAD
    said = str(reply.error)
    assert "acked:price is ahead of its lock: its last id is 500-0, and its lock counts 0 rows" in said
    assert "`streamworker repair APP`" in said and "Do not delete" in said
    assert everything(raw) == before


@pytest.mark.parametrize(
    "field, value",
    [
        *(("checkpoint", "x"), ("rows", "x"), ("rows", None), ("entries", "x"), ("entries", None)),
        # What Lua takes for numbers, and we have not written.
        *(("rows", "1e3"), ("rows", "0x10"), ("rows", "007")),
        *(("entries", "nan"), ("entries", "-5"), ("entries", "1.5")),
    ],
)
async def test_a_lock_that_somebody_wrote_to_is_named_and_nothing_is_written(
    group: Group, raw: Raw, field: str, value: str | None
) -> None:
    """Not half of it either: rows in the log without their checkpoint could never be committed any more."""
    entries, lock = await group.begun(1)
    right = raw.hget(GROUP.lock(0), field)
    if value is None:
        raw.hdel(GROUP.lock(0), field)
    else:
        raw.hset(GROUP.lock(0), field, value)
    before = everything(raw)
    sent = request(lock, entries, rows=1, state={"a": b"1"}, dead=[_letter(entries[0].id)])
    reply = await group.commit(sent)
    assert reply.code is CommitCode.BADTYPE
    assert GROUP.lock(0) in str(reply.error)
    assert everything(raw) == before
    raw.hset(GROUP.lock(0), field, right)
    assert (await group.commit(sent)).code is CommitCode.OK


async def test_what_a_stranger_wrote_to_a_lock_of_somebody_else_stops_nobody(group: Group, raw: Raw) -> None:
    """Whoever commits is told that it is not the owner, and the worker's other partitions go on."""
    entries, lock = await group.begun(1)
    for field in ("epoch", "checkpoint", "rows"):
        raw.hset(GROUP.lock(0), field, "x")
        assert (await group.commit(request(lock, entries))).code is CommitCode.FENCED


@pytest.mark.parametrize("what", [["state"], ["dead"], ["rows"], ["state", "dead", "rows"]], ids="-".join)
async def test_a_commit_under_full_memory_is_all_or_nothing(
    group: Group, full_memory: Raw, what: list[str]
) -> None:
    """State alone, a dead letter alone, rows alone and all of them are refused before anything is written.

    The same commit succeeds when there is room again.
    """
    entries, lock = await group.begun(2)
    wanted: dict[str, Any] = {"state": {"a": b"1"}, "dead": [_letter(entries[0].id)], "rows": 2}
    sent = request(lock, entries, **{name: wanted[name] for name in what})
    before = everything(full_memory)
    full_memory.config_set("maxmemory", 1)
    reply = await group.commit(sent)
    assert reply.code is CommitCode.UNKNOWN
    assert isinstance(reply.error, BackendRefused)
    assert "out of memory" in str(reply.error)
    assert everything(full_memory) == before
    full_memory.config_set("maxmemory", 0)
    assert (await group.commit(sent)).code is CommitCode.OK


def _letter(id: EntryId) -> DeadEntry:
    return DeadEntry(id, {b"v": b"x"}, "ValueError", 1)


def _tick(
    lock: Acquired, before: bytes, done: bytes, previous: EntryId | None = None, **changes: Any
) -> CommitRequest:
    """The commit of a timer, from one planned time up to another."""
    at = lock.checkpoint if previous is None else previous
    timer = f"{TICK}sweep"
    state: Any = {timer: done, **changes}
    return CommitRequest(0, "w1", lock.epoch, at, at, 0, timer=timer, before=before, state=state)


async def test_no_commit_follows_the_call_of_a_timer_that_a_failover_lost(group: Group, raw: Raw) -> None:
    """It moves no checkpoint. Its owner has the state that the call left, and Redis has the one before."""
    entries, lock = await group.begun(3)
    sweep, ticked = f"{TICK}sweep", (f"{TICK}sweep", b"2000")
    assert (await group.commit(_tick(lock, b"", b"1000", sum=b"1"))).code is CommitCode.OK
    assert (await group.commit(_tick(lock, b"1000", b"2000", sum=None))).code is CommitCode.OK
    raw.hset(GROUP.state(0), mapping={sweep: b"1000", "sum": b"1"})
    other: Any = {"timer": "other", "before": b"", "state": {"other": b"1"}, "ticked": ticked}
    for lost in (
        replace(request(lock, entries), ticked=ticked),
        replace(_tick(lock, b"", b"1000"), **other),
        _tick(lock, b"2000", b"3000"),
    ):
        before = everything(raw)
        assert (await group.commit(lost)).code is CommitCode.GAP
        assert everything(raw) == before
    known = replace(request(lock, entries), ticked=(sweep, b"1000"))
    assert (await group.commit(known)).code is CommitCode.OK, "an owner that has read the state goes on"
    assert (await group.commit(known)).code is CommitCode.DUP


async def test_an_owner_that_has_a_lock_again_commits_with_its_new_epoch_only(group: Group) -> None:
    """A commit of its earlier ownership may arrive late."""
    entries, before = await group.begun(1)
    assert await group.release("w1", before.epoch)
    now = await group.own()
    assert (await group.commit(request(before, entries))).code is CommitCode.FENCED
    assert (await group.commit(request(now, entries))).code is CommitCode.OK
