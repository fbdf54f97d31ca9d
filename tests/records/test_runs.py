"""Records that are encoded together leave as those that are encoded one after the other."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.data.entries import EntryId
from streamworker.records.codecs import Codec
from streamworker.records.lists import Run, joined, make_list_encoder
from streamworker.records.packs import ENTRY_BYTES_MAX, ENTRY_RECORDS_MAX, Pack
from streamworker.records.types import Declared, RecordKind
from streamworker.redisio.data.streams import records_args


class Item(msgspec.Struct):
    """A record of any size."""

    number: int
    note: str = ""


def encoder(codec: Codec, *, validate: bool = False) -> Any:
    """Return the encoder of items."""
    return make_list_encoder(Declared(Item, RecordKind.STRUCT), codec, validate=validate, as_run=True)


def entries_of(args: list[Any]) -> list[tuple[int, list[bytes]]]:
    """Return the number of records, and the names and values, of each entry that a script gets."""
    found, at = [], 2
    while at < len(args):
        records, size = args[at], args[at + 1]
        found.append((records, args[at + 2 : at + 2 + size]))
        at += 2 + size
    return found


def records_in(count: int, flat: list[bytes]) -> list[bytes]:
    """Return the payloads of an entry, read as a worker reads it."""
    if count == 1:
        return flat[1:]
    first, last = EntryId(7, 0), EntryId(7, count - 1)
    return Pack(str(last).encode(), [b"sw:first", str(first).encode(), b"extra", b"0", *flat]).raws


SIZES = st.lists(st.sampled_from([0, 1, 60, 3_000, 40_000, ENTRY_BYTES_MAX, 90_000]), min_size=1, max_size=8)


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@given(parts=st.lists(SIZES, min_size=1, max_size=4))
def test_runs_that_are_joined_leave_in_order_and_in_entries_within_the_bounds(
    codec: Codec, parts: list[list[int]]
) -> None:
    """Whatever the sizes of their records, and wherever one run ends and the next begins."""
    encode = msgspec.json.encode if codec == "json" else msgspec.msgpack.encode
    items = [[Item(n, "x" * size) for n, size in enumerate(part)] for part in parts]
    payloads = [encode(item) for part in items for item in part]
    runs = [encoder(codec)(part) for part in items]
    run = joined(runs)
    assert [list(each) for each in runs] == [[encode(item) for item in part] for part in items]
    assert list(run) == payloads and len(run) == len(payloads) and run[-1:] == payloads[-1:]
    args = records_args(run, "json" if codec == "json" else "msgpack")
    assert args[0] == len(payloads)
    if args[1] == "v":
        assert args[2:] == payloads and len(payloads) < 4
        return
    entries = entries_of(args)
    assert [each for entry in entries for each in records_in(*entry)] == payloads
    for count, flat in entries:
        assert count <= ENTRY_RECORDS_MAX
        assert count == 1 or int(flat[flat.index(b"size") + 1]) <= ENTRY_BYTES_MAX


def test_a_list_far_over_the_bounds_is_left_to_who_encodes_one_after_the_other() -> None:
    """The first record says that all fit one array, and the others are large."""
    assert encoder("json")([Item(0), *[Item(n, "x" * 40_000) for n in range(30)]]) is None
    assert encoder("json")([Item(0), *[Item(n, "x" * 40_000) for n in range(20)]]) is not None


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_many_small_records_fill_their_entries(codec: Codec) -> None:
    """They are cut by bytes and by number."""
    parts = [[Item(n, "x" * 40) for n in range(90)] for _ in range(30)]
    run = joined([encoder(codec)(part) for part in parts])
    counts = [count for count, _ in entries_of(records_args(run, "json" if codec == "json" else "msgpack"))]
    assert sum(counts) == 2_700 and len(counts) <= 5


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize("index", [0, 1, 50])
def test_a_record_that_a_consumer_would_refuse_is_refused_wherever_it_stands(
    codec: Codec, index: int
) -> None:
    """With ``validate`` alone: without it the values are the program's own affair."""
    items = [Item(n) for n in range(60)]
    items[index].number = "seven"  # type: ignore[assignment]
    assert encoder(codec, validate=True)(items) is None
    assert isinstance(encoder(codec)(items), Run)
    assert isinstance(encoder(codec, validate=True)(items[:index] or [Item(0)]), Run)
