"""What holds for every script: foreign types, forgotten scripts, no undeclared keys."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import pytest

from streamworker.core.data.entries import EntryId
from streamworker.core.protocols.membership.mending import fingerprint
from streamworker.core.time.lifetimes import Lifetime
from streamworker.errors import BackendError, BackendRefused
from streamworker.redisio import scripts
from streamworker.redisio.data import commit, streams
from streamworker.redisio.data.commit import CommitRequest, DeadEntry
from streamworker.redisio.data.outbox import OutboxWrite
from streamworker.redisio.data.trimming import Keep
from streamworker.redisio.group import operations_claim, operations_lease
from streamworker.redisio.group.operations import HASHES, SCRIPTS
from streamworker.redisio.scripts import Script
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.link import Argument, Link
from tests.contract.support import (
    GROUP,
    OTHER_GROUP,
    STREAM,
    Group,
    Raw,
    batch_of,
    everything,
    message,
    url_of_user,
)

pytestmark = pytest.mark.anyio

_COMMIT = CommitRequest(
    partition=0,
    owner="w1",
    epoch=5,
    previous=EntryId(1, 0),
    new=EntryId(2, 0),
    entries=1,
    batch=batch_of(2),
    state={"a": b"1", "b": None},
    dead=[DeadEntry(EntryId(2, 0), {b"v": b"x"}, "no", 1)],
    tables={"totals": Lifetime()},
    outbox=OutboxWrite("", [message(2)], 100),
    trim=True,
    acked_trim_rows=1,
)


@dataclass(frozen=True)
class Call:
    """One correct call of a script."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument]


LOCK, EVENTS, ACKED, DEAD = GROUP.lock(0), GROUP.events(0), GROUP.acked(0), GROUP.dead(0)
GROUPS, COUNTS = GROUP.groups(0), GROUP.counts(0)
OUTBOX = GROUP.outbox(0)
VALUES, INDEX = GROUP.tables(0, {"totals": Lifetime()})


def in_partition(script: Script, **named: Any) -> Call:
    """Return a call with keys of partition 0."""
    return Call(script, *script.at(GROUP, 0, **named))


def in_group(script: Script, **named: Any) -> Call:
    """Return a call with keys of the group."""
    return Call(script, *script.at(GROUP, **named))


