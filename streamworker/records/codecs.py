"""Codecs: records to payloads and back, as json, msgpack, or the entry's own fields.

    json      one JSON object in the entry's field ``v``; the default, readable everywhere
    msgpack   the same as MessagePack; smaller, keeps NaN, infinities and bytes as they are
    fields    each field of the record is a field of the entry, as text; for streams that other
              programs write with a plain ``XADD events * customer ann amount 3.50``

A program can bring a codec of its own, such as one for Protobuf: see :class:`RecordCodec`.

Encoders do not validate the values of fields, since that takes time: msgspec and attrs classes hold the
values that the program put in. Decoders validate everything: any wrong payload is a :class:`DecodeError`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, Union, get_args, get_origin, runtime_checkable

import msgspec

from streamworker.core.data.entries import Entry
from streamworker.core.text import in_words, storable
from streamworker.errors import ConfigurationError, DecodeError, RecordError
from streamworker.records.declarable import check_not_strict
from streamworker.records.entries import REPLAYED_FOR, Entries
from streamworker.records.fitting import make_check
from streamworker.records.packs import FIRST, unreadable
from streamworker.records.types import Declared, Field, RecordKind, kind_of, read_hint


@runtime_checkable
class RecordCodec(Protocol):
    """A codec of the program: how records become the bytes of an entry, and records again.

    ``App.stream(codec=...)`` takes an object with these members. Redis stores the name with the stream, and
    refuses a program that declares the stream with another codec. Whatever ``decode`` raises counts as an
    entry that holds no record.

    Examples
    --------
    >>> import msgspec
    >>> class Reversed:
    ...     name = "reversed"
    ...     def encode(self, record: Any) -> bytes:
    ...         return msgspec.json.encode(record)[::-1]
    ...     def decode(self, payload: bytes) -> Any:
    ...         return msgspec.json.decode(payload[::-1])
    >>> isinstance(Reversed(), RecordCodec)
    True
    """

    name: str
    """1 to 64 letters, digits, ``_ . -``; none of the names of streamworker's own codecs."""

    def encode(self, record: Any) -> bytes:
        """Return the payload of a record; it runs on the event loop, once a record.

        Parameters
        ----------
        record
            A record of the stream's type.
        """
        ...

    def decode(self, payload: bytes) -> Any:
        """Return the record of a payload; raise any error if it holds none.

        Parameters
        ----------
        payload
            What :meth:`encode` returned, or another program wrote.
        """
        ...


Codec = Literal["json", "msgpack", "fields"] | RecordCodec
CODECS: tuple[Codec, ...] = ("json", "msgpack", "fields")

PAYLOAD_FIELD = b"v"
"""The field of an entry that holds the payload (json, msgpack)."""

Payload = bytes | dict[bytes, bytes]
"""The result of an encoder: bytes for the field ``v``, or with ``fields`` the entry's fields."""

Encoder = Callable[[Any], Payload]
Decoder = Callable[[Mapping[bytes, bytes]], Any]
BatchDecoder = Callable[[Sequence[Entry]], list[Any]]


def codec_name(codec: str | RecordCodec) -> str:
    """Return the name under which Redis stores a codec."""
    return codec if isinstance(codec, str) else codec.name


def _check_codec(codec: Codec) -> None:
    if codec not in CODECS and not isinstance(codec, RecordCodec):
        raise ConfigurationError(
            f"There is no codec {codec!r}.", remedy=f"Use one of {', '.join(map(repr, CODECS))}."
        )


# -- encoding --------------------------------------------------------------------------------


def make_encoder(record_type: Declared, codec: Codec = "json", *, validate: bool = False) -> Encoder:
    """Return the function that turns a record into its payload: ``v``, or with ``fields`` all fields.

    The function raises RecordError for an object of another type, and for values that the codec cannot
    represent (NaN in JSON). With ``validate`` it decodes the payload as a consumer will, and refuses a record
    whose fields have other types than declared, which would be changed, or which no acked log can hold. A
    codec of the program's own is left alone.
    """
    _check_codec(codec)
    dump = _dumper(record_type, codec)
    load: Callable[[Any], Any] | None = None
    check = None
    if validate and isinstance(codec, str):
        check = make_check(record_type, codec)
        load = _field_loader(record_type) if codec == "fields" else loaders(record_type, codec)[0]
    name, kind = record_type.name, record_type.kind
    python_type = record_type.built_type
    # A codec of the program may know subclasses.
    takes = record_type.takes if isinstance(codec, str) else lambda record: isinstance(record, python_type)
    required = (
        {f.name for f in record_type.declared if f.required} if kind is RecordKind.TYPED_DICT else set()
    )

    def encode(record: Any) -> Payload:
        if type(record) is not python_type and not takes(record):
            cut = (
                ", a subclass, whose further fields would be lost" if isinstance(record, python_type) else ""
            )
            raise RecordError(
                f"This stream takes records of type {name}, and got {short(record)}{cut}.",
                remedy=f"Send {name} objects.",
            )
        if required and not required <= record.keys():
            missing = ", ".join(sorted(required - record.keys()))
            raise RecordError(f"The {name} lacks {missing}.", remedy="Give every required key.")
        try:
            payload = dump(record)
        except RecordError:
            raise
        except Exception as error:  # The record's own code, such as a serializer, may raise anything.
            raise RecordError(
                f"The {name} cannot be encoded as {codec_name(codec)}: {one_line(error)}.",
                remedy="Use types that the codec can hold.",
            ) from error
        if load is not None:
            try:
                decoded = load(payload)
            except Exception as error:
                raise RecordError(
                    f"This is no {name}: {one_line(error)}.",
                    remedy="Send what the record type declares, or declare the stream with validate=False.",
                ) from error
            if check is not None:
                check((record,), (decoded,))
        return payload

    return encode


