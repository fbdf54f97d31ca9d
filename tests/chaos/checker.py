"""The checker: judges a run by its history and by what is in Redis in the end. It works offline.

It imports nothing of the project, so that no mistake is made twice. The promises are those of
docs/guarantees.md. It reads a history (``history.py``) and a dump (``dump.py``), and finds violations, each
with the events that show it; ``timeline.py`` draws the smallest window around them.

A fault that names partitions that may lose something, as a failover does, may only cost what its producers
reported by ids (``lapses.py``). What is left must be in order all the same: all else is judged as always.

    python -m tests.chaos.checker FOLDER
"""

import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.chaos.dump import Dump, Entry, Id, Part, Row, parse_id, read_dump
from tests.chaos.history import Event, read_history
from tests.chaos.lapses import Lapses

DONE = ("OK", "DUP")
REFUSED = ("FENCED", "GAP")
SWEEP = "sweep"
"""The producer of what a timer sends; its numbers are those of the planned times."""
CONTROL_MESSAGES_MAX = 12_000
"""The stream keeps about 10,000, by whole nodes."""
REACHED_MS = 10_000
"""Who asks each second has an answer in so long without a fault: connections are made anew in seconds."""
SHOWN_MAX = 5
"""Violations of one promise in one partition that are told one by one."""


@dataclass(frozen=True)
class Limits:
    silent_ms: float = 15_000
    """How long a partition may stand still before somebody must have said why."""
    stalled_s: float = 120
    """How long it may stand still at most, whatever is said of it and however many faults there are."""
    settled_s: float = 120
    """How long it may take, once all faults are over, until everything is committed."""
    replicated: bool = False
    """Whether what is confirmed is at a replica, so that no failover may cost anything."""
    processor: str = "handled"
    """Whose commits, locks and warnings count: those of others are about other partitions."""


@dataclass(frozen=True)
class Violation:
    promise: str
    text: str
    partition: int | None = None
    evidence: tuple[Event, ...] = field(default=(), compare=False)
    ids: tuple[Id, ...] = ()
    """Source entries that it is about."""

    def __str__(self) -> str:
        where = "" if self.partition is None else f"partition {self.partition}: "
        return f"{self.promise}: {where}{self.text}"


@dataclass(frozen=True)
class Send:
    """One record that was sent, as far as its producer knows."""

    producer: str
    seq: int
    key: str
    doomed: bool
    invoked: Event
    outcome: str = "unknown"
    answered: Event | None = None
    partition: int = -1
    id: Id = (0, 0)

    def __str__(self) -> str:
        return f"record {self.seq} of {self.producer}"


@dataclass(frozen=True)
class Commit:
    """One try of a commit, and its answer if there was one."""

    partition: int
    owner: str
    epoch: int
    previous: Id
    new: Id
    rows: int
    tries: int
    sent: Event
    answered: Event | None = None

    @property
    def code(self) -> str:
        return "" if self.answered is None else str(self.answered["code"])

    def __str__(self) -> str:
        span = f"({text_of(self.previous)}, {text_of(self.new)}]"
        return f"the commit of {span} by {self.owner} at epoch {self.epoch}"


def text_of(entry_id: Id) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"


