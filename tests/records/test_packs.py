"""Entries that hold many records: ids and headers of records, cuts, and what is refused."""

import random
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.entries import EntryId
from streamworker.errors import DecodeError
from streamworker.records import RecordType
from streamworker.records.codecs import Codec
from streamworker.records.entries import Entries, as_stored, origin_at, readable_fields
from streamworker.records.packs import FIRST, READ_BYTES_MAX, pack, pack_headers
from tests.records.decoding import decoded


class Order(msgspec.Struct):
    """What is sent."""

    number: int
    note: str = ""


ORDERS = RecordType.of(Order)
Headers = Mapping[int, Mapping[bytes, bytes]]


def entry_of(
    first: EntryId,
    orders: list[Order],
    codec: Codec = "json",
    changed: Mapping[str, bytes] | None = None,
    headers: Headers | None = None,
) -> list[Any]:
    """Return an entry of many records as Redis returns it; ``changed`` replaces fields."""
    encode = msgspec.json.encode if codec == "json" else msgspec.msgpack.encode
    packed = {index: pack_headers(its) for index, its in (headers or {}).items()}
    flat = pack([encode(order) for order in orders], packed, is_json=codec == "json")
    fields = {FIRST: str(first).encode(), b"extra": b"%d" % (len(orders) - 1)}
    fields |= dict(zip(flat[::2], flat[1::2], strict=True))
    fields |= {name.encode(): value for name, value in (changed or {}).items()}
    last = EntryId(first.ms, first.seq + len(orders) - 1)
    return [str(last).encode(), [part for pair in fields.items() for part in pair]]


def orders_of(numbers: range) -> list[Order]:
    return [Order(number, "x" * (number % 40)) for number in numbers]


def headers_of(numbers: range) -> Headers:
    """Return headers for two of three records, by index."""
    return {
        index: {b"trace": b"\xff%d" % number, "größe".encode(): b""}
        for index, number in enumerate(numbers)
        if number % 3
    }


def headers_in(entries: Entries) -> Headers:
    """Return the headers of those records that have any, by index."""
    found = [
        {name.removeprefix(b"h."): value for name, value in entry.fields.items() if name != b"v"}
        for entry in entries
    ]
    return {index: headers for index, headers in enumerate(found) if headers}


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 300, 1000])
def test_each_record_has_an_id_and_its_own_payload(codec: Codec, count: int) -> None:
    """The entry has the id of its last record, and the others the ones before it; headers, too."""
    orders, headers = orders_of(range(count)), headers_of(range(count))
    entries = Entries.of([entry_of(EntryId(7, 5), orders, codec, headers=headers)])
    assert len(entries) == count and entries.stored == 1
    assert [entry.id for entry in entries] == [EntryId(7, 5 + index) for index in range(count)]
    assert ORDERS.batch_decoder(codec)(entries) == orders
    decode = ORDERS.decoder(codec)
    assert [decode(entry.fields) for entry in entries] == orders
    assert headers_in(entries) == headers
    assert origin_at(entries, 0)[0] == origin_at(list(entries), 0)[0] == EntryId(7, 4 + count)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_any_cut_gives_each_record_once(sizes: list[int], data: st.DataObject) -> None:
    """Batches cut entries anywhere; entries of one record stand between them."""
    reply: list[Any] = []
    orders: list[Order] = []
    headers: list[Mapping[bytes, bytes]] = []
    for ms, size in enumerate(sizes, start=1):
        mine = orders_of(range(len(orders), len(orders) + size))
        single = size == 1 and data.draw(st.booleans())
        one = [b"%d-0" % ms, [b"v", msgspec.json.encode(mine[0])]]
        some = data.draw(st.booleans()) and headers_of(range(len(orders), len(orders) + size))
        reply.append(one if single else entry_of(EntryId(ms, 0), mine, headers=some or None))
        headers += [some.get(index, {}) if some and not single else {} for index in range(size)]
        orders += mine
    entries, found, ids, read = Entries.of(reply), [], [], []
    while len(entries):
        cut = data.draw(st.integers(1, len(entries)))
        found += ORDERS.batch_decoder("json")(entries[:cut])
        of_cut = headers_in(entries[:cut])
        read += [of_cut.get(index, {}) for index in range(cut)]
        ids += [entry.id for entry in entries[:cut]]
        entries = entries[cut:]
    assert (found, read) == (orders, headers)
    assert ids == sorted(set(ids)) and len(ids) == len(orders)


