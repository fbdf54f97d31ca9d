"""Columns: from records to an Arrow record batch, one column at a time.

A column has an Arrow type and the Python types that it accepts. Most columns first try a :data:`Quick` way,
which takes only values that all have the usual type of the column, in half the time. Otherwise a column makes
one pass over the types of the values (``set(map(type, ...))``, 20 ns each), and pyarrow makes one in C. If a
value does not fit, the column checks the values one by one, to name the record and the field.

pyarrow alone would accept too much: it cuts 1.5 to 1 for an integer column, takes a naive datetime for
UTC, and puts None into columns that are not nullable.
"""

import collections.abc
import datetime as dt
import enum
import itertools
import struct
import uuid
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import msgspec
import pyarrow as pa

from streamworker.core.text import storable
from streamworker.errors import RecordError
from streamworker.records.types import UNKNOWN_DEFAULT, Field, RecordKind

UNFIT = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What pyarrow raises for values that do not fit."""

Quick = Callable[[list[Any]], pa.Array | None]
"""Builds an array, or returns None: then the column looks at each value, and names what does not fit."""

_NoneType = type(None)
_UnsetType = msgspec.UnsetType


@dataclass(eq=False)
class Misfit(Exception):
    """A value that its column cannot hold; the caller turns it into a RecordError with the record."""

    index: int
    path: str
    what: str


@dataclass(eq=False)
class Column(ABC):
    """One column: an Arrow type, and how to build its arrays."""

    arrow_type: pa.DataType
    nullable: bool
    """Whether None and msgspec's UNSET are allowed."""
    accepts: tuple[type, ...]
    """The types of values that it accepts, with their subclasses except those in ``never``."""
    never: tuple[type, ...] = ()

    def __post_init__(self) -> None:
        self._usual = frozenset((*self.accepts, _NoneType) if self.nullable else self.accepts)

    def build(self, values: list[Any]) -> pa.Array:
        """Build the array of these values; raises :class:`Misfit`."""
        kinds = set(map(type, values))
        if not kinds <= self._usual:
            values = self._settle(values, kinds)
        return self._build(values, nulls=_NoneType in kinds or _UnsetType in kinds)

    def _settle(self, values: list[Any], kinds: set[type]) -> list[Any]:
        """Accept values of subclasses and UNSET, and refuse others; return the values without UNSET."""
        if self.nullable and _UnsetType in kinds:
            values = [None if value is msgspec.UNSET else value for value in values]
            kinds = kinds - {_UnsetType}
        for kind in kinds - self._usual:
            if not self._takes(kind):
                self._refuse(values, next(at for at, value in enumerate(values) if type(value) is kind))
        return values

    def _takes(self, kind: type) -> bool:
        return issubclass(kind, self.accepts) and not issubclass(kind, self.never)

    def _refuse(self, values: list[Any], index: int) -> NoReturn:
        value = values[index]
        if value is None or value is msgspec.UNSET:
            raise Misfit(index, "", "is None, and its type does not allow that")
        raise Misfit(index, "", f"is {short(value)}, {self._unfit}")

    @property
    def _unfit(self) -> str:
        if issubclass(self.accepts[0], enum.Enum):
            return f"and no member of {self.accepts[0].__name__}"
        return f"which does not fit {self.arrow_type}"

    @abstractmethod
    def _build(self, values: list[Any], nulls: bool) -> pa.Array:
        """Build the array of values with accepted types; ``nulls`` tells whether some are None."""


