"""What keys hold, and how Redis reads numbers and ids; commands get bytes, and raise what they refuse."""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

MAX_PART = 2**64 - 1
"""Maximum of either part of an entry id."""

Id = tuple[int, int]
"""Milliseconds and sequence number of an entry."""

ZERO: Id = (0, 0)


class Refused(Exception):
    """An error reply of a command; a script can catch it."""


def wrong_type() -> Refused:
    """Return the error for a key of another type."""
    return Refused("WRONGTYPE Operation against a key holding the wrong kind of value")


class Hash(dict[bytes, bytes]):
    """The fields of a hash, in the order in which they came."""

    def copy(self) -> "Hash":
        """Return a copy that may be changed."""
        return Hash(self)


@dataclass(slots=True)
class SortedSet:
    """The members of a sorted set, by name and in order."""

    scores: dict[bytes, float] = field(default_factory=dict)
    order: list[tuple[float, bytes]] = field(default_factory=list)

    def copy(self) -> "SortedSet":
        """Return a copy that may be changed."""
        return SortedSet(dict(self.scores), self.order[:])

    def add(self, member: bytes, score: float) -> bool:
        """Set the score of a member; return whether it is new."""
        is_new = not self.remove(member)
        insort(self.order, (score, member))
        self.scores[member] = score
        return is_new

    def remove(self, member: bytes) -> bool:
        """Remove a member; return whether it was there."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.order[bisect_left(self.order, (score, member))]
        return True


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group, without consumers: nobody reads by it."""

    last: Id
    read: int | None
    """Entries that it has read; None if Redis cannot tell."""


@dataclass(slots=True)
class Stream:
    """The entries of a stream, and what Redis remembers of those that are gone."""

    ids: list[Id] = field(default_factory=list)
    entries: list[tuple[bytes, tuple[bytes, ...]]] = field(default_factory=list)
    """For each id its text, and the fields and values."""
    last: Id = ZERO
    added: int = 0
    max_deleted: Id = ZERO
    groups: dict[bytes, ConsumerGroup] = field(default_factory=dict)

    def copy(self) -> "Stream":
        """Return a copy that may be changed."""
        groups = {name: ConsumerGroup(each.last, each.read) for name, each in self.groups.items()}
        return Stream(self.ids[:], self.entries[:], self.last, self.added, self.max_deleted, groups)

    def after(self, at: Id, count: int) -> list[tuple[bytes, tuple[bytes, ...]]]:
        """Return the first entries after an id."""
        start = bisect_right(self.ids, at)
        return self.entries[start : start + count]

    def drop_first(self, count: int) -> None:
        """Remove the oldest entries."""
        del self.ids[:count], self.entries[:count]


@dataclass(frozen=True, slots=True)
class Other:
    """A value of a type that no script reads: a list or a set."""

    type: bytes

    def copy(self) -> "Other":
        """Return itself: nothing changes it."""
        return self


Value = bytes | Hash | SortedSet | Stream | Other

TYPES = {bytes: b"string", Hash: b"hash", SortedSet: b"zset", Stream: b"stream"}


def type_of(value: Value | None) -> bytes:
    """Return what TYPE answers."""
    return value.type if isinstance(value, Other) else TYPES.get(type(value), b"none")


def argument(value: object) -> bytes:
    """Return an argument as Redis gets it from Lua: a number with at most 17 digits.

    Valkey writes whole numbers above that in full.

    >>> argument(3.0), argument(0.5)
    (b'3', b'0.5')
    """
    if type(value) is bytes:
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return b"%.17g" % value
    raise Refused("ERR Command arguments must be strings or integers")


def number_text(value: float) -> bytes:
    """Return a score as Redis answers it."""
    return b"%.17g" % value


def integer(raw: bytes, refusal: str = "ERR value is not an integer or out of range") -> int:
    """Return a whole number of 64 bits, without blanks, a plus sign or leading zeros."""
    try:
        number = int(raw)
    except ValueError:
        raise Refused(refusal) from None
    if b"%d" % number != raw or not -(2**63) <= number < 2**63:
        raise Refused(refusal)
    return number


def id_text(at: Id) -> bytes:
    """Return an id as Redis writes it."""
    return b"%d-%d" % at


def parse_id(raw: bytes, sequence: int = 0) -> Id:
    """Return an id; ``sequence`` is the second part where there is none."""
    ms, dash, rest = raw.partition(b"-")
    if ms.isdigit() and (rest.isdigit() or not dash):
        at = int(ms), int(rest) if dash else sequence
        if max(at) <= MAX_PART:
            return at
    raise Refused("ERR Invalid stream ID specified as stream command argument")
