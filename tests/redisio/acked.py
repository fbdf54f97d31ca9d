"""Entries of an acked log as tests make them: with any codec, and as Redis stores them."""

import pyarrow as pa

from streamworker.core.data.entries import ZERO, EntryId
from streamworker.redisio.data.ackedlog import AckedBatch, Codec, pack, schema_fingerprint


def encoded(batch: pa.RecordBatch, codec: Codec, first: EntryId = ZERO) -> AckedBatch:
    """Encode a batch with a codec, whether it saves bytes or not."""
    return pack(batch, codec).acked(schema_fingerprint(batch.schema), first)


def stored(acked: AckedBatch) -> dict[bytes, bytes]:
    """Return the fields that a commit takes from a batch."""
    return {
        b"rows": b"%d" % acked.rows,
        b"first": str(acked.first).encode(),
        b"schema": acked.schema.encode(),
        b"crc": b"%d" % acked.crc,
        b"codec": acked.codec.encode(),
        b"size": b"%d" % acked.size,
        b"batch": acked.data,
    }
