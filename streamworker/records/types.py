"""The parts of a record type: its kind, its fields, and the meaning of a type hint.

This module does not import pydantic or attrs: they are optional, and a class can be one of theirs only
if the program has already imported them.
"""

import copy
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import sys
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from streamworker.errors import ConfigurationError


class RecordKind(enum.Enum):
    """The supported ways to declare a record."""

    STRUCT = "msgspec.Struct"
    DATACLASS = "dataclass"
    ATTRS = "attrs class"
    TYPED_DICT = "TypedDict"
    NAMED_TUPLE = "NamedTuple"
    PYDANTIC = "pydantic model"
    UNION = "union of tagged Structs"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record type."""

    name: str
    """The name in Python code and of the Spark column."""
    wire_name: str
    """The name in payloads: the same unless the field is renamed (msgspec) or aliased (pydantic)."""
    default: Any
    """The default; ``msgspec.NODEFAULT`` if there is none, ``UNKNOWN_DEFAULT`` if it is computed."""
    factory: Callable[[], Any] | None = None
    """The function that computes the default, if it takes no arguments."""

    @property
    def required(self) -> bool:
        """Whether a record needs a value for the field."""
        return self.default is msgspec.NODEFAULT


UNKNOWN_DEFAULT = object()
"""Marks a default that a factory computes, or a key that may be left out."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Digits of a ``Decimal`` column that is not ``decimal128(38, 18)``.

    Parameters
    ----------
    digits
        Total number of digits, 1 to 38.
    scale
        Digits after the point, 0 to ``digits``.

    Raises
    ------
    ConfigurationError
        If the numbers are out of range.

    Examples
    --------
    >>> from decimal import Decimal
    >>> from typing import Annotated
    >>> class Price(msgspec.Struct):
    ...     amount: Annotated[Decimal, Precision(10, 2)]
    """

    digits: int
    scale: int

    def __post_init__(self) -> None:
        if not (1 <= self.digits <= 38 and 0 <= self.scale <= self.digits):
            raise ConfigurationError(
                f"Precision({self.digits}, {self.scale}) is not possible.",
                remedy="Digits are 1 to 38, and the scale is 0 to that many.",
            )


def kind_of(candidate: object) -> RecordKind | None:
    """Return the kind of a record class; None if the class is none."""
    if not isinstance(candidate, type):
        return RecordKind.TYPED_DICT if _is_typed_dict(candidate) else None
    if issubclass(candidate, msgspec.Struct):
        return RecordKind.STRUCT
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    if base is not None and issubclass(candidate, base):
        return RecordKind.PYDANTIC
    if _is_typed_dict(candidate):
        return RecordKind.TYPED_DICT
    if issubclass(candidate, tuple) and hasattr(candidate, "_fields"):
        return RecordKind.NAMED_TUPLE
    if dataclasses.is_dataclass(candidate):
        return RecordKind.DATACLASS
    if hasattr(candidate, "__attrs_attrs__"):
        return RecordKind.ATTRS
    return None


def _is_typed_dict(candidate: object) -> bool:
    # typing.is_typeddict does not recognise the TypedDict of typing_extensions.
    return type(candidate).__name__ == "_TypedDictMeta"


def fields_of(python_type: type, kind: RecordKind) -> tuple[Field, ...]:
    """Return the fields of a record type in order; of a union those that all its members have."""
    declared: Any = python_type
    match kind:
        case RecordKind.STRUCT:
            return _struct_fields(declared)
        case RecordKind.DATACLASS:
            missing = dataclasses.MISSING
            return tuple(
                Field(f.name, f.name, msgspec.NODEFAULT if f.default is missing else f.default)
                if f.default_factory is missing
                else Field(f.name, f.name, UNKNOWN_DEFAULT, f.default_factory)
                for f in dataclasses.fields(declared)
            )
        case RecordKind.ATTRS:
            nothing = sys.modules["attr"].NOTHING
            return tuple(
                Field(a.name, a.name, UNKNOWN_DEFAULT, None if a.default.takes_self else a.default.factory)
                if isinstance(a.default, sys.modules["attr"].Factory)
                else Field(a.name, a.name, msgspec.NODEFAULT if a.default is nothing else a.default)
                for a in declared.__attrs_attrs__
            )
        case RecordKind.NAMED_TUPLE:
            defaults = declared._field_defaults
            return tuple(
                Field(name, name, defaults.get(name, msgspec.NODEFAULT)) for name in declared._fields
            )
        case RecordKind.PYDANTIC:
            return tuple(_pydantic_field(name, info) for name, info in declared.model_fields.items())
        case RecordKind.TYPED_DICT:
            optional = _optional_keys(declared)
            return tuple(
                Field(name, name, UNKNOWN_DEFAULT if name in optional else msgspec.NODEFAULT)
                for name in declared.__annotations__
            )
        case RecordKind.UNION:
            first, *others = map(_struct_fields, typing.get_args(declared))
            shared = [{field.name for field in fields} for fields in others]
            return tuple(field for field in first if all(field.name in names for names in shared))


def _struct_fields(declared: Any) -> tuple[Field, ...]:
    names, wire_names = declared.__struct_fields__, declared.__struct_encode_fields__
    defaults = declared.__struct_defaults__
    padding = (msgspec.NODEFAULT,) * (len(names) - len(defaults))
    return tuple(
        Field(name, wire_name, UNKNOWN_DEFAULT, getattr(default, "factory", None))
        if default is not msgspec.NODEFAULT and type(default).__module__ == "msgspec._core"
        else Field(name, wire_name, default)
        for name, wire_name, default in zip(names, wire_names, padding + defaults, strict=True)
    )


def _pydantic_field(name: str, info: Any) -> Field:
    wire_name, factory = info.alias or name, info.default_factory
    if factory is None:
        return Field(name, wire_name, msgspec.NODEFAULT if info.is_required() else info.default)
    takes_data = getattr(info, "default_factory_takes_validated_data", False)
    return Field(name, wire_name, UNKNOWN_DEFAULT, None if takes_data else factory)


def _optional_keys(declared: Any) -> frozenset[str]:
    """Return the keys of a TypedDict that may be left out.

    With ``from __future__ import annotations`` only the resolved hints show which keys are
    ``NotRequired``, not the class itself.
    """
    try:
        hints = typing.get_type_hints(declared, include_extras=True)
    except NameError:
        return frozenset(declared.__optional_keys__)
    marked = {name for name, hint in hints.items() if read_hint(hint).may_be_absent}
    required = {name for name, hint in hints.items() if typing.get_origin(hint) is typing.Required}
    return frozenset((marked | declared.__optional_keys__) - required)


def label(of: object) -> str:
    """Return a type as one writes it, in short."""
    return of.__name__ if isinstance(of, type) else repr(of).replace("typing.", "")


class Declared:
    """The declaration of a record class; codecs and tables work from it."""

    def __init__(self, python_type: Any, kind: RecordKind) -> None:
        self.python_type = python_type
        self.kind = kind
        self.declared = fields_of(python_type, kind)
        self.members: tuple[Any, ...] = (
            typing.get_args(python_type) if kind is RecordKind.UNION else (python_type,)
        )
        """The classes of a union; otherwise the class itself."""

    @property
    def name(self) -> str:
        """The name of the class, or ``Order | Refund``."""
        return " | ".join(member.__name__ for member in self.members)

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The resolved type hint of each field, with its annotations.

        A hint that names a type that is not defined (yet) is a ConfigurationError.
        """
        declared = self.python_type
        if self.kind is RecordKind.UNION:
            each = [Declared(member, RecordKind.STRUCT).hints for member in self.members]
            return {
                field.name: typing.Union[tuple(hints[field.name] for hints in each)]  # noqa: UP007
                for field in self.declared
            }
        if self.kind is RecordKind.PYDANTIC:
            declared.model_rebuild()
            return {
                name: typing.Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
                for name, info in declared.model_fields.items()
            }
        try:
            hints = typing.get_type_hints(declared, include_extras=True)
        except NameError as error:
            raise ConfigurationError(
                f"A type hint of {declared.__qualname__} cannot be resolved: {error}.",
                remedy="Define the types of its fields at module level, before they are used.",
            ) from None
        return {field.name: hints.get(field.name, Any) for field in self.declared}

    @property
    def built_type(self) -> Any:
        """The class of the objects that records are: a TypedDict's are plain dicts, a union has several."""
        if self.kind is RecordKind.UNION:
            return self.members
        return dict if self.kind is RecordKind.TYPED_DICT else self.python_type

    def takes(self, value: object) -> bool:
        """Return whether a value is a record of this type.

        One of a subclass is not: its further fields would be lost.
        """
        return type(value) in self.members or (self.kind is RecordKind.TYPED_DICT and isinstance(value, dict))

    def check_single(self, what: str) -> None:
        """Raise ConfigurationError for a union or a RootModel, where something needs a class's fields."""
        if self.kind is RecordKind.UNION:
            raise ConfigurationError(
                f"{self.name} is a union, and {what} has the fields of one class.",
                remedy='Use codec="json" or "msgpack", or one class whose fields may be None.',
            )
        if getattr(self.python_type, "__pydantic_root_model__", False):
            raise ConfigurationError(
                f"{self.name} is a RootModel, which has no fields, and {what} has the fields of a class.",
                remedy='Use codec="json" or "msgpack", or a model with a field.',
            )

    @property
    def is_positional(self) -> bool:
        """Whether msgspec encodes a record as an array of its values."""
        config = getattr(self.python_type, "__struct_config__", None)
        return self.kind is RecordKind.NAMED_TUPLE or (config is not None and config.array_like)


