"""The scripts on fakeredis and on a real server, side by side.

Tests elsewhere may use fakeredis where no server is needed. This keeps that honest: every script
runs through the same scenarios on both, and whatever differs is listed here with its reason. A
difference that goes away fails too, so that the list stays true.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import fakeredis
import pytest
import redis

from streamworker.core.data.entries import EntryId
from streamworker.core.protocols.membership.mending import fingerprint
from streamworker.dev.server import EmbeddedServer
from streamworker.redisio import scripts
from streamworker.redisio.admin.repair import _log_keys, group_keys
from streamworker.redisio.data import later
from streamworker.redisio.data.commit import CommitRequest, DeadEntry, commit_call
from streamworker.redisio.data.outbox import OutboxWrite, forward_call
from streamworker.redisio.data.streams import Append, Headers, Payload, append_call
from streamworker.redisio.group import operations_claim, operations_lease
from streamworker.redisio.group.protocols import SCRIPTS
from streamworker.redisio.scripts import Script
from tests.contract.support import GROUP, STREAM, batch_of, chain

LOCK, EVENTS, ACKED, DEAD, STATE, COUNTS, GROUPS = (
    GROUP.lock(0),
    GROUP.events(0),
    GROUP.acked(0),
    GROUP.dead(0),
    GROUP.state(0),
    GROUP.counts(0),
    GROUP.groups(0),
)
_SERVER_TIME = re.compile(rb"\d{13,}(-\d+)?")
_FINGERPRINT = re.compile(rb"\d+:[0-9a-f]{40}")
"""Of a document with the server's time in it; fakeredis cannot make one, see ``mending``."""