_HASHES = {name: GROUP.of_group(name) for name in HASHES}
_LEASES = {name: _HASHES[name] for name in ("grab", "allocation")}
_MESSAGE = ("kind", "changed")
_TICK = CommitRequest(0, "w1", 5, EntryId(1, 0), EntryId(1, 0), 0, timer="sweep", state={"sweep": b"1"})
_TICK.tables, _TICK.outbox = _COMMIT.tables, _COMMIT.outbox
CALLS = {
    call.script.name: call
    for call in (
        in_partition(scripts.REGISTER, group="price", start="0-0", nonce="nonce", parents="0 1"),
        in_partition(
            scripts.ACQUIRE,
            owner="w1",
            generation=7,
            drain_deadline_ms=1000,
            group="price",
            nonce="nonce",
            parents="0 1",
            members=["w1"],
        ),
        Call(
            scripts.STORE,
            *scripts.STORE.call(hash=STREAM.meta, command="HSETNX", fields=["codec", "json"]),
        ),
        Call(
            scripts.SET_FIELD,
            *scripts.SET_FIELD.call(hash=GROUP.readers, field="spark", seen="{}", value="x"),
        ),
        in_partition(scripts.RELEASE, owner="w1", epoch=5),
        in_partition(scripts.FINISH, owner="w1", epoch=5, step="done"),
        in_partition(scripts.GO_ON, last="9-7", total=8, before=0),
        in_partition(scripts.OPEN, owner="w1", epoch=5, parents="0 1"),
        in_partition(scripts.REMOVE, epoch=5, tables=[VALUES, INDEX]),
        in_partition(
            scripts.FILL,
            values=VALUES,
            index=[INDEX],
            owner="w1",
            epoch=5,
            parents="0 1",
            is_called="1",
            pairs=["ann", "99 x"],
        ),
        in_partition(
            scripts.MARK,
            owner="w1",
            epoch=5,
            state="halted",
            reason="why",
            over="*",
            attempts=0,
            since_ms=0,
            next_ms=0,
        ),
        in_partition(scripts.STORE_TRIES, owner="w1", epoch=5, tries="2-0 1"),
        in_group(scripts.RISK, what="timer sweep", place=0, owner="w1", step="begin", most=2),
        in_partition(scripts.REQUEST, request="pause", who="ann", why="why", id="0-0"),
        Call(scripts.COMMIT, *commit.commit_call(GROUP, _COMMIT)),
        Call(scripts.TICK, *commit.tick_call(GROUP, _TICK)),
        Call(
            scripts.APPEND,
            *streams.append_call(STREAM, streams.Append(0, "p", 1, 10, [(b"a", {b"h": b"1"})])),
        ),
        in_partition(
            scripts.FORWARD,
            source="orders/0/audit",
            since="0-",
            through="1-aa",
            limit=10,
            records=[1, "v", "a"],
        ),
        in_partition(
            scripts.EXPIRE, tables=GROUP.tables(0, {"totals": Lifetime()}), owner="w1", epoch=5, most=100
        ),
        in_partition(
            scripts.RETIME,
            values=VALUES,
            before=INDEX,
            index=GROUP.due(0, "totals"),
            owner="w1",
            epoch=5,
            is_called="1",
            most=100,
        ),
        in_partition(scripts.OPEN_OUTBOX),
        in_partition(
            scripts.SEND_ONCE,
            once=STREAM.seen(0, "id"),
            call="call",
            window_ms=1_000,
            limit=10,
            records=[1, "f", 2, "v", "x"],
        ),
        in_partition(
            scripts.LATER_PUT,
            id="id",
            call="call",
            how="after",
            time_ms=1_000,
            replace=0,
            limit=10,
            record="1,1,1,1\nabvx",
        ),
        in_partition(scripts.LATER_CANCEL, id="due", call="call", window_ms=1_000),
        in_partition(scripts.LATER_MOVE, most=10, limit=10, window_ms=1_000),
        in_partition(scripts.TRIM, rows=5, most=100, **dict.fromkeys(Keep._fields, "")),
        in_group(
            scripts.CHANGE_MEMBERS,
            expected="",
            body='{"v":1}',
            least=0,
            message=_MESSAGE,
            removed=["gone", "*"],
            added=["a", "0||0"],
        ),
        in_group(
            scripts.MEND_MEMBERS,
            seen=fingerprint(b"x"),
            body='{"v":1}',
            least=7,
            message=_MESSAGE,
            present=["a"],
        ),
        in_group(scripts.HEARTBEAT, member="a", beat="1|run|0", measured="3:120"),
        in_partition(
            scripts.MOVE_CHECKPOINT,
            cleared=[],
            group="price",
            forgotten="",
            checkpoint="1-0",
            entries=1,
            owner="",
            parents="0",
        ),
        in_partition(scripts.SEAL, map="8+12"),
        in_partition(
            scripts.MOVE_MESSAGES,
            owner="w1",
            epoch=5,
            after="",
            removed=["1-1"],
            noted=["moved:priced/5", "1-aa"],
            gone=["priced/4"],
            sends=["2-0", "priced/5", "0-", "1-aa", "data"],
        ),
        in_partition(scripts.LEAVE_LATER, most=10, ids=["id"], moved=["due", "w first 1 1,1,1,1\nabvx"]),
        in_partition(
            scripts.TAKE_LATER, id="id", at=1, known="w call 1 1,1,1,1\nabvx", read_ms=2_000_000_000_000
        ),
        in_partition(scripts.COUNT, after="0-0", since="0-0", most=10),
        in_partition(scripts.REPLAY_DEAD, id="1-0", first="sw:replayed-for", group="price", edited=[]),
        in_group(
            operations_claim.CHANGE,
            claims=_HASHES["claims"],
            owner="w1",
            how="claim",
            changes=[2, "0", 0, "0-0"],
        ),
        in_group(operations_claim.GIVE_UP, claims=_HASHES["claims"], owner="w1", partitions=[1]),
        in_group(
            operations_lease.CHALLENGE,
            **_LEASES,
            owner="w1.a",
            challenges=[1, "free", 2, "due", 3, "overdue"],
        ),
        in_group(operations_lease.RACE, **_LEASES, owner="w1.a", partition=3),
        in_group(
            operations_lease.UPDATE, **_LEASES, owner="w1.a", processed=[4, 9], ended=[5], cleared=[6, 9]
        ),
        in_partition(scripts.REPAIR_LOCK, owner="w1", epoch=5),
        in_partition(scripts.REPAIR_AHEAD, log="log"),
        in_partition(scripts.REPAIR_PARTITION, group="price", owner="w1", epoch="5"),
        in_group(scripts.REPAIR_GROUP, **_HASHES, generation="7", seen=["gone", "1|1|run|0"]),
    )
}
ANY_TYPE = {
    *(("group/mend_members", place) for place in range(5)),
    *(("group/heartbeat", place) for place in range(4)),
    *(("group/change_members", place) for place in (1, 2, 3, 4)),
    *(("lease/challenge", 2), ("lease/update", 2)),
    ("admin/repair_group", 6),
}
"""What stands there may be of any type: test_mending.py and, of what was put aside, test_repair.py."""


