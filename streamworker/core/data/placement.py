"""Chooses the partition of a record, by a rule that a producer in any language can follow.

Records with one key must always go to one partition, whichever program sends them. So the rule defines every
byte; tests/core/vectors.py has keys to test an implementation with.

**1. The key becomes bytes** (:func:`canonical_key`):

    ==========================  =====================================================
    text                        its UTF-8
    bytes                       as they are
    a whole number              decimal ASCII, ``-`` if negative, no leading zeros
    true, false                 ``true``, ``false``
    UUID                        36 characters, lower case
    date                        ``YYYY-MM-DD``
    time stamp with a zone      ``YYYY-MM-DDTHH:MM:SS.ffffffZ``, in UTC, six digits
    time stamp without a zone   the same without ``Z``
    decimal number              fixed point, no exponent, no trailing zeros; zero is ``0``
    an enumeration's member     its value, by this table
    several values              ``<length>:<bytes>`` of each, one after the other, where
                                length counts bytes; an absent one is ``-``
    none                        no key: the sender picks a partition, one after the other
    ==========================  =====================================================

Floating-point numbers are refused: equal numbers do not have equal texts in all languages.

**2. The bytes become a partition** (:class:`Placement`): ``crc32(bytes) mod partitions``, with the CRC-32 of
zlib, gzip and PNG (polynomial 0xEDB88320, reflected, initial value and final xor 0xFFFFFFFF) as an unsigned
number. Every language's library has it, and it spreads keys evenly enough: it has to choose between 2 and
some hundred partitions, and does not have to resist an attacker.

**3. Which partitions there are.** A stream begins with one *generation* of partitions. A stream that grows
gets a further one: the partitions it had take nothing more, and the new ones are numbered behind them.
``8+12`` means partitions 0 to 7, which are old, and 8 to 19, which are *active*. A key is in one partition of
each generation.

The rule for all generations is that of slots on a line. With ``first`` partitions in the first generation the
line has ``first * width`` slots; ``width`` is the larger of 16 and 65,536 divided by ``first``, rounded up.
``crc32(key) mod slots`` is a key's slot. Slots that are equal modulo ``first`` are neighbours on the line, so
that the first generation is ``crc32(key) mod first``. Each further generation cuts the line into equal
ranges.

So a partition has one or two *parents*, the partitions of the generation before that share keys with it, and
they have lower numbers. Parents never change, since no partition of an old generation takes anything.
"""

import datetime as dt
import enum
import uuid
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Any

from streamworker.errors import RecordError

_KEY_DIGITS_MAX = 1000
"""Limits the digits of a key: ``Decimal("1E+999999999")`` is a short text, and a gigabyte in fixed point."""
SLOTS_MIN = 65_536
WIDTH_MIN = 16


_COMPUTED = ("_active_of", "_parents", "_children", "_ancestors")


