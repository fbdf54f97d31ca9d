"""How a table of state holds its keys and values in Redis.

A table is a hash. A field is a key as its canonical bytes, by the table in ``core.data.placement``. A value
is its expiry, a space, and the value in MessagePack::

    1795383533683 <MessagePack>     expires at that time of the server's clock, in ms
     <MessagePack>                  never expires

Canonical bytes do not say whether a part of a key of several parts was text or a number. So before such a
key's MessagePack stands one character for each part: its type.
"""

import datetime as dt
import enum
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from streamworker.core.data.placement import canonical_key, key_parts
from streamworker.core.words import counted
from streamworker.errors import ConfigurationError, ProcessingError, RecordError
from streamworker.records.codecs import loaders, one_line, short
from streamworker.records.declarable import check_types
from streamworker.records.fitting import cut_class, cut_words, with_records
from streamworker.records.types import Declared, RecordKind, copier, kind_of, label, parts_of

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: dict[str, type] = {
    "s": str,
    "i": int,
    "o": bool,
    "b": bytes,
    "u": uuid.UUID,
    "t": dt.datetime,
    "d": dt.date,
    "n": Decimal,
    "-": type(None),
}
_LETTERS = {kind: letter for letter, kind in _TYPES.items()}


def alive(stored: bytes | None, now_ms: int) -> bytes | None:
    """Return a stored value without its expiry; None if there is none, or it has expired.

    >>> alive(b"1700 x", 1699), alive(b"1700 x", 1700), alive(b" x", 1700)
    (b'x', None, b'x')
    """
    if stored is None:
        return None
    expiry, _, body = stored.partition(b" ")
    if not expiry:
        return body
    if not expiry.isdigit():
        return stored  # Another program wrote it: it is no value of the table's type.
    return body if int(expiry) > now_ms else None


class Watched(NamedTuple):
    """Values of a table that one call was given, or has set or deleted, as they were then."""

    form: "TableForm"
    keys: Mapping[bytes, Any]
    """The keys by their fields."""
    values: Sequence[Any]
    before: Sequence[bytes]
    is_written: bool


def check_unchanged(watched: Sequence[Watched]) -> None:
    """Raise ProcessingError for a value that was changed and not set: its change would be lost."""
    written: defaultdict[str, set[bytes]] = defaultdict(set)
    for form, keys, values, before, is_written in reversed(watched):
        later = written[form.table]
        if not later.issuperset(keys) and (now := list(map(form.encode, values))) != before:
            for field, old, new in zip(keys, before, now, strict=True):
                if field not in later and old != new:
                    raise ProcessingError(
                        f"The value of {keys[field]!r:.80} in table {form.table!r} was changed after it was "
                        f"{'set' if is_written else 'read'}, and not set.",
                        remedy=f"Call {form.table}.set(key, value) after the change, or change a copy.",
                    )
        if is_written:
            later.update(keys)


