"""Entries of a stream of columns (``codec="arrow"``): several rows each, as one Arrow record batch.

docs/redis-keys.md lists the fields of an entry; the append script puts two more before them if the entry has
several rows (``records.packs``).

An entry contains its schema, so that it can be read alone: by a worker with an older or newer record
type, from the dead letters, and after its stream was copied. The schema takes 300 to 500 bytes for
thousands of rows. The acked log, whose entries may be small, stores its schemas separately.

``v`` has the same format as ``batch`` in an acked log, so an entry that is forwarded unchanged is neither
decompressed nor packed for that. ``ackedlog`` says why these bytes are not trusted.

This module has pure functions and does no I/O.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache

import pyarrow as pa

from streamworker.core.data.entries import Entry
from streamworker.errors import DataLoss, DecodeError
from streamworker.records.rows import ROWS, RowsEntry, bounds, first_id
from streamworker.redisio.data.ackedlog import (
    AckedBatch,
    Codec,
    Damaged,
    deserialize_schema,
    field_of,
    pack,
    packed_in,
    schema_fingerprint,
    serialize_schema,
    unpack,
)

Fields = Mapping[bytes, bytes]

_BY_SCRIPT = (b"sw:first", b"extra")

_REMEDY = 'Its producer must send with codec="arrow", as the stream is declared; or Redis lost data.'


class Packer:
    """Turns record batches of one schema into entries.

    >>> batch = pa.record_batch({"n": [1, 2, 3]})
    >>> fields = Packer(batch.schema).fields(batch, "lz4")
    >>> fields[b"n"], unpacked(fields).equals(batch)
    (b'3', True)
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = serialize_schema(schema)
        self._name = schema_fingerprint(schema).encode()

    def fields(self, batch: pa.RecordBatch, compression: Codec) -> dict[bytes, bytes]:
        """Return the fields of an entry with these rows."""
        packed = pack(batch, compression)
        return {
            ROWS: b"%d" % packed.rows,
            b"codec": packed.codec.encode(),
            b"size": b"%d" % packed.size,
            b"crc": b"%d" % packed.crc,
            b"v": packed.data,
            b"name": self._name,
            b"schema": self._schema,
        }


def unpacked(fields: Fields) -> pa.RecordBatch:
    """Validate an entry, and return its rows; uncompressed rows are not copied."""
    try:
        packed = packed_in(fields, ROWS, b"v")
        batch = unpack(packed, _schema(field_of(fields, b"schema"), field_of(fields, b"name")))
    except (Damaged, DataLoss) as error:
        why = error.message.rstrip(".") if isinstance(error, DataLoss) else str(error)
        raise DecodeError(f"The entry holds no rows that can be read: {why}.", remedy=_REMEDY) from None
    if not batch.num_rows:
        raise DecodeError("The entry holds no rows.", remedy=_REMEDY)
    return batch


def alone(entry: Entry) -> Fields:
    """Return the fields of an entry that would hold only these rows of an entry, without ids."""
    start, end = bounds(entry)
    if isinstance(entry, RowsEntry) or start:
        with suppress(DecodeError):  # then it stays as it is
            batch = unpacked(entry.fields)[start:end]
            return Packer(batch.schema).fields(batch, "lz4")
    return {name: value for name, value in entry.fields.items() if name not in _BY_SCRIPT}


def as_it_came(entry: Entry) -> AckedBatch:
    """Return the acked batch that forwards an entry unchanged; :func:`unpacked` must have read it."""
    return packed_in(entry.fields, ROWS, b"v").acked(entry.fields[b"name"].decode(), first_id(entry))


@lru_cache(64)
def _schema(data: bytes, name: bytes) -> pa.Schema:
    return deserialize_schema(data, name.decode("ascii", "replace"))