class Placement:
    """The partitions of one stream, generation after generation.

    >>> grown = Placement(8, 12)
    >>> grown.partition_of(b"ann"), grown.active, grown.parents_of(9), str(grown)
    (13, range(8, 20), (0, 1), '8+12')
    """

    _active_of: list[int]
    _parents: list[tuple[int, ...]]
    _children: list[list[int]]
    _ancestors: list[frozenset[int]]

    def __init__(self, *counts: int) -> None:
        self.become(*counts)

    def become(self, *counts: int) -> None:
        """Take in the map that Redis has: all who share this object follow it from now on."""
        self.__dict__.clear()  # Also what was computed by the map before.
        self.counts = counts
        """How many partitions each generation has."""
        self.live = counts[-1]
        """How many partitions take records."""
        self.total = sum(counts)
        self.base = self.total - self.live
        """Number of the first partition that takes records; 0 for a stream that never grew."""
        self.active = range(self.base, self.total)
        self.all = range(self.total)
        ends = list(accumulate(counts))
        self.generations = tuple(map(range, (0, *ends), ends))
        """The partitions of each generation."""
        self._slots = counts[0] * max(WIDTH_MIN, -(-SLOTS_MIN // counts[0]))

    def __str__(self) -> str:
        return "+".join(map(str, self.counts))

    def partition_of(self, key: bytes) -> int:
        """Return the partition of a canonical key.

        >>> Placement(16).partition_of(b"ann")
        3
        """
        crc = zlib.crc32(key)
        return self._active_of[crc % self._slots] if self.base else crc % self.live

    def partitions_of_texts(self, keys: Sequence[Any]) -> list[int] | None:
        """Return the partition of each key, if all are text that UTF-8 can hold; else None.

        This takes a third of the time of ``canonical_key`` and :meth:`partition_of` for each.

        >>> Placement(16).partitions_of_texts(["ann", "bob"]), Placement(16).partitions_of_texts(["ann", 7])
        ([3, 0], None)
        """
        if set(map(type, keys)) != {str}:
            return None
        try:
            if self.live == 1:
                "".join(keys).encode()
                return [self.base] * len(keys)
            crcs = map(zlib.crc32, map(str.encode, keys))
            if not self.base:
                live = self.live
                return [crc % live for crc in crcs]
            active_of, slots = self._active_of, self._slots
            return [active_of[crc % slots] for crc in crcs]
        except UnicodeEncodeError:
            return None

    def __getattr__(self, name: str) -> Any:
        """Compute what is missing, once for each map.

        It is no ``cached_property``: Spark pickles this class to servers that lack it, and a lock cannot be.
        """
        if name not in _COMPUTED:
            raise AttributeError(name)
        self.__dict__[name] = found = getattr(self, f"_computed{name}")()
        return found

    def _computed_active_of(self) -> list[int]:
        """Return the active partition of each slot."""
        first, width = self.counts[0], self._slots // self.counts[0]
        return [
            self.base + (slot % first * width + slot // first) * self.live // self._slots
            for slot in range(self._slots)
        ]

    # -- generations ---------------------------------------------------------------------------

    def path_of(self, key: bytes) -> tuple[int, ...]:
        """Return the partition that a canonical key has in each generation, the active one last.

        >>> Placement(8, 12).path_of(b"ann")
        (3, 13)
        """
        if not self.base:
            return (self.partition_of(key),)
        first, width = self.counts[0], self._slots // self.counts[0]
        slot = zlib.crc32(key) % self._slots
        place = slot % first * width + slot // first
        bases = zip((0, *accumulate(self.counts)), self.counts, strict=False)
        return tuple(base + place * count // self._slots for base, count in bases)

    def parents_of(self, partition: int) -> tuple[int, ...]:
        """Return the one or two partitions of the generation before that share keys with a partition."""
        return self._parents[partition]

    def children_of(self, partition: int) -> Sequence[int]:
        """Return the partitions of the generation after that share keys with a partition, in order."""
        return self._children[partition]

    def ancestors_of(self, partition: int) -> frozenset[int]:
        """Return the parents of a partition, their parents, and so on."""
        return self._ancestors[partition]

    def _computed_ancestors(self) -> list[frozenset[int]]:
        found: list[frozenset[int]] = []
        for parents in self._parents:
            found.append(frozenset(parents).union(*(found[parent] for parent in parents)))
        return found

    def _computed_parents(self) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = [()] * self.counts[0]
        for base, (older, newer) in zip((0, *accumulate(self.counts)), pairwise(self.counts), strict=False):
            old = self._begins(older)
            for low, high in pairwise(self._begins(newer)):
                its = range(bisect_right(old, low) - 1, bisect_right(old, high - 1))
                found.append(tuple(base + parent for parent in its))
        return found

    def _computed_children(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.all]
        for partition in self.all:
            for parent in self.parents_of(partition):
                found[parent].append(partition)
        return found

    def _begins(self, count: int) -> list[int]:
        """Return where on the line each partition of a generation begins, and the end of the line."""
        return [-(-self._slots * partition // count) for partition in range(count + 1)]


# -- keys ------------------------------------------------------------------------------------


def canonical_key(value: object) -> bytes | None:
    """Return a key as the bytes that decide its partition, or None for no key.

    Raise RecordError for a value that has no agreed form as bytes, such as a float.

    >>> canonical_key("ann")
    b'ann'
    >>> canonical_key(("ann", 7))
    b'3:ann1:7'
    """
    if type(value) is str:
        return _utf8(value)
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, enum.Enum):
        return canonical_key(value.value)
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, uuid.UUID):
        return str(value).encode()
    if isinstance(value, dt.datetime):
        return _timestamp(value)
    if isinstance(value, dt.date):
        return value.isoformat().encode()
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, tuple):
        return b"".join(map(_part, value))
    raise RecordError(
        f"A {type(value).__name__} cannot be a key.",
        remedy="Equal floats do not have equal texts in all languages: use an int, a str or a Decimal."
        if isinstance(value, float)
        else "Use str, bytes, int, bool, UUID, date, datetime, Decimal, an Enum, or a tuple of these.",
    )


def key_parts(key: bytes) -> list[bytes | None]:
    """Return the bytes of each value of a key of several, which :func:`canonical_key` joined.

    >>> key_parts(b"3:ann-1:7")
    [b'ann', None, b'7']
    """
    found: list[bytes | None] = []
    while key:
        if key[:1] == b"-":
            found.append(None)
            key = key[1:]
        else:
            size, _, rest = key.partition(b":")
            found.append(rest[: int(size)])
            key = rest[int(size) :]
    return found


def leading_key(field: bytes, leading: int) -> bytes | None:
    """Return the stream's key in the key of a table, which begins with it; None if it is absent.

    ``leading`` says how many of the table key's parts it is; 0 if it is the whole key.

    >>> leading_key(b"ann", 0), leading_key(b"3:ann2:13", 1), leading_key(b"3:ann2:131:7", 2)
    (b'ann', b'ann', b'3:ann2:13')
    """
    if not leading:
        return field
    parts = key_parts(field)[:leading]
    return parts[0] if leading == 1 else b"".join(map(_part, parts))


class RoundRobin:
    """Assigns records without a key to the partitions in turn.

    Give each sender another ``start``; otherwise all begin with the same partition.
    """

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def next(self, active: range) -> int:
        """Return the next of the partitions that take records."""
        chosen = self._next % len(active)
        self._next = chosen + 1
        return active[chosen]

    def back(self, count: int) -> None:
        """Take back the last ``count`` choices: their records were not sent."""
        self._next -= count


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RecordError(
            f"The key {text!a} is not valid text: it holds half of a surrogate pair.",
            remedy="Repair the text where it is read, or use bytes.",
        ) from None


def _integer(value: int) -> bytes:
    if value.bit_length() > _KEY_DIGITS_MAX * 3:
        raise RecordError("The key is a number of more than 1,000 digits.", remedy="Use its text or a hash.")
    return b"%d" % value


def _timestamp(value: dt.datetime) -> bytes:
    if value.utcoffset() is None:
        return value.replace(tzinfo=None).isoformat(timespec="microseconds").encode()
    try:
        utc = value.astimezone(dt.UTC)
    except OverflowError:
        raise RecordError(
            f"The key {value.isoformat()} lies outside the years 1 to 9999 in UTC.",
            remedy="Use a time that UTC can hold.",
        ) from None
    return utc.replace(tzinfo=None).isoformat(timespec="microseconds").encode() + b"Z"


def _decimal(value: Decimal) -> bytes:
    if not value.is_finite():
        raise RecordError(f"The key {value} is not a number.", remedy="Use a finite Decimal.")
    if abs(value.adjusted()) > _KEY_DIGITS_MAX or len(value.as_tuple().digits) > _KEY_DIGITS_MAX:
        raise RecordError("The key is a number of more than 1,000 digits.", remedy="Use its text or a hash.")
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return b"0" if text in ("0", "-0") else text.encode()


def _part(value: object) -> bytes:
    key = canonical_key(value)
    return b"-" if key is None else b"%d:%s" % (len(key), key)
