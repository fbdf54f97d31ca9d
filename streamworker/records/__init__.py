"""Record types: what a stream's records are, how they travel, and their form in Arrow.

A record type is any of the ways in which Python programs declare a record: a
``msgspec.Struct`` (the fastest), a dataclass, an attrs class, a ``TypedDict``, a
``NamedTuple`` or a pydantic model.
"""

import difflib
import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Literal, Self

from streamworker.core.entries import Entry
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
from streamworker.records.types import Field, Kind, Precision, fields_of, hints_of, kind_of, read_hint

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


class RecordType:
    """A record type and everything that can be done with its records.

    Made with :meth:`of`. Two are equal if their classes are the same; one is pickled as its
    class.

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
        self.python_type = python_type
        self.kind = kind
        self.declared = declared
        self._batch_decoders: dict[Codec, BatchDecoder] = {}

    @classmethod
    def of(cls, python_type: Any) -> Self:
        """Take a class as the type of a stream's records.

        Raises
        ------
        ConfigurationError
            If it is no record class, or one without fields.
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
        return cls(python_type, kind, declared)

    def __repr__(self) -> str:
        return f"RecordType.of({self.name})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordType) and self.python_type is other.python_type

    def __hash__(self) -> int:
        return hash(self.python_type)

    def __reduce__(self) -> tuple[Any, ...]:
        return (RecordType.of, (self.python_type,))

    @property
    def name(self) -> str:
        """The name of the class."""
        return str(self.python_type.__name__)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields in order."""
        return tuple(field.name for field in self.declared)

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The resolved type hint of each field.

        Raises
        ------
        ConfigurationError
            For a hint that names something which does not exist (yet).
        """
        return dict(hints_of(self.python_type, self.kind))

    @cached_property
    def _floats(self) -> frozenset[str]:
        try:
            hints = self.hints
        except ConfigurationError:  # names a type that is defined further down; not yet a mistake
            return frozenset()
        return frozenset(name for name, hint in hints.items() if read_hint(hint).base is float)

    @property
    def is_positional(self) -> bool:
        """Whether msgspec lays its values out as an array."""
        config = getattr(self.python_type, "__struct_config__", None)
        return self.kind is Kind.NAMED_TUPLE or (config is not None and config.array_like)

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
            of the record, or None for no key: records are then spread round robin.

        Raises
        ------
        ConfigurationError
            For a field that does not exist, with the nearest that does, and for a float:
            equal floats do not have equal texts in all languages.
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
        """Return the fields that a key is made of; None where a function makes it."""
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

        The payload is bytes for the entry's field ``v``; for the codec ``fields`` it is the
        entry's fields. The function raises RecordError for an object of another type, and for
        values that the codec does not have (NaN in JSON).

        Raises
        ------
        ConfigurationError
            For an unknown codec.
        """
        return make_encoder(self, codec)

    def decoder(self, codec: Codec = "json") -> Decoder:
        """Return the function that turns an entry's fields into a record.

        The function raises DecodeError for everything that is not such a record.

        Raises
        ------
        ConfigurationError
            For an unknown codec, or a field whose type cannot be decoded.
        """
        return make_decoder(self, codec)

    def decode_many(self, entries: Sequence[Entry], codec: Codec = "json") -> list[Any]:
        """Decode the records of many entries.

        Raises
        ------
        DecodeError
            Naming the first entry that is not such a record; none is returned then.
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
        """Return the Arrow schema of these records, as Spark will see them.

        Raises
        ------
        ConfigurationError
            For a field whose type has no form in Arrow; names it and what to use instead.
        """
        return self._columns.schema

    def to_arrow(self, records: Sequence[Any]) -> "pa.RecordBatch":
        """Turn records into an Arrow record batch of :meth:`arrow_schema`.

        Raises
        ------
        ConfigurationError
            As :meth:`arrow_schema`.
        RecordError
            For a value that does not fit its column: names the field and the record's place.
        """
        from streamworker.records.arrow import to_arrow

        return to_arrow(self._columns, records)

    def fit_arrow(
        self, batch: "pa.RecordBatch", *, extra: Literal["refuse", "drop"] = "refuse"
    ) -> "pa.RecordBatch":
        """Return rows as :meth:`arrow_schema` has them: cast where no value changes, and checked.

        Parameters
        ----------
        batch
            The rows; a column that is missing gets the field's default.
        extra
            What to do with columns that are no fields.

        Raises
        ------
        ConfigurationError
            As :meth:`arrow_schema`.
        RecordError
            Naming the column that does not fit, and the row where it is one value.
        """
        from streamworker.records.tables import fit

        return fit(self._columns, batch, extra=extra)

    def from_arrow(self, batch: "pa.RecordBatch") -> list[Any]:
        """Turn rows that :meth:`fit_arrow` has returned into records; each is validated.

        Raises
        ------
        ConfigurationError
            As :meth:`arrow_schema`.
        DecodeError
            Naming the row that is no such record.
        """
        from streamworker.records.tables import to_records

        return to_records(self._columns, batch, self._build_row)

    @cached_property
    def _build_row(self) -> Callable[[dict[str, Any]], Any]:
        from streamworker.records.tables import row_builder

        return row_builder(self)


def schema_changes(old: "pa.Schema", new: "pa.Schema") -> list[str]:
    """Say what readers of ``old`` cannot follow in ``new``; see :mod:`streamworker.records.arrow`."""
    from streamworker.records.arrow import schema_changes as compare

    return compare(old, new)


def _no_key(_record: Any) -> None:
    return None


def _label(candidate: object) -> str:
    return candidate.__qualname__ if isinstance(candidate, type) else repr(candidate)
