"""Draws a call of each script, mostly one that fits what is stored."""

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from random import Random
from typing import Any

from streamworker.core.time.lifetimes import Lifetime
from streamworker.redisio.group.operations import SCRIPTS
from streamworker.redisio.keys import TICK, GroupKeys, StreamKeys
from streamworker.redisio.scripts import ACQUIRE, APPEND, COMMIT, Call, Script
from tests.simulator.store.store import Store
from tests.simulator.store.values import ZERO, Hash, Refused, Stream, parse_id

STREAM = StreamKeys("shop", "orders")
GROUPS = [GroupKeys("shop", "orders", name) for name in ("price", "audit", "archive")]
OWNERS = ["a.1", "b.2", "c.3"]
TABLE, TIMER = "t", TICK + "sweep"
OFTEN = {
    "data/append": 8, "data/commit": 12, "data/forward": 3, "data/later_put": 3, "data/open_outbox": 2,
    "data/tick": 3, "data/trim": 4, "group/acquire": 8, "group/change_members": 4, "group/heartbeat": 4,
    "admin/repair_partition": 0.2, "admin/repair_group": 0.2, "data/replay_dead": 2, "growth/seal": 0.1,
}  # fmt: skip
"""How often a script is called beside the others."""
PROTOCOLS = {"claims", "grab", "allocation"}
"""Keys that one protocol has."""


def key_of(keys: GroupKeys, name: str) -> str:
    """Return the key that scripts have under a name."""
    if name in PROTOCOLS:
        return keys.of_group(name)
    key = getattr(keys, name)
    return str(key(0) if callable(key) else key)