def _dumper(record_type: Declared, codec: Codec) -> Callable[[Any], Payload]:
    if codec == "fields":
        return _field_dumper(record_type)
    if not isinstance(codec, str):
        return _own_dumper(codec)
    kind = record_type.kind
    encode = msgspec.json.Encoder().encode if codec == "json" else msgspec.msgpack.Encoder().encode
    dump = encode
    as_builtins: Callable[[Any], Any] = msgspec.to_builtins
    if kind is RecordKind.NAMED_TUPLE:
        # msgspec writes it as an array. As an object it can gain fields, and producers in other languages
        # can write it.
        dump = lambda record: encode(record._asdict())  # noqa: E731
    elif kind is RecordKind.PYDANTIC:
        as_builtins = lambda record: record.model_dump()  # noqa: E731
        if codec == "json":
            dump = lambda record: record.model_dump_json(by_alias=True, round_trip=True).encode()  # noqa: E731
        else:
            dump = lambda record: encode(record.model_dump(by_alias=True, round_trip=True))  # noqa: E731
    if codec == "msgpack":
        return dump

    def checked(record: Any) -> bytes:
        """Refuse NaN and infinities, which are lost: the JSON encoder writes them as ``null``."""
        payload = dump(record)
        if b"null" in payload and has_lost_float(as_builtins(record)):
            raise RecordError(
                f"The {record_type.name} holds a NaN or an infinity, which JSON does not have.",
                remedy='Send None instead, or declare the stream with codec="msgpack".',
            )
        return payload

    return checked


def _own_dumper(codec: RecordCodec) -> Callable[[Any], bytes]:
    def dump(record: Any) -> bytes:
        payload: object = codec.encode(record)
        if type(payload) is not bytes:
            raise RecordError(
                f"Codec {codec.name!r} returned a {type(payload).__name__} for a record.",
                remedy="Return bytes.",
            )
        return payload

    return dump


def has_lost_float(value: Any) -> bool:
    """Whether a value holds a NaN or an infinity, which JSON writes as ``null``."""
    if isinstance(value, float):
        return not math.isfinite(value)
    items = value.values() if isinstance(value, dict) else value
    return isinstance(value, (dict, list, tuple, set, frozenset)) and any(map(has_lost_float, items))


def _field_dumper(record_type: Declared) -> Callable[[Any], dict[bytes, bytes]]:
    record_type.check_single("an entry of plain fields")
    to_builtins = _field_builtins(record_type)
    # The decoder replaces a missing field by its default. So None must be written if it is not the
    # default. A field that holds JSON can hold "null"; in a text field "null" would be a text.
    written = {
        f.wire_name: (f.name, _layout(record_type, f))
        for f in record_type.declared
        if f.default not in (None, msgspec.NODEFAULT, msgspec.UNSET)
    }

    def dump(record: Any) -> dict[bytes, bytes]:
        values = to_builtins(record)
        fields = {name.encode(): _text(value) for name, value in values.items() if value is not None}
        for wire_name, (name, layout) in written.items():
            if values.get(wire_name, fields) is not None:
                continue
            if layout != "json":
                raise RecordError(
                    f"Field {name!r} of {record_type.name} is None, and a missing field would be read "
                    "as its default.",
                    remedy='Make None its default, or declare the stream with codec="json".',
                )
            fields[wire_name.encode()] = b"null"
        if not fields:
            raise RecordError(
                f"This {record_type.name} without any value cannot be an entry.",
                remedy='Give one field a value, or declare the stream with codec="json".',
            )
        return fields

    return dump


