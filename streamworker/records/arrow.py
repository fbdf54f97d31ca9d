"""The Arrow schema of a record type, and compatible changes of the schema.

A record type's hints are compiled once into a tree of columns (:mod:`.columns`). It has the types
that Spark maps to its own without a cast: ``string``, ``timestamp[us, UTC]``, list items called
``element``.

    ====================================  ================================================
    bool, int, float, str, bytes          bool, int64, float64, string, binary
    datetime                              timestamp[us, UTC]; the value must have a zone
    Annotated[datetime, Meta(tz=False)]   timestamp[us]; the value must have none
    date, timedelta                       date32, duration[us]
    Decimal                               decimal128(38, 18), or as ``Precision`` says
    UUID                                  string
    Enum, Literal                         string or int64, by its values
    T | None, NotRequired[T]              T, nullable; everything else is not null
    list, tuple[T, ...], set, frozenset   list of T
    dict[K, T]                            map
    a record type                         struct
    ====================================  ================================================
"""

import datetime as dt
import decimal
import enum
import numbers
import typing
import uuid
from collections import abc
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa

from streamworker.errors import ConfigurationError
from streamworker.records.columns import (
    Column,
    FieldColumn,
    Leaf,
    ListColumn,
    MapColumn,
    StructColumn,
    fetcher,
    floats,
    in_utc,
    ints,
    naive,
    texts,
    uuids,
)
from streamworker.records.declarable import check_type
from streamworker.records.types import Declared, Hint, Precision, RecordKind, kind_of, label, read_hint

_LISTS = (
    *(list, tuple, set, frozenset, abc.Sequence, abc.MutableSequence, abc.Set, abc.MutableSet),
    *(abc.Collection, abc.Iterable),
)
_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_MAPS = (dict, abc.Mapping, abc.MutableMapping)

_POSSIBLE = (
    "Use bool, int, float, str, bytes, datetime, date, timedelta, Decimal, UUID, an Enum, "
    "or lists, dicts and records of these."
)
_INSTEAD: dict[Any, str] = {
    Any: "Name the field's type.",
    object: "Name the field's type.",
    dt.time: "Use a str, or a datetime.",
    complex: "Use two float fields.",
    list: "Say what it holds, such as list[str].",
    tuple: "Say what it holds, such as tuple[str, ...].",
    set: "Say what it holds, such as set[str].",
    frozenset: "Say what it holds, such as frozenset[str].",
    dict: "Say what it holds, such as dict[str, int].",
}

_BINARY = (bytes, bytearray, memoryview)
_SCALARS: tuple[tuple[tuple[type, ...], pa.DataType, tuple[type, ...], tuple[type, ...]], ...] = (
    # The types of fields, the type of their column, and the values that it accepts and never accepts.
    ((bool,), pa.bool_(), (bool,), ()),
    ((int,), pa.int64(), (int, numbers.Integral), (bool,)),
    ((float,), pa.float64(), (float, int, numbers.Real), (bool,)),
    ((str,), pa.string(), (str,), ()),
    (_BINARY, pa.binary(), _BINARY, ()),
    ((dt.date,), pa.date32(), (dt.date,), (dt.datetime,)),
    ((dt.timedelta,), pa.duration("us"), (dt.timedelta,), ()),
)
_QUICK = {int: ints, float: floats, str: texts}


