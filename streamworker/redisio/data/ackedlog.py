"""The entries of an acked log: one Arrow record batch each, validated before use.

An acked log is a Redis stream to which a worker adds the results of each batch that it commits.
The id of an entry is ``<rows in the log so far>-0``: the entry with id ``R-0`` and ``n`` rows
holds rows ``(R - n, R]``, so lag, limits and gaps are arithmetic on ids. docs/redis-keys.md lists the
fields of an entry.

The reader does not trust bytes from a server. pyarrow crashes the process on a few flipped bytes in
an IPC message (1 to 4 were enough in an experiment). So the reader checks the CRC first, then the
size before it decompresses anything, and validates the batch fully before any code reads the values.
It refuses IPC's own buffer compression, which would inflate past the size limit (30,000 : 1 was
seen).

This module has pure functions and does no I/O. Spark's executors import it: it needs the standard
library, pyarrow, and the two smallest modules of this package.
"""

import hashlib
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, NamedTuple, TypeVar, cast

import pyarrow as pa

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.errors import ConfigurationError, DataLoss, RecordError

F = TypeVar("F", bound=Callable[..., Any])

Codec = Literal["none", "lz4", "zstd"]
CODECS: tuple[Codec, ...] = ("none", "lz4", "zstd")

COMPRESS_ABOVE_BYTES = 1024
"""A producer does not compress smaller batches: for single records the compressor's headers are half of the
size."""

DENSE = "dense"
"""Codec of small batches: the numbers in the metadata of Arrow's message and its buffers, without padding, by
zlib. The rest takes 60 bytes a column, which is most of an entry of one row."""
DENSE_BYTES_MAX = 1024
"""Larger batches are messages of Arrow, which a commit compresses: at ten rows that is smaller."""

RAW_BYTES_MAX = 256 * 1024 * 1024
"""Maximum size of an entry after decompression. The worker's batch bounds a commit (32 MiB of entries by
default), so a valid entry stays well below."""

ROWS_WITHOUT_BYTES = 1024 * 1024
"""A column of nulls takes no bytes for any number of rows; any other column takes at least a bit a row.
Without this limit an entry of 300 bytes could declare 10**18 rows, and filling in default values
would exhaust the memory."""

_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3
"""``MessageHeader.RecordBatch`` in Arrow's Message.fbs."""
_SLOT_HEADER_TYPE, _SLOT_HEADER, _SLOT_BODY_SIZE = 1, 2, 3
_SLOT_ROWS, _SLOTS_VECTORS, _SLOT_COMPRESSION = 0, (1, 2), 3
"""Slots of the fields in the tables ``Message`` and ``RecordBatch`` of Message.fbs."""
_Places = list[tuple[int, int]]
"""Where numbers of 64 bits stand in a message's metadata, and how many."""


class Damaged(Exception):
    """Bytes do not match their declaration; the text says what is wrong, after "it is damaged:"."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A record batch as bytes, with what is needed to check and read them."""

    rows: int
    crc: int
    """CRC-32 of ``data``."""
    codec: str
    size: int
    """Bytes before compression."""
    data: bytes

    def acked(self, schema: str, first: EntryId) -> "AckedBatch":
        """Return the batch of a commit: these bytes, the schema's fingerprint and the first source entry."""
        return AckedBatch(self.rows, self.crc, self.codec, self.size, self.data, schema, first)


@dataclass(frozen=True, slots=True)
class AckedBatch(Packed):
    """What a worker adds to an acked log in one commit; the script adds the other fields of the entry."""

    schema: str
    """Fingerprint of the schema; see :func:`schema_fingerprint`."""
    first: EntryId
    """The first source entry of these rows."""


class ChainLink(NamedTuple):
    """An entry's position in its log, from its id and fields."""

    id: EntryId
    start: int
    """Rows of the log before this entry."""
    prev: EntryId
    last: EntryId
    epoch: int

    def misfit(self, before: "ChainLink") -> str:
        """Return why this entry cannot follow another one in a log of commits; empty if it can.

        Commits without rows add no entry. Only ``reset`` moves the checkpoint back; it raises the epoch.
        """
        if self.start < before.id.ms:
            return f"row {before.id.ms} was the last of an entry and now lies within entry {self.id}"
        if self.prev < before.last and self.epoch <= before.epoch:
            return f"it begins after source entry {self.prev}, and that one ended at {before.last}"
        if self.epoch < before.epoch:
            return f"it was committed at epoch {self.epoch}, and that one at epoch {before.epoch}"
        return ""


