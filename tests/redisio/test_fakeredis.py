"""The scripts on fakeredis and on a real server, side by side.

Tests elsewhere may use fakeredis where no server is needed. This keeps that honest: a call of every script,
twice, and some scenarios run on both, and whatever differs is listed here with its reason. A difference that
goes away fails too, so that the list stays true.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import fakeredis
import pytest
import redis

from streamworker.dev.server import EmbeddedServer
from streamworker.redisio import scripts
from tests.contract.support import GROUP
from tests.contract.test_scripts import ACKED, CALLS, EVENTS, LOCK, PREPARED

_SERVER_TIME = re.compile(rb"\d{13,}(-\d+)?")
_FINGERPRINT = re.compile(rb"\d+:[0-9a-f]{40}")
"""Of a document with the server's time in it; fakeredis cannot make one, see ``mending``."""


class Transcript:
    """A server, and all that it answered."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.answers: list[Any] = []

    def prepare(self) -> None:
        """Write what each call needs to write something itself."""
        for command in PREPARED:
            self.client.execute_command(*command)

    def call(self, name: str) -> None:
        """Call a script, and note the answer or the kind of the error."""
        call = CALLS[name]
        try:
            answer = self.client.eval(call.script.text, len(call.keys), *call.keys, *call.args)
        except redis.exceptions.ResponseError as error:
            answer = type(error).__name__
        if call.script is scripts.LATER_MOVE:
            answer = answer[:2]  # Then comes a time that passes between the two servers.
        self.note(answer)

    def note(self, answer: Any) -> None:
        """Write something down, with every time of the server made the same."""
        self.answers.append(_timeless(answer))

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


def twice(t: Transcript, name: str) -> None:
    """Make a call where it writes something, and make it again."""
    t.prepare()
    for _ in range(2):
        t.call(name)
        t.look()


def a_log_that_is_ahead(t: Transcript) -> None:
    """A commit does not take the id that its rows would have."""
    t.prepare()
    t.client.xadd(ACKED, {"a": "b"}, id="500-0")
    t.call("data/commit")
    t.look()


def mending(t: Transcript) -> None:
    """Something that is no document is put aside."""
    t.client.set(GROUP.members, "x")
    t.call("group/mend_members")
    t.look()


def trimming(t: Transcript, done: int, payload: str) -> None:
    """Of a stream of several nodes, or of less than one, go the nodes that are done with."""
    with t.client.pipeline(transaction=False) as pipe:
        for n in range(1, 451):
            pipe.xadd(EVENTS, {"v": payload}, id=f"{n}-0")
        pipe.execute()
    t.client.xgroup_create(EVENTS, "price", id=f"{done}-0")
    t.client.hset(LOCK, mapping={"checkpoint": f"{done}-0", "epoch": 5, "entries": done, "rows": 0})
    for _ in range(3):
        t.call("data/trim")
        t.note(t.client.xlen(EVENTS))


def a_full_memory(t: Transcript) -> None:
    """An append when ``maxmemory`` is reached."""
    t.client.config_set("maxmemory", 1)
    t.call("data/append")
    t.client.config_set("maxmemory", 0)


def a_forgotten_script(t: Transcript) -> None:
    """EVALSHA of a script that was loaded, and then flushed."""
    call = CALLS["data/trim"]
    t.note(t.client.script_load(call.script.text))
    t.note(t.client.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args))
    t.client.script_flush()
    with pytest.raises(redis.exceptions.NoScriptError):
        t.client.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)


SCENARIOS: dict[str, Callable[[Transcript], None]] = {
    **{name: partial(twice, name=name) for name in CALLS},
    **{each.__name__: each for each in (a_log_that_is_ahead, mending, a_full_memory, a_forgotten_script)},
    "trimming little": partial(trimming, done=50, payload="x"),
    "trimming much": partial(trimming, done=300, payload="x"),
    "trimming large entries": partial(trimming, done=9, payload="x" * 2_000),
}

DIFFERENCES = {
    "a_full_memory": "fakeredis takes CONFIG SET maxmemory and ignores it",
    "group/go_on": "fakeredis has no XSETID, and no test of a user loses a server",
    "growth/seal": "fakeredis has no XSETID, and no test of a user grows a stream",
    "mending": "fakeredis has no redis.sha1hex, so that nothing is ever put aside",
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