def test_every_script_is_in_these_cases() -> None:
    assert {script.name for script in SCRIPTS} == set(CALLS)


LOCK_FIELDS_SET = (
    *("owner", "w1", "epoch", "5", "generation", "7", "checkpoint", "1-0", "entries", "1", "rows", "10"),
    *("log", "log"),
)
PREPARED: list[tuple[Argument, ...]] = [
    ("XADD", EVENTS, "1-0", "v", "x"),
    ("XADD", EVENTS, "2-0", "v", "y"),
    ("XGROUP", "CREATE", EVENTS, "price", "1-0"),
    ("HSET", LOCK, *LOCK_FIELDS_SET),
    ("XADD", ACKED, "10-0", "rows", "10"),
    ("XADD", DEAD, "1-0", "id", "1-0", "f.v", "x"),
    ("HSET", GROUP.of_group("claims"), "1", "5|1|0|1-0|w1", "last", "5"),
    ("HSET", GROUP.beats, "a", "1|1|run|0", "gone", "1|1|run|0"),
    ("HSET", GROUP.readers, "spark", "{}"),
    ("SET", GROUP.damaged, "x"),
    ("HSET", VALUES, "ann", "1 x"),
    ("ZADD", INDEX, 1, "ann"),
    ("XADD", OUTBOX.messages, "1-1", "to", "priced/0"),
    ("ZADD", GROUP.later(0), "1", "due"),
    ("HSET", GROUP.delayed(0), "due", "w first 1 1,1,1,1\nabvx"),
]
"""Commands after which every call of CALLS writes something."""


async def prepare(group: Group) -> None:
    for command in PREPARED:
        await group.backend.execute(*command)


NEEDS_ROOM = {
    *("data/append", "data/commit", "data/forward", "data/later_move", "data/later_put", "data/replay_dead"),
    *("growth/fill", "growth/move_messages", "growth/seal", "growth/take_later"),
    *("data/send_once", "data/set_field", "data/tick"),
}
"""What is refused when memory is full. The others move ownership, remove something, or let workers start."""


