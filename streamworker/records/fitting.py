"""Whether a record that a consumer can decode is also what was sent, and fits the columns of an acked log.

What can differ is decided once for each type: records of plain numbers and texts are not looked at. To find
that a datetime with a zone fits takes no pyarrow, which a program that only sends need not load.
"""

import datetime as dt
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from streamworker.errors import ConfigurationError, RecordError
from streamworker.records.types import Declared, Precision, RecordKind, kind_of, parts_of

Check = Callable[[Sequence[Any], Sequence[Any]], None]
"""Takes records and what a consumer decodes; raises RecordError for one that is changed or fits no column."""

_UNSURE = {dt.datetime, dt.timedelta, decimal.Decimal}
"""Types with values that a decoder returns and a column refuses: without a zone, too long or too exact."""
_SEVERAL = {typing.Union, types.UnionType, Any, object}
"""Types as which a text can be read in several ways."""
_KEPT = {bool, int, float, str, bytes, dt.date, uuid.UUID, typing.Literal, Precision, *_UNSURE}
"""Types of which a column returns each value as it was."""


def make_check(record_type: Declared, codec: str) -> Check | None:
    """Return the check of records that can be encoded; None if none of them can be changed or refused."""
    parts = {field.name: set(parts_of(record_type.hints[field.name])) for field in record_type.declared}
    unsure = tuple(name for name, within in parts.items() if within & _UNSURE and codec != "arrow")
    several = [name for name, within in parts.items() if within & _SEVERAL and codec == "fields"]
    values_of = _values_of(record_type, several)
    has_code = record_type.kind is RecordKind.ATTRS or hasattr(record_type.python_type, "__post_init__")
    may_change = codec == "arrow" and (has_code or any(within - _KEPT for within in parts.values()))
    nested = codec != "arrow" and any(map(with_records, record_type.members))
    if not (unsure or values_of or may_change or nested):
        return None
    get: Callable[..., Any] = dict.get if record_type.kind is RecordKind.TYPED_DICT else getattr

    def check(records: Sequence[Any], decoded: Sequence[Any]) -> None:
        for record, found in zip(records, decoded, strict=True) if nested else ():
            if (cut := cut_class(record, found)) is not None:
                raise RecordError(
                    f"This {record_type.name} holds {cut_words(cut)}.",
                    remedy="Give it what its type declares.",
                )
        for record, found in zip(records, decoded, strict=True) if values_of is not None else ():
            if values_of is None:
                continue
            before, after = values_of(record), values_of(found)
            if changed := [name for name in before if not _same(before[name], after.get(name))]:
                raise RecordError(
                    f"Field {changed[0]!r} of this {record_type.name} is {before[changed[0]]!r:.60}, and "
                    f"consumers would get {after.get(changed[0])!r:.60}.",
                    remedy="Give it a type that the stream's codec keeps, or use another codec.",
                )
        for name in unsure:
            for record in decoded:
                value = get(record, name, None)
                if value is not None and (type(value) is not dt.datetime or value.tzinfo is None):
                    _to_columns(record_type, unsure)(decoded)
                    return

    return check


# -- records of subclasses -------------------------------------------------------------------
# A decoder makes records of the declared class. So an instance of a subclass would lose its further fields.


def cut_class(value: Any, found: Any) -> type | None:
    """Return the class of a record within a value that was read as its base class; None if there is none.

    >>> import msgspec
    >>> class Base(msgspec.Struct):
    ...     n: int
    >>> class Special(Base):
    ...     note: str
    >>> cut_class([Base(1), Special(2, "urgent")], [Base(1), Base(2)]).__name__
    'Special'
    """
    kind: Any = type(value)
    base: Any = type(found)
    if kind is not base and issubclass(kind, base) and kind_of(base) is not None:
        return type(value)
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict) and isinstance(found, dict):
        pairs = [(each, found.get(key)) for key, each in value.items()]
    elif isinstance(value, set | frozenset) and isinstance(found, set | frozenset):
        classes = set(map(type, found))
        return next((each for each in map(type, value) if each not in classes and kind_of(each)), None)
    elif names := with_records(kind):
        pairs = [(getattr(value, name, None), getattr(found, name, None)) for name in names]
    elif isinstance(value, list | tuple) and isinstance(found, list | tuple):
        classes = set(map(type, value))
        if classes == set(map(type, found)) and not any(map(_may_hold_records, classes)):
            return None  # The usual list of flat records.
        pairs = zip(value, found, strict=False)
    return next((cut for each, its in pairs if (cut := cut_class(each, its)) is not None), None)


def cut_words(kind: type) -> str:
    """Return what to say of a record of a subclass."""
    return (
        f"a {kind.__name__}, whose class is a subclass of the declared one: its further fields would be lost"
    )


def _may_hold_records(kind: type) -> bool:
    return bool(with_records(kind)) or issubclass(kind, (dict, list, tuple, set, frozenset))


@cache
def with_records(kind: Any) -> tuple[str, ...]:
    """Return the fields of a record class that may hold records."""
    if (of := kind_of(kind)) is None:
        return ()
    hints = Declared(kind, of).hints
    return tuple(name for name, hint in hints.items() if any(map(kind_of, parts_of(hint))))


def _values_of(record_type: Declared, several: list[str]) -> Callable[[Any], dict[str, Any]] | None:
    """Return what gets the values that a codec may change; None if there are none."""
    match record_type.kind:
        case RecordKind.PYDANTIC:  # Aliases and validators do what they like.
            return _attributes
        case RecordKind.TYPED_DICT:
            known = {field.name for field in record_type.declared}
            return lambda record: {
                name: record[name] for name in record if name in several or name not in known
            }
    return (lambda record: {name: getattr(record, name) for name in several}) if several else None


def _attributes(model: Any) -> dict[str, Any]:
    """Return what a model holds: two dumps would leave out the same, and be alike."""
    held = vars(model)
    fields = {name: held[name] for name in type(model).model_fields if name in held}
    return fields | (model.__pydantic_extra__ or {})


def _same(one: Any, other: Any) -> bool:
    if kind_of(type(one)) is RecordKind.PYDANTIC and type(one) is type(other):
        one, other = _attributes(one), _attributes(other)
    if isinstance(one, enum.Enum) and not isinstance(other, enum.Enum):
        one = one.value  # pydantic's use_enum_values leaves defaults as they are.
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dt.datetime) and isinstance(other, dt.datetime) and one.tzinfo and other.tzinfo:
        # A time that a clock shows twice is equal to none of another zone.
        one, other = one.astimezone(dt.UTC), other.astimezone(dt.UTC)
    return _equal(one, other) or not (_equal(one, one) or _equal(other, other))  # NaN differs from itself.


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - such as numpy's arrays, of which nothing can be said
        return True


@cache
def _to_columns(record_type: Declared, names: tuple[str, ...]) -> Callable[[Sequence[Any]], object]:
    """Return what puts some fields of records into columns, if a log can hold records of the type."""
    from streamworker.records.arrow import columns_of
    from streamworker.records.columns import StructColumn

    try:
        whole = columns_of(record_type)
    except ConfigurationError:
        return lambda _: None
    members = [member for member in whole.members if member.name in names]
    return StructColumn(whole.name, members, nullable=False, accepts=whole.accepts[0]).batch_of