@given(st.integers(1, 30), st.integers(-2, 31))
def test_a_position_within_an_entry_leaves_the_records_behind_it(count: int, at: int) -> None:
    """A worker that begins in the middle of an entry passes over the records before."""
    entries = Entries.of([entry_of(EntryId(7, 5), orders_of(range(count)))])
    left = entries.after(EntryId(7, 5 + at))
    within = 0 <= at < count - 1
    assert [entry.id.seq - 5 for entry in left] == list(range(at + 1 if within else 0, count))


def test_no_record_is_given_out_twice_as_the_same_object() -> None:
    """A function may change a record; who decodes the entry again gets a new one."""
    entries = Entries.of([entry_of(EntryId(7, 0), orders_of(range(10)))])
    first = ORDERS.batch_decoder("json")(entries[:4])
    first[0].note = "changed"
    assert ORDERS.batch_decoder("json")(entries[:4]) == orders_of(range(4))
    assert ORDERS.batch_decoder("json")(entries[4:]) == orders_of(range(4, 10))


GOOD = orders_of(range(5))
RAW = b"[" + b",".join(map(msgspec.json.encode, GOOD)) + b"]"
BOMB = zstandard.compress(bytes(50 * READ_BYTES_MAX))


def streamed(data: bytes, window_log: int = 20) -> bytes:
    """Return a zstd frame as of a program that writes while it compresses: it does not tell its size."""
    bits = zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=bits).compressobj()
    return compressor.compress(data) + compressor.flush()


def holding(data: bytes, size: int | None = None, **more: bytes) -> dict[str, bytes]:
    """Return the fields of an entry with this content, and with its CRC and, if none is given, its size."""
    crc, declared = b"%d" % zlib.crc32(data), len(data) if size is None else size
    return {"v": data, "crc": crc, "codec": b"none", "size": b"%d" % declared, **more}


def headed(headers: bytes, size: int | None = None) -> dict[str, bytes]:
    """Return the fields of an entry with these bytes as headers."""
    return holding(RAW + headers, h=b"%d" % (len(headers) if size is None else size))