@pytest.mark.usefixtures("small_nodes")
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("name", sorted(CALLS))
async def test_a_script_needs_its_keys_alone_and_does_all_or_nothing_when_memory_is_full(
    group: Group, full_memory: Raw, redis_url: str, name: str, is_full: bool
) -> None:
    """A user with rights to the keys that it declares can run it: what Cluster and ACLs need.

    When memory is full, it is refused before it writes, or does what it does otherwise.
    """
    raw = full_memory
    await prepare(group)
    if name in {"group/acquire", "group/register"}:
        raw.delete(LOCK)
    if name == "group/move_checkpoint":
        raw.hset(LOCK, "owner", "")
    if name == "growth/remove":
        raw.hset(LOCK, "done", "1")
    if name == "growth/finish":
        raw.hset(LOCK, "checkpoint", "2-0")
        raw.delete(OUTBOX.messages)
        await group.backend.run_many(scripts.SEAL, [scripts.SEAL.at(GROUP, 0, map="1 8+12")])
    if name in {"growth/fill", "growth/open"}:
        raw.hset(LOCK, "from", "0 1")
    if name == "admin/repair_group":
        raw.set(GROUP.members, '{"generation":7,"v":1}')
    if name == "admin/repair_ahead":
        raw.xadd(ACKED, {"foo": "bar"}, id="11-0")
    if name == "group/mend_members":
        raw.set(GROUP.members, "x")
    before = everything(raw)
    call = CALLS[name]
    rights = [f"~{key}" for key in call.keys]
    raw.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "+@all", *rights)
    raw.config_set("maxmemory", 1 if is_full else "1gb")
    async with Backend.open(url_of_user(redis_url, "narrow", "secret"), name="narrow") as backend:
        (reply,) = await backend.run_many(call.script, [(call.keys, call.args)])
    raw.execute_command("ACL", "DELUSER", "narrow")
    if is_full and name in NEEDS_ROOM:
        assert isinstance(reply, BackendRefused) and "out of memory" in str(reply)
        assert everything(raw) == before
    else:
        assert reply[0] == b"OK"
        assert everything(raw) != before or name == "data/count"


@pytest.mark.parametrize("name", sorted(CALLS))
async def test_a_key_of_another_type_stops_a_script_before_it_writes(
    group: Group, raw: Raw, name: str
) -> None:
    """Each of its keys, but for those that may be of any type."""
    call = CALLS[name]
    for place, key in enumerate(call.keys):
        if (name, place) not in ANY_TYPE:
            raw.flushall()
            await prepare(group)
            raw.delete(key)
            raw.rpush(key, "mine")
            before = everything(raw)
            reply = await group.backend.run(call.script, (call.keys, call.args))
            assert reply == [b"BADTYPE", key.encode()]
            assert everything(raw) == before