@dataclass(frozen=True, slots=True)
class Hint:
    """A type hint without its wrappers."""

    base: Any
    """The type itself; a union if there are several."""
    nullable: bool
    """Whether the value may be None, UNSET or absent."""
    may_be_absent: bool
    """Whether the hint is marked ``NotRequired``."""
    annotations: tuple[Any, ...]
    """The metadata of ``Annotated``, outermost first."""


def read_hint(hint: Any) -> Hint:
    """Remove Optional, Annotated, NotRequired, NewType and type aliases from a hint."""
    nullable = absent = False
    annotations: tuple[Any, ...] = ()
    while True:
        origin = typing.get_origin(hint)
        if origin is typing.Annotated:
            annotations += tuple(hint.__metadata__)
            hint = hint.__origin__
        elif origin is typing.NotRequired:
            nullable = absent = True
            hint = typing.get_args(hint)[0]
        elif origin in (typing.Required, typing.Final) or getattr(origin, "_name", None) == "ReadOnly":
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        elif origin in (typing.Union, types.UnionType):
            members = typing.get_args(hint)
            kept = tuple(m for m in members if m not in (types.NoneType, msgspec.UnsetType))
            nullable = nullable or len(kept) < len(members)
            if len(kept) != 1:
                return Hint(typing.Union[kept] if kept else None, nullable, absent, annotations)  # noqa: UP007
            hint = kept[0]
        else:
            return Hint(hint, nullable, absent, annotations)


