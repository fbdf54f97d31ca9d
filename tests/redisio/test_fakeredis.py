"""The scripts on fakeredis and on a real server, side by side.

Tests elsewhere may use fakeredis where no server is needed. This keeps that honest: a call of every script,
twice, and scenarios of what tests/contract/test_model.py does not do in memory run on both, and whatever
differs is listed here with its reason. A difference that goes away fails too, so that the list stays true.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import fakeredis
import pytest
import redis

from streamworker.core.data.entries import EntryId
from streamworker.dev.server import EmbeddedServer
from streamworker.redisio import scripts
from streamworker.redisio.data.commit import CommitRequest, DeadEntry, commit_call
from streamworker.redisio.data.streams import Append, append_call
from streamworker.redisio.data.trimming import Keep
from streamworker.redisio.scripts import Script
from streamworker.redisio.wire.client import ScriptCall
from tests.contract.support import GROUP, STREAM, batch_of
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

    def acquire(self) -> int:
        """Acquire the lock for ``w1``, and return its epoch."""
        named = {"owner": "w1", "generation": 7, "group": "price", "members": ["w1"]}
        return int(self.at(scripts.ACQUIRE, **named, drain_deadline_ms=60_000, nonce="nonce")[1])

    def add(self, first: int, last: int) -> None:
        """Add entries with ids ``first-0`` to ``last-0``."""
        for n in range(first, last + 1):
            self.client.xadd(EVENTS, {"v": str(n)}, id=f"{n}-0")

    def commit(self, epoch: int, previous: int, new: int, **more: Any) -> Any:
        """Run commit.lua for the entries ``(previous, new]``."""
        request = CommitRequest(
            partition=0,
            owner=more.pop("owner", "w1"),
            epoch=epoch,
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


def commits(t: Transcript) -> None:
    """Each reply of commit.lua, and all that it writes."""
    t.add(1, 9)
    epoch = t.acquire()
    letter = DeadEntry(EntryId(3, 0), {b"v": b"\xff"}, "no", 2)
    t.commit(epoch, 0, 3, rows=4, state={"a": b"1", "b": b"2"}, dead=[letter])
    t.commit(epoch, 0, 3, rows=4, state={"a": b"1", "b": b"2"}, dead=[letter])
    t.commit(epoch, 3, 5, owner="w2")
    t.commit(epoch + 1, 3, 5)
    t.commit(epoch, 4, 5)
    t.commit(epoch, 3, 5, rows=1, acked_limit=1)
    t.commit(epoch, 3, 5, state={"a": None})
    t.client.xgroup_destroy(EVENTS, "price")
    t.commit(epoch, 5, 6, rows=2, acked_limit=2)
    t.client.xadd(ACKED, {"a": "b"}, id="500-0")
    t.commit(epoch, 6, 7, rows=1)
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
    epoch = t.acquire()
    t.at(scripts.TRIM, rows=0, most=1_000, **UNKEPT)
    t.commit(epoch, 0, 10, rows=1)
    t.at(scripts.TRIM, rows=0, most=1_000, **UNKEPT)


def trimming_much(t: Transcript) -> None:
    """Several nodes, all of them done with."""
    t.add(1, 450)
    epoch = t.acquire()
    t.commit(epoch, 0, 300, rows=1)
    t.at(scripts.TRIM, rows=1, most=150, **UNKEPT)
    t.at(scripts.TRIM, rows=1, most=1_000, **UNKEPT)


def trimming_large_entries(t: Transcript) -> None:
    """Entries of 2 KB, nine of ten of them done with."""
    for n in range(1, 11):
        t.client.xadd(EVENTS, {"v": "x" * 2_000}, id=f"{n}-0")
    epoch = t.acquire()
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
    epoch = t.acquire()
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
            commits,
            tables,
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
