"""Record types: the Python type of a stream's records, their payloads, and their Arrow schema.

A record type is a ``msgspec.Struct`` (the fastest), a dataclass, an attrs class, a ``TypedDict``, a
``NamedTuple`` or a pydantic model.
"""

import difflib
import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Literal, Self

from streamworker.core.data.entries import Entry
from streamworker.errors import ConfigurationError
from streamworker.records.codecs import (
    CODECS,
    PAYLOAD_FIELD,
    BatchDecoder,
    Codec,
    Decoder,
    Encoder,
    Payload,
    check_codec,
    make_batch_decoder,
    make_decoder,
    make_encoder,
)
from streamworker.records.declared import Declared
from streamworker.records.entries import REPLAYED_FOR
from streamworker.records.types import Field, Kind, Precision, fields_of, kind_of, read_hint

if TYPE_CHECKING:  # pyarrow takes longer to import than the rest of a producer
    import pyarrow as pa

    from streamworker.records.columns import StructColumn

__all__ = [
    "CODECS",
    "PAYLOAD_FIELD",
    "BatchDecoder",
    "Codec",
    "Decoder",
    "Encoder",
    "Payload",
    "Precision",
    "RecordType",
    "check_codec",
    "schema_changes",
]

KeySpec = str | Sequence[str] | Callable[[Any], object] | None