NILS = b"\x95" + 5 * b"\xc0"
LIES = {
    "a record less": ({"n": b"4"}, "it has 4 records from id 7-0 on, and its own id is 7-4"),
    "a record more": ({"n": b"6"}, "it has 6 records"),
    "fewer than none": ({"n": b"-5"}, "it declares -5 records"),
    "no number": ({"n": b"x"}, "its numbers"),
    "another CRC": ({"crc": b"1"}, "do not match their CRC"),
    "another size": ({"size": b"3"}, "it declares 3 bytes with codec b'none'"),
    "a huge size": ({"size": b"%d" % (50 * READ_BYTES_MAX)}, "and 1 to 1048576 are allowed"),
    "no such codec": ({"codec": b"lz4"}, "codec b'lz4'"),
    "not compressed": ({"codec": b"zstd"}, "cannot be decompressed"),
    "cut short": (holding(RAW[:-9]), "truncated"),
    "an empty array": (holding(b"[]"), "it declares 5 records and holds 0"),
    "a bomb": (holding(BOMB, READ_BYTES_MAX, codec=b"zstd"), "cannot be decompressed"),
    "a bomb that says so": (holding(BOMB, 50 * READ_BYTES_MAX, codec=b"zstd"), "are allowed"),
    "another first id": ({"sw:first": b"7-1"}, "from id 7-1 on"),
    "another time": ({"sw:first": b"6-0"}, "from id 6-0 on"),
    "no first id": ({"sw:first": b"nothing"}, "its numbers"),
    "another field": ({"x": b"1"}, "the fields of"),
    "no headers": (holding(RAW, h=b"0"), "it declares 0 bytes of headers, and 126 in all"),
    "fewer headers than none": (holding(RAW, h=b"-8"), "-8 bytes of headers"),
    "headers only": (headed(NILS, len(RAW + NILS)), "132 bytes of headers, and 132 in all"),
    "headers of more bytes": (headed(NILS, 7), "its headers: "),
    "headers of fewer bytes": (headed(NILS, 5), "its headers: "),
    "headers after the records only": (holding(RAW + NILS), "malformed"),
    "headers of four": (headed(b"\x94" + 4 * b"\xc0"), "it declares 5 records and holds headers of 4"),
    "headers of billions": (headed(b"\xdd\xff\xff\xff\xff"), "its headers: .* truncated"),
    "a map of billions": (headed(b"\x95\xdf\xff\xff\xff\xff" + 4 * b"\xc0"), "its headers: "),
    "a header that is a text": (headed(b"\x95\x81\xa1a\xa1x" + 4 * b"\xc0"), "Expected `bytes`, got `str`"),
    "a name of bytes": (headed(b"\x95\x81\xc4\x01a\xc4\x01x" + 4 * b"\xc0"), "Expected `str`, got `bytes`"),
    "a name that is no UTF-8": (headed(b"\x95\x81\xa1\xff\xc4\x01x" + 4 * b"\xc0"), "its headers: "),
    "no maps": (headed(b"\x95" + 5 * b"\x01"), "its headers: "),
    "a bomb whose frame tells no size": (
        holding(streamed(bytes(50 * READ_BYTES_MAX)), READ_BYTES_MAX, codec=b"zstd"),
        "cannot be decompressed",
    ),
    "a frame of fewer bytes": (
        holding(streamed(RAW), len(RAW) + 1, codec=b"zstd"),
        f"it has {len(RAW)} bytes, and not {len(RAW) + 1}",
    ),
    "a frame that asks for much memory": (
        holding(streamed(RAW, 24), len(RAW), codec=b"zstd"),
        "too much memory",
    ),
    "a second frame": (
        holding(zstandard.compress(RAW) + zstandard.compress(RAW), len(RAW), codec=b"zstd"),
        "cannot be decompressed",
    ),
    "a bomb of headers": (holding(BOMB, READ_BYTES_MAX, codec=b"zstd", h=b"9"), "cannot be decompressed"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_entry_that_lies_is_refused_and_none_of_its_records_is_read(lie: str) -> None:
    """Counts that lie, bombs, arrays cut short, ids that do not agree: the error says which, and where."""
    changed, why = LIES[lie]
    entries = Entries.of([entry_of(EntryId(7, 0), GOOD, changed=changed)])
    with pytest.raises(DecodeError, match=f"The entry 7-4 holds many records and cannot be read: .*{why}"):
        decoded(ORDERS, entries)
    decode = ORDERS.decoder("json")
    for entry in entries:
        with pytest.raises(DecodeError, match=f"The entry 7-4 .*{why}"):
            readable_fields(entry)
        with pytest.raises(DecodeError):
            decode(entry.fields)
    assert dict(entries[-1].fields)[FIRST] == changed.get("sw:first", b"7-0")


def test_a_frame_that_does_not_tell_its_size_is_read() -> None:
    """Compressors of other languages that write as they go do not know it."""
    changed = holding(streamed(RAW), len(RAW), codec=b"zstd")
    entries = Entries.of([entry_of(EntryId(7, 0), GOOD, changed=changed)])
    assert ORDERS.batch_decoder("json")(entries) == GOOD


def test_a_record_that_is_wrong_leaves_its_neighbours_in_the_entry_readable() -> None:
    """Only it is refused, with the id of the record."""
    array = b"[" + b",".join([msgspec.json.encode(GOOD[0]), b"1", *map(msgspec.json.encode, GOOD[2:])]) + b"]"
    entries = Entries.of([entry_of(EntryId(7, 0), GOOD, changed=holding(array))])
    decode = ORDERS.decoder("json")
    with pytest.raises(DecodeError, match="The entry holds no Order"):
        decode(readable_fields(entries[1]))
    assert [decode(readable_fields(entries[index])) for index in (0, 2, 3, 4)] == [GOOD[0], *GOOD[2:]]


def test_an_entry_of_more_records_than_allowed_takes_no_memory() -> None:
    """It stands as one record, whatever count its own id and its first id agree on."""
    _, flat = entry_of(EntryId(7, 0), GOOD, changed={"n": b"1000000000000"})
    entries = Entries.of([[b"7-999999999999", flat]])
    assert [entry.id for entry in entries] == [EntryId(7, 10**12 - 1)]
    with pytest.raises(DecodeError, match="1000000000000 records, and 1 to 1000 are allowed"):
        decoded(ORDERS, entries)


def test_an_entry_that_was_copied_under_another_id_is_refused() -> None:
    """A stranger's XADD of a copied entry: its records would have the ids of others."""
    _, flat = entry_of(EntryId(7, 0), GOOD)
    entries = Entries.of([[b"7-5", flat]])
    with pytest.raises(DecodeError, match="another program copied it"):
        decoded(ORDERS, entries)
    assert [entry.id for entry in entries] == [EntryId(7, 5)]


@pytest.mark.parametrize("has_headers", [False, True], ids=["plain", "headers"])
@pytest.mark.parametrize("forged", [False, True], ids=["", "with its CRC"])
def test_any_damage_is_an_error_or_the_records(*, has_headers: bool, forged: bool) -> None:
    """Bytes flipped, cut and added anywhere: a DecodeError, or what was sent; never other records.

    Somebody who damages the records and adds their CRC may change them, but raises no other error.
    """
    rng = random.Random(19)
    numbers = range(5 if forged else 40)  # The few are not compressed.
    orders, headers = orders_of(numbers), headers_of(numbers) if has_headers else {}
    id_, flat = entry_of(EntryId(7, 0), orders, headers=headers)
    for _ in range(1_000):
        parts = list(flat)
        index = 13 if forged else rng.randrange(len(parts))
        value = bytearray(parts[index])
        at = rng.randrange(len(value) + 1)
        value[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        parts[index] = bytes(value)
        if forged:
            parts[11] = b"%d" % zlib.crc32(value)
        entries = Entries.of([[id_, parts]])
        try:
            found = decoded(ORDERS, entries)
        except DecodeError:
            continue
        assert forged or (found == orders and headers_in(entries) == headers)


def test_contents_are_told_apart_by_their_tags() -> None:
    """Other records under the same id have another tag, whichever kind of entry holds them; headers, too."""
    one, other = (Entries.of([entry_of(EntryId(7, 0), orders_of(range(n, n + 3)))]) for n in (0, 1))
    assert as_stored(*origin_at(one, 2)) != as_stored(*origin_at(other, 2))
    heads: Headers = {0: {b"a": b"x"}}
    headed = Entries.of([entry_of(EntryId(7, 0), orders_of(range(3)), headers=heads)])
    assert as_stored(*origin_at(one, 2)) != as_stored(*origin_at(headed, 2))
    lone = [Entries.of([[b"7-0", [b"v", b"%d" % n]]]) for n in (1, 2)]
    assert as_stored(*origin_at(lone[0], 0)) != as_stored(*origin_at(lone[1], 0))


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_records_before_a_cut_are_not_decoded(codec: Codec) -> None:
    """One of them may have been removed because it ends the process that decodes it."""
    loaded: list[int] = []

    def load(array: bytes) -> list[Any]:
        decode = msgspec.json.decode if codec == "json" else msgspec.msgpack.decode
        orders = decode(array, type=list[Order])
        loaded.extend(order.number for order in orders)
        return orders

    entries = Entries.of([entry_of(EntryId(7, 5), orders_of(range(40)), codec)])
    found = entries.after(EntryId(7, 14))[:20].decoded(load, load, b"v")
    assert found == orders_of(range(10, 30)) and loaded == list(range(10, 40))
