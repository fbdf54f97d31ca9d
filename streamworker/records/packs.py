"""Entries that hold many records: how records are packed into one, and read again.

The fields of such an entry, in this order:

    ========  =============================================================================
    sw:first  id of its first record
    extra     records beyond one an entry that the stream ever got, with those of this entry
    n         its records
    codec     how ``v`` is compressed: ``none`` or ``zstd``
    size      bytes of ``v`` before compression
    crc       CRC-32 of ``v``, decimal
    v         the records, as one JSON or msgpack array; then their headers, if one has any
    h         bytes of these headers before compression; only if one has any
    ========  =============================================================================

Records of a program's own codec are the elements of a msgpack array as binary values (``bin``), which the
records of the codecs json and msgpack never are.

The headers are a msgpack array of a map of texts to bytes for each record, or nil for one without headers.
So one compression, one CRC and one limit of bytes hold for both.

The entry has the id of its last record, and the ids of the others are the ones before it: they have the same
milliseconds, and consecutive sequence numbers. So the id of a record needs no second number. The append
script writes the first two fields. An entry that somebody copied under another id does not match its first
id, and is refused, or the ids of its records could be those of others.

This module has pure functions and does no I/O. The bytes are not trusted: the reader checks the CRC, and
the declared sizes before it decompresses.
"""

import threading
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import zstandard

from streamworker.core.data.entries import EntryId
from streamworker.errors import ConfigurationError, DecodeError

FIRST = b"sw:first"
"""First field of an entry that holds many records."""

HEADER_PREFIX = b"h."
"""Prefix of the names of headers among the fields of an entry that holds one record."""

ENTRY_BYTES_MAX = 64 * 1024
"""Bytes of records and headers in one entry. A commit reads the entry at its checkpoint again, which takes
some 50 us for 30 kB (measured); larger entries compress hardly better."""

ENTRY_RECORDS_MAX = 1_000
"""Records in one entry."""

COMPRESS_ABOVE_BYTES = 512
"""Smaller arrays stay uncompressed: the compressor's time outweighs the saved bytes."""

READ_BYTES_MAX = 1024 * 1024
"""Bytes that an entry of another writer may declare: one read may bring hundreds of entries."""

_NAMES = (FIRST, b"extra", b"n", b"codec", b"size", b"crc", b"v", b"h")
CRC = 11
"""Index of the CRC among the names and values."""

_BINARY = (b"\xc4", b"\xc5", b"\xc6")
"""The first bytes of binary values in msgpack. No JSON object begins so."""

WINDOW_BYTES_MAX = 8 * 1024 * 1024
"""Bytes that a frame may let the decompressor look back. The format asks each decompressor for as many."""


class _Zstd(threading.local):
    """The contexts of zstd, which a thread uses again: a new one takes as long as the entry (measured)."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)


_zstd = _Zstd()

_load_headers = msgspec.msgpack.Decoder(list[dict[str, bytes] | None]).decode


def pack(
    payloads: Sequence[bytes], headers: Mapping[int, bytes] | None = None, *, is_json: bool
) -> list[bytes]:
    r"""Return the names and values of an entry with these records, without those that the script writes.

    ``headers`` has what :func:`pack_headers` made for some of the records, by index.

    >>> flat = pack([b'{"n":1}', b'{"n":2}'], is_json=True)
    >>> flat[-1]
    b'[{"n":1},{"n":2}]'
    >>> pack([b'{"n":1}', b'{"n":2}'], {1: pack_headers({b"a": b"x"})}, is_json=True)[-3:]
    [b'[{"n":1},{"n":2}]\x92\xc0\x81\xa1a\xc4\x01x', b'h', b'8']
    """
    count = len(payloads)
    raw = b"[%b]" % b",".join(payloads) if is_json else _array(payloads)
    more: list[bytes] = []
    if headers:
        packed_headers = _array([headers.get(index, b"\xc0") for index in range(count)])
        raw, more = raw + packed_headers, [b"h", b"%d" % len(packed_headers)]
    return pack_array(count, raw, more)


def pack_array(count: int, raw: bytes, more: Sequence[bytes] = ()) -> list[bytes]:
    """Return the names and values of an entry with the records of an array; ``more`` are further fields."""
    codec, data = b"none", raw
    if len(raw) > COMPRESS_ABOVE_BYTES:
        packed = _zstd.compressor.compress(raw)
        if len(packed) < len(raw):
            codec, data = b"zstd", packed
    crc = b"%d" % zlib.crc32(data)
    return [b"n", b"%d" % count, b"codec", codec, b"size", b"%d" % len(raw), b"crc", crc, b"v", data, *more]


def pack_headers(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the headers of one record as msgpack."""
    return msgspec.msgpack.encode({name.decode(): value for name, value in headers.items()})


