"""The scripts on fakeredis and on a real server, side by side.

Tests elsewhere may use fakeredis where no server is needed. This keeps that honest: a call of every script,
twice, and scenarios of the most used ones run on both, and whatever differs is listed here with its reason.
A difference that goes away fails too, so that the list stays true.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fakeredis
import pytest
import redis

from streamworker.core.data.entries import EntryId
from streamworker.dev.server import EmbeddedServer
from streamworker.redisio import scripts
from streamworker.redisio.data.commit import CommitRequest, DeadEntry, commit_call, tick_call
from streamworker.redisio.data.outbox import OutboxWrite, forward_call
from streamworker.redisio.data.streams import Append, append_call
from streamworker.redisio.data.trimming import Keep
from streamworker.redisio.scripts import Script
from streamworker.redisio.wire.client import ScriptCall
from tests.contract.support import GROUP, STREAM, batch_of, chain
from tests.contract.test_scripts import CALLS, PREPARED, Call

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


UNKEPT: dict[str, Any] = {"group": "price", **dict.fromkeys(Keep._fields, "")}
"""Nothing is retained."""


class Transcript:
    """A server, and all that it answered."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.answers: list[Any] = []

    def run(self, script: Script, call: ScriptCall) -> Any:
        keys, args = call
        return self.note(self.client.eval(script.text, len(keys), *keys, *args))

    def at(self, script: Script, **named: Any) -> Any:
        """Run a script with keys of partition 0."""
        return self.run(script, script.at(GROUP, 0, **named))

    def of_group(self, script: Script, **named: Any) -> Any:
        """Run a script with keys of the group."""
        return self.run(script, script.at(GROUP, **named))

    def note(self, answer: Any) -> Any:
        """Write something down, with every time of the server made the same."""
        self.answers.append(_timeless(answer))
        return answer

    def look(self) -> None:
        """Write down all that is stored, and the groups of Redis."""
        reads: dict[bytes, Callable[[Any], Any]] = {
            b"hash": lambda key: sorted(self.client.hgetall(key).items()),
            b"stream": lambda key: [sorted(fields.items()) for _, fields in self.client.xrange(key)],
            b"string": self.client.get,
            b"zset": lambda key: self.client.zrange(key, 0, -1),
        }
        for key in sorted(self.client.scan_iter()):
            self.note((key, reads[self.client.type(key)](key)))
        if self.client.exists(EVENTS):
            wanted = ("name", "pending", "last-delivered-id", "entries-read", "lag")
            self.note(
                [{name: group.get(name) for name in wanted} for group in self.client.xinfo_groups(EVENTS)]
            )

    def acquire(self, owner: str, generation: int, *live: str, deadline_ms: int = 60_000) -> Any:
        named = {"owner": owner, "generation": generation, "group": "price", "members": [owner, *live]}
        return self.at(scripts.ACQUIRE, **named, drain_deadline_ms=deadline_ms, nonce="nonce")

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
        return self.run(scripts.COMMIT, commit_call(GROUP, request))


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


Scenario = Callable[[Transcript], None]

# -- scenarios -------------------------------------------------------------------------------