class Draws:
    """Draws calls for one sequence."""

    def __init__(self, dice: Random, store: Store) -> None:
        self.dice, self.store = dice, store
        self.keys = GROUPS[0]
        missing = {script.name for script in SCRIPTS} - {name.replace("__", "/") for name in dir(self)}
        assert not missing, f"no draw of these scripts: {missing}"

    def call(self) -> tuple[Script, Call]:
        """Return a script, and the keys and arguments of a call."""
        self.keys = self.dice.choice([*GROUPS, GROUPS[0], GROUPS[0]])
        (script,) = self.dice.choices(SCRIPTS, [OFTEN.get(script.name, 1) for script in SCRIPTS])
        if not self.rarely():
            script = self.before(script)
        named: dict[str, Any] = getattr(self, script.name.replace("/", "__"))()
        for name in (*script.keys.plain, *script.keys.rest):
            if name not in named:
                named[name] = key_of(self.keys, name)
        return script, script.call(**named)

    def before(self, script: Script) -> Script:
        """Return another script if what this one needs is not there."""
        if "epoch" in script.args.plain and not self.lock().get("owner"):
            return ACQUIRE
        if script is COMMIT and not self.uncommitted():
            return APPEND
        return script

    # -- what is stored --

    def at(self, name: str) -> bytes:
        return key_of(self.keys, name).encode()

    def fields(self, key: str) -> dict[str, str]:
        """Return the fields of a hash; none for another type."""
        value = self.store.find(key.encode())
        found = value if isinstance(value, Hash) else {}
        return {name.decode("latin-1"): each.decode("latin-1") for name, each in found.items()}

    def lock(self) -> dict[str, str]:
        return self.fields(self.keys.lock(0))

    def stream(self, name: str) -> Stream:
        value = self.store.find(self.at(name))
        return value if isinstance(value, Stream) else Stream()

    def some_id(self, name: str = "events") -> str:
        """Return the id of an entry."""
        entries = self.stream(name).entries
        return self.dice.choice(entries)[0].decode() if entries else "9-9"

    def holder(self) -> dict[str, Any]:
        """Return the owner of the lock and its epoch; seldom others."""
        lock = self.lock()
        owner, epoch = lock.get("owner") or "a.1", lock.get("epoch", "1")
        if self.rarely():
            owner = self.dice.choice(OWNERS)
        if self.rarely():
            epoch = str(int(epoch) - self.dice.choice((1, 1_000))) if epoch.isdigit() else "3"
        return {"owner": owner, "epoch": epoch}

    def rarely(self) -> bool:
        return self.dice.random() < 0.06

    def number(self, *numbers: int) -> int:
        return self.dice.choice(numbers)

    def now_ms(self) -> int:
        return self.store.now_ms()

    # -- data --

    def records(self) -> list[Any]:
        """Return records as parts/taking.lua takes them."""
        kind, words, count = self.dice.choice("vfpp"), list[Any](), 0
        for _ in range(self.dice.randint(1, 3)):
            value = f"{self.dice.randrange(10**6)}{'x' * self.number(0, 5, 200)}"
            of = self.number(1, 1, 2, 7, 50) if kind == "p" else 1
            count += of
            if kind == "v":
                words.append(value)
            elif kind == "f":
                named = [word for n in range(self.dice.randint(1, 3)) for word in (f"f{n}", value)]
                words += [len(named), *named]
            else:
                fields = ["n", of, "c", "1", "t", "1", "crc", value[:5], "v", value]
                words += [of, len(fields), *fields]
        return [count, kind, *words]

    def data__append(self) -> dict[str, Any]:
        sent = STREAM.producer(0, self.dice.choice("pq"))
        known = self.store.find(sent.encode())
        last = re.match(rb"\d+", known) if isinstance(known, bytes) else None
        number = int(last[0]) if last else 0
        return {
            "sent": sent,
            "since": number - 1 if self.rarely() else number,
            "through": max(1, number + self.number(1, 1, 1, 1, 1, 0, -1, 2)),
            "limit": self.number(0, 0, 0, 8, 30),
            "records": self.records(),
        }

    def data__forward(self) -> dict[str, Any]:
        source = f"orders/{self.dice.randrange(2)}/price"
        stands = self.fields(STREAM.taken(0)).get(source, "0-")
        number = re.match(r"\d+", stands)
        return {
            "source": source,
            "since": "7-abc" if self.rarely() else stands,
            "through": stands
            if self.rarely()
            else f"{int(number[0]) + 2 if number else 2}-{self.dice.randrange(99):x}",
            "limit": self.number(0, 20),
            "records": self.records(),
        }

    def data__send_once(self) -> dict[str, Any]:
        return {
            "once": STREAM.seen(0, f"d{self.dice.randrange(3)}"),
            "call": f"c{self.dice.randrange(6)}",
            "window_ms": self.number(500, 3_600_000, 7_200_000),
            "limit": self.number(0, 20),
            "records": [1, "f", 2, "v", "once"],
        }

    def later_id(self) -> dict[str, Any]:
        return {"id": f"i{self.dice.randrange(4)}", "call": f"c{self.dice.randrange(9)}"}

    def data__later_put(self) -> dict[str, Any]:
        how, in_ms = self.dice.choice(("after", "at")), self.number(0, 500, 3_000)
        return {
            **self.later_id(),
            "how": how,
            "time_ms": in_ms + (self.now_ms() if how == "at" else 0),
            "replace": self.dice.choice(("", "1")),
            "limit": self.number(0, 2),
            "record": "2,1,1,3\ni1kvabc",
        }

    def data__later_cancel(self) -> dict[str, Any]:
        return {**self.later_id(), "window_ms": 5_000}

    def data__later_move(self) -> dict[str, Any]:
        return {"most": self.number(1, 100), "limit": self.number(0, 20), "window_ms": 4_000}

    def uncommitted(self) -> list[tuple[bytes, tuple[bytes, ...]]]:
        """Return the entries after the checkpoint."""
        events = self.stream("events")
        try:
            at = parse_id(self.lock().get("checkpoint", "0-0").encode())
        except Refused:
            at = ZERO
        return events.entries[bisect_right(events.ids, at) :]

    def data__commit(self) -> dict[str, Any]:
        previous = self.lock().get("checkpoint", "0-0")
        taken = self.uncommitted()[: self.dice.randint(1, 5)] or [(b"9-9", ())]
        reads = [previous, taken[0][0], self.tag(taken[0])]
        if len(taken) > 2 and self.dice.random() < 0.4:
            reads += [taken[0][0], taken[1][0], self.tag(taken[1])]
        if self.rarely():
            reads[1] = "3-3"
        new = taken[-1][0]
        rows = self.number(0, 1, 3)
        batch = [rows, "1-1", "schema", "crc", "codec", 10, "batch" * self.number(1, 20)] if rows else []
        letter = [6, "id", new, "error", "boom", "f.v", "1"]
        return {
            **self.holder(),
            "previous": "1-1" if self.rarely() else previous,
            "new": new,
            "records": len(taken),
            "group": self.keys.group,
            "trim": self.number(0, 1, 1),
            "acked_limit": self.number(0, 0, 5),
            "read_rows": self.dice.choice((0, 0, self.lock().get("rows", "0"), -3)),
            "last": "" if self.keys.group == "archive" else new,
            "tag": self.tag(taken[-1]),
            **self.ticked("timer"),
            **self.results(),
            "reads": reads,
            "batch": batch,
            "letters": letter * self.number(0, 0, 0, 1, 2),
        }

    def tag(self, entry: tuple[bytes, Sequence[bytes]]) -> bytes:
        """Return what a commit says of an entry's content, or nothing."""
        fields = entry[1]
        if self.dice.random() < 0.4:
            return b""
        if fields[:1] == (b"sw:first",):
            return fields[11] if len(fields) > 11 else b""
        return hashlib.sha1(b"\0".join(fields), usedforsecurity=False).hexdigest().encode()

    def ticked(self, name: str) -> dict[str, Any]:
        """Return the timer that this owner called last, or none."""
        if self.dice.random() < 0.7:
            return {name: "", "ticked": ""}
        return {
            name: TIMER,
            "ticked": "5" if self.rarely() else self.fields(self.keys.state(0)).get(TIMER, ""),
        }

    def results(self) -> dict[str, Any]:
        """Return state, messages and changes of a table."""
        number = int((re.match(r"\d+", self.fields(self.keys.heads(0)).get("#", "")) or ["0"])[0])
        sends = [
            f"{number if self.rarely() else number + 1}-0",
            "next/0",
            f"{number}-",
            f"{number + 1}-a",
            "data",
        ]
        pairs, removed = self.dice.randrange(3), self.dice.randrange(2)
        timed, is_called = self.dice.randrange(3), self.dice.random() < 0.3
        changes: list[Any] = [self.number(0, 500, 500), int(is_called), pairs]
        changes += [word for n in range(pairs) for word in (f"k{self.dice.randrange(4)}", f" {n}")]
        changes.append(timed)
        for n in range(timed):
            changes += [f"k{self.dice.randrange(4)}", f" {n}", self.now_ms() + self.number(-1, 1, 500)]
        changes += [removed, *[f"k{self.dice.randrange(4)}"] * removed]
        has_table = self.dice.random() < 0.4
        return {
            "outbox_limit": self.number(3, 100),
            "outbox_last": "7-0" if self.rarely() else self.fields(self.keys.heads(0)).get("#", ""),
            "sets": [
                word for n in range(self.number(0, 1, 3)) for word in (f"s{n}", self.dice.randrange(99))
            ],
            "dels": [f"s{n}" for n in range(self.number(0, 0, 1))],
            "sends": sends if self.dice.random() < 0.3 else [],
            "tables": STREAM.tables(0, {TABLE: Lifetime(0, is_called)}) if has_table else [],
            "changes": changes if has_table else [],
        }

    def data__tick(self) -> dict[str, Any]:
        before, after = self.fields(self.keys.state(0)).get(TIMER, ""), str(self.now_ms())
        results = self.results()
        results["sets"] += [TIMER, after]
        return {
            **self.holder(),
            "checkpoint": "1-1" if self.rarely() else self.lock().get("checkpoint", "0-0"),
            "timer": TIMER,
            "before": "5" if self.rarely() else before,
            "after": after,
            **self.ticked("last_timer"),
            "knows_end": self.dice.choice(("", "1")),
            **results,
        }

    def data__expire(self) -> dict[str, Any]:
        return {**self.holder(), "most": self.number(1, 100), "tables": STREAM.tables(0, {TABLE: Lifetime()})}

    def data__trim(self) -> dict[str, Any]:
        events, acked = self.dice.random() < 0.5, self.dice.random() < 0.5
        return {
            "rows": self.number(0, 2, 100),
            "most": self.number(1, 3, 1_000),
            "events_ms": self.number(-1, 0, 200, 5_000) if events else "",
            "events_max": self.dice.choice(("", 0, 1, 1_000)) if events else "",
            "acked_ms": self.number(-1, 0, 200, 2_000) if acked else "",
            "acked_max": self.dice.choice(("", 0, 2)) if acked else "",
        }

    def data__count(self) -> dict[str, Any]:
        at = self.lock().get("checkpoint", "0-0")
        after = at if re.fullmatch(r"\d+-\d+", at) else "0-0"
        return {"after": after, "since": after, "most": self.number(2, 1_000)}

    def data__replay_dead(self) -> dict[str, Any]:
        edited = ["v", "2"] * self.number(0, 0, 1)
        return {"id": self.some_id("dead"), "first": "for", "group": self.keys.group, "edited": edited}

    def group__go_on(self) -> dict[str, Any]:
        ahead_ms = self.now_ms() + self.number(-5_000, 0, 5_000)
        return {"last": f"{ahead_ms}-7", "total": self.number(0, 3, 100), "before": self.number(0, 2)}

    def growth__seal(self) -> dict[str, Any]:
        return {"map": f"{self.number(1, 2)} 8+12"}

    def growth__leave_later(self) -> dict[str, Any]:
        known = [*self.fields(STREAM.delayed(0)).items(), ("i1", "w c1 5 2,1,1,3\ni1kvabc")]
        moved = self.dice.sample(known, self.number(0, 1))
        ids = self.dice.sample(["i0", "i1", "i2"], self.number(0, 1, 2))
        flat = [part for pair in moved for part in pair]
        return {"most": self.number(0, 1, 100), "ids": ids, "moved": flat}

    def growth__take_later(self) -> dict[str, Any]:
        state = self.dice.choice(("w c{} 5 2,1,1,3\ni1kvabc", "s c{} 5 9-0 99", "c c{},c1 5  99"))
        read_ms = self.now_ms() - self.number(0, 0, 3_600_000)
        known = state.format(self.dice.randrange(9))
        return {"id": self.later_id()["id"], "at": self.now_ms(), "known": known, "read_ms": read_ms}

    def parents(self) -> str:
        return "0 1" if self.rarely() else ""

    def growth__finish(self) -> dict[str, Any]:
        return {**self.holder(), "step": self.dice.choice(("look", "done"))}

    def growth__open(self) -> dict[str, Any]:
        return {**self.holder(), "parents": self.parents() or self.lock().get("from", "")}

    def growth__fill(self) -> dict[str, Any]:
        values, index = self.keys.tables(0, {TABLE: Lifetime()})
        pairs = [
            part for n in range(self.number(0, 1, 3)) for part in (f"k{n}", self.dice.choice((" v", "99 v")))
        ]
        is_state = self.rarely()
        return {
            **self.holder(),
            "parents": self.parents() or self.lock().get("from", ""),
            "values": self.keys.state(0) if is_state else values,
            "index": [] if is_state else [index],
            "is_called": self.number(0, 1),
            "pairs": pairs,
        }

    def growth__remove(self) -> dict[str, Any]:
        epoch = self.lock().get("epoch", "")
        return {"epoch": "7" if self.rarely() else epoch, "tables": self.keys.tables(0, {TABLE: Lifetime()})}

    def growth__move_messages(self) -> dict[str, Any]:
        results = self.results()
        return {
            **self.holder(),
            "after": results["outbox_last"],
            "removed": [f"{n}-0" for n in range(self.number(0, 1, 3))],
            "noted": ["moved:next/0", "1-a"] if self.dice.random() < 0.5 else [],
            "gone": self.dice.sample(["next/0", "moved:next/0"], self.number(0, 1, 2)),
            "sends": results["sends"],
        }

    def data__open_outbox(self) -> dict[str, Any]:
        return {}

    def data__store(self) -> dict[str, Any]:
        command = self.dice.choice(("HSET", "HSETNX"))
        return {
            "hash": self.keys.schemas,
            "command": command,
            "fields": ["one", self.dice.randrange(9), "two", "2"],
        }

    def data__set_field(self) -> dict[str, Any]:
        seen = self.fields(self.keys.schemas).get("one", "")
        value = self.dice.choice(("", "7", "8"))
        return {
            "hash": self.keys.schemas,
            "field": "one",
            "seen": "x" if self.rarely() else seen,
            "value": value,
        }

    # -- the group --

    def group__register(self) -> dict[str, Any]:
        start = self.dice.choice(("0-0", "$", self.some_id()))
        return {
            "group": self.keys.group,
            "start": start,
            "nonce": f"n{self.dice.randrange(99)}",
            "parents": self.parents(),
        }

    def group__acquire(self) -> dict[str, Any]:
        owner = self.dice.choice(OWNERS)
        return {
            "owner": owner,
            "generation": self.number(1, 2, 2, 3, 3, 4),
            "drain_deadline_ms": 2_000,
            "group": self.keys.group,
            "nonce": f"n{self.dice.randrange(99)}",
            "parents": self.parents(),
            "members": [each for each in OWNERS if each == owner or self.dice.random() < 0.6],
        }

    def group__release(self) -> dict[str, Any]:
        return self.holder()

    def group__mark(self) -> dict[str, Any]:
        return {
            **self.holder(),
            "state": self.dice.choice(("running", "retrying", "draining", "halted")),
            "reason": self.dice.choice(("", "r: x", "timer t: x")),
            "over": self.dice.choice(("*", "", "r:")),
            "attempts": 2,
            "since_ms": 20,
            "next_ms": 300,
        }

    def group__store_tries(self) -> dict[str, Any]:
        return {**self.holder(), "tries": f"{self.some_id()} 2{self.dice.choice(('', ' alone'))}"}

    def group__request(self) -> dict[str, Any]:
        request = self.dice.choice(("pause", "resume", "retry", "put", "put"))
        return {"request": request, "who": "ann", "why": self.dice.choice(("", "why")), "id": self.some_id()}

    def group__risk(self) -> dict[str, Any]:
        return {
            "what": "timer sweep",
            "place": self.dice.randrange(2),
            "owner": self.dice.choice(OWNERS),
            "step": self.dice.choice(("begin", "begin", "end", "count", "look")),
            "most": self.number(0, 1, 3),
        }

    def group__move_checkpoint(self) -> dict[str, Any]:
        cleared = STREAM.tables(0, {TABLE: Lifetime()}) * self.number(0, 1)
        owner = self.dice.choice(("", self.lock().get("owner", "")))
        return {
            "group": self.keys.group,
            "checkpoint": self.some_id(),
            "forgotten": self.dice.choice(("", "s0")),
            "entries": 0,
            "owner": owner,
            "parents": self.parents(),
            "cleared": cleared,
        }

    def group__heartbeat(self) -> dict[str, Any]:
        beat = f"7|run|{self.dice.randrange(99)}"
        return {
            "member": self.dice.choice(OWNERS),
            "beat": beat,
            "measured": self.dice.choice(("", "0:5,1:7")),
        }

    def body(self, ids: Sequence[str]) -> str:
        members = [{"id": each, **({"state": "held"} if self.dice.random() < 0.2 else {})} for each in ids]
        return json.dumps({"v": 1, "members": members, "owners": []}, separators=(",", ":"))

    def group__change_members(self) -> dict[str, Any]:
        document = self.store.find(self.at("members"))
        found = re.match(rb'\{"generation":(\d+)', document) if isinstance(document, bytes) else None
        ids = [each for each in OWNERS if self.dice.random() < 0.7]
        beats = self.fields(self.keys.beats)
        gone = [each for each in OWNERS if each not in ids and self.dice.random() < 0.6]
        return {
            "expected": found[1] if found and not self.rarely() else "",
            "body": self.body(ids),
            "least": self.number(0, 0, 10**13),
            "message": ["kind", "join", "who", "a"],
            "removed": [
                word for each in gone for word in (each, self.dice.choice(("*", beats.get(each, ""))))
            ],
            "added": [word for each in ids if not self.rarely() for word in (each, "0||0")],
        }

    def fingerprint(self, name: str) -> str:
        """Return what `fingerprint` of parts/document.lua does."""
        value = self.store.find(self.at(name))
        if isinstance(value, bytes):
            return f"{len(value)}:{hashlib.sha1(value, usedforsecurity=False).hexdigest()}"
        return (self.store.type_at(self.at(name)) or b"").decode()

    def group__mend_members(self) -> dict[str, Any]:
        ids = OWNERS[: self.dice.randrange(3)]
        return {
            "seen": "x" if self.rarely() else self.fingerprint("members"),
            "body": self.dice.choice(("", self.body(ids))),
            "least": 7,
            "message": ["kind", "repaired"],
            "present": ids,
        }

    # -- repairs --

    def admin__retime(self) -> dict[str, Any]:
        is_called = self.dice.random() < 0.5
        values, index = STREAM.tables(0, {TABLE: Lifetime(0, is_called)})
        _, before = STREAM.tables(0, {TABLE: Lifetime(0, not is_called)})
        keys = {"values": values, "before": before, "index": index}
        return {**self.holder(), **keys, "is_called": int(is_called), "most": self.number(1, 100)}

    def admin__repair_lock(self) -> dict[str, Any]:
        return self.holder()

    def admin__repair_partition(self) -> dict[str, Any]:
        lock = self.lock()
        owner, epoch = ("", "") if self.rarely() else (lock.get("owner", ""), lock.get("epoch", ""))
        return {"group": self.keys.group, "owner": owner, "epoch": epoch}

    def admin__repair_group(self) -> dict[str, Any]:
        document = self.store.find(self.at("members"))
        found = re.match(rb'\{"generation":(\d+)', document) if isinstance(document, bytes) else None
        beats = self.fields(self.keys.beats)
        seen = [word for each in OWNERS for word in (each, beats.get(each, ""))]
        return {"generation": found[1] if found else "", "seen": seen}

    def admin__repair_ahead(self) -> dict[str, Any]:
        return {"log": self.dice.choice(("", "x", self.lock().get("log", "x")))}

    # -- claim and lease --

    def partition(self) -> str:
        return str(self.dice.randrange(3))

    def claim__change(self) -> dict[str, Any]:
        partition, how = self.partition(), self.dice.choice(("claim", "renew"))
        seen = self.fields(key_of(self.keys, "claims")).get(partition, "0|").partition("|")[0]
        return {"owner": self.dice.choice(OWNERS), "how": how, "changes": [partition, seen, 0, "5-0"]}

    def claim__give_up(self) -> dict[str, Any]:
        return {"owner": self.dice.choice(OWNERS), "partitions": [self.partition()]}

    def lease__race(self) -> dict[str, Any]:
        return {"owner": self.dice.choice(OWNERS), "partition": self.partition()}

    def lease__challenge(self) -> dict[str, Any]:
        ways = [word for n in range(2) for word in (str(n), self.dice.choice(("free", "due", "overdue")))]
        return {"owner": self.dice.choice(OWNERS), "challenges": ways}

    def lease__update(self) -> dict[str, Any]:
        partition = self.partition()
        win = self.fields(key_of(self.keys, "grab")).get(partition, "1|x").partition("|")[0]
        return {
            "owner": self.dice.choice(OWNERS),
            "processed": [partition, win],
            "ended": [partition] * self.number(0, 0, 1),
            "cleared": [partition, win] * self.number(0, 1),
        }