@dataclass(eq=False)
class Leaf(Column):
    """A column of scalar values, which pyarrow converts after ``prepare``."""

    prepare: Callable[[Any], Any] | None = None
    check: Callable[[list[Any]], int | None] | None = None
    wanted: str = ""
    allowed: Sequence[Any] | str | None = None
    """The values that the type has, or their pattern; None if it has all of the Arrow type."""
    quick: Quick | None = None

    def build(self, values: list[Any]) -> pa.Array:
        """Build the array of these values, the quick way if they allow it; raises :class:`Misfit`."""
        array = None if self.quick is None else self.quick(values)
        return super().build(values) if array is None else array

    def _build(self, values: list[Any], nulls: bool) -> pa.Array:
        if self.check is not None:
            bad = self.check(values)
            if bad is not None:
                raise Misfit(bad, "", f"is {short(values[bad])}; {self.wanted}")
        ready = values
        if (prepare := self.prepare) is not None and nulls:
            ready = [None if value is None else prepare(value) for value in values]
        elif prepare is not None:
            ready = list(map(prepare, values))
        try:
            return pa.array(ready, self.arrow_type)
        except UNFIT:
            for index, value in enumerate(ready):
                try:
                    pa.array([value], self.arrow_type)
                except UNFIT:
                    self._refuse(values, index)
            raise


class ListColumn(Column):
    """Lists, tuples and sets: one array of all their items, divided by offsets."""

    def __init__(self, item: Column, nullable: bool) -> None:
        arrow_type = pa.list_(pa.field("element", item.arrow_type, nullable=item.nullable))
        accepts = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Set)
        super().__init__(arrow_type, nullable, accepts, (str, bytes, bytearray, memoryview))
        self.item = item

    def _build(self, values: list[Any], nulls: bool) -> pa.Array:
        present, owner, offsets = _divided(values, nulls)
        with inside("[]", owner):
            items = self.item.build(list(itertools.chain.from_iterable(present)))
        return pa.ListArray.from_arrays(offsets, items, type=self.arrow_type)


class MapColumn(Column):
    """Dictionaries with scalar keys."""

    def __init__(self, key: Column, value: Column, nullable: bool) -> None:
        arrow_type = pa.map_(
            pa.field("key", key.arrow_type, nullable=False),
            pa.field("value", value.arrow_type, nullable=value.nullable),
        )
        super().__init__(arrow_type, nullable, (dict, collections.abc.Mapping))
        self.key = key
        self.value = value

    def _build(self, values: list[Any], nulls: bool) -> pa.Array:
        present, owner, offsets = _divided(values, nulls)
        chain = itertools.chain.from_iterable
        with inside(" (key)", owner):
            keys = self.key.build(list(chain(present)))
        with inside("{}", owner):
            items = self.value.build(list(chain(v.values() for v in present)))
        return pa.MapArray.from_arrays(offsets, keys, items, type=self.arrow_type)


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """One field of a record: its name, its column, and how to get its values from many records."""

    name: str
    column: Column
    fetch: Callable[[list[Any]], list[Any]]
    field: Field
    leaves_out_none: bool
    """Whether None means that the field was left out: the type itself does not allow None."""

    @property
    def stored_default(self) -> dict[str, bytes]:
        """The default as JSON; empty if there is none, or it is computed."""
        value = self.field.default
        if value is UNKNOWN_DEFAULT and self.field.factory in (list, tuple, set, frozenset, dict):
            value = self.field.factory()
        return {} if _is_special(value) else {"default": msgspec.json.encode(value)}

    def default(self, rows: int) -> pa.Array | None:
        """Return the column for a table that lacks it; None if the field has no default."""
        value = self.field.default
        if value is UNKNOWN_DEFAULT and self.field.factory is not None:
            return self.column.build([self.field.factory() for _ in range(rows)])
        if _is_special(value):
            is_absent = self.column.nullable and value is not msgspec.NODEFAULT
            return pa.nulls(rows, self.column.arrow_type) if is_absent else None
        return self.column.build([value] * rows)


def fetcher(name: str, kind: RecordKind, may_be_absent: bool) -> Callable[[list[Any]], list[Any]]:
    """Return what gets the values of a field from many records."""
    if may_be_absent:
        return lambda records: [record.get(name) for record in records]
    if kind is RecordKind.TYPED_DICT:
        return lambda records: [record[name] for record in records]
    return lambda records: [getattr(record, name) for record in records]