class Judge:
    """Looks at one run."""

    def __init__(self, history: Sequence[Event], dump: Dump, limits: Limits = Limits()) -> None:
        mine = ("", limits.processor)
        self.history = history = [event for event in history if event.get("processor", "") in mine]
        self.dump, self.limits = dump, limits
        self.violations: list[Violation] = []
        self._told: Counter[tuple[str, int | None]] = Counter()
        self.sends = list(_sends(history))
        self.commits = list(_commits(history))
        self.locks = [event for event in history if event.kind == "lock" and event["what"] == "acquired"]
        self.faults = [event for event in history if event.kind == "fault"]
        self.lapses = Lapses(history)
        self.lost_and_said = 0
        """Confirmed records that a failover lost, and their producer reported."""
        self.lost_unheard = 0
        """The same of producers that were killed before they could notice."""
        self._tries: dict[int, dict[Id, list[Commit]]] = defaultdict(lambda: defaultdict(list))
        for commit in self.commits:
            self._tries[commit.partition][commit.new].append(commit)

    def found(
        self,
        promise: str,
        text: str,
        partition: int | None = None,
        evidence: Iterable[Event | None] = (),
        ids: Iterable[Id] = (),
    ) -> None:
        self._told[promise, partition] += 1
        if self._told[promise, partition] <= SHOWN_MAX:
            shown = tuple(event for event in evidence if event is not None)
            self.violations.append(Violation(promise, text, partition, shown, tuple(ids)))

    def judge(self) -> list[Violation]:
        self.nothing_lost()
        self.nothing_twice()
        self.handled_once()
        self.in_order()
        self.one_owner()
        self.chained()
        self.truthful()
        self.settled()
        self.nothing_left()
        self.passed_on()
        self.table_equals_log()
        self.not_silent()
        return self.violations

    # -- what was sent is there (I1, I2, I3) ---------------------------------------------------

    def nothing_lost(self) -> None:
        """I1: what was confirmed is in the log, or among the dead letters if it belongs there."""
        there = {p: part.rows_by_id() for p, part in self.dump.partitions.items()}
        dead = {p: set(part.dead) for p, part in self.dump.partitions.items()}
        for send in self.sends:
            if send.outcome != "ok" or send.answered is None:
                continue
            row = there.get(send.partition, {}).get(send.id)
            text = ""
            if send.doomed:
                if send.id not in dead.get(send.partition, ()):
                    text = f"{send} is not among the dead letters"
            elif row is None:
                text = f"{send}, entry {text_of(send.id)}, {self._where(send.partition, send.id)}"
            elif (row.producer, row.seq) != (send.producer, send.seq):
                text = f"{send} became {row}"
            if text and not self._is_said(send):
                evidence = (send.invoked, send.answered, *self._around(send))
                self.found("I1", text, send.partition, evidence, [send.id])
            # Where the clock is behind the ids, what is sent after a loss gets the ids of what is lost.
            elif not text and self.lapses.is_said(
                send.producer, send.partition, send.id, since=send.answered.at
            ):
                text = f"{send} was reported as lost, and is there"
                self.found("I6", text, send.partition, (send.invoked, send.answered), [send.id])
        for event in self.history:
            if event.kind == "poison":
                partition, entry_id = event["partition"], parse_id(event["id"])
                if entry_id not in dead.get(partition, ()) and not self.lapses.covers(partition, event.at):
                    text = f"the poison {event['id']} is not among the dead letters"
                    self.found("I1", text, partition, [event], [entry_id])

    def _is_said(self, send: Send) -> bool:
        """Whether a failover may have lost a record, and its producer said so or had no chance to."""
        assert send.answered is not None
        where = (send.producer, send.partition)
        if self.limits.replicated or not self.lapses.covers(send.partition, send.answered.at):
            return False
        if self.lapses.is_said(*where, send.id):
            self.lost_and_said += 1
            return True
        if self.lapses.could_be_said(*where, send.answered.at):
            return False
        self.lost_unheard += 1
        return True

    def _where(self, partition: int, entry_id: Id) -> str:
        part = self.dump.partitions.get(partition)
        if part is None:
            return "went to a partition that does not exist"
        if entry_id in part.dead:
            return f"is a dead letter: {part.dead[entry_id]}"
        if entry_id > part.checkpoint:
            return "was not committed"
        return f"is not in the acked log, and the checkpoint {text_of(part.checkpoint)} is past it"

    def _around(self, send: Send) -> list[Event]:
        """Return the first try of a commit that went past an entry."""
        tries = self._tries.get(send.partition, {})
        past = [c for new, each in tries.items() if new >= send.id for c in each if c.previous < send.id]
        return [event for c in past[:2] for event in (c.sent, c.answered) if event is not None]

    def nothing_twice(self) -> None:
        """I2: no source entry is in the log twice, and no record was written twice by one send."""
        seen: dict[tuple[str, int], tuple[int, Id]] = {}
        for partition, part in self.dump.partitions.items():
            where: dict[Id, Entry] = {}
            for entry in part.log:
                for row in entry.values:
                    if row.source in where:
                        first = where[row.source]
                        both = [*self._of_entry(partition, first), *self._of_entry(partition, entry)]
                        text = f"entry {text_of(row.source)} is in the log twice, in {first} and {entry}"
                        self.found("I2", text, partition, both, [row.source])
                    elif row.source in part.dead:
                        text = f"entry {text_of(row.source)} is in the log, and a dead letter"
                        self.found("I2", text, partition, self._of_entry(partition, entry), [row.source])
                    elif (row.producer, row.seq) in seen:
                        other = seen[row.producer, row.seq]
                        text = f"{row} was written twice, as {text_of(other[1])} and {text_of(row.source)}"
                        sends = self._of_sends(row.producer, row.seq)
                        self.found("I2", text, partition, sends, [other[1], row.source])
                    where[row.source] = entry
                    seen[row.producer, row.seq] = (partition, row.source)

    def handled_once(self) -> None:
        """I2: one owner handles an entry once, unless it took the partition anew in between."""
        taken: dict[tuple[int, int], list[float]] = defaultdict(list)
        for event in self.locks:
            taken[event["partition"], event["epoch"]].append(event.at)
        done: dict[tuple[str, int, int, str], Event] = {}
        for event in self.history:
            if event.kind != "exec" or event["what"] != "end":
                continue
            where = (event["partition"], event["epoch"])
            for name in event["ids"]:
                first = done.get((event.who, *where, name))
                if first is not None and not any(first.at < at <= event.at for at in taken[where]):
                    text = f"{event.who} handled entry {name} twice at epoch {where[1]}"
                    self.found("I2", text, where[0], [first, event], [parse_id(name)])
                done[event.who, *where, name] = event

    def in_order(self) -> None:
        """I3: the log is in the order of the source, and each key in the order of its sends."""
        home: dict[tuple[str, str], int] = {}
        for partition, part in self.dump.partitions.items():
            last: dict[tuple[str, str], int] = {}
            before: Id = (0, 0)
            for entry in part.log:
                for row in entry.values:
                    key = (row.producer, row.key)
                    text = ""
                    if row.source < before:
                        late = f"entry {text_of(row.source)} comes after {text_of(before)}"
                        self.found(
                            "I3", late, partition, self._of_entry(partition, entry), [row.source, before]
                        )
                    if row.seq < last.get(key, -1):
                        text = f"{row} of key {row.key} comes after record {last[key]}"
                    if home.setdefault(key, partition) != partition:
                        text = f"key {row.key} of {row.producer} is in partition {home[key]} too"
                    if text:
                        self.found("I3", text, partition, self._of_sends(row.producer, row.seq), [row.source])
                    before, last[key] = max(before, row.source), row.seq

    # -- who committed (I4, I5, I6) ------------------------------------------------------------

    def one_owner(self) -> None:
        """I4: epochs never go down, each has one owner, and nobody commits once another has the lock."""
        for partition, part in self.dump.partitions.items():
            owners: dict[int, str] = {}
            for before, entry in pairwise([None, *part.log]):
                assert entry is not None
                evidence = self._of_entry(partition, entry)
                if before is not None and entry.epoch < before.epoch:
                    text = f"{entry} of epoch {entry.epoch} follows {before} of epoch {before.epoch}"
                    self.found("I4", text, partition, [*self._of_entry(partition, before), *evidence])
                if owners.setdefault(entry.epoch, entry.owner) != entry.owner:
                    text = f"{owners[entry.epoch]} and {entry.owner} both committed at epoch {entry.epoch}"
                    self.found("I4", text, partition, evidence)
        self._locks_have_one_owner()
        self._zombies_are_refused()

    def _locks_have_one_owner(self) -> None:
        owners: dict[tuple[int, int, int], Event] = {}
        for event in self.locks:
            life = self.lapses.lives(event["partition"], event.at)
            if life is None:
                continue
            first = owners.setdefault((life, event["partition"], event["epoch"]), event)
            if first["owner"] != event["owner"]:
                text = f"{first['owner']} and {event['owner']} both have the lock at epoch {event['epoch']}"
                self.found("I4", text, event["partition"], [first, event])

    def _zombies_are_refused(self) -> None:
        taken: dict[int, list[Event]] = defaultdict(list)
        for event in self.locks:
            taken[event["partition"]].append(event)
        for commit in self.commits:
            life = self.lapses.lives(commit.partition, commit.sent.at)
            if commit.code != "OK" or life is None:
                continue
            for event in taken[commit.partition]:
                if event.at >= commit.sent.at:
                    break
                is_later = event["epoch"] > commit.epoch
                if is_later and self.lapses.lives(commit.partition, event.at) == life:
                    text = f"{commit} was accepted, and {event['owner']} had epoch {event['epoch']}"
                    evidence = [event, commit.sent, commit.answered]
                    self.found("I4", text, commit.partition, evidence, [commit.new])
                    break

    def chained(self) -> None:
        """I5: each entry begins where the one before ended, and its id counts the rows."""
        for partition, part in self.dump.partitions.items():
            total, last = 0, (0, 0)
            for entry in part.log:
                evidence = self._of_entry(partition, entry)
                total += entry.rows
                if entry.bad:
                    self.found("I5", f"{entry} is damaged: {entry.bad}", partition, evidence)
                if entry.id != (total, 0):
                    text = f"{entry} should be {total}-0, by the rows of the log"
                    self.found("I5", text, partition, evidence)
                    total = entry.id[0]
                # Between two entries there may be commits that added none: those of dead letters alone.
                follows = entry.prev == last or (entry.prev > last and entry.prev in part.dead)
                if not follows:
                    text = f"{entry} follows {text_of(entry.prev)}, the one before ended at {text_of(last)}"
                    self.found("I5", text, partition, evidence, [entry.prev, last])
                outside = [row for row in entry.values if not entry.prev < row.source <= entry.last]
                if outside or len(entry.values) != entry.rows:
                    text = f"{entry} says ({text_of(entry.prev)}, {text_of(entry.last)}], holds other entries"
                    self.found("I5", text, partition, evidence, [row.source for row in outside[:3]])
                last = entry.last
            if part.checkpoint < last or (part.checkpoint > last and part.checkpoint not in part.dead):
                text = f"the checkpoint is {text_of(part.checkpoint)}, and the log ends with {text_of(last)}"
                self.found("I5", text, partition)

    def truthful(self) -> None:
        """I6: answers to commits and to sends are true, and what is in the log was executed."""
        for partition, part in self.dump.partitions.items():
            done = {(e.owner, e.epoch, e.prev, e.last) for e in part.log}
            for tries in self._tries.get(partition, {}).values():
                for commit in tries:
                    is_there = (commit.owner, commit.epoch, commit.previous, commit.new) in done
                    self._check_answer(part.checkpoint, commit, is_there=is_there)
        self._rows_come_from_sends()
        self._rows_were_executed()

    def _check_answer(self, checkpoint: Id, commit: Commit, *, is_there: bool) -> None:
        assert commit.answered is not None or not commit.code
        evidence, ids = [commit.sent, commit.answered], [commit.new]
        text = f"{commit} was answered {commit.code}, and"
        if commit.code in REFUSED and not commit.tries and is_there:
            self.found("I6", f"{text} is there", commit.partition, evidence, ids)
        if commit.code not in DONE or commit.answered is None:
            return
        if self.lapses.covers(commit.partition, commit.answered.at) and not self.limits.replicated:
            return  # It may be gone; what is gone of its rows is asked of their producers.
        if commit.rows and not is_there:
            self.found("I6", f"{text} is not there", commit.partition, evidence, ids)
        if checkpoint < commit.new:
            text = f"{text} the checkpoint is {text_of(checkpoint)}"
            self.found("I6", text, commit.partition, evidence, ids)

    def _rows_come_from_sends(self) -> None:
        known = {(send.producer, send.seq): send for send in self.sends}
        for partition, part in self.dump.partitions.items():
            for row in (row for entry in part.log for row in entry.values):
                send = known.get((row.producer, row.seq))
                text = ""
                if send is None:
                    text = f"{row} is in the log, and nobody sent it"
                elif send.outcome == "refused":
                    text = f"{send} was refused, and is in the log"
                elif send.doomed:
                    text = f"{send} cannot be handled, and is in the log"
                elif send.outcome == "ok" and (send.partition, send.id) != (partition, row.source):
                    text = f"{send} was said to be {text_of(send.id)}, and is {text_of(row.source)} too"
                if text:
                    evidence = [send.invoked, send.answered] if send else []
                    self.found("I6", text, partition, evidence, [row.source])

    def _rows_were_executed(self) -> None:
        began: dict[tuple[int, int], set[Id]] = defaultdict(set)
        for event in self.history:
            if event.kind == "exec":
                began[event["partition"], event["epoch"]].update(map(parse_id, event["ids"]))
        if not began:
            return
        for partition, part in self.dump.partitions.items():
            for entry in part.log:
                strange = [r for r in entry.values if r.source not in began.get((partition, entry.epoch), ())]
                if strange:
                    what = text_of(strange[0].source)
                    text = f"{entry} holds {what}, which was not executed at epoch {entry.epoch}"
                    ids = [row.source for row in strange[:3]]
                    self.found("I6", text, partition, self._of_entry(partition, entry), ids)

    # -- how it went (I7, I8, I9, I10) -----------------------------------------------------------

    def settled(self) -> None:
        """I7: no partition stands still for long; once the faults are over all is committed, and answered."""
        for partition, start, end in self.stalls(1000 * self.limits.stalled_s):
            at = [e for e in self.history if start <= e.at <= end and e.get("partition") == partition]
            text = f"it stood still for {(end - start) / 1000:.0f} s with entries"
            self.found("I7", text, partition, [*at[:1], *at[-1:]])
        healed = [event for event in self.history if event.kind == "run" and event["what"] == "healed"]
        settled = [event for event in self.history if event.kind == "run" and event["what"] == "settled"]
        if not healed:
            return
        for event in self.history:
            if event.kind == "verified" and (free_ms := self._free_ms(event)) > REACHED_MS:
                seconds = f"{free_ms / 1000:.0f} s without a fault"
                text = f"{event['producer']} asked for {seconds} what is lost, in vain"
                self.found("I7", text, evidence=[healed[0], event])
        for partition, part in self.dump.partitions.items():
            if part.waiting:
                text = f"{part.waiting} entries wait behind the checkpoint {text_of(part.checkpoint)}"
                self.found("I7", text, partition)
        if not settled:
            self.found("I7", "it never settled after the faults", evidence=healed)
        elif settled[-1].at - healed[-1].at > 1000 * self.limits.settled_s:
            took_s = (settled[-1].at - healed[-1].at) / 1000
            self.found("I7", f"it took {took_s:.0f} s to settle", evidence=[healed[-1], settled[-1]])

    def _free_ms(self, answer: Event) -> float:
        """Return for how long at most no fault took hold of what a producer needed while it asked."""
        slot = answer["producer"].rpartition("-")[0]
        ends = {event["number"]: event.at for event in self.faults if event["what"] != "begin"}
        free_ms, free_from = 0.0, float(answer["since"])
        for event in self.faults:
            felt = [
                each
                for each in event.get("takes", ("server",))
                if each in (f"process {slot}", f"line {slot}") or not each.startswith(("process", "line"))
            ]
            if event["what"] != "begin" or not felt:
                continue
            free_ms = max(free_ms, min(event.at, answer.at) - free_from)
            free_from = max(free_from, ends.get(event["number"], float("inf")))
        return max(free_ms, answer.at - free_from)

    def nothing_left(self) -> None:
        """I8: workers that have left leave nothing behind.

        A member that a fault removed from its group while it left may not release its locks any more. They
        are free for whoever comes next, but nobody came.
        """
        late_ms = self.history[-1].at - self.limits.silent_ms
        removed = {e["member"] for e in self.history if e.kind == "member" and e.at >= late_ms}
        for dump in (self.dump, *self.dump.others.values()):
            for partition, part in dump.partitions.items():
                if part.owner and part.owner not in removed:
                    self.found("I8", f"the lock is still {part.owner}'s", partition)
            for what in ("members", "beats", "connections"):
                if left := getattr(dump, what):
                    self.found("I8", f"{what} are left: {', '.join(left)}")
        if self.dump.control > CONTROL_MESSAGES_MAX:
            self.found("I8", f"the control stream has {self.dump.control} messages")
        for event in self.history:
            if event.kind == "died":
                text = f"{event['name']} ended by itself with code {event['code']}: {event.get('last', '')}"
                self.found("I8", text, evidence=[event])

    # -- what is passed on: state, chain, table and timers -------------------------------------------

    def passed_on(self) -> None:
        """What is kept, sent on and planned takes effect once, with the commit of what it was made of.

        The state equals the log (I5). Who takes what is passed on has each row once (I1, I2), in the order of
        its key (I3), and a table of what its log has (I5). A timer runs once for each planned time (I2).
        """
        for event in self.history:
            if event.kind == "exec" and event["what"] == "overlaps":
                text = f"entry {event['ids'][0]} was handled beside another of its key"
                self.found("I3", text)
        for partition, part in self.dump.partitions.items():
            kept, rows = sum(part.state.values()), sum(entry.rows for entry in part.log)
            if part.state and kept != rows:
                self.found("I5", f"its state has counted {kept} records, and its log has {rows}", partition)
        sent = {(row.producer, row.seq) for row in _rows_of(self.dump)}
        timers = self.dump.others.get("timers")
        for group, dump in self.dump.others.items():
            if dump is not timers:
                self._passed_once(group, sent, Counter((row.producer, row.seq) for row in _rows_of(dump)))
                for part in dump.partitions.values():
                    self._kept_by_key(group, part)

    def _passed_once(self, group: str, sent: set[tuple[str, int]], came: Counter[tuple[str, int]]) -> None:
        for promise, what, which in (
            ("I1", "were not passed on", sent - came.keys()),
            ("I2", "were passed on twice", {each for each, times in came.items() if times > 1}),
            ("I6", "nobody sent", {each for each in came.keys() - sent if each[0] != SWEEP}),
        ):
            if which:
                self.found(promise, f"{group}: {len(which)} records {what}: {sorted(which)[:5]}")
        ticks = [seq for who, seq in came if who == SWEEP]
        planned = max(ticks, default=0) - min(ticks, default=1) + 1
        timers = self.dump.others["timers"].partitions[0]
        waiting = sum(part.waiting for part in self.dump.others[group].partitions.values()) + timers.outbox
        ran = timers.state.get("ticks", 0)
        if planned != len(ticks) or not 0 <= ran - len(ticks) <= waiting:
            text = f"of {planned} planned times {ran} ran, {len(ticks)} were passed on, and {waiting} wait"
            self.found("I2", f"{group}: {text}")

    def _kept_by_key(self, group: str, part: Part) -> None:
        totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        newest: dict[str, int] = {}
        for row in (row for entry in part.log for row in entry.values):
            count, order = totals[row.key]
            totals[row.key] = [count + 1, zlib.crc32(b"%d" % row.seq, order)]
            if row.seq < newest.get(row.key, -1):
                self.found("I3", f"{group}: {row} comes after record {newest[row.key]}")
            newest[row.key] = row.seq
        if part.totals and totals != part.totals:
            wrong = sorted(key for key in totals.keys() | part.totals if totals[key] != part.totals.get(key))
            self.found("I5", f"{group}: the table is not what the log has of {wrong[:5]}")

    def table_equals_log(self) -> None:
        """I9: up to what Spark committed, its table holds the rows of the log, each once, in order."""
        for partition, (committed, table) in self.dump.table.items():
            part = self.dump.partitions.get(partition)
            rows = [] if part is None else [row for entry in part.log for row in entry.values][:committed]
            expected = [(number, r.producer, r.key, r.seq) for number, r in enumerate(rows, start=1)]
            if table != expected:
                missing, extra = set(expected) - set(table), Counter(table) - Counter(expected)
                text = (
                    f"the table has {len(table)} rows and the log {len(expected)} up to what was committed: "
                    f"{len(missing)} are missing {sorted(missing)[:3]}, {sum(extra.values())} are too many "
                    f"{sorted(extra)[:3]}" + ("" if missing or extra else "; they are out of order")
                )
                self.found("I9", text, partition)

    def not_silent(self) -> None:
        """I10: a partition with entries that stands still for long is told about by somebody."""
        said: dict[int | None, list[float]] = defaultdict(list)
        for event in self.history:
            if event.kind == "said":
                several = event.get("partitions")
                for partition in several if isinstance(several, list) else [event.get("partition")]:
                    said[partition].append(event.at)
        for partition, start, end in self.stalls(self.limits.silent_ms):
            if not any(start <= at <= end for about in (partition, None) for at in said[about]):
                text = f"it stood still for {(end - start) / 1000:.1f} s with entries, and nobody said so"
                at = [e for e in self.history if start <= e.at <= end and e.get("partition") == partition]
                self.found("I10", text, partition, [*at[:1], *at[-1:]])

    def stalls(self, longer_than_ms: float) -> list[tuple[int, float, float]]:
        """Return when partitions had confirmed entries and committed none for so long."""
        found = []
        for partition in self.dump.partitions:
            steps = sorted(
                [(s.answered.at, s.id, False) for s in self.sends if s.answered and s.partition == partition]
                + [
                    (c.answered.at, c.new, True)
                    for tries in self._tries.get(partition, {}).values()
                    for c in tries
                    if c.answered and c.code in DONE
                ]
            )
            newest: Id = (0, 0)
            committed: Id = (0, 0)
            since: float | None = None
            for at, entry_id, is_commit in steps:
                if is_commit:
                    if since is not None and at - since > longer_than_ms:
                        found.append((partition, since, at))
                    committed = max(committed, entry_id)
                    since = at if newest > committed else None
                else:
                    newest = max(newest, entry_id)
                    since = at if since is None and newest > committed else since
        return found

    # -- evidence --------------------------------------------------------------------------------

    def _of_entry(self, partition: int, entry: Entry) -> list[Event]:
        tries = self._tries.get(partition, {}).get(entry.last, [])
        mine = [each for each in tries if (each.owner, each.epoch) == (entry.owner, entry.epoch)]
        return [event for each in mine for event in (each.sent, each.answered) if event is not None]

    def _of_sends(self, producer: str, seq: int) -> list[Event | None]:
        found = (send for send in self.sends if (send.producer, send.seq) == (producer, seq))
        return [event for send in found for event in (send.invoked, send.answered)]

    # -- figures -----------------------------------------------------------------------------------

    def _faults_that(self, what: str) -> dict[str, int]:
        """Return how often each kind of fault came about (``end``), or was tried in vain (``failed``)."""
        return dict(sorted(Counter(e["name"] for e in self.faults if e["what"] == what).items()))

    def figures(self) -> dict[str, Any]:
        there = {p: {*part.rows_by_id(), *part.dead} for p, part in self.dump.partitions.items()}
        confirmed = [send for send in self.sends if send.outcome == "ok"]
        return {
            "sends": dict(Counter(send.outcome for send in self.sends)),
            "rows": sum(entry.rows for part in self.dump.partitions.values() for entry in part.log),
            "dead_letters": sum(len(part.dead) for part in self.dump.partitions.values()),
            "confirmed_and_gone": sum(s.id not in there.get(s.partition, ()) for s in confirmed),
            "gone_by_failover": {
                "reported_by_id": self.lost_and_said,
                "of_producers_killed_before": self.lost_unheard,
                "reports": self.lapses.reported,
            },
            "packed": sum(part.packed for part in self.dump.partitions.values()),
            "batches_that_cut_entries": sum(part.cuts for part in self.dump.partitions.values()),
            "commits": dict(Counter(commit.code or "unanswered" for commit in self.commits)),
            "locks": len(self.locks),
            "faults": self._faults_that("end"),
            "faults_that_failed": self._faults_that("failed"),
        }


