"""Random sequences of the scripts that ship: run by the simulator's store, and then by a real server.

A sequence is drawn while it runs on the store, since sensible arguments depend on what is stored. Between the
calls other programs write to our keys, the clock goes on or back, and calls are repeated. The server runs the
same steps; its scripts read the time from a key, and the ids of entries follow it.

Lua does not say in which order ``pairs`` visits a table. ``keep_from`` of parts/trim.lua could show that,
where other programs have written: it reads one group after the other, and may meet two errors. So ``pairs``
is sorted on both sides. In parts/beats.lua it visits a list.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from streamworker.core.time.lifetimes import Lifetime
from streamworker.redisio.group.operations import SCRIPTS
from streamworker.redisio.keys import TRIMMED, GroupKeys
from streamworker.redisio.scripts import Script
from tests.contract.draws import GROUPS, STREAM, Draws, key_of
from tests.simulator.store.engine import Engine, ScriptError
from tests.simulator.store.keyspace import Snapshot
from tests.simulator.store.store import Store
from tests.simulator.store.streams import TOP
from tests.simulator.store.values import Hash, Id, Other, SortedSet, Stream, id_text

CLOCK = "test:clock"
SORTED = """
local function pairs(of)
  local names, at = {}, 0
  for name in next, of do names[#names + 1] = name end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  return function()
    at = at + 1
    if names[at] ~= nil then return names[at], of[names[at]] end
  end
end
"""
ON_A_SERVER = f"""
local real_redis = redis
local function now_us() return tonumber(real_redis.call('GET', '{CLOCK}')) end
local function next_id(stream)
  local ms = math.floor(now_us() / 1000)
  if real_redis.call('TYPE', stream).ok == 'stream' then
    local info = real_redis.call('XINFO', 'STREAM', stream)
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then
        local last, sequence = string.match(info[i + 1], '^(%d+)%-(%d+)$')
        if tonumber(last) >= ms then return string.format('%s-%.0f', last, tonumber(sequence) + 1) end
      end
    end
  end
  return string.format('%.0f-0', ms)
end
local function clocked(call)
  return function(command, ...)
    local key, a, b, c, d = ...
    if command == 'TIME' then
      return {{string.format('%.0f', math.floor(now_us() / 1e6)), string.format('%.0f', now_us() % 1e6)}}
    end
    if command == 'XADD' and a == '*' then return call(command, key, next_id(key), select(3, ...)) end
    if command == 'XADD' and a == 'MAXLEN' and d == '*' then
      return call(command, key, a, b, c, next_id(key), select(6, ...))
    end
    return call(command, ...)
  end
end
local redis = setmetatable({{call = clocked(real_redis.call), pcall = clocked(real_redis.pcall)}},
  {{__index = real_redis}})
{SORTED}"""
STARTS_US = (1_000_000_000, 1_700_000_000_000_000)
PAUSES_US = (0, 0, 1, 250, 1_000, 1_000, 7_000, 90_000, 300_000, 1_100_000, 2_100_000, 3_001_000, 61_000_000)
BACK_US = (90_000, 5_000_000)
WRITES = {
    b"hash": (b"HSET", b"x", b"y"),
    b"list": (b"RPUSH", b"x"),
    b"stream": (b"XADD", b"5-5", b"x", b"y"),
    b"string": (b"SET", b"x"),
    b"zset": (b"ZADD", b"1", b"x"),
}
"""How another program writes a value of each type."""
FOREIGN = (b"x", b"", b"0", b"0", b"1", b"007", b"9999999999999999", b"5-5", b"12", b"-3", b"1e3")
"""What it writes into fields. From 10^17 on Valkey writes a number of Lua in another way than Redis 7.0."""
DOCUMENTS = (
    *(b"", b"{", b"[1,2]", b'{"generation":77}'),
    b'{"generation":5,"v":1,"members":[{"id":"a.1"},{"id":"a.1"}]}',
    b'{"generation":6,"v":1,"members":[{"id":"a.1"},{"id":"c.3","state":"held"}]}',
)
NOTHING = Snapshot({}, {})
FAILED = "an error"
"""Every error reply: its text names lines of Lua, which differ."""


@dataclass(frozen=True, slots=True)
class Step:
    """The call of a script, with what the store replied; or a command of another program."""

    words: tuple[Any, ...]
    script: Script | None = None
    keys: int = 0
    reply: Any = None


class Drawn:
    """One sequence, as the store has run it."""

    def __init__(self, engine: Engine, seed: int, steps: int) -> None:
        self.dice = random.Random(seed)
        self.now_us = STARTS_US[seed % 2]
        self.engine, self.store = engine, engine.store
        self.store.clock_us = lambda: self.now_us
        self.store.restore(NOTHING)
        self.steps: list[Step] = []
        self._draws = Draws(self.dice, self.store)
        for _ in range(steps):
            self._pass_time()
            if self.dice.random() < 0.1:
                self._meddle()
            elif self.dice.random() < 0.06 and (calls := [step for step in self.steps if step.script]):
                step = self.dice.choice(calls[-6:])
                assert step.script is not None
                self._call(step.script, step.words, step.keys)
            else:
                script, (keys, args) = self._draws.call()
                self._call(script, tuple(map(_bytes, (*keys, *args))), len(keys))

    def _pass_time(self) -> None:
        self.now_us += self.dice.choice(PAUSES_US)
        if self.dice.random() < 0.02:
            self.now_us -= self.dice.choice(BACK_US)
        self.steps.append(Step(("SET", CLOCK, self.now_us)))

    def _call(self, script: Script, words: tuple[bytes, ...], keys: int) -> None:
        if self.dice.random() < 0.1:  # a failover loses the call, and it is made again
            before = self.store.snapshot()
            self._run(script, words, keys)
            self.store.restore(before)
        self.steps.append(Step(words, script, keys, self._run(script, words, keys)))

    def _run(self, script: Script, words: tuple[bytes, ...], keys: int) -> Any:
        try:
            return self.engine.run(SORTED + script.text, words[:keys], words[keys:])
        except ScriptError:
            return FAILED

    def _command(self, name: bytes, *words: bytes) -> None:
        self.steps.append(Step((name, *words)))
        if name == b"RPUSH":
            self.store.put(words[0], Other(b"list"))
        else:
            self.store.call(name.decode(), *words)

    def _meddle(self) -> None:
        """Do what another program may do to our keys."""
        keys = self.dice.choice(GROUPS)
        events, stream = keys.events(0).encode(), self.store.find(keys.events(0).encode())
        what = self.dice.randrange(13)
        if what == 0:
            self._command(b"UNLINK", self.dice.choice(list(self.store.values) or [events]))
        elif what == 1:
            key, (name, *words) = self.dice.choice(_KEYS), WRITES[self.dice.choice(list(WRITES))]
            self._command(b"UNLINK", key)
            self._command(name, key, *words)
        elif what == 2:
            self._command(b"UNLINK", keys.members.encode())
            self._command(b"SET", keys.members.encode(), self.dice.choice(DOCUMENTS))
        elif what in (3, 4, 10, 11, 12):
            self._meddle_with_hash(keys)
        elif isinstance(stream, Stream):
            self._meddle_with_stream(events, stream, what)

    def _meddle_with_hash(self, keys: GroupKeys) -> None:
        lock, counts, groups, heads = keys.lock(0), keys.counts(0), keys.groups(0), keys.heads(0)
        key = self.dice.choice((lock, lock, lock, counts, groups, heads)).encode()
        held, acked = self.store.find(key), self.store.find(keys.acked(0).encode())
        if not isinstance(held, Hash):
            return
        if self.dice.random() < 0.4:
            likely = [b"entries", b"rows"] * (key == lock.encode())
            self._command(b"HDEL", key, self.dice.choice([*held, *likely]))
            return
        rows = [b"%d" % max(0, acked.last[0] - n) for n in (1, 3)] if isinstance(acked, Stream) else []
        field = self.dice.choice([*held, b"rows", b"gone", TRIMMED])
        self._command(b"HSET", key, field, self.dice.choice([*FOREIGN, *rows, *rows]))

    def _meddle_with_stream(self, key: bytes, stream: Stream, what: int) -> None:
        entry = id_text(self.dice.choice(stream.ids)) if stream.ids else b"0-1"
        group = self.dice.choice(list(stream.groups)) if stream.groups else None
        if what == 5 and stream.last < TOP:  # Redis refuses it where the partition is sealed.
            new = stream.last[0], stream.last[1] + self.dice.choice((1, 5, 10**15))
            self._command(b"XADD", key, id_text(new), b"other", b"1")
        elif what == 6:
            self._command(b"XDEL", key, entry)
        elif what == 7:
            self._command(b"XTRIM", key, b"MINID", entry)
        elif group is None:
            self._command(b"XGROUP", b"CREATE", key, b"foreign", entry)
        elif what == 8:
            self._command(b"XGROUP", b"DESTROY", key, group)
        else:
            self._command(b"XGROUP", b"SETID", key, group, b"0-0")


_NAMES = (
    "events", "counts", "groups", "later", "delayed", "taken", "lock", "acked", "state", "dead", "messages",
    "heads", "members", "beats", "loads", "control", "damaged", "risks", "schemas", "allocation", "claims",
    "grab",
)  # fmt: skip
_KEYS = [
    *[key_of(keys, name).encode() for keys in GROUPS for name in _NAMES],
    *[
        key.encode()
        for key in (
            STREAM.producer(0, "p"),
            STREAM.seen(0, "d0"),
            *STREAM.tables(0, {"t": Lifetime()}),
            STREAM.due(0, "t"),
        )
    ],
]


def _bytes(word: object) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


class Judge:
    """Lets a real server run sequences, and compares."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self._engine = Engine(Store(lambda: 0))
        self.codes: Counter[tuple[str, str]] = Counter()
        """How often each script replied with each code."""
        self._shas = {script: raw.script_load(ON_A_SERVER + script.text) for script in SCRIPTS}

    def difference(self, seed: int, steps: int) -> str | None:
        """Run one sequence; return the first difference, or None."""
        drawn = Drawn(self._engine, seed, steps)
        self.raw.flushall()
        pipeline = self.raw.pipeline(transaction=False)
        for step in drawn.steps:
            call = () if step.script is None else ("EVALSHA", self._shas[step.script], step.keys)
            pipeline.execute_command(*call, *step.words)
        replies = pipeline.execute(raise_on_error=False)
        for at, (step, reply) in enumerate(zip(drawn.steps, replies, strict=True)):
            found = FAILED if isinstance(reply, Exception) else reply
            if step.script is None:
                if found == FAILED:
                    return f"seed {seed}, step {at}: {step.words}: {reply}"
                continue
            self.codes[step.script.name, FAILED if found == FAILED else str(found[0])] += 1
            if _settled(step.script, step.reply) != _settled(step.script, found):
                return f"seed {seed}, step {at}: {step.script.name} {step.words}: {step.reply} and {reply}"
        here, there = dict(_stored(drawn.store)), dict(_read(self.raw))
        for key in here.keys() | there.keys():
            if here.get(key) != there.get(key):
                return f"seed {seed}, key {key.decode()}: {here.get(key)} and {there.get(key)}"
        return None


def _settled(script: Script, reply: Any) -> Any:
    """Return a reply without the order of a hash's fields, which a server may choose."""
    at = {"group/heartbeat": 3, "data/open_outbox": 1}.get(script.name)
    if at is None or reply == FAILED or len(reply) <= at or not isinstance(reply[at], list):
        return reply
    fields = sorted(zip(reply[at][::2], reply[at][1::2], strict=True))
    return [*reply[:at], fields, *reply[at + 1 :]]


def _stored(store: Store) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
    """Return what the store holds: for each key whether it expires, and its value."""
    for key in list(store.values):
        value: Any = store.find(key)
        if isinstance(value, Stream):
            groups = {name: (id_text(each.last), each.read) for name, each in value.groups.items()}
            ends: list[Id] = [value.last, value.max_deleted]
            value = [list(map(_entry, value.entries)), *map(id_text, ends), value.added, groups]
        elif isinstance(value, SortedSet):
            value = [(member, score) for score, member in value.order]
        elif isinstance(value, Other):
            value = value.type
        if value is not None:
            yield key, (key in store.expiry, value)


def _entry(entry: tuple[bytes, tuple[bytes, ...]]) -> tuple[bytes, list[bytes]]:
    return entry[0], list(entry[1])


def _read(raw: Any) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
    """Return what the server holds, in the same form."""
    for key in raw.keys("*"):
        if key != CLOCK.encode():
            kind = raw.type(key)
            value = _READS[kind](raw, key) if kind in _READS else kind
            yield key, (raw.pttl(key) > 0, value)


def _read_stream(raw: Any, key: bytes) -> list[Any]:
    info = raw.xinfo_stream(key)
    groups = {
        each["name"]: (each["last-delivered-id"], each["entries-read"]) for each in raw.xinfo_groups(key)
    }
    entries = [(at, [part for pair in fields.items() for part in pair]) for at, fields in raw.xrange(key)]
    return [entries, info["last-generated-id"], info["max-deleted-entry-id"], info["entries-added"], groups]


_READS = {
    b"hash": lambda raw, key: raw.hgetall(key),
    b"stream": _read_stream,
    b"string": lambda raw, key: raw.get(key),
    b"zset": lambda raw, key: raw.zrange(key, 0, -1, withscores=True),
}