def _is_special(default: Any) -> bool:
    return any(default is special for special in (msgspec.NODEFAULT, UNKNOWN_DEFAULT, msgspec.UNSET))


class StructColumn(Column):
    """Records: one column for each field. The root of a record type's tree is a StructColumn.

    A record within another is encoded as an array of its values if it is ``positional``.
    """

    def __init__(
        self,
        name: str,
        members: Sequence[FieldColumn],
        nullable: bool,
        accepts: type,
        *,
        positional: bool = False,
    ) -> None:
        fields = [pa.field(m.name, m.column.arrow_type, nullable=m.column.nullable) for m in members]
        super().__init__(pa.struct(fields), nullable, (accepts,))
        self.name = name
        self.members = members
        self.positional = positional
        self._fields = fields

    @cached_property
    def schema(self) -> pa.Schema:
        """The fields as an Arrow schema."""
        return pa.schema(self._fields)

    def batch_of(self, records: Sequence[Any]) -> pa.RecordBatch:
        """Build a record batch from records; raise RecordError for a value that does not fit."""
        values = records if isinstance(records, list) else list(records)
        try:
            self.check_records(values)
            return pa.RecordBatch.from_arrays(self.arrays(values), schema=self.schema)
        except Misfit as misfit:
            field = misfit.path.lstrip(".")
            subject = f"field {field!r} of {self.name}" if field else "it"
            raise RecordError(
                f"Record {misfit.index} (counted from 0, of {len(values)}): {subject} {misfit.what}.",
                remedy="Change the value, or the type of the field.",
            ) from None

    def arrays(self, records: list[Any]) -> list[pa.Array]:
        """Build one array for each field from records, none of which is None."""
        return [self._array(member, records) for member in self.members]

    def _array(self, member: FieldColumn, records: list[Any]) -> pa.Array:
        try:
            return member.column.build(member.fetch(records))
        except Misfit as misfit:
            raise Misfit(misfit.index, f".{member.name}{misfit.path}", misfit.what) from None
        except (AttributeError, KeyError):
            for index, record in enumerate(records):
                try:
                    member.fetch([record])
                except (AttributeError, KeyError):
                    raise Misfit(index, f".{member.name}", "is missing") from None
            raise
        except StopIteration:  # A property raised it; a coroutine cannot.
            raise RuntimeError(f"{self.name}.{member.name} raised StopIteration") from None

    def check_records(self, records: list[Any]) -> None:
        """Raise :class:`Misfit` for the first value that is no record of this type."""
        if not all_are(records, *self.accepts):
            self._settle(records, set(map(type, records)))

    def _refuse(self, values: list[Any], index: int) -> NoReturn:
        if values[index] is None:
            super()._refuse(values, index)
        cut = ", but of a subclass, whose further fields would be lost"
        cut = cut if isinstance(values[index], self.accepts) else ""
        raise Misfit(index, "", f"is {short(values[index])}, and not a {self.name}{cut}")

    def _takes(self, kind: type) -> bool:
        """Take records of the class itself: columns have none of the further fields of a subclass."""
        return self.accepts == (dict,) and issubclass(kind, dict)

    def _build(self, values: list[Any], nulls: bool) -> pa.Array:
        if not nulls:
            return pa.StructArray.from_arrays(self.arrays(values), fields=self._fields)
        # A field that is not nullable has no value for a null record. So build the arrays of the other
        # records, and then insert the null records.
        indexes = [index for index, value in enumerate(values) if value is not None]
        with inside("", indexes.__getitem__):
            arrays = self.arrays([values[index] for index in indexes])
        count = itertools.count()
        spread = pa.array([None if value is None else next(count) for value in values], pa.int64())
        return pa.StructArray.from_arrays(arrays, fields=self._fields).take(spread)


