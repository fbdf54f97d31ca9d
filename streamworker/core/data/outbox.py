"""What a source sent to one partition of another stream: how much, and a digest of all of it.

A source commits records for other streams in one step with its own progress, such as one partition of a
processor. A message says at which :class:`OutboxPosition` it begins and ends, and the target partition
keeps the position that it has reached. It takes a message only if it stands where the message begins. So a
message that is repeated is taken once, whoever sends it, and a loss at either end is noticed.

A number would not do without a digest: after a failover the source may send other records under the same
numbers (docs/decisions/0048).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple, Self

from streamworker.core.data.channel import AppendCode, AppendReply
from streamworker.core.data.entries import EntryId

DIGEST_BYTES = 6
"""Two histories of one source with the same number have equal digests once in 2**48."""


class OutboxPosition(NamedTuple):
    """How far the history of one source and one target partition has come.

    >>> OutboxPosition.parse(str(OutboxPosition(12, "9f86d081884c"))) == OutboxPosition(12, "9f86d081884c")
    True
    """

    records: int
    digest: str = ""

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """Read a position as it is stored; raise ValueError for other text."""
        if isinstance(text, bytes):
            text = text.decode("ascii", "replace")
        records, _, digest = text.partition("-")
        return cls(int(records), digest)

    def __str__(self) -> str:
        return f"{self.records}-{self.digest}"

    def after(self, records: int, data: bytes) -> "OutboxPosition":
        """Return the position after a message with some records.

        >>> OutboxPosition(0).after(3, b"abc").records
        3
        """
        digest = blake2b(self.digest.encode(), digest_size=DIGEST_BYTES)
        digest.update(data)
        return OutboxPosition(self.records + records, digest.hexdigest())


START = OutboxPosition(0)
"""The position of a target partition that has taken nothing."""


class Target(NamedTuple):
    """One partition of a stream of the same app.

    >>> str(Target("priced", 5)), Target.parse("priced/5")
    ('priced/5', Target(stream='priced', partition=5))
    """

    stream: str
    partition: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a target as it is stored; raise ValueError for other text."""
        stream, _, partition = text.partition("/")
        return cls(stream, int(partition))

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"

    @property
    def in_words(self) -> str:
        """The target for messages to people."""
        return f"partition {self.partition} of {self.stream}"


@dataclass(frozen=True, slots=True)
class Message:
    """Records that one source sends to one target partition, all or none."""

    number: int
    """Its number among all messages of the source."""
    to: Target
    since: OutboxPosition
    """Where the target must stand to take it."""
    through: OutboxPosition
    """Where the target stands after it."""
    data: bytes
    """What the target's append takes."""

    @property
    def id(self) -> EntryId:
        """Its id in the outbox. It holds the digest, so that it names this message of this history only."""
        return EntryId(self.number, int(self.through.digest, 16))


class Standing(Enum):
    """Why a target partition did not take a message, by where it stands."""

    GOES_ON = "goes on"
    """It stands at the begin or the end of a message that the source still has."""
    TARGET_WENT_BACK = "the target went back"
    """It lacks records that it had confirmed, and the source has dropped them."""
    DIVERGED = "the source went back"
    """It has records that the source does not know any more; the source may have sent others since."""


def standing_of(
    stands: OutboxPosition, messages: Sequence[Message], head: OutboxPosition = START
) -> tuple[Standing, int]:
    """Compare where a target stands with the messages that the source still has for it, in their order.

    ``head`` is how far the source's history of the target has come, if that is known. The second value is the
    number of the messages that the target has taken. Some may be missing in between: a failover of the source
    brings back some that were deleted. What was deleted the target had taken, and all before it.

    >>> a, b, c = OutboxPosition(1, "aa"), OutboxPosition(2, "bb"), OutboxPosition(3, "cc")
    >>> to = Target("priced", 5)
    >>> chain = [Message(7, to, a, b, b""), Message(8, to, b, c, b"")]
    >>> standing_of(b, chain)
    (<Standing.GOES_ON: 'goes on'>, 1)
    >>> standing_of(OutboxPosition(0), chain)
    (<Standing.TARGET_WENT_BACK: 'the target went back'>, 0)
    >>> standing_of(OutboxPosition(2, "xx"), chain)
    (<Standing.DIVERGED: 'the source went back'>, 0)
    >>> later = Message(9, to, OutboxPosition(8, "ii"), OutboxPosition(9, "jj"), b"")
    >>> standing_of(OutboxPosition(7), [chain[0], later])
    (<Standing.TARGET_WENT_BACK: 'the target went back'>, 1)
    """
    for behind, message in enumerate(reversed(messages)):
        if stands in (message.since, message.through):
            return Standing.GOES_ON, len(messages) - behind - (stands != message.through)
    # Only now, since `head` may be older than the messages.
    if stands == head and head != START:
        return Standing.GOES_ON, len(messages)
    taken = 0
    for index, (before, message) in enumerate(pairwise(messages), 1):
        if before.through != message.since and before.through.records < stands.records:
            taken = index
    went_back = stands.records < messages[taken].since.records
    return (Standing.TARGET_WENT_BACK if went_back else Standing.DIVERGED), taken