# -- schemas ---------------------------------------------------------------------------------

ROW_METADATA = pa.schema(
    [
        ("sw:key", pa.string()),
        ("sw:sent_at", pa.timestamp("us", "UTC")),
        ("sw:headers", pa.map_(pa.string(), pa.string())),
    ]
)
"""Columns that a log has beside those of its rows, if its processor has ``log_metadata``: of the record that
the row was made of its key as text, the time of its entry's id, and its headers. No field of a record has
such a name."""
STORED = {name: name.replace("sw:", "_") for name in ROW_METADATA.names}
"""What queries and archives call these columns."""


def log_schema(processor: Any) -> pa.Schema:
    """Return the schema of the acked log of a processor, of which ``processor`` is the ``ProcessorSpec``."""
    rows = (processor.output or processor.stream.record).arrow_schema()
    return pa.schema([*rows, *ROW_METADATA]) if processor.options.log_metadata else rows


def without_metadata(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a log alone."""
    return rows.select([name for name in rows.schema.names if name not in ROW_METADATA.names])


def serialize_schema(schema: pa.Schema) -> bytes:
    """Return a schema as bytes, without its metadata; refuse types that need more than the schema."""
    _refuse_foreign_types(schema, RecordError)
    plain = pa.schema([field.remove_metadata() for field in schema])
    return bytes(plain.serialize().to_pybytes())


def deserialize_schema(data: bytes, fingerprint: str | None = None) -> pa.Schema:
    """Read a schema that :func:`serialize_schema` wrote; raise ``DataLoss`` for anything else."""
    if fingerprint is not None and _fingerprint(data) != fingerprint:
        raise DataLoss(
            f"The stored schema {fingerprint} was changed: its bytes have fingerprint {_fingerprint(data)}.",
            remedy=_REPAIR,
        )
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        for field in schema:
            # Arrow accepts a name that is not UTF-8, and raises ValueError when the name is read.
            str(field.name)
            for kind in _types_within(field.type):
                if not isinstance(kind, pa.BaseExtensionType):
                    [kind.field(place).name for place in range(kind.num_fields)]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataLoss(
            f"The stored schema {fingerprint or ''} cannot be read: {error}", remedy=_REPAIR
        ) from None
    _refuse_foreign_types(schema, DataLoss)
    return schema


def schema_fingerprint(schema: pa.Schema) -> str:
    """Return 16 hexadecimal digits that name a schema.

    They are a hash of the stored bytes, so that a reader with another version of pyarrow can verify
    them without serialising the schema itself.
    """
    for known, fingerprint in _last:
        if known.equals(schema, check_metadata=True):
            return fingerprint
    fingerprint = _fingerprint(serialize_schema(schema))
    _last[:] = [(schema, fingerprint)]
    return fingerprint


_last: list[tuple[pa.Schema, str]] = []
"""The last schema with its fingerprint: a worker asks for the same one at each commit."""


def _fingerprint(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _refuse_foreign_types(schema: pa.Schema, error: type[RecordError] | type[DataLoss]) -> None:
    for field in schema:
        for kind in _types_within(field.type):
            if isinstance(kind, (pa.BaseExtensionType, pa.DictionaryType)):
                raise error(
                    f"Column {field.name!r} has the type {kind}, which an acked log cannot hold.",
                    remedy="Extension and dictionary types need more than the schema to be read; "
                    "cast the column to a plain type.",
                )


def _types_within(kind: pa.DataType) -> list[pa.DataType]:
    found = [kind]
    if not isinstance(kind, (pa.BaseExtensionType, pa.DictionaryType)):
        for place in range(kind.num_fields):
            found += _types_within(kind.field(place).type)
    return found


# -- encoding --------------------------------------------------------------------------------


def encode_batch(batch: pa.RecordBatch, first: EntryId = ZERO) -> AckedBatch:
    """Encode a batch of at least one row for a commit; the metadata of its schema is dropped.

    The schema must be stored under its fingerprint before the commit. Above 1 KB the rows are compressed if
    that saves bytes.

    >>> acked = encode_batch(pa.record_batch({"n": [1, 2, 3]}))
    >>> acked.rows, acked.codec, acked.size
    (3, 'dense', 32)
    """
    if batch.num_rows == 0:
        raise RecordError(
            "A record batch without rows cannot be an entry of an acked log.",
            remedy="Commit without a batch instead.",
        )
    raw = batch.serialize()
    is_small = raw.size - _body_at(raw) <= DENSE_BYTES_MAX
    if dense := _dense(raw, batch.schema) if is_small else b"":
        data = zlib.compress(dense, 1)
        packed = Packed(batch.num_rows, zlib.crc32(data), DENSE, len(dense), data)
    else:
        packed = _packed(batch.num_rows, raw, "zstd")
    return packed.acked(schema_fingerprint(batch.schema), first)


def pack(batch: pa.RecordBatch, codec: Codec) -> Packed:
    """Serialise a record batch, and compress it if it is not small and gets smaller.

    The metadata of the schema is dropped.
    """
    raw = batch.serialize()
    return _packed(batch.num_rows, raw, codec if raw.size > COMPRESS_ABOVE_BYTES else "none")


def _packed(rows: int, raw: pa.Buffer, codec: Codec) -> Packed:
    data = b"" if codec == "none" else bytes(pa.Codec(codec).compress(raw, asbytes=True))
    if codec == "none" or len(data) >= raw.size:
        codec, data = "none", bytes(raw.to_pybytes())
    return Packed(rows, zlib.crc32(data), codec, raw.size, data)


# -- small batches ---------------------------------------------------------------------------


def _dense(message: pa.Buffer, schema: pa.Schema) -> bytes:
    """Return the numbers in the metadata of a message, and its buffers; empty if that is not all it says."""
    view, body = memoryview(message), _body_at(message)
    other, places = _row_of_nulls(schema)
    if body - 8 != len(other):
        return b""  # The buffers of a view vary in their number.
    metadata = view[8:body]
    found = [struct.unpack_from(f"<{count}q", metadata, at) for at, count in places]
    starts, sizes = found[3][::2], found[3][1::2]
    numbers = [*found[2], *sizes]
    # A type without bytes may have any number of rows.
    if not any(sizes) or max(numbers) >= 1 << 16 or _filled(other, places, found) != metadata:
        return b""
    buffers = [view[body + at : body + at + size] for at, size in zip(starts, sizes, strict=True)]
    return b"".join([struct.pack(f"<{len(numbers)}H", *numbers), *buffers])


_shapes: dict[tuple[str, int, bytes], tuple[bytes, str, str]] = {}
"""By the schema's fingerprint, the rows and the numbers: a message up to its body, and the formats of the
buffers in dense data and in a body. Entries of few rows have few shapes."""
SHAPES_MAX = 1000


def _message(data: bytes, rows: int, schema: pa.Schema) -> pa.Buffer:
    """Return the message that :func:`_dense` was given: its numbers, in the metadata of another one."""
    other, places = _row_of_nulls(schema)
    nodes, count = places[2][1], places[2][1] + places[3][1] // 2
    shape = schema_fingerprint(schema), rows, data[: 2 * count]
    if (known := _shapes.get(shape)) is None:
        numbers = struct.unpack_from(f"<{count}H", data)
        sizes, spans, end = numbers[nodes:], list[int](), 0
        for size in sizes:
            spans += end, size
            end += size + -size % 8
        metadata = _filled(other, places, ([end], [rows], numbers[:nodes], spans))
        if len(_shapes) >= SHAPES_MAX:
            _shapes.clear()
        known = _shapes[shape] = (
            struct.pack("<Ii", _CONTINUATION, len(metadata)) + metadata,
            f"<{2 * count}x" + "".join(f"{size}s" for size in sizes if size),
            "<" + "".join(f"{size}s{-size % 8}x" for size in sizes if size),
        )
    head, dense, body = known
    return pa.py_buffer(head + struct.pack(body, *struct.unpack(dense, data)))


def _filled(metadata: bytes, places: _Places, numbers: Sequence[Sequence[int]]) -> bytearray:
    filled = bytearray(metadata)
    for (at, count), values in zip(places, numbers, strict=True):
        struct.pack_into(f"<{count}q", filled, at, *values)
    return filled


_rows_of_nulls: dict[str, tuple[bytes, _Places]] = {}
"""By the schema's fingerprint. No ``lru_cache``: this module goes to remote servers of Spark by value, and a
function with one does not."""


def _row_of_nulls(schema: pa.Schema) -> tuple[bytes, _Places]:
    """Return the metadata of a message of one row, and where the numbers are that differ in others.

    These are: the size of its body; its rows; the rows and nulls of each array; the place and size of each
    buffer.
    """
    if (known := _rows_of_nulls.get(name := schema_fingerprint(schema))) is None:
        nulls = [pa.nulls(1, field.type) for field in schema]
        message = pa.RecordBatch.from_arrays(nulls, schema=schema).serialize()
        metadata = bytes(message.slice(8, _body_at(message) - 8).to_pybytes())
        root = struct.unpack_from("<I", metadata, 0)[0]
        header = _slot(metadata, root, _SLOT_HEADER) or 0
        table = header + struct.unpack_from("<I", metadata, header)[0]
        places = [(_slot(metadata, root, _SLOT_BODY_SIZE) or 0, 1)]
        places.append((_slot(metadata, table, _SLOT_ROWS) or 0, 1))
        for slot in _SLOTS_VECTORS:
            at = _slot(metadata, table, slot) or 0
            at += struct.unpack_from("<I", metadata, at)[0]
            places.append((at + 4, 2 * struct.unpack_from("<I", metadata, at)[0]))
        known = _rows_of_nulls[name] = (metadata, places)
    return known


def _body_at(message: pa.Buffer) -> int:
    return 8 + int(struct.unpack_from("<i", message, 4)[0])


# -- decoding --------------------------------------------------------------------------------

_REPAIR = (
    "Somebody else wrote to the acked log or its schemas, or the server lost data. Restore them "
    "from a backup, or start the reader anew behind this entry."
)


def _of_entry(read: F) -> F:
    """Let a function that reads an entry name it in a ``DataLoss``, if it is damaged."""

    @wraps(read)
    def reading(id: EntryId, *args: Any) -> Any:
        try:
            return read(id, *args)
        except Damaged as damaged:
            what = f"Entry {id} of the acked log is damaged: {damaged}."
        raise DataLoss(what, remedy=_REPAIR)

    return cast(F, reading)


@_of_entry
def decode_entry(
    id: EntryId, fields: Mapping[bytes, bytes], schemas: Mapping[str, pa.Schema]
) -> pa.RecordBatch:
    """Validate an entry, and return its record batch; raise ``DataLoss`` if it is damaged.

    The caller calls :func:`schema_of` first, and fetches a missing schema.
    """
    packed, fingerprint = packed_in(fields, b"rows", b"batch"), schema_of(id, fields)
    schema = schemas.get(fingerprint)
    if schema is None:
        raise Damaged(f"its schema {fingerprint} is not among the stored schemas")
    return unpack(packed, schema)


def packed_in(fields: Mapping[bytes, bytes], rows: bytes, data: bytes) -> Packed:
    """Return the packed batch in the fields of an entry, given the names of two of them."""
    count, size, crc = (_number(fields, name) for name in (rows, b"size", b"crc"))
    codec = field_of(fields, b"codec").decode("ascii", "replace")
    return Packed(count, crc, codec, size, field_of(fields, data))


def unpack(packed: Packed, schema: pa.Schema) -> pa.RecordBatch:
    """Validate packed bytes, and return their record batch; ``Damaged`` says what is wrong."""
    if zlib.crc32(packed.data) != packed.crc:
        raise Damaged("its batch does not match its CRC")
    if packed.size > RAW_BYTES_MAX:
        raise Damaged(f"it declares {packed.size} bytes, and at most {RAW_BYTES_MAX} are allowed")
    if packed.rows > max(ROWS_WITHOUT_BYTES, 8 * packed.size):
        raise Damaged(f"it declares {packed.rows} rows in {packed.size} bytes")
    try:
        raw = _decompress(packed)
        dense = packed.codec == DENSE  # Its message is made here, and needs no check.
        message = _message(raw.to_pybytes(), packed.rows, schema) if dense else _checked_message(raw)
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, EOFError, LookupError, struct.error, zlib.error) as error:
        raise Damaged(f"its batch cannot be read: {str(error).rstrip('.')}") from None
    if batch.num_rows != packed.rows:
        raise Damaged(f"it declares {packed.rows} rows and holds {batch.num_rows}")
    return batch


@_of_entry
def schema_of(id: EntryId, fields: Mapping[bytes, bytes]) -> str:  # noqa: ARG001 - names the entry
    """Return the fingerprint of an entry's schema."""
    return field_of(fields, b"schema").decode("ascii", "replace")


@_of_entry
def link_of(id: EntryId, fields: Mapping[bytes, bytes]) -> ChainLink:
    """Return an entry's position in its log, without reading its batch; refuse contradictory fields."""
    try:
        prev, first, last = (EntryId.parse(field_of(fields, name)) for name in (b"prev", b"first", b"last"))
    except ConfigurationError as error:
        raise Damaged(error.message.rstrip(".")) from None
    if id.seq or not prev < first <= last:
        raise Damaged(f"no commit of ours has this id and goes from {first} to {last} after {prev}")
    return ChainLink(id, id.ms - entry_rows(id, fields), prev, last, _number(fields, b"epoch"))


@_of_entry
def entry_rows(id: EntryId, fields: Mapping[bytes, bytes]) -> int:
    """Return how many rows an entry declares, without reading its batch."""
    rows = _number(fields, b"rows")
    if not 0 < rows <= id.ms:
        raise Damaged(f"it declares {rows} rows, and the log holds {id.ms} up to it")
    return rows


def _decompress(packed: Packed) -> pa.Buffer:
    data, codec, size = packed.data, packed.codec, packed.size
    if codec in ("none", DENSE):
        if codec == DENSE:
            data = zlib.decompressobj().decompress(data, size + 1)
        if len(data) != size:
            raise Damaged(f"it declares {size} bytes and holds {len(data)}")
        return pa.py_buffer(data)
    if codec not in CODECS:
        raise Damaged(f"its codec {codec.encode()!r} is unknown, at least to this version of streamworker")
    return pa.Codec(codec).decompress(pa.py_buffer(data), decompressed_size=size)


def _checked_message(raw: pa.Buffer) -> pa.Message:
    """Return the IPC message in ``raw``: a record batch, uncompressed, of exactly its size."""
    message = pa.ipc.read_message(raw)
    metadata = bytes(message.metadata.to_pybytes())
    continuation, metadata_bytes = struct.unpack_from("<Ii", memoryview(raw), 0)
    if continuation != _CONTINUATION or 8 + metadata_bytes + message.body.size != raw.size:
        # lz4 leaves the rest of a too large buffer unset, so the sizes are compared.
        raise Damaged(f"it declares {raw.size} bytes, which is not the size of its batch")
    root = struct.unpack_from("<I", metadata, 0)[0]
    kind = _slot(metadata, root, _SLOT_HEADER_TYPE)
    header = _slot(metadata, root, _SLOT_HEADER)
    if kind is None or header is None or metadata[kind] != _RECORD_BATCH:
        raise Damaged("its batch is another kind of Arrow message")
    table = header + struct.unpack_from("<I", metadata, header)[0]
    if _slot(metadata, table, _SLOT_COMPRESSION) is not None:
        raise Damaged("its batch is compressed inside, which is not accepted")
    return message


def _slot(buffer: bytes | memoryview, table: int, slot: int) -> int | None:
    """Return the position of a field in a flatbuffers table, or None if the table omits it."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    if vtable < 0:
        raise ValueError("a table points outside its message")
    place = 4 + 2 * slot
    if place + 2 > struct.unpack_from("<H", buffer, vtable)[0]:
        return None
    offset: int = struct.unpack_from("<H", buffer, vtable + place)[0]
    return table + offset if offset else None


def field_of(fields: Mapping[bytes, bytes], name: bytes) -> bytes:
    """Return a field of an entry."""
    value = fields.get(name)
    if value is None:
        found = ", ".join(repr(key.decode("utf-8", "replace")) for key in list(fields)[:8]) or "none"
        raise Damaged(f"it has no field {name.decode()!r} (fields: {found})")
    return value


def _number(fields: Mapping[bytes, bytes], name: bytes) -> int:
    text = field_of(fields, name)
    if not text.isdigit() or len(text) > 19:
        raise Damaged(f"its field {name.decode()!r} is {text[:40]!r} and not a whole number")
    return int(text)