def _field_builtins(record_type: Declared) -> Callable[[Any], dict[str, Any]]:
    declared = record_type.declared
    if record_type.kind is RecordKind.PYDANTIC:
        raw = {f.name: f.wire_name for f in declared if _layout(record_type, f) == "raw"}

        def from_model(record: Any) -> dict[str, Any]:
            values: dict[str, Any] = record.model_dump(
                mode="json", by_alias=True, round_trip=True, exclude=set(raw)
            )
            return values | {wire_name: getattr(record, name) for name, wire_name in raw.items()}

        return from_model
    to_builtins = partial(msgspec.to_builtins, str_keys=True, builtin_types=(bytes,))
    if record_type.is_positional:
        return lambda record: {f.wire_name: to_builtins(getattr(record, f.name)) for f in declared}
    return to_builtins


def _text(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value).encode()
    return msgspec.json.encode(value)


# -- decoding --------------------------------------------------------------------------------


def make_decoder(record_type: Declared, codec: Codec = "json") -> Decoder:
    """Return the function that turns an entry's fields into a record.

    The function raises DecodeError for fields that hold no record of this type. A field whose type cannot be
    decoded is a ConfigurationError here.
    """
    _check_codec(codec)
    load = _loader(record_type, codec)
    name = record_type.name

    def decode(fields: Mapping[bytes, bytes]) -> Any:
        try:
            return load(fields)
        except DecodeError:
            raise
        except BaseException as error:  # No error of one entry may stop a worker.
            raise DecodeError(
                f"The entry holds no {name}: {one_line(error)}.",
                remedy=f"Its producer must write {name} as {codec_name(codec)}, as the stream is declared.",
            ) from error

    return decode


def make_batch_decoder(record_type: Declared, codec: Codec) -> BatchDecoder:
    """Return the function that decodes a list of entries in one pass.

    It raises some error if one of them holds no record, or is replayed: the caller then decodes each by
    itself, and decides whether its group handles a replayed one.
    """
    load = _loader(record_type, codec)
    of_payloads = None if codec == "fields" else loaders(record_type, codec)

    def decode_many(entries: Sequence[Entry]) -> list[Any]:
        if of_payloads is not None and isinstance(entries, Entries):
            records = entries.decoded(*of_payloads, PAYLOAD_FIELD)
            # A StopIteration of a record's own code ends map() early.
            if records is not None and len(records) == len(entries):
                return records
        found = [entry.fields for entry in entries]
        if any(REPLAYED_FOR in fields for fields in found):
            raise DecodeError("One of the entries is replayed.", remedy="Decode each by itself.")
        return [load(fields) for fields in found]

    return decode_many


def _loader(record_type: Declared, codec: Codec) -> Decoder:
    """Return a decoder that does not translate errors to DecodeError."""
    if codec == "fields":
        return _field_loader(record_type)
    load, _ = loaders(record_type, codec)

    def from_payload(fields: Mapping[bytes, bytes]) -> Any:
        if FIRST in fields:
            raise unreadable("its id, its records and what it declares do not agree")
        payload = fields.get(PAYLOAD_FIELD)
        if payload is None:
            found = ", ".join(repr(key.decode("utf-8", "replace")) for key in list(fields)[:8]) or "none"
            raise DecodeError(
                f"The entry holds no {record_type.name}: it has no field 'v' (fields: {found}).",
                remedy="Producers put the payload in the field v; for entries of plain fields, declare the "
                'stream with codec="fields".',
            )
        return load(payload)

    return from_payload


def loaders(
    record_type: Declared, codec: Codec
) -> tuple[Callable[[bytes], Any], Callable[[bytes], list[Any]]]:
    """Return the functions that decode the payload of one record, and an array of records."""
    if isinstance(codec, str) and record_type.kind is not RecordKind.PYDANTIC:
        target, finish = _target(record_type, positional=record_type.kind is RecordKind.NAMED_TUPLE)
        one, many = (_decoder(record_type, codec, wanted) for wanted in (target, list[target]))  # type: ignore[valid-type]
        if finish is None:
            return one, many
        return (lambda payload: finish(one(payload))), (lambda payload: list(map(finish, many(payload))))
    load: Callable[[bytes], Any]
    if not isinstance(codec, str):
        load = _own_loader(record_type.built_type, codec)
    elif codec == "json":
        load = record_type.python_type.model_validate_json
    else:
        check_not_strict(record_type)
        unpack, validate = msgspec.msgpack.Decoder().decode, record_type.python_type.model_validate
        load = lambda payload: validate(unpack(payload))  # noqa: E731
    split = _decoder(record_type, codec, list[msgspec.Raw] if isinstance(codec, str) else list[bytes])
    return load, lambda payload: [load(bytes(each)) for each in split(payload)]