@contextmanager
def inside(suffix: str, record: Callable[[int], int]) -> Iterator[None]:
    """Turn the misfit of an inner column into one of the column around it; ``record`` returns its index."""
    try:
        yield
    except Misfit as misfit:
        raise Misfit(record(misfit.index), suffix + misfit.path, misfit.what) from None


def _divided(values: list[Any], nulls: bool) -> tuple[list[Any], Callable[[int], int], pa.Array]:
    """Return the lists that are there, the function from an item's index to its list's, and the offsets."""
    present = [value for value in values if value is not None] if nulls else values
    lengths = [0 if value is None else len(value) for value in values]
    offsets = list(itertools.accumulate(lengths, initial=0))
    marked: Sequence[int | None] = offsets
    if nulls:
        marked = [None if value is None else at for value, at in zip([*values, 0], offsets, strict=True)]
    return present, lambda index: bisect_right(offsets, index) - 1, pa.array(marked, pa.int32())


def short(value: object) -> str:
    """Return a value for a message: its type and the beginning of its text."""
    text = storable(value, repr)
    return f"the {type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


# -- quick ways --------------------------------------------------------------------------------

_UUID_DIGITS = [index for index in range(36) if index not in (8, 13, 18, 23)]


def all_are(values: list[Any], kind: type) -> bool:
    """Return whether all values are of a type, and none of a subclass."""
    return list(map(type, values)).count(kind) == len(values)


def ints(values: list[Any]) -> pa.Array | None:
    """Build an int64 array of ints; a bool is none."""
    try:
        return _packed("q", pa.int64(), values) if all_are(values, int) else None
    except struct.error:  # One has more than 64 bits.
        return None


def floats(values: list[Any]) -> pa.Array | None:
    """Build a float64 array of floats."""
    return _packed("d", pa.float64(), values) if all_are(values, float) else None


def texts(values: list[Any]) -> pa.Array | None:
    """Build a string array of str."""
    try:
        "".join(values)  # Fails for all else, and soonest: pyarrow takes bytes, too.
        return pa.array(values, pa.string())
    except UNFIT:
        return None


def _moments(epoch: dt.datetime, arrow_type: pa.DataType) -> Quick:
    zone, spans = epoch.tzinfo, pa.duration("us")

    def build(values: list[Any]) -> pa.Array | None:
        if not all_are(values, dt.datetime) or [value for value in values if value.tzinfo is not zone]:
            return None
        return pa.array([value - epoch for value in values], spans).view(arrow_type)

    return build


in_utc = _moments(dt.datetime(1970, 1, 1, tzinfo=dt.UTC), pa.timestamp("us", tz="UTC"))
"""Builds a timestamp array of datetimes whose zone is ``datetime.UTC``."""
naive = _moments(dt.datetime(1970, 1, 1), pa.timestamp("us"))  # noqa: DTZ001
"""Builds a timestamp array of datetimes without a zone."""


def uuids(values: list[Any]) -> pa.Array | None:
    """Build a string array of ten UUIDs or more: all their digits at once, and dashes between."""
    if len(values) < 10 or not all_are(values, uuid.UUID):
        return None
    digits = b"".join([value.int.to_bytes(16) for value in values]).hex().encode()
    text = bytearray(b"-" * (36 * len(values)))
    for digit, index in enumerate(_UUID_DIGITS):
        text[index::36] = digits[digit::32]
    return _packed("i", pa.string(), range(0, len(text) + 1, 36), pa.py_buffer(text))


def _packed(code: str, arrow_type: pa.DataType, values: Sequence[Any], *data: pa.Buffer) -> pa.Array:
    """Build an array from numbers (or offsets and data) in the machine's form, which is Arrow's."""
    packed = pa.py_buffer(struct.pack(f"{len(values)}{code}", *values))
    return pa.Array.from_buffers(arrow_type, len(values) - len(data), [None, packed, *data])
