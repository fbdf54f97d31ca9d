"""The model of outboxes: the scripts that open one, forward its messages and delete those that are taken.

Each partition has an outbox. Its targets may lie on another server, which fails over on its own.
"""

from collections.abc import Collection

from streamworker.core.data.channel import AppendCode, AppendReply
from streamworker.core.data.entries import EntryId
from streamworker.core.data.outbox import START, Message, OutboxPosition, Target
from streamworker.redisio.data.outbox import Heads, OutboxWrite
from tests.simulator.server.stored import Stored, Taken


class Outboxes:
    """The part of the model that is about what partitions send to other streams."""

    stored: Stored
    losses = 0
    """How often a server has lost data."""

    def open_outbox(self, partition: int) -> tuple[Heads, list[Message]]:
        """``open_outbox.lua``, and all messages that are there."""
        lock = self.stored.locks[partition]
        return Heads(lock.last_message, dict(lock.positions), {}), list(lock.messages)

    def put(self, partition: int, write: OutboxWrite) -> None:
        """``parts/outbox.lua``: add the messages of a commit."""
        lock = self.stored.locks[partition]
        for message in write.messages:
            lock.messages.append(message)
            lock.last_message, lock.positions[message.to] = str(message.id), message.through

    def delete_messages(self, partition: int, ids: Collection[EntryId]) -> None:
        """``XDEL``."""
        lock = self.stored.locks[partition]
        lock.messages = [message for message in lock.messages if message.id not in ids]

    def taken(self, to: Target, partition: int) -> Taken:
        """Return what a target has taken of a partition."""
        return self.stored.taken.get((to, partition), Taken(START))

    def forward(self, partition: int, message: Message) -> AppendReply:
        """``forward.lua``; the model's targets have no limit."""
        known = self.taken(message.to, partition)
        if known.position == message.through:
            return AppendReply(AppendCode.DUP, str(known.position).encode())
        if not self.goes_on(known.position, message):
            return AppendReply(AppendCode.OTHER, str(known.position).encode())
        after = Taken(message.through, (*known.data, message.data))
        self.stored.taken[message.to, partition] = after
        there = sum(each.position.records for (to, _), each in self.stored.taken.items() if to == message.to)
        return AppendReply(AppendCode.OK, length=there)

    def goes_on(self, stands: OutboxPosition, message: Message) -> bool:
        """Return whether a target stands where a message begins."""
        return stands == message.since
