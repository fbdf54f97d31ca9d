"""A segment gives back what Redis held: the same ids, fields and headers in the same order."""

import errno
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import obstore
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker import App
from streamworker.archive import store as archive_store
from streamworker.archive.chain import Chain, id_at
from streamworker.archive.columns import columns_for, packing_of, rows_reader, rows_writer
from streamworker.archive.segments import META, encoded, entries_in, footer_in, opened, table_of
from streamworker.archive.store import TAIL_BYTES, store_at
from streamworker.core.data.archives import Footer
from streamworker.core.data.entries import ZERO, Entry, EntryId
from streamworker.errors import ArchiveConflict, ArchiveUnavailable
from streamworker.records.entries import REPLAYED_FOR, Entries, as_stored
from streamworker.records.packs import FIRST, as_binary, pack, pack_headers
from streamworker.records.rows import NumberedRows
from streamworker.redisio.data.columns import Packer, unpacked
from streamworker.spark.source.places import place_at


class Order(msgspec.Struct):
    """A record."""

    customer: str
    n: int = 0


class Hex:
    """A codec of a program's own."""

    name = "hex"

    def encode(self, record: Order) -> bytes:
        return msgspec.json.encode(record).hex().encode()

    def decode(self, payload: bytes) -> Order:
        return msgspec.json.decode(bytes.fromhex(payload.decode()), type=Order)


def stream_of(codec: Any) -> Any:
    return App("shop").stream("orders", Order, key="customer", codec=codec).spec


def again(stream: Any, entries: Entries, *, has_columns: bool = True) -> list[Entry]:
    """Return what a segment of some records gives back."""
    columns = columns_for(stream) if has_columns else None
    table = table_of(entries, packing_of(stream), columns, rows_reader(stream))
    first, last = id_at(table, 0), id_at(table, table.num_rows - 1)
    body = encoded(table, Footer(ZERO, first, last, table.num_rows, table.num_rows, "w", 1))
    file, footer = opened(body, "x")
    assert (footer.first, footer.last) == (first, last)
    writer = rows_writer if stream.codec == "arrow" else None
    parts = map(pa.table, file.iter_batches(7))
    return [each for part in parts for each in entries_in(part, packing_of(stream), writer)]


def held(entries: Sequence[Entry]) -> list[tuple[EntryId, dict[bytes, bytes]]]:
    """Return ids and fields: how records share entries may differ, and so their mean size."""
    return [(entry.id, dict(entry.fields)) for entry in entries]


NAMES = st.binary(min_size=1, max_size=4)
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=20)), min_size=1, max_size=4)
HEADERS = st.dictionaries(st.text(max_size=3), st.binary(max_size=5), max_size=2)
ORDERS = st.builds(Order, st.text(max_size=8), st.integers(-5, 5))


@st.composite
def replies(draw: st.DrawFn, codec: Any = "json") -> list[Any]:
    """Draw what Redis returns: records alone and together, with headers, and what others wrote."""
    encode = stream_of(codec).record.encoder(codec)
    ms, seq, reply = 10, 0, list[Any]()
    for _ in range(draw(st.integers(1, 6))):
        ms, seq = draw(st.sampled_from([(ms, seq + 1), (ms, seq + 2), (ms + 1, 0), (ms + 3, 2**40)]))
        kind = draw(st.sampled_from(["alone", "pack", "foreign", "damaged", "replayed"]))
        payload = encode(draw(ORDERS))
        if kind == "alone":
            flat = [b"v", payload]
            for name, value in draw(HEADERS).items():
                flat += [b"h." + name.encode(), value]
        elif kind == "replayed":
            flat = [REPLAYED_FOR, b"price", b"v", payload]
        elif kind == "foreign":
            flat = [part for pair in draw(FIELDS) for part in pair]
        else:
            orders = draw(st.lists(ORDERS, min_size=2, max_size=9))
            headers = {
                index: pack_headers({name.encode(): value for name, value in its.items()})
                for index in range(len(orders))
                if (its := draw(HEADERS))
            }
            payloads = [encode(each) for each in orders]
            payloads = as_binary(payloads) if not isinstance(codec, str) else payloads
            fields = pack(payloads, headers, is_json=codec == "json")
            if kind == "damaged":
                fields[7] = draw(st.sampled_from([fields[7] + b"1", b"x"]))
            flat = [FIRST, b"%d-%d" % (ms, seq), b"extra", b"9", *fields]
            seq += len(orders) - 1
        reply.append([b"%d-%d" % (ms, seq), flat])
    return reply