class Remainder(NamedTuple):
    """What a source has left for a target that takes no more."""

    why: Standing
    taken: int
    """How many of its messages the target has."""
    lost: tuple[tuple[OutboxPosition, OutboxPosition], ...]
    """From where and up to where the target has lost what it had confirmed, and the source has dropped."""


def left_of(stands: OutboxPosition, messages: Sequence[Message], head: OutboxPosition) -> Remainder:
    """Compare where a target stands that takes no more with all that its source has sent it.

    Nobody sends it another message, which would show that it lacks what it had confirmed.

    >>> a, b, c = OutboxPosition(1, "aa"), OutboxPosition(2, "bb"), OutboxPosition(3, "cc")
    >>> last = Message(8, Target("priced", 5), b, c, b"")
    >>> left_of(b, [last], c).lost, left_of(a, [last], c).lost == ((a, b),)
    ((), True)
    >>> left_of(a, [], c).lost == ((a, c),)
    True
    >>> left_of(c, [], c).lost, left_of(c, [], a).why
    ((), <Standing.DIVERGED: 'the source went back'>)
    """
    if messages:
        why, taken = standing_of(stands, messages, head)
    else:
        is_known = stands == head or stands.records < head.records
        why, taken = Standing.GOES_ON if is_known else Standing.DIVERGED, 0
    if why is Standing.DIVERGED:
        return Remainder(why, taken, ())
    lost, at = [], stands
    for message in messages[taken:]:
        if message.since != at:
            lost.append((at, message.since))
        at = message.through
    if at.records < head.records:
        lost.append((at, head))
    return Remainder(why, taken, tuple(lost))


class OutboxQueue:
    """The messages of one outbox for one target partition, in order, and what is done with them next.

    One round trip at a time forwards them. ``answered`` and ``compared`` return the ids of the messages that
    the target has by now: the source may delete these.
    """

    def __init__(self, to: Target) -> None:
        self.to = to
        self.messages: deque[Message] = deque()
        """All that the source's owner has read or committed, and the target has not confirmed."""
        self.held = 0
        """Their bytes."""
        self.is_busy = False
        """Whether a round trip is under way; the caller ends it, after a rest if it likes."""

    def put(self, message: Message) -> None:
        """Add the next message, once it counts at the source."""
        self.messages.append(message)
        self.held += len(message.data)

    def begin(self, most: int) -> list[Message]:
        """Begin a round trip: return the first messages, up to some bytes; none if another is under way."""
        its, size = list[Message](), 0
        for message in () if self.is_busy else self.messages:
            its.append(message)
            size += len(message.data)
            if size >= most:
                break
        self.is_busy |= bool(its)
        return its

    def answered(self, replies: Sequence[AppendReply]) -> tuple[list[EntryId], AppendReply | None]:
        """Take in the replies to the messages of a round trip, and the first one that holds up the queue.

        If that is ``OTHER``, the caller reads what the source has for the target, and compares it.
        """
        taken: list[EntryId] = []
        for reply in replies:
            if reply.code is AppendCode.OTHER:
                # It may have taken this one and later ones from an earlier owner, or without an answer.
                why, count = standing_of(OutboxPosition.parse(reply.value), self.messages)
                if why is Standing.GOES_ON and count:
                    return taken + self._take(count), None
            if not reply.is_there:
                return taken, reply
            taken += self._take(1)
        return taken, None

    def compared(
        self, stands: OutboxPosition, chain: Sequence[Message], head: OutboxPosition | None, through: int
    ) -> tuple[list[EntryId], Standing]:
        """Go on from where the target stands, with all messages that the source has for it.

        ``through`` is the number of the last message that was put into any queue before those of the source
        were read. After ``TARGET_WENT_BACK`` the caller tells the loss, and then accepts it.
        """
        newer = [message for message in self.messages if message.number > through]
        self.messages = deque([message for message in chain if message.number <= through] + newer)
        self.held = sum(len(message.data) for message in self.messages)
        if not self.messages or not chain:
            return [], Standing.GOES_ON
        why, count = standing_of(stands, chain, head or START)
        taken = self._take(min(count, len(self.messages)))
        return taken, why if self.messages else Standing.GOES_ON

    def accept(self, stands: OutboxPosition) -> None:
        """Let the first message follow where the target stands: what was between is lost, and is told."""
        self.messages[0] = replace(self.messages[0], since=stands)

    def _take(self, count: int) -> list[EntryId]:
        taken = [self.messages.popleft() for _ in range(count)]
        self.held -= sum(len(message.data) for message in taken)
        return [message.id for message in taken]