async def test_a_script_forgotten_between_its_load_and_its_call_is_loaded_again(
    group: Group, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server reads a long script in parts, and serves others between them."""
    whole, flushes = Link.roundtrip, 0

    async def parted(link: Link, packed: bytes, replies: int) -> list[Any]:
        nonlocal flushes
        if b"LOAD" not in packed[:40] or flushes == 3:
            return await whole(link, packed, replies)
        end = packed.index(b"\r\n*", 1) + 2
        loaded = await whole(link, packed[:end], 1)
        raw.script_flush()
        flushes += 1
        return loaded + await whole(link, packed[end:], replies - 1)

    monkeypatch.setattr(Link, "roundtrip", parted)
    raw.script_flush()
    await group.send(1)
    assert (flushes, raw.xlen(EVENTS)) == (3, 1)


def test_all_keys_of_a_script_lie_on_one_node_of_a_cluster() -> None:
    """They share their hash tag."""
    for name, call in CALLS.items():
        assert len({key[key.index("{") : key.index("}")] for key in call.keys}) == 1, name


LOCK_FIELDS = (
    *("owner", "epoch", "generation", "checkpoint", "entries", "rows", "log", "state", "reason", "aside"),
    *("deaths", "tries", "ordered", "obeyed", "paused_at", "wanted_since", "wanted_at", "wanted_in"),
    *("from_epoch", "reset", "tail", "gone", "cold", "retry", "from", "done"),
)
FIELDS = {
    LOCK: LOCK_FIELDS,
    OTHER_GROUP.lock(0): ("checkpoint", "entries"),
    COUNTS: ("extra", "before", "dropped", "folded", "retained", "chosen", "oldest"),
    GROUPS: ("price", "audit", "#trimmed"),
    OUTBOX.heads: ("#", "priced/0"),
    STREAM.taken(0): ("orders/0/audit",),
    GROUP.delayed(0): ("due", "id"),
    GROUP.risks: ("at timer sweep 0", "died timer sweep 0", "died timer sweep"),
    GROUP.of_group("claims"): ("0", "1", "last"),
    GROUP.of_group("grab"): ("1", "3", "5", "last"),
    GROUP.of_group("allocation"): ("3", "4", "5"),
    VALUES: ("ann",),
}
"""The fields of hashes that scripts read; ``OTHER_GROUP`` and ``GROUPS`` are read by all that trim."""
HIGHEST = f"{2**64 - 1}-{2**64 - 1}"
STRANGE = ("", "x", "-1", "nan", "1e400", "1-", "007-1", HIGHEST, None)
"""Values that streamworker does not write there; None removes the field."""
STRANGE_ENTRIES: list[dict[str, str]] = [
    {"x": ""},
    {"rows": "x", "at": "x"},
    {"sw:first": "x"},
    {"sw:first": "5-0", "extra": "nan", "n": "x", "crc": ""},
]
_TRIMS = replace(_COMMIT, acked_limit=1)
_COLUMNS: list[Argument] = ["sw:first", "", "extra", "", "n", 3, "crc", "", "v", "x"]
VARIANTS = [
    *CALLS.values(),
    Call(scripts.COMMIT, *commit.commit_call(GROUP, _TRIMS)),
    in_partition(scripts.TRIM, rows=5, most=100, **Keep(10, 1, 10, 1)._asdict()),
    in_partition(
        scripts.APPEND,
        sent=STREAM.producer(0, "p"),
        since=0,
        through=1,
        limit=5,
        records=(3, "p", 3, 6, *_COLUMNS[4:]),
    ),
]


def _meddle(raw: Raw, key: str, field: str, value: str | None) -> None:
    if value is None:
        raw.hdel(key, field)
    else:
        raw.hset(key, field, value)


def _meddlings(raw: Raw, call: Call) -> Iterator[Callable[[], object]]:
    """Return all that another program may do to what a call reads, one at a time."""
    near = {*call.keys, *((OTHER_GROUP.lock(0), GROUPS, COUNTS) if EVENTS in call.keys else ())}
    for key in sorted(near & set(FIELDS)):
        for field, value in product(FIELDS[key], STRANGE):
            yield partial(_meddle, raw, key, field, value)
    for key in {EVENTS, ACKED, DEAD, OUTBOX.messages} & near:
        yield partial(raw.delete, key)
        for entry in STRANGE_ENTRIES:
            yield partial(raw.xadd, key, entry, id="5-0" if key == EVENTS else "11-0")  # type: ignore[arg-type]


@pytest.mark.full("calls each script with each wrong value")
@pytest.mark.usefixtures("small_nodes")
@pytest.mark.parametrize("name", sorted(CALLS))
async def test_no_script_fails_after_its_first_write_whatever_stands_there(
    group: Group, raw: Raw, name: str
) -> None:
    """Another program may write over a field, remove it, or add an entry."""
    await prepare(group)
    raw.hset(OTHER_GROUP.lock(0), mapping={"checkpoint": "1-0", "entries": "1"})
    raw.hset(COUNTS, mapping={"extra": "3", "folded": "1"})
    raw.hset(GROUPS, mapping={"price": "0", "audit": "0"})
    prepared, failed = everything(raw), []

    def put_back(meddle: Callable[[], object]) -> None:
        raw.flushall()  # Not in the pipeline: one of a Cluster refuses it.
        with raw.pipeline(transaction=False) as pipe:
            for key, dumped in prepared.items():
                pipe.restore(key, 0, dumped)
            pipe.execute()
        meddle()

    for call in VARIANTS:
        for meddle in _meddlings(raw, call) if call.script.name == name else ():
            put_back(meddle)
            try:
                await group.backend.run(call.script, (call.keys, call.args))
            except BackendError as error:
                after = everything(raw)
                put_back(meddle)
                if everything(raw) != after or "user_script" in str(error):
                    failed.append((meddle, str(error)))
    assert not failed
