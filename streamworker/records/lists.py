"""Encoders of lists of records, in a few passes; one that they cannot encode is left to the ordinary encoder.

They have the records that msgspec encodes by itself, as JSON or MessagePack. The ordinary encoder takes one
record after the other, and says which is wrong and why.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from streamworker.records.codecs import Codec, array_loader, has_lost_float, payload_loader
from streamworker.records.packs import ENTRY_BYTES_MAX, ENTRY_RECORDS_MAX
from streamworker.records.runs import Run
from streamworker.records.types import Declared, RecordKind

RUN_BYTES_MAX = 1024 * 1024
"""A larger array is left to the encoder of single records: its halves would be encoded again and again."""

_QUICK = (RecordKind.STRUCT, RecordKind.DATACLASS, RecordKind.ATTRS, RecordKind.UNION)
"""The kinds of records that msgspec encodes by itself."""


def make_list_encoder(
    record_type: Declared, codec: Codec, *, validate: bool = False, as_run: bool = False
) -> Callable[[Sequence[Any]], Sequence[bytes] | None] | None:
    """Return a fast encoder for lists of records; None if the kind or codec has none.

    The encoder returns the payloads, with ``as_run`` those of one partition as a run; or None if a record
    cannot be encoded. The encoder of :func:`.codecs.make_encoder` then reports which record and why.
    """
    if codec not in ("json", "msgpack") or record_type.kind not in _QUICK:
        return None
    is_json = codec == "json"
    dump = (msgspec.json if is_json else msgspec.msgpack).Encoder().encode
    classes = set(record_type.members)
    load = payload_loader(record_type, codec) if validate else None
    load_all = array_loader(record_type, codec) if validate else None

    def payloads_of(records: Sequence[Any]) -> list[bytes]:
        payloads = list(map(dump, records))
        if load is not None:
            # One after the other: all together would start the garbage collector, at a microsecond each.
            deque(map(load, payloads), 0)
        return payloads

    def run_of(records: Sequence[Any]) -> Run:
        first = dump(records[0])
        most = min(ENTRY_RECORDS_MAX, max(1, ENTRY_BYTES_MAX * 7 // 8 // len(first)))
        parts = [records[start : start + most] for start in range(1, len(records), most)]
        arrays = [array for part in parts for array in arrays_of(part)]
        if load is not None and load_all is not None:
            load(first)
            for _, array in arrays:
                load_all(array)
        return Run(first, arrays, is_json=is_json)

    def arrays_of(records: Sequence[Any]) -> list[tuple[int, bytes]]:
        """Encode an array, or halves of it if it is too large for an entry: the first record may be small."""
        array, half = dump(records), len(records) // 2
        if len(array) > RUN_BYTES_MAX:
            raise ValueError("too large")
        if len(array) <= ENTRY_BYTES_MAX or not half:
            return [(len(records), array)]
        return arrays_of(records[:half]) + arrays_of(records[half:])

    def encode(records: Sequence[Any]) -> Sequence[bytes] | None:
        if set(map(type, records)) - classes:
            return None
        try:
            encoded = run_of(records) if as_run else payloads_of(records)
        except Exception:  # noqa: BLE001 - a record's own code may raise anything
            return None
        if is_json and _may_hold_null(encoded):
            for record, payload in zip(records, encoded, strict=True):
                if b"null" in payload and has_lost_float(msgspec.to_builtins(record)):
                    return None
        return encoded

    return encode


def _may_hold_null(encoded: list[bytes] | Run) -> bool:
    if isinstance(encoded, Run):
        parts = [encoded.first, *(array for _, array in encoded.arrays)]
    else:
        parts = [b"".join(encoded)]
    return any(part.rfind(b"null") >= 0 for part in parts)  # Half the time of a search from the start.
