"""Entries that hold many records: ids of records, cuts, and what is refused."""

import random
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamworker.core.data.entries import EntryId
from streamworker.errors import DecodeError
from streamworker.records import RecordType
from streamworker.records.codecs import Codec
from streamworker.records.entries import Entries, origin_at, stored
from streamworker.records.packs import FIRST, READ_BYTES_MAX, pack


class Order(msgspec.Struct):
    """What is sent."""

    number: int
    note: str = ""


ORDERS = RecordType.of(Order)


def entry_of(
    first: EntryId, orders: list[Order], codec: Codec = "json", changed: Mapping[str, bytes] | None = None
) -> list[Any]:
    """Return an entry of many records as Redis returns it; ``changed`` replaces fields."""
    encode = msgspec.json.encode if codec == "json" else msgspec.msgpack.encode
    flat = pack([encode(order) for order in orders], is_json=codec == "json")
    fields = {FIRST: str(first).encode(), b"extra": b"%d" % (len(orders) - 1)}
    fields |= dict(zip(flat[::2], flat[1::2], strict=True))
    fields |= {name.encode(): value for name, value in (changed or {}).items()}
    last = EntryId(first.ms, first.seq + len(orders) - 1)
    return [str(last).encode(), [part for pair in fields.items() for part in pair]]


def orders_of(numbers: range) -> list[Order]:
    return [Order(number, "x" * (number % 40)) for number in numbers]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 300, 1000])
def test_each_record_has_an_id_and_its_own_payload(codec: Codec, count: int) -> None:
    """The entry has the id of its last record, and the others the ones before it."""
    orders = orders_of(range(count))
    entries = Entries.of([entry_of(EntryId(7, 5), orders, codec)])
    assert len(entries) == count and entries.stored == 1
    assert [entry.id for entry in entries] == [EntryId(7, 5 + place) for place in range(count)]
    assert ORDERS.decode_many(entries, codec) == orders
    decode = ORDERS.decoder(codec)
    assert [decode(entry.fields) for entry in entries] == orders
    assert origin_at(entries, 0)[0] == origin_at(list(entries), 0)[0] == EntryId(7, 4 + count)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
@settings(deadline=None)
def test_any_cut_gives_each_record_once(sizes: list[int], data: st.DataObject) -> None:
    """Batches cut entries anywhere; entries of one record stand between them."""
    reply: list[Any] = []
    orders: list[Order] = []
    for ms, size in enumerate(sizes, start=1):
        mine = orders_of(range(len(orders), len(orders) + size))
        single = size == 1 and data.draw(st.booleans())
        one = [b"%d-0" % ms, [b"v", msgspec.json.encode(mine[0])]]
        reply.append(one if single else entry_of(EntryId(ms, 0), mine))
        orders += mine
    entries, found, ids = Entries.of(reply), [], []
    while len(entries):
        cut = data.draw(st.integers(1, len(entries)))
        found += ORDERS.decode_many(entries[:cut], "json")
        ids += [entry.id for entry in entries[:cut]]
        entries = entries[cut:]
    assert found == orders
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
    first = ORDERS.decode_many(entries[:4], "json")
    first[0].note = "changed"
    assert ORDERS.decode_many(entries[:4], "json") == orders_of(range(4))
    assert ORDERS.decode_many(entries[4:], "json") == orders_of(range(4, 10))


GOOD = orders_of(range(5))
RAW = b"[" + b",".join(map(msgspec.json.encode, GOOD)) + b"]"
BOMB = bytes(pa.compress(bytes(50 * READ_BYTES_MAX), codec="zstd", asbytes=True))


def crc(data: bytes) -> bytes:
    return b"%d" % zlib.crc32(data)


@pytest.mark.parametrize(
    "changed",
    [
        {"n": b"4"},
        {"n": b"6"},
        {"n": b"-5"},
        {"n": b"x"},
        {"crc": b"1"},
        {"size": b"3"},
        {"size": b"%d" % (50 * READ_BYTES_MAX)},
        {"codec": b"lz4"},
        {"codec": b"zstd"},
        {"v": RAW[:-9], "crc": crc(RAW[:-9]), "size": b"%d" % len(RAW[:-9])},
        {"v": b"[]", "crc": crc(b"[]"), "size": b"2"},
        {"v": b"[1,2,3,4,5]", "crc": crc(b"[1,2,3,4,5]"), "size": b"11"},
        {"v": BOMB, "crc": crc(BOMB), "codec": b"zstd", "size": b"%d" % READ_BYTES_MAX},
        {"v": BOMB, "crc": crc(BOMB), "codec": b"zstd", "size": b"%d" % (50 * READ_BYTES_MAX)},
        {"sw:first": b"7-1"},
        {"sw:first": b"6-0"},
        {"sw:first": b"nothing"},
    ],
    ids=str,
)
def test_an_entry_that_lies_is_refused_and_none_of_its_records_is_read(changed: dict[str, bytes]) -> None:
    """Counts that lie, bombs, arrays cut short, ids that do not agree."""
    entries = Entries.of([entry_of(EntryId(7, 0), GOOD, changed=changed)])
    with pytest.raises(DecodeError, match="7-"):
        ORDERS.decode_many(entries, "json")
    decode = ORDERS.decoder("json")
    for entry in entries:
        with pytest.raises(DecodeError):
            decode(entry.fields)


def test_an_entry_that_was_copied_under_another_id_is_refused() -> None:
    """A stranger's XADD of a copied entry: its records would have the ids of others."""
    _, flat = entry_of(EntryId(7, 0), GOOD)
    entries = Entries.of([[b"7-5", flat]])
    with pytest.raises(DecodeError, match="many records"):
        ORDERS.decode_many(entries, "json")
    assert [entry.id for entry in entries] == [EntryId(7, 5)]


def test_any_damage_is_an_error_or_the_records() -> None:
    """Bytes flipped, cut and added anywhere: a DecodeError, or what was sent; never other records."""
    rng = random.Random(19)
    id_, flat = entry_of(EntryId(7, 0), orders_of(range(40)))
    for _ in range(3_000):
        parts = list(flat)
        place = rng.randrange(len(parts))
        value = bytearray(parts[place])
        at = rng.randrange(len(value) + 1)
        value[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        parts[place] = bytes(value)
        try:
            found = ORDERS.decode_many(Entries.of([[id_, parts]]), "json")
        except DecodeError:
            continue
        assert found == orders_of(range(40))


def test_contents_are_told_apart_by_their_tags() -> None:
    """Other records under the same id have another tag, whichever kind of entry holds them."""
    one, other = (Entries.of([entry_of(EntryId(7, 0), orders_of(range(n, n + 3)))]) for n in (0, 1))
    assert stored(*origin_at(one, 2)) != stored(*origin_at(other, 2))
    lone = [Entries.of([[b"7-0", [b"v", b"%d" % n]]]) for n in (1, 2)]
    assert stored(*origin_at(lone[0], 0)) != stored(*origin_at(lone[1], 0))