def _rows_of(dump: Dump) -> Iterator[Row]:
    return (row for part in dump.partitions.values() for entry in part.log for row in entry.values)


def _sends(history: Sequence[Event]) -> Iterable[Send]:
    invoked: dict[tuple[str, int], Send] = {}
    for event in history:
        if event.kind != "send":
            continue
        producer = event["producer"]
        if event["what"] == "invoke":
            doomed = set(event.get("doomed", ()))
            for seq, key in zip(event["seqs"], event["keys"], strict=True):
                invoked[producer, seq] = Send(producer, seq, key, seq in doomed, event)
            continue
        places = event.get("places") or [(-1, "0-0")] * len(event["seqs"])
        for seq, (partition, entry_id) in zip(event["seqs"], places, strict=True):
            told = {"outcome": event["what"], "answered": event, "partition": partition}
            invoked[producer, seq] = replace(invoked[producer, seq], id=parse_id(entry_id), **told)
    return invoked.values()


def _commits(history: Sequence[Event]) -> Iterable[Commit]:
    found: dict[tuple[Any, ...], Commit] = {}
    for event in history:
        if event.kind != "commit":
            continue
        previous, new = parse_id(event["previous"]), parse_id(event["new"])
        key = (event.who, event["partition"], event["owner"], event["epoch"], previous, new, event["tries"])
        if event["what"] == "sent":
            # A commit that is held up (FULL) is sent again as a first try: the last of them counts.
            who = (event["partition"], event["owner"], event["epoch"])
            found[key] = Commit(*who, previous, new, event["rows"], event["tries"], event)
        elif key in found:
            found[key] = replace(found[key], answered=event)
    return sorted(found.values(), key=lambda commit: commit.sent.at)


def main() -> None:
    from tests.chaos.timeline import draw

    if len(sys.argv) != 2 or not (folder := Path(sys.argv[1])).is_dir():
        sys.exit("Name the folder that a soak left behind: python -m tests.chaos.checker FOLDER")
    history, dump = read_history(folder), read_dump(folder / "dump.json")
    judge = Judge(history, dump)
    violations = judge.judge()
    for name, value in judge.figures().items():
        print(f"{name}: {value}")
    for violation in violations:
        print(f"\n{violation}\n{draw(history, violation)}")
    print(f"\n{len(violations)} violations")
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()