@dataclass(frozen=True, slots=True)
class _FieldPath:
    """Where a hint stands in a record type, for messages."""

    record: str
    path: str
    inside: tuple[type, ...]
    """The record types that contain it; a recursive type would repeat one of them."""

    def within(self, suffix: str) -> "_FieldPath":
        return _FieldPath(self.record, self.path + suffix, self.inside)

    def refuse(self, what: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(
            f"Field {self.path.lstrip('.')!r} of {self.record} {what}, which has no form in Arrow.",
            remedy=remedy,
        )


def columns_of(record: Declared) -> StructColumn:
    """Compile a record type; raise ConfigurationError for a field whose type has no Arrow type."""
    return _struct_column(record, False, _FieldPath(record.name, "", ()))


# -- from hints to columns -------------------------------------------------------------------


def _struct_column(record: Declared, nullable: bool, at: _FieldPath) -> StructColumn:
    if record.python_type in at.inside:
        raise at.refuse(
            f"holds {record.name} within {record.name}",
            "Arrow has no recursive types: use a list of ids, or a str with JSON in it.",
        )
    record.check_single("a table")
    check_type(record)
    names = {field.name.lower(): field.name for field in record.declared}
    if clash := [field.name for field in record.declared if names[field.name.lower()] != field.name]:
        both = f"{clash[0]!r} and {names[clash[0].lower()]!r}"
        raise ConfigurationError(
            f"{record.name} has the fields {both}, which differ in case only.",
            remedy="Rename one: Spark cannot tell such columns apart.",
        )
    is_dict = record.kind is RecordKind.TYPED_DICT
    members = []
    for field in record.declared:
        hint = read_hint(record.hints[field.name])
        may_be_absent = is_dict and not field.required
        inner = _FieldPath(at.record, f"{at.path}.{field.name}", (*at.inside, record.python_type))
        column = _column(hint, hint.nullable or may_be_absent, inner)
        fetch = fetcher(field.name, record.kind, may_be_absent)
        leaves_out_none = may_be_absent or field.default is msgspec.UNSET
        members.append(FieldColumn(field.name, column, fetch, field, leaves_out_none))
    accepts = dict if is_dict else record.python_type
    return StructColumn(record.name, members, nullable, accepts, positional=record.is_positional)


def _column(hint: Hint, nullable: bool, at: _FieldPath) -> Column:
    base = hint.base
    origin = typing.get_origin(base)
    if origin is typing.Union:
        raise at.refuse(f"is one of several types ({label(base)})", "Use one type, or a str with JSON in it.")
    if origin is typing.Literal:
        return _literal_column(typing.get_args(base), nullable, at)
    if origin in _LISTS:
        return ListColumn(_inner(_item_of(base, at), at.within("[]")), nullable)
    if origin in _MAPS:
        key, value = typing.get_args(base)
        key_column = _inner(key, at.within(" (key)"))
        if key_column.nullable or not isinstance(key_column, Leaf):
            raise at.refuse(f"has keys of type {label(key)}", "Use str or int as the type of its keys.")
        return MapColumn(key_column, _inner(value, at.within("{}")), nullable)
    kind = kind_of(base)
    if kind is not None:
        return _struct_column(Declared(base, kind), nullable, at)
    if isinstance(base, type) and issubclass(base, enum.Enum):
        return _enum_column(base, nullable, at)
    column = _scalar_column(base, hint.annotations, nullable)
    if column is None:
        raise at.refuse(f"is {label(base)}", _INSTEAD.get(base, _POSSIBLE))
    return column


def _inner(hint: Any, at: _FieldPath) -> Column:
    inner = read_hint(hint)
    return _column(inner, inner.nullable, at)


def _item_of(base: Any, at: _FieldPath) -> Any:
    items = typing.get_args(base)
    if typing.get_origin(base) is tuple:
        items = tuple(item for item in items if item is not Ellipsis)
    if not items or any(item != items[0] for item in items):
        raise at.refuse(
            f"is {label(base)}", "Use tuple[T, ...] of one type, or a record for fields of several."
        )
    return items[0]


def _literal_column(values: tuple[Any, ...], nullable: bool, at: _FieldPath) -> Column:
    plain = [value for value in values if value is not None]
    arrow_type, accepts, never = _type_of_values(plain, at)
    allowed = frozenset(plain)

    def first_other(column: list[Any]) -> int | None:
        if allowed.issuperset(column):
            return None
        others = (i for i, value in enumerate(column) if value is not None and value not in allowed)
        return next(others, None)

    wanted = f"it must be one of {', '.join(map(repr, plain))}"
    nullable = nullable or len(plain) < len(values)
    return Leaf(arrow_type, nullable, accepts, never, check=first_other, wanted=wanted, allowed=plain)


def _enum_column(base: type[enum.Enum], nullable: bool, at: _FieldPath) -> Column:
    values = [member.value for member in base]
    arrow_type, plain, never = _type_of_values(values, at)
    wanted = f"{base.__name__} has {', '.join(map(repr, values))}"
    # A Flag is any combination of its members, which the decoder checks.
    allowed = None if issubclass(base, enum.Flag) else values
    config = getattr(at.inside[-1], "model_config", {})
    if isinstance(config, dict) and config.get("use_enum_values"):
        return _enum_values_column(
            base, Leaf(arrow_type, nullable, (base, *plain), never, None, None, wanted, allowed)
        )
    value_of = attrgetter("_value_")
    return Leaf(arrow_type, nullable, (base,), prepare=value_of, wanted=wanted, allowed=allowed)


def _enum_values_column(base: type[enum.Enum], leaf: Leaf) -> Leaf:
    """Let a column take members and values: with ``use_enum_values`` pydantic leaves defaults as they are."""

    def value_of(value: Any) -> Any:
        return value.value if isinstance(value, base) else value

    def first_other(column: list[Any]) -> int | None:
        if leaf.allowed is None:
            return None
        values = enumerate(map(value_of, column))
        return next((i for i, value in values if value is not None and value not in leaf.allowed), None)

    return replace(leaf, prepare=value_of, check=first_other)


def _type_of_values(
    values: list[Any], at: _FieldPath
) -> tuple[pa.DataType, tuple[type, ...], tuple[type, ...]]:
    if values and all(isinstance(value, str) for value in values):
        return pa.string(), (str,), ()
    if values and all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return pa.int64(), (int,), (bool,)
    raise at.refuse("has values of several types", "Use values that are all str or all int.")


def _scalar_column(base: Any, annotations: tuple[Any, ...], nullable: bool) -> Column | None:
    if base is dt.datetime or getattr(base, "__name__", "") in ("AwareDatetime", "NaiveDatetime"):
        return _datetime_column(base, annotations, nullable)
    if base is decimal.Decimal:
        precision = next((a for a in annotations if isinstance(a, Precision)), Precision(38, 18))
        arrow_type = pa.decimal128(precision.digits, precision.scale)
        return Leaf(arrow_type, nullable, (decimal.Decimal, int), (bool,))
    if base is uuid.UUID:
        wanted = "a UUID is 36 characters, lower case"
        return Leaf(pa.string(), nullable, (base,), prepare=str, wanted=wanted, allowed=_UUID, quick=uuids)
    for types, arrow_type, accepts, never in _SCALARS:
        if base in types:
            return Leaf(arrow_type, nullable, accepts, never, quick=_QUICK.get(base))
    return None


def _datetime_column(base: Any, annotations: tuple[Any, ...], nullable: bool) -> Column:
    is_naive = base is not dt.datetime and base.__name__ == "NaiveDatetime"
    is_naive = is_naive or any(isinstance(a, msgspec.Meta) and a.tz is False for a in annotations)
    if is_naive:
        wanted, zone, quick = "the field is declared without a time zone", None, naive
    else:
        wanted, zone, quick = "a datetime needs a time zone, such as datetime.now(UTC)", "UTC", in_utc

    def first_other(column: list[Any]) -> int | None:
        others = (i for i, v in enumerate(column) if v is not None and (v.tzinfo is None) is not is_naive)
        return next(others, None)

    arrow_type = pa.timestamp("us", tz=zone)
    return Leaf(arrow_type, nullable, (dt.datetime,), check=first_other, wanted=wanted, quick=quick)


# -- storage ---------------------------------------------------------------------------------


def stored_type(column: Column) -> pa.DataType:
    """Return a column's type with what a decoder of stored records needs, as metadata of its fields.

    That is the ``wire`` name of a field, and as JSON its ``default`` and the ``tag`` of records stored by
    position.
    """
    if isinstance(column, ListColumn):
        return pa.list_(pa.field("element", stored_type(column.item), nullable=column.item.nullable))
    if isinstance(column, MapColumn):
        value = pa.field("value", stored_type(column.value), nullable=column.value.nullable)
        return pa.map_(column.arrow_type.key_field, value)
    if not isinstance(column, StructColumn):
        return column.arrow_type
    config = getattr(column.accepts[0], "__struct_config__", None)
    shared = {"tag": msgspec.json.encode(getattr(config, "tag", None))} if column.positional else {}
    return pa.struct(
        pa.field(
            m.name, stored_type(m.column), metadata=shared | {"wire": m.field.wire_name} | m.stored_default
        )
        for m in column.members
    )


# -- change ----------------------------------------------------------------------------------


def schema_changes(
    old: pa.Schema | pa.StructType, new: pa.Schema | pa.StructType, prefix: str = ""
) -> list[str]:
    """Return the changes from ``old`` to ``new`` that readers of ``old`` do not support.

    A field may be added if it is nullable, and may stop to be nullable: old and new rows fit one table.
    Other changes need a new log: a removed field, another type, a new field that is not nullable, and a
    field that becomes nullable.

    >>> schema_changes(pa.schema({"n": pa.int64()}), pa.schema({"n": pa.string()}))
    ["field 'n' was int64 and is string"]
    """
    before = {field.name: field for field in old}
    after = {field.name: field for field in new}
    changes = []
    for name, field in before.items():
        path = f"{prefix}{name}"
        if name not in after:
            changes.append(f"field {path!r} was removed")
        else:
            changes += _field_changes(path, field, after[name])
    for name, field in after.items():
        if name not in before and not field.nullable:
            changes.append(f"field {prefix + name!r} is new and not nullable")
    return changes


def _field_changes(path: str, old: pa.Field, new: pa.Field) -> list[str]:
    changes = []
    if new.nullable and not old.nullable:
        changes.append(f"field {path!r} was not nullable and is")
    if pa.types.is_struct(old.type) and pa.types.is_struct(new.type):
        return changes + schema_changes(old.type, new.type, f"{path}.")
    if pa.types.is_list(old.type) and pa.types.is_list(new.type):
        return changes + _field_changes(f"{path}[]", old.type.value_field, new.type.value_field)
    if pa.types.is_map(old.type) and pa.types.is_map(new.type):
        changes += _field_changes(f"{path} (key)", old.type.key_field, new.type.key_field)
        return changes + _field_changes(f"{path}{{}}", old.type.item_field, new.type.item_field)
    if old.type != new.type:
        changes.append(f"field {path!r} was {old.type} and is {new.type}")
    return changes
