"""Histories of acked logs, drawn at random: what workers committed, and what other programs did in between.

A history knows what was committed, and keeps the commands that make the log on a server. Its source has the
entries ``1-0``, ``2-0`` and so on; a commit's rows have values that no other commit has.

What nobody can tell from commits is not drawn: an entry of another program that continues the log where it
ends, and entries that are exchanged behind the row of a lock that was put back. Nor is a lock put back once
more after the rows that it did not count were committed again: only one commit of a row can be read. And a
trimmed log does not begin with another program's entry: what it copied may be gone.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from streamworker.core.data.entries import SEQUENCE_MAX, ZERO, EntryId
from streamworker.spark.source import logs
from streamworker.spark.source.offsets import START, Position
from tests.security.forged import LOG, Entry, Fields, changed, fields_of, forge

NOW_MS = 1_790_000_000_000
HIGHEST = EntryId(SEQUENCE_MAX, SEQUENCE_MAX)
FOREIGN: tuple[Fields, ...] = (
    {b"foo": b"bar"},
    {b"rows": b"2"},
    {b"rows": b"-1", b"epoch": b"9", b"prev": b"1-0", b"last": b"x"},
)


@dataclass(frozen=True)
class Lock:
    """The fields of a lock that commits change."""

    rows: int
    checkpoint: int
    epoch: int
    tail: str = ""

    def fields(self) -> dict[bytes, bytes]:
        counts = {"rows": self.rows, "checkpoint": f"{self.checkpoint}-0", "entries": self.checkpoint}
        others = {"owner": "w", "generation": 1, "log": LOG, "since": 9 * NOW_MS, "epoch": self.epoch}
        tail = {"tail": self.tail} if self.tail else {}
        return {name.encode(): str(value).encode() for name, value in {**counts, **others, **tail}.items()}

    def position(self) -> Position:
        return tail_of(self.fields())


def tail_of(lock: Fields) -> Position:
    """Return the end of a log by its lock, as the Spark source does."""
    return logs._tail(lock[b"rows"], lock[b"log"], lock[b"checkpoint"], lock.get(b"tail"))


@dataclass
class History:
    """A log that lives."""

    rng: random.Random
    lock: Lock = Lock(0, 0, 5)
    log: list[tuple[EntryId, Fields]] = field(default_factory=list)
    last: EntryId = ZERO
    """The highest id that the log ever had."""
    committed: dict[EntryId, Fields] = field(default_factory=dict)
    """All commits with rows, also those that are not in the log any more."""
    values: list[int] = field(default_factory=list)
    """The value of each row, by the last commit that had it."""
    commands: list[list[Any]] = field(default_factory=list)
    """What makes the log on a server, without its key."""
    locks: list[Lock] = field(default_factory=list)
    """Backups, which somebody may put back."""
    positions: list[Position] = field(default_factory=lambda: [START])
    """Where readers stand; what all of them have read may be trimmed."""
    true_lock: Lock | None = None
    """The lock before it was put back for the first time."""
    has_gone_on: bool = False
    """Whether the group has gone on since."""
    is_forked: bool = False
    """Whether source entries or rows were committed once more behind a lock that was put back."""
    is_mendable: bool = True
    """Whether the log holds all that was committed and not trimmed."""
    trimmed: int = 0
    """Rows that are not in the log any more, because all readers have read them."""

    # -- what workers do -------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit some rows; where the log is ahead nothing is committed."""
        rows, taken = self.rng.randint(1, 3), self.rng.randint(1, 3)
        before, entry_id, last = self.lock, EntryId(self.lock.rows + rows, 0), self.lock.checkpoint + taken
        if entry_id > self.last:
            fields = fields_of(self.next_value(), rows, before.checkpoint, last, before.epoch)
            self._add(entry_id, fields)
            self.was_committed(entry_id, fields)
            self.lock = Lock(entry_id.ms, last, before.epoch, f"{entry_id.ms} {last}-0 {before.epoch}")
            self._moved()

    def was_committed(self, entry_id: EntryId, fields: Fields) -> None:
        start, first = entry_id.ms - int(fields[b"rows"]), self.next_value()
        self.is_forked |= bool(self.committed) and start < max(self.committed).ms
        self.committed[entry_id] = fields
        self.values[start:] = range(first, first + int(fields[b"rows"]))

    def next_value(self) -> int:
        return sum(int(fields[b"rows"]) for fields in self.committed.values())

    def commit_nothing(self) -> None:
        self.lock = replace(self.lock, checkpoint=self.lock.checkpoint + self.rng.randint(1, 3))
        self._moved()

    def take_over(self) -> None:
        self.lock = replace(self.lock, epoch=self.lock.epoch + self.rng.randint(1, 2))

    def reset(self) -> None:
        """Move the checkpoint back, as `streamworker reset` does."""
        to = self.rng.randint(0, self.lock.checkpoint)
        self.lock = replace(self.lock, checkpoint=to, epoch=self.lock.epoch + 1)
        self._moved()

    def trim(self) -> None:
        """Drop what all readers have read, or what those have read that go on."""
        row = self.rng.choice(self.positions).rows
        left = [entry for entry in self.log if entry[0].ms > row]
        if left[:1] != list(self.ours(left[:1]).items()):
            return
        self.positions = [position for position in self.positions if position.rows >= row]
        self.log, self.trimmed = left, max(self.trimmed, row)
        self.commands.append(["XTRIM", "MINID", "=", f"{row + 1}-0"])

    def _moved(self) -> None:
        self.locks.append(self.lock)
        here = self.lock.position()
        if here.rows >= self.trimmed and (here.epoch or not here.rows):  # Else the lock names no entry.
            self.positions.append(here)
        self.has_gone_on |= self.true_lock is not None

    # -- what other programs do ------------------------------------------------------------------

    def meddle(self) -> None:
        """Add one entry or a few, of which some may be deleted at once."""
        for _ in range(self.rng.choice((1, 1, 1, 2, 5, 30))):
            fields = self._foreign_fields()
            if (entry_id := self._foreign_id(fields)) > self.last and not self._continues(entry_id, fields):
                self._add(entry_id, fields)
                if self.rng.randrange(4) == 0:
                    self._delete(entry_id)

    def add_aliens(self) -> None:
        """Add entries of another group's log, with the ids of `XADD *`."""
        prev, epoch = self.rng.randint(0, 500), self.rng.randint(3, 12)
        for n in range(self.rng.randint(1, 3)):
            fields = dict(fields_of(9_000 + 3 * n, 3, prev + n, prev + n + 1, epoch))
            fields |= {name: fields[name].replace(b"-0", b"-1") for name in (b"prev", b"first", b"last")}
            if (entry_id := EntryId(NOW_MS + 3 * n, 0)) > self.last:
                self._add(entry_id, fields)

    def delete_commit(self) -> None:
        """Delete rows that were committed: they are lost, and no other."""
        if self.log:
            self._delete(self.rng.choice(self.log)[0])
            self.is_mendable = False

    def put_lock_back(self) -> None:
        """Restore a backup of the lock; the group may have gone on to take it since."""
        if self.is_forked:
            return
        true, self.lock = self.lock, self.rng.choice(self.locks)
        self.true_lock = self.true_lock or true
        match self.rng.randrange(6):
            case 0:
                self.take_over()
            case 1:  # Only the count of rows; the checkpoint stays.
                self.lock = replace(true, rows=min(self.lock.rows, true.rows))
            case 2:  # Only the checkpoint: what follows was committed already.
                self.lock, self.is_forked = replace(true, checkpoint=self.lock.checkpoint), True

    def rewrite(self) -> None:
        """Make the log anew, with entries up to the lock swapped, repeated, dropped or changed."""
        if not self.is_mendable or (self.lock.rows and not self.lock.position().epoch):
            return  # Nothing would tell that a commit was deleted, or which entry was the lock's.
        inner = [
            Entry(entry_id.ms, 1, fields)
            for entry_id, fields in self.log
            if entry_id.ms <= self.lock.rows and not entry_id.seq
        ]
        inner = [replace(entry, rows=int(entry.fields[b"rows"])) for entry in inner if _is_commit(entry)]
        for _ in range(self.rng.randint(1, 3) if inner else 0):
            inner = forge(self.rng, inner)
        if self.true_lock:
            inner = [entry for entry in inner if entry.end <= self.lock.rows]
        outer = [entry for entry in self.log if entry[0].ms > self.lock.rows]
        self.log, self.last, self.is_mendable, self.is_forked = [], ZERO, False, True
        self.commands.append(["DEL"])
        for entry_id, fields in [*((EntryId(entry.end, 0), entry.fields) for entry in inner), *outer]:
            if entry_id > self.last:
                self._add(entry_id, fields)

    def _foreign_fields(self) -> Fields:
        commits = list(self.committed.values())
        if not commits or self.rng.randrange(3) == 0:
            return self.rng.choice(FOREIGN)
        copy = Entry(0, 0, self.rng.choice(commits[-5:]))
        return changed(self.rng, copy).fields if self.rng.randrange(3) == 0 else copy.fields

    def _foreign_id(self, fields: Fields) -> EntryId:
        ms, seq = self.last
        near = [(ms, seq + 1), (ms + 1, 0), (ms + self.rng.randint(1, 4), self.rng.randint(0, 9))]
        next_one = (self.lock.rows + int(fields.get(b"rows", b"1")), 0)
        far = [(2**53 + 1, 0), (2**63, 7), (SEQUENCE_MAX, 0), tuple(HIGHEST)]
        is_near = self.rng.randrange(5) > 0
        kind = self.rng.choice([*near, next_one]) if is_near else self.rng.choice([(NOW_MS, 0), *far])
        return EntryId(min(kind[0], SEQUENCE_MAX), min(kind[1], SEQUENCE_MAX))

    def _continues(self, entry_id: EntryId, fields: Fields) -> bool:
        """Whether an entry looks as the next commit does."""
        try:
            prev, last = _number(fields[b"prev"]), _number(fields[b"last"])
            epoch, end = int(fields[b"epoch"]), max(self.committed)
        except (KeyError, ValueError):
            return False
        tail = self.committed[end]
        return prev < last and (epoch > int(tail[b"epoch"]) or prev >= _number(tail[b"last"]))

    def _add(self, entry_id: EntryId, fields: Fields) -> None:
        self.log.append((entry_id, fields))
        self.last = entry_id
        flat = [part for pair in fields.items() for part in pair]
        self.commands.append(["XADD", str(entry_id), *flat])

    def _delete(self, entry_id: EntryId) -> None:
        self.log = [entry for entry in self.log if entry[0] != entry_id]
        self.commands.append(["XDEL", str(entry_id)])

    # -- what can be said at the end -------------------------------------------------------------

    def is_only_ahead(self) -> bool:
        """Whether the log needs nothing but what `repair` does."""
        ours = self.ours(self.log)
        end = max(self.committed, default=ZERO)
        is_whole = all(entry_id in ours for entry_id, _ in self.log if entry_id < end)
        is_end_known = self.lock.rows == end.ms or end in ours
        return self.is_mendable and not self.is_forked and is_whole and is_end_known

    def last_checkpoint(self) -> int:
        """Return the highest checkpoint that the lock can have had."""
        last = _number(self.committed[max(self.committed)][b"last"])
        return max(self.true_lock.checkpoint, last) if self.true_lock else last

    def ours(self, log: list[tuple[EntryId, Fields]]) -> dict[EntryId, Fields]:
        return {entry_id: fields for entry_id, fields in log if self.committed.get(entry_id) == fields}


