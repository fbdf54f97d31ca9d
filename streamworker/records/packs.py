"""Entries that hold many records: how records are packed into one, and read again.

The fields of such an entry, in this order:

    ========  =============================================================================
    sw:first  id of its first record
    extra     records beyond one an entry that the stream ever got, with those of this entry
    n         its records
    codec     how ``v`` is compressed: ``none`` or ``zstd``
    size      bytes of ``v`` before compression
    crc       CRC-32 of ``v``, decimal
    v         the records, as one JSON or msgpack array
    ========  =============================================================================

The entry has the id of its last record, and the ids of the others are the ones before it: they have the same
milliseconds, and consecutive sequence numbers. So the id of a record needs no second number. The append
script writes the first two fields. An entry that somebody copied under another id does not match its first
id, and is refused, or the ids of its records could be those of others.

This module has pure functions and does no I/O. The bytes are not trusted: the reader checks the CRC, and
the declared size before it decompresses.
"""

import zlib
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import msgspec

from streamworker.core.data.entries import EntryId
from streamworker.errors import ConfigurationError, DecodeError

FIRST = b"sw:first"
"""First field of an entry that holds many records."""

ENTRY_BYTES_MAX = 64 * 1024
"""Bytes of records in one entry. A commit reads the entry at its checkpoint again, which takes some 50 us
for 30 kB (measured); larger entries compress hardly better."""

ENTRY_RECORDS_MAX = 1_000
"""Records in one entry."""

COMPRESS_ABOVE_BYTES = 512
"""Smaller arrays stay uncompressed: the compressor's time outweighs the saved bytes."""

READ_BYTES_MAX = 1024 * 1024
"""Bytes that an entry of another writer may declare: one read may bring hundreds of entries."""

_NAMES = (FIRST, b"extra", b"n", b"codec", b"size", b"crc", b"v")


class BrokenEntry(Exception):
    """An entry does not match what it declares; the text says what is wrong."""


def pack(payloads: Sequence[bytes], *, is_json: bool) -> list[bytes]:
    """Return the names and values of an entry with these records, without those that the script writes.

    >>> flat = pack([b'{"n":1}', b'{"n":2}'], is_json=True)
    >>> flat[-1]
    b'[{"n":1},{"n":2}]'
    """
    count = len(payloads)
    if is_json:
        raw = b"[%b]" % b",".join(payloads)
    else:
        raw = (b"\xdc" + count.to_bytes(2, "big") if count > 15 else bytes([0x90 | count])) + b"".join(
            payloads
        )
    codec, data = b"none", raw
    if len(raw) > COMPRESS_ABOVE_BYTES:
        packed = bytes(_zstd().compress(raw, asbytes=True))
        if len(packed) < len(raw):
            codec, data = b"zstd", packed
    crc = b"%d" % zlib.crc32(data)
    return [b"n", b"%d" % count, b"codec", codec, b"size", b"%d" % len(raw), b"crc", crc, b"v", data]


class Pack:
    """One entry of many records, whose CRC and ids are checked."""

    def __init__(self, text: bytes, flat: Sequence[bytes]) -> None:
        """Read an entry as Redis returned it; raises :class:`BrokenEntry`."""
        if tuple(flat[::2]) != _NAMES:
            raise BrokenEntry("it has not the fields of an entry of many records")
        first, _, count, codec, size, crc, data = flat[1::2]
        try:
            self.first, self.last = EntryId.parse(first), EntryId.parse(text)
            self.count, declared = int(count), int(size)
        except (ConfigurationError, ValueError):
            raise BrokenEntry("its numbers cannot be read") from None
        if (
            self.first.ms != self.last.ms
            or self.last.seq - self.first.seq + 1 != self.count
            or self.count < 1
        ):
            raise BrokenEntry(
                f"it has {self.count} records from id {self.first} on, and its own id is {self.last}: "
                "another program copied it"
            )
        if b"%d" % zlib.crc32(data) != crc:
            raise BrokenEntry("its records do not match their CRC")
        if not 0 < declared <= READ_BYTES_MAX:
            raise BrokenEntry(f"it declares {declared} bytes, and at most {READ_BYTES_MAX} are allowed")
        self.flat = flat
        self.tag = crc.decode()
        self._data, self._codec, self._declared = data, codec, declared
        self.size = max(1, declared // self.count)
        """Bytes of a record, on average."""
        self._rest: tuple[int, list[Any]] = (0, [])

    def id_of(self, place: int) -> EntryId:
        """Return the id of a record."""
        return EntryId(self.first.ms, self.first.seq + place)

    @property
    def payload(self) -> bytes:
        """The array. It is decompressed for each use: many entries wait, and would hold it until they go."""
        return _unpacked(self._data, self._codec, self._declared)

    @cached_property
    def raws(self) -> list[bytes]:
        """The encoded records; raises DecodeError if they are not as many as declared."""
        payload = self.payload
        decoder: Any = (msgspec.json if payload[:1] == b"[" else msgspec.msgpack).Decoder(list[msgspec.Raw])
        try:
            return list(map(bytes, self.checked(decoder.decode(payload))))
        except msgspec.MsgspecError as error:
            raise unreadable(str(error)) from None

    def fields_of(self, place: int) -> dict[bytes, bytes]:
        """Return the fields of an entry that would hold this record alone.

        If the records cannot be told apart, the last one stands for the entry as a whole.
        """
        try:
            return {b"v": self.raws[place]}
        except DecodeError:
            if place < self.count - 1:
                return {FIRST: self.flat[1]}
            return dict(zip(self.flat[::2], self.flat[1::2], strict=True))

    def decoded(self, load: Any, start: int, end: int) -> list[Any]:
        """Return the records from ``start`` to ``end``; ``load`` decodes the whole array.

        Batches that cut an entry take it from front to back, so the records behind ``end`` wait for the next
        call. No record is given out twice: a function may change the one that it got.
        """
        at, records = self._rest
        if at != start or not records:
            at, records = 0, self.checked(load(self.payload))
        if end == self.count:
            self._rest = (0, [])
            return records[start - at :]
        self._rest = (end, records[end - at :])
        return records[start - at : end - at]

    def checked(self, records: list[Any]) -> list[Any]:
        """Return decoded records; raise DecodeError if they are not as many as declared."""
        if len(records) != self.count:
            raise unreadable(f"it declares {self.count} records and holds {len(records)}")
        return records


def unreadable(why: str) -> DecodeError:
    """Return the error for an entry of many records that cannot be read."""
    return DecodeError(
        f"The entry holds many records and cannot be read: {why.rstrip('.')}.",
        remedy="Only streamworker's producers, and programs that follow docs/redis-keys.md, may write such.",
    )


@cache
def _zstd() -> Any:
    import pyarrow as pa  # takes longer to import than the rest of a producer

    return pa.Codec("zstd")


def _unpacked(data: bytes, codec: bytes, size: int) -> bytes:
    if codec == b"none" and len(data) == size:
        return data
    if codec != b"zstd":
        raise unreadable(f"it declares {size} bytes with codec {codec[:20]!r}, and has {len(data)}")
    try:
        return bytes(_zstd().decompress(data, decompressed_size=size, asbytes=True))
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these
        raise unreadable(f"it cannot be decompressed: {error}") from None