def parts_of(hint: Any, inside: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Return the types that a hint consists of, and those of its annotations."""
    read = read_hint(hint)
    base, kind = read.base, kind_of(read.base)
    yield from map(type, read.annotations)
    # A decoder checks the zone itself where the type says whether there is one.
    if base is not dt.datetime or all(getattr(each, "tz", None) is None for each in read.annotations):
        yield typing.get_origin(base) or base
    inner = () if typing.get_origin(base) is typing.Literal else typing.get_args(base)
    if kind is not None and base not in inside:
        inner = tuple(Declared(base, kind).hints.values())
    for each in inner:
        yield from parts_of(each, (*inside, base))


# -- copies -----------------------------------------------------------------------------------
# A row has the values of the moment at which a function returned or forwarded it. Only what can change is
# copied: of a record whose fields hold numbers and texts, the record alone.

_FIXED = frozenset(
    {type(None), msgspec.UnsetType, bool, int, float, str, bytes, decimal.Decimal, uuid.UUID}
    | {dt.datetime, dt.date, dt.time, dt.timedelta}
)
"""The types of values that never change."""


def kept(value: Any) -> Any:
    """Return a value as it is now: a copy, unless it cannot change."""
    kind: Any = type(value)
    copied = copier(kind)
    return value if copied is None else copied(value)


@functools.cache
def copier(kind: Any) -> Callable[[Any], Any] | None:
    """Return the function that copies values of a type; None if they never change."""
    if kind in _FIXED or issubclass(kind, enum.Enum):
        return None
    if kind is list:
        return _list
    if kind in (tuple, set, frozenset):
        return lambda value: kind(map(kept, value))
    if kind is dict:
        return lambda value: {key: kept(each) for key, each in value.items()}
    if hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__"):
        return getattr(kind, "clone", None)  # Those of pyarrow never change.
    record = kind_of(kind)
    return _unknown if record is None else _record_copier(kind, record)


def _list(values: list[Any]) -> list[Any]:
    if len(kinds := set(map(type, values))) == 1:  # The usual list of rows.
        copied = copier(kinds.pop())
        return list(values if copied is None else map(copied, values))
    return list(map(kept, values))


def _unknown(value: Any) -> Any:
    with suppress(Exception):  # It may refuse: a generator does. What takes rows then refuses it.
        return copy.deepcopy(value)
    return value


def _record_copier(kind: Any, record: RecordKind) -> Callable[[Any], Any] | None:
    declared = Declared(kind, record)
    try:
        hints = declared.hints
    except ConfigurationError:  # A hint names nothing: take it for a type that can change.
        hints = dict.fromkeys(field.name for field in declared.declared)
    changing = [name for name, hint in hints.items() if not _is_fixed(hint)]
    config = getattr(kind, "__struct_config__", getattr(kind, "__dataclass_params__", None))
    if not changing and (record is RecordKind.NAMED_TUPLE or (config is not None and config.frozen)):
        return None
    if record is RecordKind.NAMED_TUPLE:
        return lambda row: kind._make(map(kept, row))
    shallow = copy.copy
    if record is RecordKind.STRUCT:
        shallow = kind.__copy__
    elif not any(vars(base).get("__slots__") for base in kind.__mro__):
        shallow = functools.partial(_with_its_dict, kind)  # A fifth of the time.
    if not changing:
        return shallow
    put = msgspec.structs.force_setattr if record is RecordKind.STRUCT else object.__setattr__

    def deep(row: Any) -> Any:
        new = shallow(row)
        for name in changing:
            if hasattr(row, name):
                put(new, name, kept(getattr(row, name)))
        return new

    return deep


def _with_its_dict(kind: type, row: Any) -> Any:
    new: Any = object.__new__(kind)
    new.__dict__.update(row.__dict__)
    return new


def _is_fixed(hint: Any) -> bool:
    base = read_hint(hint).base
    origin = typing.get_origin(base)
    if origin is typing.Union:
        return all(map(_is_fixed, typing.get_args(base)))
    if origin is typing.Literal or base in _FIXED:
        return True
    return isinstance(base, type) and issubclass(base, enum.Enum)
