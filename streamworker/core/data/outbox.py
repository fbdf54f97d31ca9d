"""What a source sent to one partition of another stream: how much, and a digest of all of it.

A source is a place that commits records for other streams in one step with its own progress, such as one
partition of a processor. It numbers what it sends to each target partition by records, and adds each message
to a digest. A message says at which :class:`Mark` it begins and at which it ends, and the target partition
keeps the mark that it has reached. It takes a message only if it stands where the message begins. So a
message that is repeated is taken once, whoever sends it, and a loss at either end is noticed.

The number alone would not do. After a failover the source may send other records under the same numbers, and
the target would drop them as already taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple, Self

from streamworker.core.data.entries import EntryId

DIGEST_BYTES = 6
"""Two histories of one source with the same number have equal digests once in 2**48."""


class Mark(NamedTuple):
    """How far the history of one source and one target partition has come.

    >>> Mark.parse(str(Mark(12, "9f86d081884c"))) == Mark(12, "9f86d081884c")
    True
    """

    records: int
    digest: str = ""

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """Read a mark as it is stored; raise ValueError for other text."""
        if isinstance(text, bytes):
            text = text.decode("ascii", "replace")
        records, _, digest = text.partition("-")
        return cls(int(records), digest)

    def __str__(self) -> str:
        return f"{self.records}-{self.digest}"

    def after(self, records: int, data: bytes) -> "Mark":
        """Return the mark after a message with some records.

        >>> Mark(0).after(3, b"abc").records
        3
        """
        digest = blake2b(self.digest.encode(), digest_size=DIGEST_BYTES)
        digest.update(data)
        return Mark(self.records + records, digest.hexdigest())


START = Mark(0)
"""The mark of a target partition that has taken nothing."""


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
    since: Mark
    """Where the target must stand to take it."""
    through: Mark
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
    stands: Mark, messages: Sequence[tuple[Mark, Mark]], head: Mark = START
) -> tuple[Standing, int]:
    """Compare where a target stands with the messages that the source still has for it, in their order.

    ``head`` is how far the source's history of the target has come, if that is known. The second value is the
    number of the messages that the target has taken. Some may be missing in between: a failover of the source
    brings back some that were deleted. What was deleted the target had taken, and all before it.

    >>> a, b, c = Mark(1, "aa"), Mark(2, "bb"), Mark(3, "cc")
    >>> standing_of(b, [(a, b), (b, c)])
    (<Standing.GOES_ON: 'goes on'>, 1)
    >>> standing_of(c, [(a, b)], head=c)
    (<Standing.GOES_ON: 'goes on'>, 1)
    >>> standing_of(Mark(0), [(a, b), (b, c)])
    (<Standing.TARGET_WENT_BACK: 'the target went back'>, 0)
    >>> standing_of(Mark(2, "xx"), [(a, b), (b, c)])
    (<Standing.DIVERGED: 'the source went back'>, 0)
    >>> standing_of(Mark(7), [(a, b), (Mark(9, "ii"), Mark(10, "jj"))])
    (<Standing.TARGET_WENT_BACK: 'the target went back'>, 1)
    """
    if stands == head and head != START:
        return Standing.GOES_ON, len(messages)
    for place in range(len(messages) - 1, -1, -1):
        since, through = messages[place]
        if stands in (since, through):
            return Standing.GOES_ON, place + (stands == through)
    taken = 0
    for place in range(1, len(messages)):
        before, since = messages[place - 1][1], messages[place][0]
        if before != since and before.records < stands.records:
            taken = place
    went_back = stands.records < messages[taken][0].records
    return (Standing.TARGET_WENT_BACK if went_back else Standing.DIVERGED), taken