def _own_loader(record_type: type, codec: RecordCodec) -> Callable[[bytes], Any]:
    def load(payload: bytes) -> Any:
        record = codec.decode(payload)
        if not isinstance(record, record_type):
            raise TypeError(f"codec {codec.name!r} made a {type(record).__name__} of it")
        return record

    return load


def _field_loader(record_type: Declared) -> Decoder:
    record_type.check_single("an entry of plain fields")
    plan = [(f.wire_name.encode(), f.wire_name, _layout(record_type, f)) for f in record_type.declared]
    absent = {
        f.wire_name: None
        for f in record_type.declared
        if f.required and read_hint(record_type.hints[f.name]).nullable
    }
    build = make_builder(record_type, from_text=True)

    def from_fields(fields: Mapping[bytes, bytes]) -> Any:
        values: dict[str, Any] = dict(absent)
        for key, name, layout in plan:
            value = fields.get(key)
            if value is None:
                continue
            if layout == "text":
                values[name] = value.decode()
            else:
                values[name] = value if layout == "raw" else msgspec.json.decode(value)
        return build(values)

    return from_fields


def make_builder(record_type: Declared, *, from_text: bool, many: bool = False) -> Callable[[Any], Any]:
    """Return the function that builds a record from values by wire name, with a decoder's validation.

    It converts text to the types of the fields if it gets ``from_text``, and takes a list with ``many``.
    """
    python_type: Any = record_type.python_type
    if record_type.kind is RecordKind.PYDANTIC:
        # Text and columns have not each type of Python's, and no value that means another one.
        one = partial(python_type.model_validate, strict=False)
        return (lambda rows: list(map(one, rows))) if many else one
    target, finish = _target(record_type, positional=record_type.is_positional)
    if from_text:
        _decoder(record_type, "json", target)  # Refuses an unsupported type now, not at the first entry.
    kind: Any = list[target] if many else target  # type: ignore[valid-type]
    convert = partial(msgspec.convert, type=kind, strict=not from_text, str_keys=from_text)
    if finish is None:
        return convert
    if many:
        return lambda rows: list(map(finish, convert(rows)))
    return lambda values: finish(convert(values))


def _layout(record_type: Declared, field: Field) -> Literal["text", "raw", "json"]:
    base = read_hint(record_type.hints[field.name]).base
    if base in (bytes, bytearray, memoryview):
        return "raw"
    origin = get_origin(base) or base
    containers = (list, tuple, set, frozenset, dict)
    holds_values = isinstance(origin, type) and (
        issubclass(origin, containers) or origin.__module__ == "collections.abc"
    )
    records = get_args(base) if origin is Union else (origin,)
    return "json" if holds_values or all(kind_of(each) is not None for each in records) else "text"


def _target(record_type: Declared, *, positional: bool) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return the type for msgspec to decode, and a function from it to the record, or None.

    If msgspec would expect an array, the type is a Struct with the same fields.
    """
    python_type: Any = record_type.python_type
    if not positional:
        return python_type, None
    members: Iterable[tuple[Any, ...]] = [
        (f.name, record_type.hints[f.name])
        if f.required
        else (f.name, record_type.hints[f.name], _shared_default(f.default))
        for f in record_type.declared
    ]
    renamed = {f.name: f.wire_name for f in record_type.declared}
    stand_in = msgspec.defstruct(record_type.name, members, rename=renamed, kw_only=True)
    return stand_in, lambda made: python_type(**msgspec.structs.asdict(made))


def _shared_default(default: Any) -> Any:
    return msgspec.field(default_factory=lambda: default)


def _decoder(record_type: Declared, codec: Codec, wanted: Any) -> Callable[[bytes], Any]:
    """Return msgspec's decoder of a type that is made from the record type; it may not support that type."""
    try:
        decoder: Any = (msgspec.json if codec == "json" else msgspec.msgpack).Decoder(wanted)
    except (TypeError, NameError) as error:
        remedy = "Change the type of that field to one that msgspec supports."
        if isinstance(error, NameError):
            remedy = "Define or import that type at the top of the module, not under TYPE_CHECKING alone."
        raise ConfigurationError(
            f"Records of type {record_type.name} cannot be decoded: {one_line(error)}.", remedy=remedy
        ) from None
    decode: Callable[[bytes], Any] = decoder.decode
    return decode


def short(value: object) -> str:
    """Return a value's type and the beginning of its text, for messages."""
    text = storable(value, repr)
    return f"a {type(value).__name__}: {text if len(text) <= 60 else text[:57] + '...'}"


def one_line(error: BaseException) -> str:
    """Return an error in one line without its full stop, for messages."""
    named = not isinstance(error, msgspec.MsgspecError | ValueError)  # Validators need no type name.
    return in_words(error, named=named).rstrip(".")
