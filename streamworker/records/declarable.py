"""What a record type may not have, found at import: a record has one encoding, whatever carries it.

pydantic writes the payloads of its models. Acked logs, and entries of ``codec="arrow"``, are made from the
attributes. A rule of pydantic's for its dumps would hold in the one and not in the other: a password that a
model excludes would reach the lake. To obey such rules in columns would take a second serializer beside
pydantic's, so they are refused, by field.
"""

import datetime as dt
import decimal
import enum
import uuid
from typing import Any

from streamworker.errors import ConfigurationError
from streamworker.records.types import Declared, RecordKind, kind_of, parts_of

_SERIALIZERS = {"PlainSerializer", "WrapSerializer"}
_NO_MSGPACK = (tuple, set, frozenset, uuid.UUID, dt.date, dt.time, dt.timedelta, decimal.Decimal, enum.Enum)
"""Types that MessagePack has not: a strict model takes nothing else for them."""


def check_types(record: Declared) -> None:
    """Raise ConfigurationError for a class that has not one encoding, and for those that its fields hold."""
    for each in _records_in(record) or [record]:
        check_type(each)


def is_resolved(record: Declared) -> bool:
    """Return whether all classes that a record type names are defined by now."""
    return bool(_records_in(record))


def check_not_strict(record: Declared) -> None:
    """Raise ConfigurationError for a strict model of pydantic's with a type that MessagePack has not."""
    for each in _records_in(record):
        if each.kind is RecordKind.PYDANTIC:
            _check_fields_not_strict(each)


def _records_in(record: Declared) -> list[Declared]:
    """Return a record type and those within it; none if a hint names a type that is defined later."""
    try:
        hints = [hint for member in record.members for hint in _declared(member).hints.values()]
        bases = {base: None for hint in hints for base in parts_of(hint) if kind_of(base) is not None}
    except ConfigurationError:
        return []
    return [_declared(each) for each in (*record.members, *bases)]


def _declared(kind: Any) -> Declared:
    of = kind_of(kind)
    assert of is not None
    return Declared(kind, of)


def check_type(record: Declared) -> None:
    """Raise ConfigurationError for what one class declares, without those that its fields hold."""
    declared = record.python_type
    for name, each in getattr(declared, "__dataclass_fields__", {}).items():
        if str(getattr(each, "_field_type", "")) == "_FIELD_INITVAR":
            raise ConfigurationError(
                f"{record.name} has the InitVar {name!r}, which its records do not keep: no consumer could "
                "make them again.",
                remedy="Make it a field, or give the stream a class without it.",
            )
    rules = getattr(declared, "__pydantic_decorators__", None)
    if rules is None:
        return
    infos = getattr(declared, "__pydantic_fields__", None) or getattr(declared, "model_fields", {})
    for name, info in infos.items():
        if info.exclude or getattr(info, "exclude_if", None):
            raise ConfigurationError(
                f"Field {name!r} of {record.name} is excluded from pydantic's dumps, and rows for Spark have "
                "all fields.",
                remedy="Use a model without the field for records.",
            )
        annotated = {type(each).__name__ for each in info.metadata}
        annotated |= {part.__name__ for part in parts_of(info.annotation) if isinstance(part, type)}
        if annotated & _SERIALIZERS:
            raise _serialized(record, f"Field {name!r} of {record.name} has a serializer")
    for serializer in rules.field_serializers.values():
        fields = ", ".join(map(repr, serializer.info.fields))
        raise _serialized(record, f"Field {fields} of {record.name} has a serializer")
    if rules.model_serializers:
        raise _serialized(record, f"{record.name} has a model_serializer")
    if getattr(declared, "model_config", {}).get("json_encoders"):
        raise _serialized(record, f"{record.name} has json_encoders")


def _serialized(record: Declared, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what}, which payloads would obey and rows for Spark would not.",
        remedy="Let a validator make the value, so that the record itself has it; or use a model without "
        f"serializers for records, and {record.name} for what your program shows.",
    )


def _check_fields_not_strict(record: Declared) -> None:
    is_strict = record.python_type.model_config.get("strict")
    for name, hint in record.hints.items():
        found = [part for part in parts_of(hint) if isinstance(part, type)]
        if not (is_strict or any(part.__name__ == "Strict" for part in found)):
            continue
        for part in found:
            if issubclass(part, _NO_MSGPACK) and part is not dt.datetime:
                raise ConfigurationError(
                    f"Field {name!r} of {record.name} is strict, and MessagePack has no {part.__name__}.",
                    remedy='Use codec="json", or give the field strict=False.',
                )