class Transcript:
    """A server, and all that it answered."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.answers: list[Any] = []

    def run(self, script: Script, keys: Any, args: Any) -> Any:
        return self.note(self.client.eval(script.text, len(keys), *keys, *args))

    def note(self, answer: Any) -> Any:
        """Write something down, with every time of the server made the same."""
        self.answers.append(_timeless(answer))
        return answer

    def look(self) -> None:
        """Write down what is stored: hashes, streams and groups."""
        for key in (LOCK, STATE, COUNTS, GROUPS, GROUP.beats, GROUP.loads):
            self.note(sorted(self.client.hgetall(key).items()))
        for key in (EVENTS, ACKED, DEAD, GROUP.control):
            self.note([sorted(fields.items()) for _, fields in self.client.xrange(key)])
        if self.client.exists(EVENTS):
            wanted = ("name", "pending", "last-delivered-id", "entries-read", "lag")
            self.note(
                [{name: group.get(name) for name in wanted} for group in self.client.xinfo_groups(EVENTS)]
            )

    def acquire(self, owner: str, generation: int, *live: str, deadline_ms: int = 60_000) -> Any:
        args = (owner, generation, deadline_ms, "price", "nonce", owner, *live)
        return self.run(scripts.ACQUIRE, (LOCK, EVENTS, ACKED, GROUPS, COUNTS), args)

    def add(self, first: int, last: int) -> None:
        """Add entries with ids ``first-0`` to ``last-0``."""
        for n in range(first, last + 1):
            self.client.xadd(EVENTS, {"v": str(n)}, id=f"{n}-0")

    def commit(self, epoch: Any, previous: int, new: int, **more: Any) -> Any:
        """Run commit.lua for the entries ``(previous, new]``."""
        request = CommitRequest(
            partition=0,
            owner=more.pop("owner", "w1"),
            epoch=int(epoch),
            previous=EntryId(previous, 0),
            new=EntryId(new, 0),
            entries=new - previous,
            batch=batch_of(more.pop("rows"), EntryId(new, 0)) if "rows" in more else None,
            **more,
        )
        return self.run(scripts.COMMIT, *commit_call(GROUP, request))


def _timeless(answer: Any) -> Any:
    if isinstance(answer, int):
        return "time" if answer > 10**12 else answer
    if isinstance(answer, bytes):
        return _SERVER_TIME.sub(b"time", _FINGERPRINT.sub(b"", answer))
    if isinstance(answer, list | tuple):
        return [_timeless(each) for each in answer]
    if isinstance(answer, dict):
        return {name: _timeless(each) for name, each in answer.items()}
    return answer


# -- scenarios -------------------------------------------------------------------------------


def declaring(t: Transcript) -> None:
    for command, codec in (("HSETNX", "json"), ("HSETNX", "arrow"), ("HSET", "fields")):
        t.run(scripts.STORE, (STREAM.meta,), (command, "codec", codec))
        t.note(t.client.hgetall(STREAM.meta))


def registering(t: Transcript) -> None:
    """A group at the start, at the end, at an id, twice, and without its lock or its group."""
    keys = (LOCK, EVENTS, ACKED, GROUPS, COUNTS)
    t.add(1, 5)
    for start in ("0-0", "$", "3-0"):
        t.run(scripts.REGISTER, keys, ("price", start, "nonce"))
        t.run(scripts.REGISTER, keys, ("price", start, "nonce"))
        t.look()
        t.client.delete(LOCK)
        t.run(scripts.REGISTER, keys, ("price", "0-0", "nonce"))
        t.client.xgroup_destroy(EVENTS, "price")
        t.run(scripts.REGISTER, keys, ("price", "0-0", "nonce"))
        t.look()
        t.client.delete(LOCK)
        t.client.xgroup_destroy(EVENTS, "price")


def a_life_of_a_lock(t: Transcript) -> None:
    """Acquired, asked for again, held, stale, marked, released twice, taken from the dead."""
    _, epoch, *_ = t.acquire("w1", 7)
    t.acquire("w1", 7)
    t.acquire("w1", 8)
    t.acquire("w2", 8, "w1")
    t.acquire("w2", 6, "w1")
    t.run(scripts.MARK, (LOCK,), ("w1", epoch, "halted", "why"))
    t.run(scripts.MARK, (LOCK,), ("w2", epoch, "running", ""))
    for order in ("resume", "pause", "pause", "retry"):
        t.run(scripts.ORDER, (LOCK,), (order, "ann", "why"))
        t.acquire("w1", 8)
    t.run(scripts.ORDER, (LOCK,), ("resume", "ann", ""))
    t.run(scripts.RELEASE, (LOCK,), ("w2", epoch))
    for _ in range(2):
        t.run(scripts.RELEASE, (LOCK,), ("w1", epoch))
    t.acquire("w2", 8)
    t.acquire("w3", 9)
    t.acquire("w1", 9, "w3", deadline_ms=0)
    t.look()


def commits(t: Transcript) -> None:
    """Each reply of commit.lua, and all that it writes."""
    t.add(1, 9)
    _, epoch, *_ = t.acquire("w1", 7)
    letter = DeadEntry(EntryId(3, 0), {b"v": b"\xff"}, "no", 2)
    t.commit(epoch, 0, 3, rows=4, state={"a": b"1", "b": b"2"}, dead=[letter])
    t.commit(epoch, 0, 3, rows=4, state={"a": b"1", "b": b"2"}, dead=[letter])
    t.commit(epoch, 3, 5, owner="w2")
    t.commit(int(epoch) + 1, 3, 5)
    t.commit(epoch, 4, 5)
    t.commit(epoch, 3, 5, rows=1, acked_limit=1)
    t.commit(epoch, 3, 5, state={"a": None})
    t.client.xgroup_destroy(EVENTS, "price")
    t.commit(epoch, 5, 6, rows=2, acked_limit=2)
    t.client.xadd(ACKED, {"a": "b"}, id="500-0")
    t.commit(epoch, 6, 7, rows=1)
    t.look()


def appends(t: Transcript) -> None:
    """Payloads, headers, fields, a repeated number, and a limit."""
    sends: list[tuple[int, int, list[tuple[Payload, Headers]]]] = [
        (1, 0, [(b"a", None), (b"\xff", None)]),
        (1, 0, [(b"a", None)]),
        (2, 5, [(b"b", {b"h": b"1"}), ({b"x": b"y"}, None)]),
        (3, 5, [(b"c", None), (b"d", None)]),
        (3, 5, [(b"c", None)]),
    ]
    for seq, limit, entries in sends:
        t.run(scripts.APPEND, *append_call(STREAM, Append(0, "p", seq, limit, entries)))
    t.look()


def outboxes(t: Transcript) -> None:
    """Messages with a commit and without its heads; taken once, refused, and from elsewhere."""
    keys, messages = GROUP.outbox(0), chain(3)
    t.add(1, 3)
    _, epoch, *_ = t.acquire("w1", 7)
    for limit in (100, 2):
        t.commit(epoch, 0, 1, outbox=OutboxWrite("", messages[:2], 100), rows=1)
        t.commit(epoch, 1, 2, outbox=OutboxWrite(str(messages[1].id), messages[2:], limit))
    t.commit(epoch, 2, 3, outbox=OutboxWrite("", messages, 100))
    for _ in range(2):
        t.run(scripts.OPEN_OUTBOX, (keys.messages, keys.heads), ())
        t.client.delete(keys.heads)
    for stands in ("0-", "7-aa"):
        t.run(scripts.REPAIR_TAKEN, (STREAM.taken(0),), ("orders/0/audit", stands, "3-aa"))
    for each in (*messages, messages[0], *chain(4)):
        t.run(scripts.FORWARD, *forward_call("shop", keys.source, each))
    t.look()


def members(t: Transcript) -> None:
    """The first document, a change, conflicts, heartbeats, and a member that is lost."""
    keys = (GROUP.members, GROUP.control, GROUP.beats, GROUP.loads, GROUP.damaged)
    beat_keys = (GROUP.members, GROUP.beats, GROUP.loads, GROUP.damaged)
    t.run(scripts.HEARTBEAT, beat_keys, ("a", "1|run|0", "3:120"))
    message = (4, "kind", "changed", "moved", "0,1")
    _, generation, _ = t.run(
        scripts.CHANGE_MEMBERS, keys, ("", '{"v":1}', *message, 0, 2, "a", "0||0", "b", "0||0", 0)
    )
    t.run(scripts.CHANGE_MEMBERS, keys, ("", '{"v":2}', *message, 0, 0, 0))
    t.run(scripts.CHANGE_MEMBERS, keys, (generation, '{"v":3}', *message, 1, "b", "*", 1, "c", "0||0", 0))
    t.run(scripts.CHANGE_MEMBERS, keys, (generation, '{"v":4}', *message, 0, 0, 0))
    t.client.hdel(GROUP.beats, "c")
    for member in ("a", "b"):
        t.run(scripts.HEARTBEAT, beat_keys, (member, "1|run|0", "3:120"))
    t.note(t.client.get(GROUP.members))
    t.look()


def mending(t: Transcript) -> None:
    """Something that is no document is put aside."""
    t.client.set(GROUP.members, "x")
    keys = (GROUP.members, GROUP.control, GROUP.beats, GROUP.loads, GROUP.damaged)
    t.run(scripts.MEND_MEMBERS, keys, (fingerprint(b"x"), '{"v":1}', 7, 2, "kind", "changed", "a"))
    t.client.set(GROUP.damaged, "y")
    t.run(scripts.REPAIR_DAMAGED, (GROUP.damaged,), (fingerprint(b"y"),))
    t.look()


def by_hand(t: Transcript) -> None:
    """Counting, moving a checkpoint, replaying a dead letter."""
    t.add(1, 9)
    t.run(scripts.COUNT, (EVENTS, COUNTS), ("3-0", "3-0", 4))
    t.run(scripts.COUNT, (EVENTS, COUNTS), ("3-0", "9-0", 4))
    t.run(scripts.COUNT, (GROUP.events(5), COUNTS), ("0-0", "0-0", 4))
    t.run(scripts.MOVE_CHECKPOINT, (LOCK, EVENTS, COUNTS), ("price", "4-0", 4, ""))
    t.acquire("w1", 7)
    t.run(scripts.MOVE_CHECKPOINT, (LOCK, EVENTS, COUNTS), ("price", "4-0", 4, ""))
    t.run(scripts.MOVE_CHECKPOINT, (LOCK, EVENTS, COUNTS), ("price", "4-0", 4, "w1"))
    t.client.xadd(DEAD, {"id": "3-0", "f.v": b"\xff", "f.h.a": "1"}, id="1-0")
    t.client.xadd(DEAD, {"note": "not ours"}, id="2-0")
    for letter in ("1-0", "1-0", "2-0"):
        t.run(scripts.REPLAY_DEAD, (DEAD, EVENTS), (letter, "sw:replayed-for", "price"))
    t.look()


def foreign_types(t: Transcript) -> None:
    """Every key of a commit in turn holds a list."""
    t.acquire("w1", 7)
    for key in (LOCK, ACKED, EVENTS, STATE, DEAD):
        saved = t.client.dump(key) if key in {LOCK, EVENTS} else None
        t.client.delete(key)
        t.client.rpush(key, "mine")
        t.commit(1, 0, 1, rows=1)
        t.client.delete(key)
        if saved is not None:
            t.client.restore(key, 0, saved)


def trimming_little(t: Transcript) -> None:
    """Less than a node of the stream: nothing goes."""
    t.add(1, 20)
    _, epoch, *_ = t.acquire("w1", 7)
    t.run(scripts.TRIM, (EVENTS, ACKED, LOCK, GROUPS, COUNTS), (0, 1_000, "price"))
    t.commit(epoch, 0, 10, rows=1)
    t.run(scripts.TRIM, (EVENTS, ACKED, LOCK, GROUPS, COUNTS), (0, 1_000, "price"))


def trimming_much(t: Transcript) -> None:
    """Several nodes, all of them done with."""
    t.add(1, 450)
    _, epoch, *_ = t.acquire("w1", 7)
    t.commit(epoch, 0, 300, rows=1)
    t.run(scripts.TRIM, (EVENTS, ACKED, LOCK, GROUPS, COUNTS), (1, 150, "price"))
    t.run(scripts.TRIM, (EVENTS, ACKED, LOCK, GROUPS, COUNTS), (1, 1_000, "price"))


def trimming_large_entries(t: Transcript) -> None:
    """Entries of 2 KB, nine of ten of them done with."""
    for n in range(1, 11):
        t.client.xadd(EVENTS, {"v": "x" * 2_000}, id=f"{n}-0")
    _, epoch, *_ = t.acquire("w1", 7)
    t.commit(epoch, 0, 9)
    t.run(scripts.TRIM, (EVENTS, ACKED, LOCK, GROUPS, COUNTS), (0, 1_000, "price"))


def a_full_memory(t: Transcript) -> None:
    """An append when ``maxmemory`` is reached."""
    t.client.config_set("maxmemory", 1)
    try:
        t.run(scripts.APPEND, *append_call(STREAM, Append(0, "p", 1, 0, [(b"a", None)])))
    except redis.exceptions.ResponseError as error:
        t.note(type(error).__name__)
    t.client.config_set("maxmemory", 0)


def a_forgotten_script(t: Transcript) -> None:
    """EVALSHA of a script that was loaded, and then flushed."""
    t.note(t.client.script_load(scripts.TRIM.text))
    t.note(t.client.evalsha(scripts.TRIM.sha, 5, EVENTS, ACKED, LOCK, GROUPS, COUNTS, 0, 10, "price"))
    t.client.script_flush()
    try:
        t.note(t.client.evalsha(scripts.TRIM.sha, 5, EVENTS, ACKED, LOCK, GROUPS, COUNTS, 0, 10, "price"))
    except redis.exceptions.ResponseError as error:
        t.note(type(error).__name__)


def claims(t: Transcript) -> None:
    """Entries that are claimed, renewed, refused and given up, by their ETags."""
    keys = (GROUP.of_group("claims"),)
    t.client.hset(GROUP.of_group("claims"), mapping={"1": "5|1|0|1-0|w1", "last": "5"})
    t.run(operations_claim.CHANGE, keys, ("w1", "claim", 2, "0", 0, "0-0"))
    t.run(operations_claim.CHANGE, keys, ("w2", "claim", 2, "0", 0, "0-0"))
    t.run(operations_claim.CHANGE, keys, ("w2", "renew", 1, "5", 0, "2-0"))
    t.run(operations_claim.CHANGE, keys, ("w1", "renew", 1, "5", 0, "2-0"))
    t.run(operations_claim.GIVE_UP, keys, ("w2", 1))
    t.run(operations_claim.GIVE_UP, keys, ("w1", 1, 2))
    t.run(operations_claim.LIST, keys, ())


def a_race(t: Transcript) -> None:
    """Leases that are challenged, won, lost, marked and taken back."""
    hashes = (GROUP.of_group("grab"), GROUP.of_group("allocation"))
    t.run(operations_lease.CHALLENGE, (*hashes, GROUP.control), ("w1", 1, "free", 2, "due", 3, "overdue"))
    t.run(operations_lease.RACE, hashes, ("w1", 1))
    t.run(operations_lease.RACE, hashes, ("w2", 1))
    t.run(operations_lease.UPDATE, (*hashes, GROUP.control), ("w2", 1, 1, 9, 1, 1, 1, 1, 9))
    t.run(operations_lease.CHALLENGE, (*hashes, GROUP.control), ("w2", 1, "free", 1, "overdue"))


def repairs(t: Transcript) -> None:
    """What a dead group leaves behind is taken away; each deed a second time, when it has changed."""
    t.client.xadd(EVENTS, {"v": "x"}, id="1-0")
    t.client.xgroup_create(EVENTS, "price", "0-0")
    t.client.hset(LOCK, mapping={"owner": "w1", "epoch": 5, "checkpoint": "0-0", "log": "L"})
    t.client.xadd(ACKED, {"rows": "9"}, id="9-0")
    t.client.hset(GROUP.readers, "spark", "{}")
    t.client.set(GROUP.members, '{"generation":7,"v":1}')
    t.client.hset(GROUP.beats, "w1", "1|1|run|0")
    group = (GROUP.members, GROUP.control, GROUP.beats, GROUP.loads, GROUP.damaged)
    for _ in range(2):
        removed = (1, "w1", "1|1|run|0")
        t.run(scripts.CHANGE_MEMBERS, group, (7, '{"v":1}', 2, "kind", "changed", *removed, 0, 0))
        t.run(scripts.REPAIR_LOCK, (LOCK,), ("w1", 5))
        t.run(scripts.REPAIR_READER, (GROUP.readers,), ("spark", "{}"))
        t.run(scripts.REPAIR_LOG, (LOCK, ACKED), ("L", 9, 10))
    for n in range(25):
        t.client.xadd(ACKED, {"rows": "9"}, id=f"{20 + n}-0")
    t.client.hset(LOCK, mapping={"rows": 30, "entries": 1})
    for cursor in ("?", "", "29-0", "30-0"):
        t.run(scripts.REPAIR_AHEAD, _log_keys(GROUP, 0), ("L", "price", cursor))
    t.look()
    for _ in range(2):
        t.run(
            scripts.REPAIR_PLACE,
            (LOCK, EVENTS, ACKED, DEAD, STATE, GROUPS, *GROUP.outbox(0)[:2]),
            ("price", "", 6),
        )
        t.run(scripts.REPAIR_GROUP, group_keys(GROUP), ("",))
    t.look()


def tables(t: Transcript) -> None:
    """Values that are set, deleted, and expire with a commit and without."""
    t.add(1, 9)
    _, epoch, *_ = t.acquire("w1", 7)
    names = GROUP.tables(0, ["totals"])

    def change(at: int, ttl_ms: int, **values: bytes | None) -> None:
        state = {("totals", key.encode()): value for key, value in values.items()}
        t.commit(epoch, at, at + 1, state=state, tables={"totals": ttl_ms})
        t.note(sorted(t.client.hgetall(names[0]).items()))
        t.note(sorted(t.client.zrange(names[1], 0, -1)))

    change(0, 3_600_000, ann=b"1", bob=b"2")
    change(1, 3_600_000, ann=b"3", bob=None)
    change(2, 0, ann=b"4", eve=b"5")
    for owner in ("w2", "w1"):
        t.client.zadd(names[1], {"eve": 1})
        t.run(scripts.EXPIRE, (LOCK, *names), (owner, epoch, 10))
        t.note(t.client.hkeys(names[0]))
    t.client.zadd(names[1], {"ann": 1})
    change(3, 0)


def ids(t: Transcript) -> None:
    """Records that are sent once by their id, later, and not at all."""

    def call(made: later.IdCall) -> None:
        t.run(made.script, made.keys, made.args)

    for name in ("one", "one", "two"):
        call(later.send_once(GROUP, 0, "a", name, [b"v", name.encode()], window_ms=60_000, limit=9))
    t.note(t.client.get(GROUP.seen(0, "a")))
    for name, due_ms in (("a", 1), ("b", 1), ("a", 2), ("c", 10**13)):
        due, fields = ("at", due_ms), [b"v", name.encode()]
        by, named = f"{name}{due_ms}", (name, None)
        call(later.schedule(GROUP, 0, name, by, fields, due=due, named=named, replace=False, limit=3))
    for name in "bbx":
        call(later.cancel(GROUP, 0, name, "cancel", window_ms=60_000))
    names = (EVENTS, GROUP.later(0), GROUP.delayed(0), COUNTS)
    for _ in range(2):
        t.run(scripts.LATER_MOVE, names, (10, 9, 60_000))
        t.answers[-1] = t.answers[-1][:2]  # Then comes a time that passes between the two servers.
        t.note([fields for _, fields in t.client.xrange(EVENTS)])
        t.note(sorted(t.client.hkeys(GROUP.delayed(0))))


SCENARIOS = (
    declaring,
    ids,
    claims,
    repairs,
    a_race,
    registering,
    a_life_of_a_lock,
    commits,
    tables,
    appends,
    outboxes,
    members,
    mending,
    by_hand,
    foreign_types,
    trimming_little,
    trimming_much,
    trimming_large_entries,
    a_full_memory,
    a_forgotten_script,
)

DIFFERENCES: dict[Callable[[Transcript], None], str] = {
    a_full_memory: "fakeredis takes CONFIG SET maxmemory and ignores it",
    mending: "fakeredis has no redis.sha1hex, so that nothing is ever put aside",
}
"""Scenarios in which fakeredis answers otherwise, and why."""


@pytest.fixture
def real(valkey: EmbeddedServer) -> Iterator[Transcript]:
    with redis.Redis.from_url(valkey.url, protocol=2) as client:
        client.flushall()
        yield Transcript(client)


@pytest.fixture
def fake() -> Iterator[Transcript]:
    with fakeredis.FakeRedis(version=(7, 0), server_type="redis") as client:
        yield Transcript(client)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_fakeredis_answers_as_a_server_does(
    real: Transcript, fake: Transcript, scenario: Callable[[Transcript], None]
) -> None:
    """The same, but for the differences that are listed."""
    scenario(real)
    scenario(fake)
    if scenario in DIFFERENCES:
        assert fake.answers != real.answers, "the difference has gone; take it off the list"
    else:
        assert fake.answers == real.answers


def test_every_script_runs_in_some_scenario(fake: Transcript, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new script is compared from its first day."""
    ran: set[str] = set()
    run = Transcript.run

    def spy(self: Transcript, script: Script, keys: Any, args: Any) -> Any:
        ran.add(script.name)
        return run(self, script, keys, args)

    monkeypatch.setattr(Transcript, "run", spy)
    for scenario in SCENARIOS:
        fake.client.flushall()
        scenario(fake)
    assert ran == {script.name for script in SCRIPTS}
