"""What the scripts of ``redisio/lua`` do with the keys of one partition, and of one stream's map.

Each method is one script, and answers with its code first. The state of a group and its tables are one here:
how many records of each key it has handled. A commit of times that were planned stands for ``tick.lua``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import START, Message, OutboxPosition, Target
from tests.model.net import Net, Slot

Record = tuple[str, bytes, Any]
"""Who sent it, its key, and what tells it from others."""
Entry = tuple[int, Record]
Row = tuple[Record, int, int]
"""A record, the how manieth of its key it is, and the how manieth call of all committed it."""
Answer = tuple[Any, ...]
Box = tuple[Message, ...]


class Lock(NamedTuple):
    """The lock of a group, with what the group has committed."""

    parents: tuple[int, ...] = ()
    """The field ``from``."""
    checkpoint: int = 0
    owner: str = ""
    epoch: int = 0
    done: bool = False
    ticked: int = 0
    """The last planned time that the timer was called for."""
    rows: tuple[Row, ...] = ()
    since: int | None = 0
    """Id of the last entry when the group was registered; None if the partition took no more."""


class Sealed(NamedTuple):
    """The note of a seal."""

    last: int
    map: tuple[int, ...]


class Later(NamedTuple):
    """What is known of a record that is scheduled."""

    record: Record
    call: str
    due: int
    waits: bool = True


class Heads(NamedTuple):
    """How far an outbox has come."""

    last: EntryId | None = None
    positions: Mapping[Target, OutboxPosition] = {}
    moved: Mapping[Target, OutboxPosition] = {}


class Meta(Slot):
    """The hash of a stream."""

    def __init__(self, net: Net, counts: tuple[int, ...]) -> None:
        super().__init__(net)
        self.data |= {"partitions": counts, "growing": ()}
        self.copies = [self.data.copy()]

    def set_field(self, field: str, seen: Any, value: Any) -> Answer:
        if self.data[field] != seen:
            return ("CHANGED",)
        self.put(field, value)
        return ("OK",)

    def store_opened(self, base: int, now: int) -> Answer:
        """Note when a generation was opened, once; who relies on it repeats this, and waits."""
        self.put(("opened", base), self.data.get(("opened", base), now))
        return "OK", self.data["opened", base]


class Partition(Slot):
    """One partition of a stream."""

    def __init__(self, net: Net, stream: str, number: int) -> None:
        super().__init__(net)
        self.stream, self.number = stream, number
        self.data |= {"log": (), "gone": (), "last": 0, "sealed": None, "later": {}}
        self.copies = [self.data.copy()]
        self.clock = 0
        """The time of the world."""

    @property
    def now(self) -> int:
        """The server's clock, which may be behind after a failover."""
        return self.clock - self.behind

    @property
    def sealed(self) -> Sealed | None:
        sealed: Sealed | None = self.data["sealed"]
        return sealed

    @property
    def log(self) -> tuple[Entry, ...]:
        log: tuple[Entry, ...] = self.data["log"]
        return log

    def lock(self, group: str) -> Lock | None:
        lock: Lock | None = self.data.get(("lock", group))
        return lock

    @property
    def groups(self) -> list[str]:
        return [key[1] for key in self.data if key[0] == "lock"]

    def add(self, records: Sequence[Record]) -> None:
        last = max(self.data["last"], self.now * 10)
        self.put("log", (*self.log, *((last + at, record) for at, record in enumerate(records, 1))))
        self.put("last", last + len(records))

    # -- data ------------------------------------------------------------------------------------

    def append(self, sender: str, number: int, follows: int, records: Sequence[Record]) -> Answer:
        stands, before = self.data.get(("sent", sender), (0, 0))
        if number in (stands, before):
            self.again()
            return "DUP", stands
        if follows != stands:
            self.is_changed = bool(stands)
            return "OTHER", stands
        if self.sealed:
            return ("SEALED",)
        self.add(records)
        self.put(("sent", sender), (number, stands))
        return "OK", number

    def send_once(self, id: str, call: str, record: Record | None) -> Answer:
        if ("once", id) in self.data:
            self.again()
            return ("DUP" if self.data["once", id] == call else "OTHER",)
        if self.sealed or record is None:
            return ("SEALED",)
        self.add([record])
        self.put(("once", id), call)
        return ("OK",)

    def forward(self, source: str, message: Message, records: Sequence[Record]) -> Answer:
        stands = self.data.get(("taken", source), START)
        if stands == message.through:
            self.again()
            return "DUP", stands
        if stands != message.since:
            self.is_changed = stands != START
            return "OTHER", stands
        if self.sealed:
            return "SEALED", stands
        self.add(records)
        self.put(("taken", source), message.through)
        return "OK", stands

    def trim(self) -> Answer:
        """Drop what no group needs that is registered."""
        keep = min((lock.checkpoint for group in self.groups if (lock := self.lock(group))), default=0)
        its = tuple(entry for entry in self.log if entry[0] <= keep)
        if its:
            self.put("gone", (*self.data["gone"], *its))
            self.put("log", self.log[len(its) :])
        return ("OK",)

    # -- scheduled records -----------------------------------------------------------------------

    def later_put(self, name: str, its: Later) -> Answer:
        if name in self.data["later"]:
            self.again()
            return ("OTHER",)
        if self.sealed:
            return ("SEALED",)
        self.put("later", {**self.data["later"], name: its})
        return ("OK",)

    def later_move(self, now: int) -> Answer:
        if self.sealed:
            return ("SEALED",)
        its: dict[str, Later] = self.data["later"]
        if due := {name: each for name, each in its.items() if each.waits and each.due <= now}:
            self.add([each.record for each in due.values()])
            self.put("later", its | {name: each._replace(waits=False) for name, each in due.items()})
        return ("OK",)

    def leave_later(self, ids: Sequence[str] | None, moved: Mapping[str, Later]) -> Answer:
        """Return what waits here, or what is known of some ids; remove what has arrived elsewhere."""
        its: dict[str, Later] = self.data["later"]
        if arrived := {name for name, each in moved.items() if its.get(name) == each}:
            its = {name: each for name, each in its.items() if name not in arrived}
            self.put("later", its)
        if not self.sealed:
            return "OK", {}
        if ids is None:
            return "OK", {name: each for name, each in its.items() if each.waits}
        return "OK", {name: its[name] for name in ids if name in its}

    def take_later(self, name: str, its: Later) -> Answer:
        if self.sealed:
            return ("SEALED",)
        known = self.data["later"]
        if name not in known:
            self.put("later", {**known, name: its})
        self.again()
        return ("OK",)

    # -- groups ----------------------------------------------------------------------------------

    def register(self, group: str, start: str, parents: tuple[int, ...]) -> Answer:
        if self.lock(group):
            self.again()
            return ("EXISTS",)
        last = self.sealed.last if self.sealed else self.data["last"]
        since = None if self.sealed else last
        self.put(("lock", group), Lock(parents, checkpoint=last if start == "$" else 0, since=since))
        return ("OK",)

    def acquire(self, group: str, owner: str, parents: tuple[int, ...]) -> Answer:
        self.register(group, "0", parents)
        held = self.lock(group)
        assert held
        lock = held._replace(owner=owner, epoch=max(held.epoch + 1, self.now))
        self.put(("lock", group), lock)
        return "OK", lock.epoch, lock.parents

    def held(self, group: str, owner: str, epoch: int) -> Lock | None:
        """Return the lock if its owner is that one at that epoch."""
        lock = self.lock(group)
        return lock if lock and (lock.owner, lock.epoch) == (owner, epoch) else None

    def commit(
        self,
        group: str,
        owner: str,
        epoch: int,
        entries: Sequence[Entry],
        previous: int,
        counts: Mapping[bytes, int],
        sends: Sequence[Message] = (),
        last: EntryId | None = None,
    ) -> Answer:
        """Commit the entries after ``previous``; ``last`` is the message that the sends follow."""
        lock, new = self.held(group, owner, epoch), entries[-1][0]
        if lock is None:
            return ("FENCED",)
        if lock.parents:
            return ("GAP",)
        if lock.checkpoint == new:
            self.again()
            return ("DUP",)
        there = [entry for entry in self.log if previous < entry[0] <= new]
        if lock.checkpoint != previous or there != entries:
            return ("GAP",)
        heads = self.data.get(("heads", group), Heads())
        if sends and heads.last != last:
            return ("GAP",)
        self.send(group, heads, sends)
        state = dict(self.data.get(("state", group), {}))
        rows = list(lock.rows)
        for _, record in entries:
            state[record[1]] = count = counts.get(record[1], 0) + 1
            counts = {**counts, record[1]: count}
            rows.append((record, count, self.net.runs))
        self.put(("state", group), state)
        self.put(("lock", group), lock._replace(checkpoint=new, rows=tuple(rows)))
        return ("OK",)

    def tick(
        self, group: str, owner: str, epoch: int, time: int, keys: Sequence[bytes], cut: int | None
    ) -> Answer:
        """Call the timer for a planned time; of a sealed partition ``cut`` says up to which it has them."""
        lock = self.held(group, owner, epoch)
        if lock is None:
            return ("FENCED",)
        if lock.ticked == time:
            self.again()
            return ("DUP",)
        if lock.parents or lock.ticked != time - 1 or lock.done:
            return ("GAP",)
        if self.sealed and (cut is None or time > cut):
            return ("GAP",)
        rows = (*lock.rows, *((("tick", key, time), 0, self.net.runs) for key in keys))
        self.put(("lock", group), lock._replace(ticked=time, rows=rows))
        return ("OK",)

    # -- growth ----------------------------------------------------------------------------------

    def seal(self, map: tuple[int, ...]) -> Answer:
        self.put("sealed", self.sealed or Sealed(self.data["last"], map))
        return "OK", self.groups

    def finish(self, group: str, owner: str, epoch: int, step: str, cut: int) -> Answer:
        lock = self.held(group, owner, epoch)
        if lock is None:
            return ("FENCED",)
        if not self.sealed:
            return ("OPEN",)
        if lock.parents or lock.ticked < cut:
            return ("BEHIND",)
        if any(at > lock.checkpoint for at, _ in self.log):
            return ("BEHIND",)
        if self.data.get(("box", group)):
            return ("OUTBOX",)
        self.again()
        if step == "done":
            self.put(("lock", group), lock._replace(done=True))
        return ("OK",)

    def fill(
        self, group: str, owner: str, epoch: int, parents: tuple[int, ...], items: Mapping[bytes, int]
    ) -> Answer:
        """Take some keys of the state of a parent."""
        lock = self.held(group, owner, epoch)
        if lock is None:
            return ("FENCED",)
        if lock.parents != parents:
            return ("OPEN",)
        self.put(("state", group), {**self.data.get(("state", group), {}), **items})
        return ("OK",)

    def open(self, group: str, owner: str, epoch: int, parents: tuple[int, ...], cut: int) -> Answer:
        lock = self.held(group, owner, epoch)
        if lock is None:
            return ("FENCED",)
        if lock.parents:
            if lock.parents != parents:
                return ("CHANGED",)
            self.put(("lock", group), lock._replace(parents=(), ticked=cut))
        self.again()
        return ("OK",)

    # -- outboxes --------------------------------------------------------------------------------

    def send(self, group: str, heads: Heads, sends: Sequence[Message]) -> None:
        """Add messages to an outbox."""
        if sends:
            positions = {**heads.positions, **{message.to: message.through for message in sends}}
            self.put(("heads", group), heads._replace(last=sends[-1].id, positions=positions))
            self.put(("box", group), (*self.data.get(("box", group), ()), *sends))

    def open_outbox(self, group: str) -> Answer:
        self.again()
        return "OK", self.data.get(("heads", group), Heads())

    def delete_messages(self, group: str, ids: Sequence[EntryId]) -> Answer:
        box: Box = self.data.get(("box", group), ())
        self.put(("box", group), tuple(message for message in box if message.id not in ids))
        return ("OK",)

    def move_messages(
        self,
        group: str,
        owner: str,
        epoch: int,
        last: EntryId | None,
        removed: Sequence[EntryId],
        moved: Mapping[Target, OutboxPosition],
        sends: Sequence[Message],
    ) -> Answer:
        """Replace messages whose targets take nothing more."""
        if self.held(group, owner, epoch) is None:
            return ("FENCED",)
        heads: Heads = self.data.get(("heads", group), Heads())
        is_repeat = bool(sends) and heads.last == sends[-1].id
        if not is_repeat:
            if heads.last != last:
                return ("GAP",)
            self.delete_messages(group, removed)
            positions = {to: at for to, at in heads.positions.items() if to not in moved}
            self.send(group, Heads(heads.last, positions, {**heads.moved, **moved}), sends)
            if not sends:
                self.put(("heads", group), Heads(heads.last, positions, {**heads.moved, **moved}))
        self.again()
        return ("OK",)
