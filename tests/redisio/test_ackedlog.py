"""What comes out of an acked log is what went in, or an error that names the entry."""

import ast
import contextlib
import dataclasses
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker import errors
from streamworker.core.data import entries
from streamworker.core.data.entries import EntryId
from streamworker.errors import DataLoss, RecordError
from streamworker.redisio.data import ackedlog
from streamworker.redisio.data.ackedlog import (
    CODECS,
    AckedBatch,
    Codec,
    decode_entry,
    deserialize_schema,
    encode_batch,
    entry_rows,
    schema_fingerprint,
    schema_of,
    serialize_schema,
)
from tests.helpers import drawn
from tests.redisio.acked import encoded, stored

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("list", pa.list_(pa.field("element", pa.float64()))),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
SCHEMAS = {schema_fingerprint(SCHEMA): SCHEMA}
UUIDS = pa.ListArray.from_arrays([0, 1], pa.array([b"0" * 16], pa.binary(16)).cast(pa.uuid()))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.integers(-(2**63), 2**63 - 1),
            "text": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
            "list": st.none() | st.lists(st.floats(allow_nan=False)),
            "at": st.none() | st.integers(-(2**50), 2**50),
        }
    ),
    min_size=1,
    max_size=30,
)


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def many(count: int) -> pa.RecordBatch:
    return batch_of([{"n": n, "text": f"row {n}", "list": [1.0], "at": n} for n in range(count)])


def entry(acked: AckedBatch, **changes: bytes) -> dict[bytes, bytes]:
    """Return the entry's fields, some of them replaced."""
    return stored(acked) | {name.encode(): value for name, value in changes.items()}


@drawn(40)
@given(ROWS, st.sampled_from(["auto", *CODECS]))
def test_a_batch_comes_back_as_it_was_written(rows: list[dict[str, Any]], codec: Any) -> None:
    """Every codec gives back the same rows under the same schema."""
    batch = batch_of(rows)
    first = EntryId(5, 1)
    acked = encode_batch(batch, first) if codec == "auto" else encoded(batch, codec, first)
    fields = stored(acked)
    decoded = decode_entry(EntryId(len(rows), 0), fields, SCHEMAS)
    assert decoded.equals(batch)
    assert decoded.schema.equals(SCHEMA)
    assert schema_of(EntryId(1, 0), fields) == schema_fingerprint(batch.schema)
    assert fields[b"first"] == b"5-1"


@drawn(40)
@given(ROWS, st.integers(0, 40), st.integers(0, 40))
def test_a_slice_of_a_batch_carries_only_its_own_rows(rows: list[Any], one: int, other: int) -> None:
    """A batch that was cut from a larger one comes back as the cut."""
    begin, end = sorted((one % len(rows), other % (len(rows) + 1)))
    if begin == end:
        end += 1
    part = batch_of(rows).slice(begin, end - begin)
    acked = encode_batch(part)
    assert decode_entry(EntryId(100, 0), stored(acked), SCHEMAS).to_pylist() == part.to_pylist()


def test_small_batches_are_stored_without_metadata_and_large_ones_compressed() -> None:
    """Arrow's metadata is most of a message of one row; above 1 KB zstd finds what repeats."""
    small = encode_batch(many(3))
    large = encode_batch(many(1000))
    assert small.codec == "dense" and small.size < encoded(many(3), "none").size / 2
    assert large.codec == "zstd"
    assert len(large.data) < large.size / 2


EVERY_TYPE = pa.table(
    {
        "bool": [True, None, False],
        "nothing": pa.nulls(3),
        "int8": pa.array([1, 2, 3], pa.int8()),
        "day": pa.array([1, None, 3], pa.date32()),
        "took": pa.array([1, 2, None], pa.duration("us")),
        "amount": pa.array([1, None, 3], pa.decimal128(38, 18)),
        "bytes": [b"", None, b"\xff"],
        "large": pa.array(["a", None, ""], pa.large_string()),
        "view": pa.array(["a", None, "longer than twelve bytes"], pa.string_view()),
        "fixed": pa.array([b"abc", None, b"def"], pa.binary(3)),
        "pair": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)),
        "lists": [[["x"], []], None, [[None]]],
        "empty": pa.array([[], [], []], pa.list_(pa.string())),
        "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "record": [{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}],
    }
)


MOST_TYPES = EVERY_TYPE.drop_columns(["nothing", "view"])


@pytest.mark.parametrize("name", [*EVERY_TYPE.column_names, "most", "all"])
@pytest.mark.parametrize(("start", "rows"), [(0, 3), (0, 1), (1, 1), (1, 2), (2, 1)])
def test_a_small_batch_of_any_type_comes_back(name: str, start: int, rows: int) -> None:
    """Also the types that no record type has, in a log that another program declares; and slices."""
    table = {"most": MOST_TYPES, "all": EVERY_TYPE}.get(name) or EVERY_TYPE.select([name])
    (batch,) = table.combine_chunks().slice(start, rows).to_batches()
    acked = encode_batch(batch)
    # Alone, a column of nulls has no bytes; the buffers of a view vary in their number.
    assert (acked.codec == "dense") or name in ("nothing", "view", "all")
    schemas = {acked.schema: batch.schema}
    assert decode_entry(EntryId(rows, 0), stored(acked), schemas).equals(batch)


def test_many_rows_without_bytes_come_back() -> None:
    """Their number does not fit the form of small batches."""
    records = pa.array([{}] * 70_000, pa.struct([]))
    batch = pa.RecordBatch.from_arrays([records, pa.nulls(70_000)], ["a", "b"])
    acked = encode_batch(batch)
    assert decode_entry(EntryId(70_000, 0), stored(acked), {acked.schema: batch.schema}).equals(batch)


@pytest.mark.parametrize("data", [b"", b"B", bytes(8), bytes(52), bytes(53), b"\xff" * 52, bytes(2_000)])
def test_a_small_batch_that_is_none_is_refused(data: bytes) -> None:
    """Whatever its checksum says."""
    packed = zlib.compress(data)
    for payload, size in ((packed, len(data)), (packed, 9), (data, len(data))):
        with pytest.raises(DataLoss, match="Entry 1-0"):
            decode_entry(EntryId(1, 0), stored(with_payload(payload, 1, "dense", size)), SCHEMAS)


@drawn(150)
@given(st.data(), st.integers(1, 3))
def test_no_bytes_of_a_small_batch_end_the_process(data: st.DataObject, count: int) -> None:
    """With the right CRC, too: some bytes are changed, cut or repeated, and it is read or refused."""
    (batch,) = MOST_TYPES.slice(0, count).combine_chunks().to_batches()
    acked = encode_batch(batch)
    changed = bytearray(zlib.decompress(acked.data))
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(changed) - 1))
        changed[index : index + data.draw(st.integers(1, 3))] = data.draw(st.binary(max_size=3))
    packed = zlib.compress(bytes(changed))
    forged = dataclasses.replace(acked, data=packed, crc=zlib.crc32(packed), size=len(changed))
    with contextlib.suppress(DataLoss, OverflowError):  # Python has no date beyond the year 9999.
        decode_entry(EntryId(count, 0), stored(forged), {acked.schema: batch.schema}).to_pylist()


def test_an_empty_batch_is_refused() -> None:
    """An entry without rows would have the id of the one before it."""
    with pytest.raises(RecordError, match="without rows"):
        encode_batch(many(1).slice(0, 0))


@pytest.mark.parametrize(
    "column",
    [pa.array(["a", "a"]).dictionary_encode(), UUIDS],
)
def test_types_that_need_more_than_the_schema_are_refused(column: pa.Array) -> None:
    """Dictionaries and extension types are errors when written, at any depth."""
    with pytest.raises(RecordError, match="'c'"):
        encode_batch(pa.record_batch({"c": column}))


# -- damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rows", "size", "batch", "crc", "schema", "codec"])
def test_a_missing_field_is_named(name: str) -> None:
    """An entry that lacks a field says which."""
    acked = encode_batch(many(3))
    fields = entry(acked)
    del fields[name.encode()]
    with pytest.raises(DataLoss, match=f"Entry 3-0 .*{name!r}"):
        decode_entry(EntryId(3, 0), fields, SCHEMAS)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rows": b"4"}, "declares 4 rows and holds 3"),
        ({"rows": b"-3"}, "'rows' is b'-3'"),
        ({"rows": b"9" * 5000}, "'rows'"),
        ({"crc": b"1"}, "CRC"),
        ({"codec": b"gzip"}, "codec b'gzip' is unknown, at least to this version"),
        ({"codec": b"zstd"}, "cannot be read"),
        ({"schema": b"0123456789abcdef"}, "schema 0123456789abcdef"),
        ({"schema": b"\xff\xfe"}, "schema"),
        ({"size": b"300000000"}, "declares 300000000 bytes, and at most 268435456"),
        ({"size": b"8"}, "declares 8 bytes and holds"),
    ],
)
def test_an_entry_that_lies_is_refused(changes: dict[str, bytes], what: str) -> None:
    """Each wrong field is an error that names the entry, what is wrong, and the remedy."""
    acked = encoded(many(3), "none")
    with pytest.raises(DataLoss) as caught:
        decode_entry(EntryId(3, 0), entry(acked, **changes), SCHEMAS)
    assert what in caught.value.message
    assert "Entry 3-0" in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("lie", [-64, -8, -1, 1, 8, 64])
def test_a_declared_size_must_be_the_real_one(codec: Codec, lie: int) -> None:
    """A size that is off by a little is noticed for every codec."""
    acked = encoded(many(500), codec)
    wrong = dataclasses.replace(acked, size=acked.size + lie)
    with pytest.raises(DataLoss, match="Entry 500-0"):
        decode_entry(EntryId(500, 0), stored(wrong), SCHEMAS)