@given(replies())
def test_what_redis_held_comes_back_as_json(reply: list[Any]) -> None:
    stream = stream_of("json")
    assert held(again(stream, Entries.of(reply))) == held(Entries.of(reply))


@given(replies("msgpack"))
def test_what_redis_held_comes_back_as_msgpack(reply: list[Any]) -> None:
    stream = stream_of("msgpack")
    assert held(again(stream, Entries.of(reply), has_columns=False)) == held(Entries.of(reply))


CODEC = Hex()


@given(replies(CODEC))
def test_what_redis_held_comes_back_in_a_codec_of_ones_own(reply: list[Any]) -> None:
    stream = stream_of(CODEC)
    assert held(again(stream, Entries.of(reply))) == held(Entries.of(reply))


@given(st.lists(FIELDS, min_size=1, max_size=5))
def test_entries_of_plain_fields_come_back(several: list[Any]) -> None:
    reply = [[b"5-%d" % n, [part for pair in pairs for part in pair]] for n, pairs in enumerate(several, 1)]
    stream = stream_of("fields")
    assert held(again(stream, Entries.of(reply))) == held(Entries.of(reply))


def rows_of(entries: list[Entry]) -> list[tuple[EntryId, Any]]:
    found = []
    for entry in entries:
        batch = unpacked(entry.fields)
        assert isinstance(entry.origin, NumberedRows)
        first = entry.origin.first
        found += [(EntryId(first.ms, first.seq + n), row) for n, row in enumerate(batch.to_pylist())]
    return found


def test_rows_come_back_with_their_ids() -> None:
    stream = stream_of("arrow")
    record = stream.record
    reply: list[Any] = []
    for ms, count in ((5, 3), (6, 20), (9, 1)):
        batch = record.to_arrow([Order(f"c{n}", n) for n in range(count)])
        fields = Packer(batch.schema).fields(batch, "lz4")
        flat = [FIRST, b"%d-7" % ms, b"extra", b"0", *(part for pair in fields.items() for part in pair)]
        reply.append([b"%d-%d" % (ms, 7 + count - 1), flat])
    whole = Entries.of(reply)
    assert rows_of(again(stream, whole)) == rows_of(list(whole))
    broken = [*reply[:1], [reply[1][0], [*reply[1][1][:-1], b"no schema"]], *reply[2:]]
    assert [each.fields for each in again(stream, Entries.of(broken))][1] == Entries.of(broken)[1].fields


def test_records_too_large_to_stand_together_stand_alone() -> None:
    """An entry of many may declare a megabyte."""
    stream = stream_of("json")
    payloads = [msgspec.json.encode(Order("x" * 600_000, n)) for n in range(3)]
    small = [msgspec.json.encode(Order("x", n)) for n in range(400)]
    reply = [[b"5-%d" % n, [b"v", each]] for n, each in enumerate([*payloads, *small], 1)]
    back = again(stream, Entries.of(reply))
    assert [stream.record.decoder("json")(each.fields).n for each in back] == [0, 1, 2, *range(400)]


def test_columns_are_null_where_a_record_cannot_be_read() -> None:
    stream = stream_of("json")
    reply = [
        [b"5-1", [b"v", b'{"customer":"ann","n":3}']],
        [b"5-2", [b"v", b'{"n":4}']],
        [b"5-3", [b"x", b"y"]],
    ]
    table = table_of(Entries.of(reply), "json", columns_for(stream))
    assert table["customer"].to_pylist() == ["ann", None, None]
    assert table["n"].to_pylist() == [3, None, None]