def _number(source_id: bytes) -> int:
    return int(source_id.partition(b"-")[0])


def _is_commit(entry: Entry) -> bool:
    return all(name in entry.fields for name in (b"rows", b"prev", b"first", b"last", b"batch"))


def draw(rng: random.Random) -> History:
    """Let a log live, with faults that come alone or several at once."""
    history = History(rng, Lock(0, rng.randrange(3), 5))
    history.locks.append(history.lock)
    for _ in range(rng.choice((0, 3, 8, 20, 60)) if rng.randrange(3) == 0 else rng.randint(2, 8)):
        draw_step(history, rng.randrange(60))
    for fault in rng.choices(FAULTS, k=rng.choice((0, 1, 1, 2, 3))):
        fault(history)
    return history


FAULTS = (History.meddle, History.meddle, History.add_aliens, History.put_lock_back, History.rewrite)


def draw_step(history: History, number: int) -> None:
    """Do one of the things that happen to a log while it is written."""
    match number:
        case 0 | 1:
            history.meddle()
        case 2:
            history.put_lock_back()
        case 3 if history.rng.randrange(3) == 0:
            history.delete_commit()
        case 4 | 5:
            history.trim()
        case 6 | 7 | 8:
            history.take_over()
        case 9 | 10:
            history.reset()
        case number if number < 18:
            history.commit_nothing()
        case _:
            history.commit()
