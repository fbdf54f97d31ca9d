"""The outbox of one partition of a group: messages for another stream, by its owner.

The owner makes messages for the partitions of the map that it knows. It learns of a newer map between two
commits, and then first replaces the messages for partitions that take no more.
"""

from collections.abc import Mapping, Sequence

from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import (
    START,
    Message,
    OutboxPosition,
    Standing,
    Target,
    standing_of,
)
from tests.model.net import Actor, asked
from tests.model.scripts import Box, Heads, Partition, Record
from tests.model.streams import Router, Stream, router

Held = tuple[str, str, int]
"""Group, owner and epoch."""
_records: dict[bytes, tuple[Record, ...]] = {}
"""What messages hold by their data; a schedule clears it."""


class Outbox:
    """One outbox, at its owner."""

    def __init__(self, its: Partition, held: Held, target: Stream) -> None:
        self.its, self.held, self.target = its, held, target
        self.group = held[0]
        self.source = f"{its.number}/{self.group}"
        known = target.map
        self.router: Router = router(known[: 1 + int(target.net.dice.random() * len(known))])
        """By a map that may be of before."""
        self.confirmed = 0
        """Number of the last message that is durable."""
        self.heads = Heads()

    @property
    def last(self) -> EntryId | None:
        return self.heads.last

    @property
    def box(self) -> Box:
        box: Box = self.its.data.get(("box", self.group), ())
        return box

    def open(self) -> Actor:
        """Begin with what is there."""
        answer = yield from asked(self.its, self.its.open_outbox, self.group)
        self.heads = answer[1]
        self.confirmed = self.heads.last.ms if self.heads.last else 0
        # The owner before may have known a newer map.
        while any(to.partition >= self.router.base for to in self.heads.moved):
            yield None
            self.router = router(max(self.router.counts, self.target.map, key=len))

    # -- making messages -------------------------------------------------------------------------

    def messages(self, records: Sequence[Record]) -> list[Message]:
        """Return the messages that some records of the source lead to, after the last one."""
        return self.made([("chain", key, (sender, number)) for sender, key, number in records], self.heads)

    def made(self, records: Sequence[Record], heads: Heads) -> list[Message]:
        """Return messages with records for the partitions of their keys."""
        by: dict[int, list[Record]] = {}
        for record in records:
            by.setdefault(self.router.goes(record[1]), []).append(record)
        made, number = list[Message](), heads.last.ms if heads.last else 0
        for partition, its in by.items():
            to, data = Target(self.target.name, partition), repr(its).encode()
            _records[data] = tuple(its)
            since = heads.positions.get(to) or heads.moved.get(to) or START
            number += 1
            made.append(Message(number, to, since, since.after(len(its), data), data))
        return made

    def committed(self, sends: Sequence[Message]) -> None:
        if sends:
            self.heads = after(self.heads, sends)
            self.confirmed = sends[-1].number

    def follow(self) -> Actor:
        """Learn of the target's map, some time; return False if the source has another owner."""
        if len(self.target.map) > len(self.router.counts) and self.target.net.dice.random() < 0.5:
            self.router = router(self.target.map)
        old = [to for to in self.heads.positions if to.partition < self.router.base]
        return not old or (yield from self.move(old))

    def move(self, old: Sequence[Target]) -> Actor:
        """Replace the messages for partitions that take no more by messages for those that follow."""
        heads, removed, sends = self.heads, list[EntryId](), list[Message]()
        moved: Mapping[Target, OutboxPosition] = {to: heads.positions[to] for to in old}
        heads = Heads(
            heads.last,
            {to: at for to, at in heads.positions.items() if to not in moved},
            {**heads.moved, **moved},
        )
        taken = {to: self.taken(to) for to in old}
        for message in self.box:
            if message.to in moved:
                removed.append(message.id)
                if message.number > taken[message.to]:
                    made = self.made(_records[message.data], heads)
                    heads = after(heads, made)
                    sends += made
        answer = yield from asked(
            self.its, self.its.move_messages, *self.held, self.last, removed, moved, sends
        )
        if answer[0] != "OK":
            return False
        self.heads = heads
        self.confirmed = heads.last.ms if heads.last else 0
        return True

    def taken(self, to: Target) -> int:
        """Return the number of the last message that a target has taken, which takes no more."""
        chain = [message for message in self.box if message.to == to]
        if not chain:
            return 0
        _, count = standing_of(self.stands(to), chain, self.heads.positions[to])
        return chain[count - 1].number if count else 0

    def stands(self, to: Target) -> OutboxPosition:
        """Return what a target has taken."""
        stands: OutboxPosition = self.target[to.partition].data.get(("taken", self.source), START)
        return stands

    # -- forwarding ------------------------------------------------------------------------------

    def forward(self) -> Actor:
        """Forward the messages in their order, for one target after the other."""
        dice = self.target.net.dice
        while True:
            yield None
            box = [message for message in self.box if message.number <= self.confirmed]
            if not box:
                continue
            to = box[int(dice.random() * len(box))].to
            chain = [message for message in box if message.to == to]
            its = self.target[to.partition]
            answer = yield its.call(its.forward, self.source, chain[0], _records[chain[0].data], waits=True)
            if answer is None:
                continue
            count = 1 if answer[0] in ("OK", "DUP") else 0
            if answer[0] == "OTHER":
                chain = [message for message in self.box if message.to == to]
                head = self.its.data.get(("heads", self.group), Heads()).positions.get(to, START)
                if not chain:
                    continue
                why, count = standing_of(self.stands(to), chain, head)
                if why is not Standing.GOES_ON and self.its.held(*self.held):
                    self.target.told.append(f"{why.value}: {to}")
                    return
            if count:
                ids = [message.id for message in chain[:count]]
                yield self.its.call(self.its.delete_messages, self.group, ids)


def after(heads: Heads, sends: Sequence[Message]) -> Heads:
    """Return the heads after some messages."""
    if not sends:
        return heads
    positions = {**heads.positions, **{message.to: message.through for message in sends}}
    return heads._replace(last=sends[-1].id, positions=positions)


def forget() -> None:
    """Forget what the messages of a schedule held."""
    _records.clear()