class TableForm:
    """The keys and values of one table, and their form in Redis.

    ``key`` is the type of the keys, or the names of their parts; ``value`` is the type of the values.

    >>> form = TableForm("totals", ("customer", "hour"), int)
    >>> field, body = form.field(("ann", 7)), form.body(("ann", 7), 3)
    >>> field, form.key_of(field, body), form.value_of(field, body)
    (b'3:ann1:7', ('ann', 7), 3)
    """

    def __init__(self, table: str, key: type | tuple[str, ...], value: Any) -> None:
        self.table = table
        self.kind: type = tuple if isinstance(key, tuple) else key
        """Type of the keys."""
        self.names = key if isinstance(key, tuple) else ()
        """The names of a key's parts; empty if a key is one value."""
        self.part_types: Mapping[str, Any] = {}
        """Types of parts that are no fields of a record."""
        self._parts = len(self.names)
        self._is_text = key is str
        self.value = value
        """Type of the values."""
        self._label = label(value)
        self._class = (
            value if isinstance(value, type) and kind_of(value) is not RecordKind.TYPED_DICT else object
        )
        if self._parts == 0 and not (
            isinstance(key, type) and (key in _LETTERS or issubclass(key, enum.Enum))
        ):
            raise ConfigurationError(
                f"Table {table!r} has key={key!r}.",
                remedy="Use a type such as str, int, UUID, date or an Enum, or the names of the key's parts, "
                'such as ("customer", "hour").',
            )
        self._is_record = (kind := kind_of(value)) is not None
        if kind is not None:
            check_types(Declared(value, kind))
        self.encode, self._decode = self._codec()
        self._holds_records = any(with_records(value) if self._is_record else map(kind_of, parts_of(value)))
        self.is_fixed = isinstance(value, type) and copier(value) is None
        """Whether a value can never change."""

    def _codec(self) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
        encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        if kind_of(self.value) is RecordKind.PYDANTIC:
            load, _ = loaders(Declared(self.value, RecordKind.PYDANTIC), "msgpack")
            return lambda value: encode(value.model_dump(by_alias=True, round_trip=True)), load
        try:
            return encode, msgspec.msgpack.Decoder(self.value).decode
        except TypeError as error:
            raise ConfigurationError(
                f"Table {self.table!r} cannot hold values of type {self._label}: {one_line(error)}.",
                remedy="Use a msgspec.Struct, a dataclass, a pydantic model, or a plain type such as int.",
            ) from error

    def schema(self, key: Mapping[str, Any]) -> "pa.Schema":
        """Return the columns for Spark: the parts of the key, named and with their types, and the value's.

        The metadata says of how many ``parts`` keys are, and whether a value is a ``record``, whose fields
        are columns, or one column; or ``why`` values can have no columns. A part that is named as a field of
        the value gets ``key_`` before its name.
        """
        import pyarrow as pa

        from streamworker.records.arrow import columns_of, stored_type

        def column(hint: Any) -> pa.Field:
            row = msgspec.defstruct("Table", [("value", hint)])
            return stored_type(columns_of(Declared(row, RecordKind.STRUCT))).field(0)

        about = {"parts": str(self._parts)}
        keys = {name: column(hint).type for name, hint in key.items()}
        kind = kind_of(self.value)
        try:
            if kind is None:
                fields = [column(self.value)]
            else:
                about["record"], fields = "1", list(stored_type(columns_of(Declared(self.value, kind))))
        except ConfigurationError as error:
            about["why"], fields = f"{error.message} {error.remedy}", []
        taken = {field.name.lower() for field in fields}
        named = [(f"key_{name}" if name.lower() in taken else name, kind) for name, kind in keys.items()]
        return pa.schema([*map(pa.field, *zip(*named, strict=True)), *fields], metadata=about)

    # -- keys ----------------------------------------------------------------------------------

    def field(self, key: Any) -> bytes:
        """Return a key's field in the hash; raise RecordError for a key of another type."""
        if self._is_text and type(key) is str and key.isascii():
            return key.encode()  # The common kind of key, in a fifth of the time.
        if self._parts:
            if not isinstance(key, tuple) or len(key) != self._parts:
                raise self._wrong_key(key, f"Its keys are tuples of {self._parts}: {', '.join(self.names)}.")
        elif type(key) is not self.kind:
            raise self._wrong_key(key, f"Its keys are of type {self.kind.__name__}.")
        field = canonical_key(key)
        assert field is not None
        return field

    def _wrong_key(self, key: object, remedy: str) -> RecordError:
        return RecordError(f"A key of table {self.table!r} is {short(key)}.", remedy=remedy)

    def key_in(self, texts: Sequence[str]) -> Any:
        """Return the key that some words of a command line name."""
        if len(texts) != max(self._parts, 1):
            needed = self.names or ("key",)
            raise ConfigurationError(
                f"A key of table {self.table!r} has {counted(len(needed), 'part')}.",
                remedy=f"Give {' '.join(map(str.upper, needed))}.",
            )
        if self._parts:
            return tuple(texts)
        try:
            return typed(self.kind, texts[0].encode())
        except (msgspec.ValidationError, ValueError) as error:
            raise ConfigurationError(
                f"{texts[0]!r} is no key of table {self.table!r}: {one_line(error)}.",
                remedy=f"Its keys are of type {self.kind.__name__}.",
            ) from error

    def key_of(self, field: bytes, body: bytes) -> Any:
        """Return the key of a field and its value; raise ProcessingError if it is of another kind."""
        try:
            if not self._parts:
                return typed(self.kind, field)
            parts = zip(body[: self._parts].decode(), key_parts(field), strict=True)
            return tuple(None if text is None else typed(_TYPES[letter], text) for letter, text in parts)
        except (ValueError, KeyError, msgspec.ValidationError) as error:
            raise ProcessingError(
                f"Table {self.table!r} holds the key {field.decode('utf-8', 'replace')!r}, which is of "
                "another kind than the table declares.",
                remedy="Give the table, or the windows, another name, or empty it: `streamworker reset`.",
            ) from error

    # -- values --------------------------------------------------------------------------------

    def body(self, key: Any, value: Any) -> bytes:
        """Return a value as it is stored, without its expiry; raise RecordError for one of another type."""
        encoded = self.encoded(key, value)
        return self.letters(key) + encoded if self._parts else encoded

    def letters(self, key: Iterable[Any]) -> bytes:
        """Return the characters for the types of a key's parts, which stand before its value."""
        return b"".join(map(_letter, key))

    def encoded(self, key: Any, value: Any) -> bytes:
        """Return a value in MessagePack; raise RecordError for one of another type."""
        if not isinstance(value, self._class):
            raise self._wrong_value(key, f"is {short(value)}")
        if self._is_record and self._class not in (object, type(value)):
            raise self._wrong_value(key, f"is {cut_words(type(value))}")
        try:
            encoded = self.encode(value)
            found = self._decode(
                encoded
            )  # What cannot be read again would fail each later call with this key.
        except Exception as error:
            raise self._wrong_value(key, f"cannot be stored: {one_line(error)}") from error
        if self._holds_records and (cut := cut_class(value, found)) is not None:
            raise self._wrong_value(key, f"holds {cut_words(cut)}")
        return encoded

    def value_of(self, field: bytes, body: bytes) -> Any:
        """Return a fresh copy of a value; raise ProcessingError if it is not of the table's type.

        That is no fault of the record in hand, which waits for the next deploy.
        """
        try:
            return self._decode(body[self._parts :] if self._parts else body)
        except Exception as error:
            key = field.decode("utf-8", "replace")
            raise ProcessingError(
                f"Table {self.table!r} holds no {self._label} for the key {key!r}: {one_line(error)}.",
                remedy="Declare a type that reads what was stored before: give new fields defaults, and a "
                "field whose type changes another name.",
            ) from error

    def _wrong_value(self, key: object, what: str) -> RecordError:
        return RecordError(
            f"The value of {key!r:.80} in table {self.table!r} {what}.",
            remedy=f"Its values are of type {self._label}.",
        )


def _letter(part: object) -> bytes:
    """Return the character for the type of a key's part; ``canonical_key`` has refused other types."""
    if isinstance(part, enum.Enum):
        part = part.value
    kind = next(kind for kind in type(part).__mro__ if kind in _LETTERS)
    return _LETTERS[kind].encode()


def typed(kind: type, text: bytes) -> Any:
    """Return the value whose canonical bytes are ``text``."""
    if kind is bytes:
        return text
    if kind is str:
        return text.decode()
    if kind is int:
        return int(text)
    return msgspec.convert(text.decode(), kind, strict=False)