def with_payload(data: bytes, rows: int, codec: str = "none", size: int | None = None) -> AckedBatch:
    """Forge an entry around any payload, with the right CRC."""
    return AckedBatch(
        rows=rows,
        first=EntryId(0, 0),
        schema=next(iter(SCHEMAS)),
        crc=zlib.crc32(data),
        codec=codec,
        size=len(data) if size is None else size,
        data=data,
    )


def messages(batch: pa.RecordBatch, compression: str | None) -> list[bytes]:
    """Return the IPC messages of a stream with one batch: schema, then batch."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return [
        bytes(message.serialize().to_pybytes())
        for message in pa.ipc.MessageReader.open_stream(sink.getvalue())
    ]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression_inside_arrow_is_refused(compression: str) -> None:
    """A few bytes that Arrow would inflate past every cap are refused before it does."""
    zeros = pa.record_batch({"n": pa.array([0] * 1_000_000, pa.int64())})
    bomb = messages(zeros, compression)[1]
    assert len(bomb) < 100_000
    with pytest.raises(DataLoss, match="compressed inside"):
        decode_entry(EntryId(1_000_000, 0), stored(with_payload(bomb, 1_000_000)), SCHEMAS)


@pytest.mark.parametrize(
    "payload, what",
    [
        pytest.param(lambda: messages(many(1), None)[0], "another kind", id="a schema in its place"),
        pytest.param(lambda: b"", "cannot be read", id="no bytes, to pyarrow the end of a stream"),
        pytest.param(
            lambda: bytes(pa.record_batch({"n": pa.array([1], pa.int64())}).serialize().to_pybytes()),
            "cannot be read",
            id="fewer columns than its schema says",
        ),
    ],
)
def test_what_is_no_batch_of_the_schema_is_refused(payload: Callable[[], bytes], what: str) -> None:
    """Whatever its checksum says."""
    with pytest.raises(DataLoss, match=what):
        decode_entry(EntryId(1, 0), stored(with_payload(payload(), 1)), SCHEMAS)


# -- schemas ---------------------------------------------------------------------------------


def test_a_schema_comes_back_without_its_metadata() -> None:
    """Metadata of the schema and its fields neither travels nor changes the fingerprint."""
    noisy = pa.schema([f.with_metadata({"a": "b"}) for f in SCHEMA], metadata={"pandas": "{}"})
    data = serialize_schema(noisy)
    assert deserialize_schema(data, schema_fingerprint(SCHEMA)).equals(SCHEMA, check_metadata=True)


@pytest.mark.parametrize(
    "other",
    [
        pa.schema([*SCHEMA, pa.field("more", pa.int64())]),
        pa.schema(list(reversed(list(SCHEMA)))),
        SCHEMA.set(0, pa.field("n", pa.int64(), nullable=True)),
        SCHEMA.set(0, pa.field("n", pa.int32(), nullable=False)),
    ],
)
def test_another_schema_has_another_fingerprint(other: pa.Schema) -> None:
    """Order, type, null and name of a field are all part of it."""
    assert schema_fingerprint(other) != schema_fingerprint(SCHEMA)


def test_schemas_that_pyarrow_calls_equal_have_fingerprints_of_their_own() -> None:
    """The name of a list's items is part of the bytes, also if the other schema was asked for just before."""
    item, element = (pa.schema({"x": pa.list_(pa.field(name, pa.int64()))}) for name in ("item", "element"))
    assert item == element
    first, second, again = map(schema_fingerprint, (item, element, item))
    assert first == again != second


@pytest.mark.parametrize("data", [b"", b"nonsense", bytes(100)])
def test_bytes_that_are_no_schema_are_refused(data: bytes) -> None:
    """What is not a schema is a data loss, with pyarrow's reason."""
    with pytest.raises(DataLoss, match="cannot be read"):
        deserialize_schema(data)


# -- rows ------------------------------------------------------------------------------------


def test_the_number_of_rows_is_checked_against_the_id() -> None:
    """An entry cannot hold more rows than the log has up to it, or none."""
    acked = encode_batch(many(3))
    assert entry_rows(EntryId(10, 0), stored(acked)) == 3
    for end, rows in ((2, b"3"), (10, b"0")):
        with pytest.raises(DataLoss, match=f"Entry {end}-0 .*declares"):
            entry_rows(EntryId(end, 0), entry(acked, rows=rows))


def test_the_module_needs_only_pyarrow_and_two_small_modules() -> None:
    """Spark's executors get it by value, with no more of this package than that."""
    allowed = {"pyarrow", "streamworker.core.data.entries", "streamworker.errors"} | sys.stdlib_module_names
    for module in (ackedlog, entries, errors):
        assert module.__file__ is not None
        tree = ast.parse(Path(module.__file__).read_text())
        found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        found |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        needed = {name if str(name) in allowed else str(name).partition(".")[0] for name in found}
        assert needed <= allowed
