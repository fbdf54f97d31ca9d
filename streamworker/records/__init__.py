"""Record types: the Python type of a stream's records, their payloads, and their Arrow schema.

A record type is a ``msgspec.Struct`` (the fastest), a dataclass, an attrs class, a ``TypedDict``, a
``NamedTuple``, a pydantic model, or a union of Structs that have tags.
"""

import inspect
import typing
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter, itemgetter
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Self

from streamworker.errors import ConfigurationError, did_you_mean
from streamworker.records.codecs import (
    BatchDecoder,
    Codec,
    RecordCodec,
    make_batch_decoder,
    make_builder,
    make_decoder,
    make_encoder,
)
from streamworker.records.declarable import check_types
from streamworker.records.entries import REPLAYED_FOR
from streamworker.records.types import Declared, Precision, RecordKind, kind_of, label, read_hint

if TYPE_CHECKING:  # pyarrow takes longer to import than the rest of a producer
    import pyarrow as pa

    from streamworker.records.columns import StructColumn

__all__ = ["Precision", "RecordCodec", "RecordType"]

KeySpec = str | Sequence[str] | Callable[[Any], object] | None


class RecordType(Declared):
    """A record type, which encodes and decodes its records and converts them to and from Arrow.

    Create one with :meth:`of`. Two record types are equal if they have the same class; a record type
    is pickled as its class.

    >>> import msgspec
    >>> class Order(msgspec.Struct):
    ...     order_id: int
    ...     customer: str
    >>> orders = RecordType.of(Order)
    >>> orders.encoder("json")(Order(7, "ann"))
    b'{"order_id":7,"customer":"ann"}'
    >>> orders.decoder("json")({b"v": b'{"order_id":7,"customer":"ann"}'})
    Order(order_id=7, customer='ann')
    """

    def __init__(self, python_type: Any, kind: RecordKind) -> None:
        super().__init__(python_type, kind)
        self._batch_decoders: dict[str | int, BatchDecoder] = {}

    @classmethod
    def of(cls, python_type: Any) -> Self:
        """Return the record type of a class or union; raise ConfigurationError if it cannot be one."""
        if typing.get_origin(python_type) in (typing.Union, UnionType):
            return cls._of_union(python_type)
        kind = kind_of(python_type)
        if kind is None:
            origin = typing.get_origin(python_type)
            remedy = "Use a msgspec.Struct, a dataclass, an attrs class, a TypedDict, a NamedTuple "
            remedy += "or a pydantic model."
            if origin is typing.Annotated:
                remedy = (
                    "Use a class, or a union of msgspec.Structs with tags. One field of a pydantic model "
                )
                remedy += "may be several models with a discriminator."
            elif kind_of(origin) is not None:
                remedy = f"Declare a class like {label(origin)} that names the type of each field."
            raise ConfigurationError(f"{label(python_type)} is not a record type.", remedy=remedy)
        record_type = cls(python_type, kind)
        if not record_type.declared:
            raise ConfigurationError(
                f"{label(python_type)} has no fields.", remedy="A record needs at least one."
            )
        if REPLAYED_FOR.decode() in (field.wire_name for field in record_type.declared):
            raise ConfigurationError(
                f"{label(python_type)} has a field {REPLAYED_FOR.decode()!r}, which marks a replayed entry.",
                remedy="Give the field another name.",
            )
        check_types(record_type)
        return record_type

    @classmethod
    def _of_union(cls, python_type: Any) -> Self:
        members = typing.get_args(python_type)
        kinds = {cls.of(member).kind for member in members}
        names = " | ".join(map(label, members))
        if kinds == {RecordKind.STRUCT}:
            configs = [member.__struct_config__ for member in members]
            tags = {config.tag for config in configs} - {None}
            alike = {(config.tag_field, type(config.tag), config.array_like) for config in configs}
            if len(tags) == len(members) and len(alike) == 1:
                return cls(python_type, RecordKind.UNION)
        raise ConfigurationError(
            f"Records of the union {names} cannot be told apart.",
            remedy=f"Give each class a tag of its own: class {label(members[0])}(msgspec.Struct, tag=True).",
        )

    def __repr__(self) -> str:
        return f"RecordType.of({self.name})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordType) and self.python_type == other.python_type

    def __hash__(self) -> int:
        return hash(self.python_type)

    def __reduce__(self) -> tuple[Any, ...]:
        return (RecordType.of, (self.python_type,))

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields in order."""
        return tuple(field.name for field in self.declared)

    # -- keys --------------------------------------------------------------------------------

    def key_function(self, spec: KeySpec) -> Callable[[Any], object]:
        """Return the function from a record to its key, for one or more fields, a function or no key.

        A float cannot be a key: equal floats do not have equal texts in all languages.
        """
        if spec is None:
            return lambda _: None
        if isinstance(spec, str):
            return self._getter(spec)
        if callable(spec):
            if inspect.iscoroutinefunction(spec):
                raise ConfigurationError(
                    f"The key function of {self.name} is async.", remedy="Use a plain function."
                )
            return spec
        if not spec:
            raise ConfigurationError(
                f"The key of {self.name} is an empty list of fields.",
                remedy="Name at least one field, or None to spread records round robin.",
            )
        getters = [self._getter(name) for name in spec]
        return lambda record: tuple(getter(record) for getter in getters)

    def key_fields(self, spec: KeySpec) -> str | tuple[str, ...] | None:
        """Return the fields of a key; an empty tuple for no key, None if a function makes the key."""
        if spec is None or isinstance(spec, str):
            return spec or ()
        return None if callable(spec) else tuple(spec)

    def _getter(self, name: object) -> Callable[[Any], object]:
        if not isinstance(name, str) or name not in self.fields:
            raise ConfigurationError(
                f"{self.name} has no field {name!r} to be its key.",
                remedy=f"{did_you_mean(str(name), self.fields)}Its fields are "
                f"{', '.join(self.fields) or 'none that all members have'}.",
            )
        if self._is_float(name):
            raise ConfigurationError(
                f"Field {name!r} of {self.name} is a float, which cannot be a key.",
                remedy="Use a field that is an int, a str or a Decimal, or a function that makes one.",
            )
        if self.kind is not RecordKind.TYPED_DICT:
            return attrgetter(name)
        required = next(field.required for field in self.declared if field.name == name)
        return itemgetter(name) if required else lambda record: record.get(name)

    def _is_float(self, name: str) -> bool:
        try:
            return read_hint(self.hints[name]).base is float
        except ConfigurationError:  # A hint may name a type that is defined later in its module.
            return False

    # -- payloads ----------------------------------------------------------------------------

    encoder = make_encoder
    decoder = make_decoder

    def batch_decoder(self, codec: Codec = "json") -> BatchDecoder:
        """Return what decodes the records of many entries, or raises some error.

        What :meth:`decoder` returns says what is wrong.
        """
        known = codec if isinstance(codec, str) else id(codec)  # A codec of the program may have no hash.
        decode = self._batch_decoders.get(known)
        if decode is None:
            decode = self._batch_decoders[known] = make_batch_decoder(self, codec)
        return decode

    # -- Arrow -------------------------------------------------------------------------------

    @cached_property
    def _columns(self) -> "StructColumn":
        from streamworker.records.arrow import columns_of

        return columns_of(self)

    def arrow_schema(self) -> "pa.Schema":
        """Return the Arrow schema of the records, which Spark reads too.

        A field without an Arrow type is a ConfigurationError, as in the other methods about Arrow.
        """
        return self._columns.schema

    @cached_property
    def to_arrow(self) -> "Callable[[Sequence[Any]], pa.RecordBatch]":
        """Converts records to an Arrow record batch with :meth:`arrow_schema`.

        A value that does not fit is a RecordError, which names the field and the record's index.
        """
        return self._columns.batch_of

    def fit_arrow(
        self, batch: "pa.RecordBatch", *, extra: Literal["refuse", "drop"] = "refuse"
    ) -> "pa.RecordBatch":
        """Check rows, and convert them to :meth:`arrow_schema` if no value changes.

        A column that is missing gets the field's default; ``extra`` says what becomes of columns that are no
        fields. A column that does not fit is a RecordError, which names it, and the row if a single value
        does not fit.
        """
        from streamworker.records.arrowtables import fit

        return fit(self._columns, batch, extra=extra)

    def from_arrow(self, batch: "pa.RecordBatch") -> list[Any]:
        """Convert rows from :meth:`fit_arrow` to records; a row that is no valid record is a DecodeError."""
        from streamworker.records.arrowtables import to_records

        return to_records(self._columns, batch, self._build_row, self._build_rows)

    @cached_property
    def _build_row(self) -> Callable[[dict[str, Any]], Any]:
        return make_builder(self, from_text=False)

    @cached_property
    def _build_rows(self) -> Callable[[list[dict[str, Any]]], list[Any]]:
        return make_builder(self, from_text=False, many=True)