def registering(t: Transcript) -> None:
    """A group at the start, at the end, at an id, twice, and without its lock or its group."""
    named = {"group": "price", "nonce": "nonce"}
    t.add(1, 5)
    for start in ("0-0", "$", "3-0"):
        t.at(scripts.REGISTER, **named, start=start)
        t.at(scripts.REGISTER, **named, start=start)
        t.look()
        t.client.delete(LOCK)
        t.at(scripts.REGISTER, **named, start="0-0")
        t.client.xgroup_destroy(EVENTS, "price")
        t.at(scripts.REGISTER, **named, start="0-0")
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
    told = {"epoch": epoch, "over": "*", "attempts": 0, "since_ms": 0, "next_ms": 0}
    t.at(scripts.MARK, **told, owner="w1", state="halted", reason="why")
    t.at(scripts.MARK, **told, owner="w2", state="running", reason="")
    t.at(scripts.STORE_TRIES, owner="w1", epoch=epoch, tries="1-0 1 alone")
    for order in ("resume", "pause", "pause", "retry"):
        t.at(scripts.REQUEST, request=order, who="ann", why="why", id="0-0")
        t.acquire("w1", 8)
    t.at(scripts.REQUEST, request="resume", who="ann", why="", id="0-0")
    t.at(scripts.RELEASE, owner="w2", epoch=epoch)
    for _ in range(2):
        t.at(scripts.RELEASE, owner="w1", epoch=epoch)
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
        t.at(scripts.OPEN_OUTBOX)
        t.client.delete(keys.heads)
    for stands in ("0-", "7-aa"):
        t.at(scripts.REPAIR_TAKEN, source="orders/0/audit", stood=stands, stands="3-aa")
    for each in (*messages, messages[0], *chain(4)):
        t.run(scripts.FORWARD, forward_call("shop", keys.source, each))
    t.look()


def members(t: Transcript) -> None:
    """The first document, a change, conflicts, heartbeats, and a member that is lost."""

    def change(expected: Any, body: str, removed: Sequence[str] = (), added: Sequence[str] = ()) -> Any:
        message = ("kind", "changed", "moved", "0,1")
        members = {"least": 0, "message": message, "removed": removed, "added": added}
        return t.of_group(scripts.CHANGE_MEMBERS, expected=expected, body=body, **members)

    beat = {"beat": "1|run|0", "measured": "3:120"}
    t.of_group(scripts.HEARTBEAT, member="a", **beat)
    _, generation, _ = change("", '{"v":1}', added=("a", "0||0", "b", "0||0"))
    change("", '{"v":2}')
    change(generation, '{"v":3}', removed=("b", "*"), added=("c", "0||0"))
    change(generation, '{"v":4}')
    t.client.hdel(GROUP.beats, "c")
    for member in ("a", "b"):
        t.of_group(scripts.HEARTBEAT, member=member, **beat)
    t.note(t.client.get(GROUP.members))
    t.look()


def mending(t: Transcript) -> None:
    """Something that is no document is put aside."""
    t.client.set(GROUP.members, "x")
    call = CALLS["group/mend_members"]
    t.run(call.script, (call.keys, call.args))
    t.look()


def trimming_little(t: Transcript) -> None:
    """Less than a node of the stream: nothing goes."""
    t.add(1, 20)
    _, epoch, *_ = t.acquire("w1", 7)
    t.at(scripts.TRIM, rows=0, most=1_000, **UNKEPT)
    t.commit(epoch, 0, 10, rows=1)
    t.at(scripts.TRIM, rows=0, most=1_000, **UNKEPT)


def trimming_much(t: Transcript) -> None:
    """Several nodes, all of them done with."""
    t.add(1, 450)
    _, epoch, *_ = t.acquire("w1", 7)
    t.commit(epoch, 0, 300, rows=1)
    t.at(scripts.TRIM, rows=1, most=150, **UNKEPT)
    t.at(scripts.TRIM, rows=1, most=1_000, **UNKEPT)


def trimming_large_entries(t: Transcript) -> None:
    """Entries of 2 KB, nine of ten of them done with."""
    for n in range(1, 11):
        t.client.xadd(EVENTS, {"v": "x" * 2_000}, id=f"{n}-0")
    _, epoch, *_ = t.acquire("w1", 7)
    t.commit(epoch, 0, 9)
    t.at(scripts.TRIM, rows=0, most=1_000, **UNKEPT)


def a_full_memory(t: Transcript) -> None:
    """An append when ``maxmemory`` is reached."""
    t.client.config_set("maxmemory", 1)
    try:
        t.run(scripts.APPEND, append_call(STREAM, Append(0, "p", 1, 0, [(b"a", None)])))
    except redis.exceptions.ResponseError as error:
        t.note(type(error).__name__)
    t.client.config_set("maxmemory", 0)


def a_forgotten_script(t: Transcript) -> None:
    """EVALSHA of a script that was loaded, and then flushed."""
    t.note(t.client.script_load(scripts.TRIM.text))
    keys, args = scripts.TRIM.at(GROUP, 0, rows=0, most=10, **UNKEPT)
    t.note(t.client.evalsha(scripts.TRIM.sha, len(keys), *keys, *args))
    t.client.script_flush()
    try:
        t.note(t.client.evalsha(scripts.TRIM.sha, len(keys), *keys, *args))
    except redis.exceptions.ResponseError as error:
        t.note(type(error).__name__)


def tables(t: Transcript) -> None:
    """Values that are set, deleted, and expire with a commit and without."""
    t.add(1, 9)
    _, epoch, *_ = t.acquire("w1", 7)
    names = GROUP.tables(0, ["totals"])

    def change(at: int, ttl_ms: int, **values: bytes | None) -> None:
        state = {("totals", key.encode()): value for key, value in values.items()}
        t.commit(epoch, at, at + 1, state=state, tables={"totals": ttl_ms})
        t.look()

    change(0, 3_600_000, ann=b"1", bob=b"2")
    change(1, 3_600_000, ann=b"3", bob=None)
    change(2, 0, ann=b"4", eve=b"5")
    for owner in ("w2", "w1"):
        t.client.zadd(names[1], {"eve": 1})
        t.at(scripts.EXPIRE, tables=names, owner=owner, epoch=epoch, most=10)
        t.note(t.client.hkeys(names[0]))
    t.client.zadd(names[1], {"ann": 1})
    change(3, 0)


def ticks(t: Transcript) -> None:
    """The call of a timer: committed, repeated, late and fenced."""
    _, epoch, *_ = t.acquire("w1", 7)
    field = "\0tick:sweep"
    request = CommitRequest(0, "w1", int(epoch), EntryId(0, 0), EntryId(0, 0), 0, timer=field)
    request.tables, request.outbox = {"totals": 0}, OutboxWrite("", chain(1), 100)
    for request.owner, request.before, after in (
        *(("w1", b"", b"1"), ("w1", b"", b"1"), ("w1", b"", b"2"), ("w2", b"1", b"2")),
    ):
        request.state = {field: after, ("totals", b"ann"): b"1", "gone": None}
        t.run(scripts.TICK, tick_call(GROUP, request))
    t.look()


def twice(call: Call) -> Scenario:
    """Return what makes a call where it writes something, and makes it again."""

    def scenario(t: Transcript) -> None:
        for command in PREPARED:
            t.client.execute_command(*command)
        for _ in range(2):
            t.run(call.script, (call.keys, call.args))
            if call.script is scripts.LATER_MOVE:
                t.answers[-1] = t.answers[-1][:2]  # Then comes a time that passes between the two servers.
            t.look()

    return scenario


SCENARIOS: dict[str, Scenario] = {
    **{name: twice(call) for name, call in CALLS.items()},
    **{
        scenario.__name__: scenario
        for scenario in (
            registering,
            a_life_of_a_lock,
            commits,
            ticks,
            tables,
            outboxes,
            members,
            mending,
            trimming_little,
            trimming_much,
            trimming_large_entries,
            a_full_memory,
            a_forgotten_script,
        )
    },
}

DIFFERENCES = {
    "a_full_memory": "fakeredis takes CONFIG SET maxmemory and ignores it",
    "mending": "fakeredis has no redis.sha1hex, so that nothing is ever put aside",
    "admin/repair_damaged": "fakeredis has no redis.sha1hex",
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


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_fakeredis_answers_as_a_server_does(real: Transcript, fake: Transcript, scenario: str) -> None:
    """The same, but for the differences that are listed."""
    SCENARIOS[scenario](real)
    SCENARIOS[scenario](fake)
    if scenario in DIFFERENCES:
        assert fake.answers != real.answers, "the difference has gone; take it off the list"
    else:
        assert fake.answers == real.answers