class RecordType(Declared):
    """A record type, which encodes and decodes its records and converts them to and from Arrow.

    Create one with :meth:`of`. Two record types are equal if they have the same class; a record type
    is pickled as its class.

    Examples
    --------
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

    def __init__(self, python_type: Any, kind: Kind, declared: tuple[Field, ...]) -> None:
        super().__init__(python_type, kind, declared)
        self._batch_decoders: dict[Codec, BatchDecoder] = {}

    @classmethod
    def of(cls, python_type: Any) -> Self:
        """Return the record type of a class.

        Raises
        ------
        ConfigurationError
            If the class is no record class, has no fields, or has a field whose name marks replayed
            entries.
        """
        kind = kind_of(python_type)
        if kind is None:
            raise ConfigurationError(
                f"{_label(python_type)} is not a record type.",
                remedy="Use a msgspec.Struct, a dataclass, an attrs class, a TypedDict, a NamedTuple "
                "or a pydantic model.",
            )
        declared = fields_of(python_type, kind)
        if not declared:
            raise ConfigurationError(
                f"{_label(python_type)} has no fields.", remedy="A record needs at least one."
            )
        if REPLAYED_FOR.decode() in (field.wire_name for field in declared):
            raise ConfigurationError(
                f"{_label(python_type)} has a field {REPLAYED_FOR.decode()!r}, which marks a replayed entry.",
                remedy="Give the field another name.",
            )
        return cls(python_type, kind, declared)

    def __repr__(self) -> str:
        return f"RecordType.of({self.name})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordType) and self.python_type is other.python_type

    def __hash__(self) -> int:
        return hash(self.python_type)

    def __reduce__(self) -> tuple[Any, ...]:
        return (RecordType.of, (self.python_type,))

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields in order."""
        return tuple(field.name for field in self.declared)

    @cached_property
    def _floats(self) -> frozenset[str]:
        try:
            hints = self.hints
        except ConfigurationError:  # A hint may name a type that is defined later in its module.
            return frozenset()
        return frozenset(name for name, hint in hints.items() if read_hint(hint).base is float)

    # -- values ------------------------------------------------------------------------------

    def get(self, record: Any, field: str) -> Any:
        """Return a field of a record; None for a key that a TypedDict record leaves out."""
        return record.get(field) if self.kind is Kind.TYPED_DICT else getattr(record, field)

    def key_function(self, spec: KeySpec) -> Callable[[Any], object]:
        """Return the function from a record to its key.

        Parameters
        ----------
        spec
            A field's name, several names (the key is the tuple of their values), a function
            of the record, or None for no key: the producer then spreads records round robin.

        Raises
        ------
        ConfigurationError
            If a field does not exist (the message suggests the nearest name), or is a float: equal
            floats do not have equal texts in all languages.
        """
        if spec is None:
            return _no_key
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
            near = difflib.get_close_matches(str(name), self.fields, n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise ConfigurationError(
                f"{self.name} has no field {name!r} to be its key.",
                remedy=f"{hint}Its fields are {', '.join(self.fields)}.",
            )
        if name in self._floats:
            raise ConfigurationError(
                f"Field {name!r} of {self.name} is a float, which cannot be a key.",
                remedy="Use a field that is an int, a str or a Decimal, or a function that makes one.",
            )
        if self.kind is not Kind.TYPED_DICT:
            return attrgetter(name)
        required = next(field.required for field in self.declared if field.name == name)
        return itemgetter(name) if required else lambda record: record.get(name)

    # -- payloads ----------------------------------------------------------------------------

    def encoder(self, codec: Codec = "json") -> Encoder:
        """Return the function that turns a record into its payload.

        The payload is the value of the entry's field ``v``; with the codec ``fields`` it is all of the
        entry's fields. The function raises RecordError for an object of another type, and for
        values that the codec cannot represent (NaN in JSON).

        Raises
        ------
        ConfigurationError
            If the codec does not exist.
        """
        return make_encoder(self, codec)

    def decoder(self, codec: Codec = "json") -> Decoder:
        """Return the function that turns an entry's fields into a record.

        The function raises DecodeError for fields that hold no record of this type.

        Raises
        ------
        ConfigurationError
            If the codec does not exist, or the type of a field cannot be decoded.
        """
        return make_decoder(self, codec)

    def decode_many(self, entries: Sequence[Entry], codec: Codec = "json") -> list[Any]:
        """Decode the records of many entries.

        Raises
        ------
        DecodeError
            If an entry holds no record of this type; the message names the first such entry.
        """
        decode = self._batch_decoders.get(codec)
        if decode is None:
            decode = self._batch_decoders[codec] = make_batch_decoder(self, codec)
        return decode(entries)

    # -- Arrow -------------------------------------------------------------------------------

    @cached_property
    def _columns(self) -> "StructColumn":
        from streamworker.records.arrow import columns_of

        return columns_of(self.python_type, self.kind)

    def arrow_schema(self) -> "pa.Schema":
        """Return the Arrow schema of the records, which Spark reads too.

        Raises
        ------
        ConfigurationError
            If the type of a field has no Arrow type; the message names the field and an alternative.
        """
        return self._columns.schema

    def to_arrow(self, records: Sequence[Any]) -> "pa.RecordBatch":
        """Convert records to an Arrow record batch with :meth:`arrow_schema`.

        Raises
        ------
        ConfigurationError
            As :meth:`arrow_schema`.
        RecordError
            If a value does not fit its column; the message names the field and the record's index.
        """
        from streamworker.records.arrow import to_arrow

        return to_arrow(self._columns, records)

    def fit_arrow(
        self, batch: "pa.RecordBatch", *, extra: Literal["refuse", "drop"] = "refuse"
    ) -> "pa.RecordBatch":
        """Check rows, and convert them to :meth:`arrow_schema` if no value changes.

        Parameters
        ----------
        batch
            The rows; a column that is missing gets the field's default.
        extra
            Whether to refuse or drop columns that are no fields.

        Raises
        ------
        ConfigurationError
            As :meth:`arrow_schema`.
        RecordError
            If a column does not fit; the message names it, and the row if a single value does not fit.
        """
        from streamworker.records.tables import fit

        return fit(self._columns, batch, extra=extra)

    def from_arrow(self, batch: "pa.RecordBatch") -> list[Any]:
        """Convert rows from :meth:`fit_arrow` to records, and validate each record.

        Raises
        ------
        ConfigurationError
            As :meth:`arrow_schema`.
        DecodeError
            If a row is no valid record; the message names the row.
        """
        from streamworker.records.tables import to_records

        return to_records(self._columns, batch, self._build_row)

    @cached_property
    def _build_row(self) -> Callable[[dict[str, Any]], Any]:
        from streamworker.records.tables import row_builder

        return row_builder(self)


def schema_changes(old: "pa.Schema", new: "pa.Schema") -> list[str]:
    """Return the incompatible changes from ``old`` to ``new``; see :mod:`streamworker.records.arrow`."""
    from streamworker.records.arrow import schema_changes as compare

    return compare(old, new)


def _no_key(_record: Any) -> None:
    return None


def _label(candidate: object) -> str:
    return candidate.__qualname__ if isinstance(candidate, type) else repr(candidate)