def as_binary(payloads: Sequence[bytes]) -> list[bytes]:
    """Return payloads of a program's own codec as elements of a msgpack array."""
    return list(map(msgspec.msgpack.encode, payloads))


def _array(items: Sequence[bytes]) -> bytes:
    return msgpack_array(len(items)) + b"".join(items)


def msgpack_array(count: int) -> bytes:
    """Return the head of an array in msgpack."""
    return b"\xdc" + count.to_bytes(2, "big") if count > 15 else bytes([0x90 | count])


class Pack:
    """One entry of many records; one whose ids, CRC or sizes are wrong stands as one record."""

    def __init__(self, text: bytes, flat: Sequence[bytes]) -> None:
        """Read an entry as Redis returned it."""
        self.flat = flat
        self.last = EntryId.parse(text)
        self._rest: tuple[int, list[Any]] = (0, [])
        self._headers_size = 0
        self._fault = self._read()
        """Why the entry cannot be read; empty if it can."""
        if self._fault:
            self.first, self.count, self._size = self.last, 1, sum(map(len, flat))
        self.size = max(1, self._size // self.count)
        """Bytes of a record, on average."""

    def _read(self) -> str:
        names = tuple(self.flat[::2])
        if _NAMES[: max(7, len(names))] != names:
            return "it has not the fields of an entry of many records"
        first, _, count, self._codec, size, crc, self._data, *headers = self.flat[1::2]
        try:
            self.first, self.count = EntryId.parse(first), int(count)
            self._size, self._headers_size = int(size), int(headers[0]) if headers else 0
        except (ConfigurationError, ValueError):
            return "its numbers cannot be read"
        if not 1 <= self.count <= ENTRY_RECORDS_MAX:
            return f"it declares {self.count} records, and 1 to {ENTRY_RECORDS_MAX} are allowed"
        if self.first.ms != self.last.ms or self.last.seq - self.first.seq + 1 != self.count:
            return (
                f"it has {self.count} records from id {self.first} on, and its own id is {self.last}: "
                "another program copied it"
            )
        if b"%d" % zlib.crc32(self._data) != crc:
            return "its records do not match their CRC"
        if not 0 < self._size <= READ_BYTES_MAX:
            return f"it declares {self._size} bytes, and 1 to {READ_BYTES_MAX} are allowed"
        if headers and not 0 < self._headers_size < self._size:
            return f"it declares {self._headers_size} bytes of headers, and {self._size} in all"
        return ""

    @property
    def has_headers(self) -> bool:
        """Whether one of the records has headers."""
        return self._headers_size > 0

    def id_of(self, index: int) -> EntryId:
        """Return the id of a record."""
        return EntryId(self.first.ms, self.first.seq + index)

    @property
    def payload(self) -> bytes:
        """The array of the records. It is not kept: many entries wait, and would hold it until they go."""
        return self._contents()[0]

    @cached_property
    def headers(self) -> list[dict[str, bytes] | None]:
        """The headers of each record; empty if none has any."""
        return self._contents()[1]

    def _contents(self) -> tuple[bytes, list[dict[str, bytes] | None]]:
        if self._fault:
            raise self._unreadable(self._fault)
        raw = self._decompressed()
        if not self._headers_size:
            return raw, []
        try:
            headers = _load_headers(raw[-self._headers_size :])
        except ValueError as error:
            raise self._unreadable(f"its headers: {error}") from None
        return raw[: -self._headers_size], self.checked(headers, "headers of ")

    def _decompressed(self) -> bytes:
        data, codec, size = self._data, self._codec, self._size
        if codec == b"none" and len(data) == size:
            return data
        if codec != b"zstd":
            why = f"it declares {size} bytes with codec {codec[:20]!r}, and has {len(data)}"
            raise self._unreadable(why)
        try:
            # The size in the frame comes first: the decompressor would allocate whatever it says.
            if zstandard.frame_content_size(data) not in (size, -1):
                raise zstandard.ZstdError(f"its frame is not of {size} bytes")
            raw = _zstd.decompressor.decompress(data, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise self._unreadable(f"it cannot be decompressed: {error}") from None
        if len(raw) != size:
            raise self._unreadable(f"it cannot be decompressed: it has {len(raw)} bytes, and not {size}")
        return raw

    @cached_property
    def raws(self) -> list[bytes]:
        """The encoded records; raises DecodeError if they are not as many as declared."""
        payload = self.payload
        decoder: Any = (msgspec.json if payload[:1] == b"[" else msgspec.msgpack).Decoder(list[msgspec.Raw])
        try:
            return list(map(bytes, self.checked(decoder.decode(payload))))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise self._unreadable(str(error)) from None

    def fields_of(self, index: int) -> dict[bytes, bytes]:
        """Return the fields of an entry that would hold this record alone.

        If the records cannot be told apart, the last one stands for the entry as a whole.
        """
        try:
            raw = self.raws[index]
            fields = {b"v": msgspec.msgpack.decode(raw) if raw[:1] in _BINARY else raw}
        except DecodeError:
            if index < self.count - 1:
                return {FIRST: self.flat[1]}
            return dict(zip(self.flat[::2], self.flat[1::2], strict=True))
        if headers := self.headers:
            for name, value in (headers[index] or {}).items():
                fields[HEADER_PREFIX + name.encode()] = value
        return fields

    def decoded(self, load: Any, start: int, end: int) -> list[Any]:
        """Return the records from ``start`` to ``end``; ``load`` decodes an array.

        Batches that cut an entry take it from front to back, so the records behind ``end`` wait for the next
        call. No record is given out twice: a function may change the one that it got. Those before ``start``
        are not decoded: one of them may have been removed because that ends the process.
        """
        at, records = self._rest
        if at != start or not records:
            records = load(self._array_from(start)) if start else self.checked(load(self.payload))
        if end == self.count:
            self._rest = (0, [])
            return records
        self._rest = (end, records[end - start :])
        return records[: end - start]

    def _array_from(self, start: int) -> bytes:
        raws, is_json = self.raws[start:], self.payload[:1] == b"["
        return b"[%b]" % b",".join(raws) if is_json else _array(raws)

    def checked(self, found: list[Any], what: str = "") -> list[Any]:
        """Return decoded records; raise DecodeError if they are not as many as declared."""
        if len(found) != self.count:
            raise self._unreadable(f"it declares {self.count} records and holds {what}{len(found)}")
        return found

    def _unreadable(self, why: str) -> DecodeError:
        self._fault = why  # Its other records need not be decompressed.
        return unreadable(why, f"entry {self.last}")


def unreadable(why: str, entry: str = "entry") -> DecodeError:
    """Return the error for an entry of many records that cannot be read."""
    return DecodeError(
        f"The {entry} holds many records and cannot be read: {why.rstrip('.')}.",
        remedy="Only what writes as streamworker's producers do may write such (docs: redis-keys).",
    )