def test_the_footer_of_a_very_wide_segment_is_read_whole(tmp_path: Path) -> None:
    schema = META.append(pa.field("n", pa.int64()))
    rows = {"_time": [5], "_seq": [1], "_headers": [None], "_payload": [b"1"], "_entry": [None], "n": [1]}
    table = pa.Table.from_pydict(rows, schema=schema)
    for n in range(600):
        table = table.append_column(f"a_rather_long_name_of_a_column_{n}", pa.array(["x" * 60]))
    chain = Chain(store_at(str(tmp_path)), 0)
    footer = Footer(ZERO, EntryId(5, 1), EntryId(5, 1), 1, 1, "w", 1)
    assert chain.put(table, footer) > TAIL_BYTES
    assert chain.last() == footer


def test_the_end_of_an_object_that_is_replaced_meanwhile_is_that_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, head = store_at(str(tmp_path)), obstore.head
    store.put_new("it", b"old")

    def replaced(*given: Any) -> Any:
        about = head(*given)
        if found := store.get("it"):
            store.replace("it", b"new and longer", found.version)
        monkeypatch.setattr(obstore, "head", head)
        return about

    monkeypatch.setattr(obstore, "head", replaced)
    assert store.tail("it") == b"new and longer"


@pytest.mark.parametrize("taken", [False, True])
def test_a_name_is_on_the_disk_when_a_put_returns_whoever_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """Who put it before may have died before it was."""
    store = store_at(str(tmp_path))
    assert not taken or store.put_new("partition=0/it", b"first")
    synced = list[Path]()
    monkeypatch.setattr(archive_store, "_sync", synced.append)
    assert store.put_new("partition=0/it", b"second") is not taken
    assert synced == [tmp_path / "partition=0"]


@pytest.mark.parametrize("body", [b"", b"PAR1", b"x" * 100])
def test_what_is_no_segment_is_refused_by_name(body: bytes) -> None:
    with pytest.raises(ArchiveConflict, match="partition=0/x is no segment"):
        footer_in(body, "partition=0/x")


def test_an_id_that_no_segment_can_hold_is_named() -> None:
    with pytest.raises(ArchiveConflict, match="9223372036854775808-0"):
        table_of(Entries.of([[b"9223372036854775808-0", [b"v", b"1"]]]), "json", None)


@pytest.mark.parametrize("is_packed", [False, True], ids=["alone", "among others"])
def test_what_is_nested_too_deeply_is_archived_as_it_is(is_packed: bool) -> None:
    deep = b'{"customer":"ann","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    others = [b'{"customer":"ann","n":%d}' % n for n in range(3)]
    plain = [[b"5-%d" % seq, [b"v", each]] for seq, each in enumerate(others)]
    value = b"[%b]" % b",".join([*others, deep])
    fields = {FIRST: b"5-3", b"extra": b"0", b"n": b"4", b"codec": b"none", b"size": b"%d" % len(value)}
    fields |= {b"crc": b"%d" % zlib.crc32(value), b"v": value}
    odd = (
        [b"5-6", [part for pair in fields.items() for part in pair]] if is_packed else [b"5-3", [b"v", deep]]
    )
    mine = Entries.of([*plain, odd])
    table = table_of(mine, "json", columns_for(stream_of("json")))
    assert table["n"].to_pylist()[:3] == [0, 1, 2]
    assert table["_payload"].to_pylist()[:3] == others
    again = entries_in(table, "json")
    assert again.origin_at(len(again) - 1)[0] == mine.origin_at(len(mine) - 1)[0]
    assert as_stored(*again.origin_at(len(again) - 1)) == as_stored(*mine.origin_at(len(mine) - 1))


def test_a_file_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a full disk, which each try would fill further."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArchiveUnavailable, match="No space left"):
        store_at(str(tmp_path / "lake")).put_new("it", b"body")
    with pytest.raises(OSError, match="No space left"):
        place_at(str(tmp_path / "checkpoint")).put_new("it", b"body")
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []
