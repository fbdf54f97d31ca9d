"""Entries of many rows are read by themselves, and never believed."""

import zlib
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.entries import Entry, EntryId
from streamworker.errors import DecodeError
from streamworker.records import RecordType
from streamworker.records.rows import rows_in
from streamworker.redisio.data.ackedlog import Codec, decode_entry, schema_fingerprint
from streamworker.redisio.data.columns import Packer, as_it_came, unpacked
from tests.helpers import drawn
from tests.records.kinds import VALUES, AsStruct
from tests.redisio.acked import stored

CODECS: tuple[Codec, ...] = ("none", "lz4", "zstd")


def rows(count: int = 200) -> pa.RecordBatch:
    """Return rows with columns of fixed and of varying width, and nulls."""
    return pa.record_batch(
        {
            "n": pa.array(range(count), pa.int64()),
            "text": pa.array([None if n % 7 == 0 else f"text {n % 11}" for n in range(count)]),
            "tags": pa.array([[f"tag {n % 3}"] * (n % 4) for n in range(count)]),
            "flag": pa.array([n % 2 == 0 for n in range(count)]),
        }
    )


@drawn(40)
@given(compression=st.sampled_from(CODECS), values=st.lists(VALUES, min_size=1, max_size=20))
def test_rows_of_all_types_come_back_as_they_were(
    compression: Codec, values: list[dict[str, object]]
) -> None:
    """However they are compressed; and a slice of them carries no others."""
    batch = RecordType.of(AsStruct).to_arrow([AsStruct(**each) for each in values])
    packer = Packer(batch.schema)
    for part in (batch, batch.slice(len(values) // 2)):
        fields = packer.fields(part, compression)
        assert unpacked(fields).equals(part)
        assert rows_in(Entry(EntryId(5, 1), fields, 0)) == part.num_rows


@pytest.mark.parametrize("compression", CODECS)
def test_no_changed_byte_goes_unnoticed(compression: Codec) -> None:
    """In any field: a damaged entry is an error by name, and not the end of the process."""
    fields = Packer(rows().schema).fields(rows(), compression)
    rng = Random(7)
    for name, value in fields.items():
        for _ in range(100):
            changed = bytearray(value)
            for _ in range(rng.randint(1, 3)):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            if bytes(changed) == value:
                continue
            with pytest.raises(DecodeError, match="The entry holds no rows"):
                unpacked(fields | {name: bytes(changed)})
        with pytest.raises(DecodeError):
            unpacked({other: each for other, each in fields.items() if other != name})


def test_an_entry_that_lies_is_refused() -> None:
    """About its rows, or with a schema that is another's; an acked log is read by the same function."""
    fields = Packer(rows().schema).fields(rows(), "lz4")
    other = Packer(pa.schema({"n": pa.string()})).fields(pa.record_batch({"n": ["x"]}), "lz4")
    for changes, wrong in (
        ({b"n": b"201"}, "declares 201 rows and holds 200"),
        ({b"schema": other[b"schema"]}, "was changed"),
        ({b"schema": other[b"schema"], b"name": other[b"name"]}, "cannot be read|declares"),
        ({b"v": b"", b"crc": b"0", b"size": b"0", b"codec": b"none"}, "cannot be read"),
    ):
        with pytest.raises(DecodeError, match=wrong):
            unpacked(fields | changes)
    empty = Packer(rows().schema).fields(rows(0), "none")
    with pytest.raises(DecodeError, match="holds no rows"):
        unpacked(empty)


def test_what_has_no_number_of_rows_counts_as_one() -> None:
    """It is still an entry, and will be found to be damaged."""
    told = ({b"n": text} for text in (b"7", b"0", b"x", b"9" * 20, b"-1"))
    assert [rows_in(Entry(EntryId(5, 1), fields, 0)) for fields in (*told, {})] == [7, 1, 1, 1, 1, 1]


def test_an_entry_is_one_of_an_acked_log_as_it_is() -> None:
    """Nothing of it is packed anew, and a reader of the log reads it."""
    batch = rows()
    entry = Entry(EntryId(5, 1), Packer(batch.schema).fields(batch, "zstd"), 0)
    acked = as_it_came(entry)
    assert acked.data is entry.fields[b"v"]
    assert acked.crc == zlib.crc32(acked.data)
    schemas = {schema_fingerprint(batch.schema): batch.schema}
    assert decode_entry(EntryId(200, 0), stored(acked), schemas).equals(batch)


def test_a_single_row_is_not_compressed() -> None:
    """It would grow."""
    batch = rows(1)
    assert Packer(batch.schema).fields(batch, "zstd")[b"codec"] == b"none"
