"""A key is erased from segments whatever their records are: packed, of columns, replayed, or unreadable."""

import uuid
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker import App, Stream
from streamworker.archive.chain import Chain, id_at
from streamworker.archive.columns import columns_for, packing_of, rows_reader
from streamworker.archive.erasing import Erased, Finder, erase, rows_without
from streamworker.archive.life import expire, walk
from streamworker.archive.logs import read_rows, row_at
from streamworker.archive.segments import entries_in, table_of
from streamworker.archive.segments import opened as opened_segment
from streamworker.archive.store import store_at
from streamworker.core.data.archives import Footer
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.placement import canonical_key
from streamworker.errors import ArchiveConflict
from streamworker.records.entries import REPLAYED_FOR, Entries
from streamworker.records.packs import FIRST, pack
from streamworker.redisio.keys import StreamKeys
from tests.cli.archiving import damage
from tests.raw import opened

Codec = Literal["json", "msgpack", "fields", "arrow"]
PEOPLE = ["ann", "bob", "cal"]


class Order(msgspec.Struct):
    order_id: int
    customer: str


def orders_of(codec: Codec, url: str = "redis://localhost", **given: Any) -> Stream[Order]:
    app = App(f"shop{uuid.uuid4().hex[:8]}", redis_url=url)
    return app.stream("orders", Order, key="customer", partitions=1, codec=codec, **given)


def put(stream: Stream[Order], entries: Entries, *, columns: bool) -> Chain:
    """Put all entries as one segment."""
    spec = stream.spec
    table = table_of(entries, packing_of(spec), columns_for(spec) if columns else None, rows_reader(spec))
    first, last = id_at(table, 0), id_at(table, table.num_rows - 1)
    chain = Chain(store_at(f"memory://{uuid.uuid4().hex}"), 0)
    assert chain.put(table, Footer(ZERO, first, last, table.num_rows, table.num_rows, "w1", 1))
    return chain


def erased(stream: Stream[Order], chain: Chain, key: str) -> Erased:
    (segment,) = chain.segments()
    finder = Finder(stream.spec, canonical_key(key) or b"")
    found = erase(chain, segment, finder.without)
    assert walk(chain, deep=True).faults == []
    assert erase(chain, segment, finder.without) == Erased(0, found.unreadable)
    return found


def read_again(stream: Stream[Order], chain: Chain) -> list[Any]:
    """Return the records of a chain as a worker reads them; None for one that cannot be read."""
    spec = stream.spec
    found: list[Any] = []
    for part in chain.read(ZERO, columns=None):
        if spec.codec == "arrow":
            own = part.table.drop_columns([n for n in part.table.schema.names if n.startswith("_")])
            for batch in own.to_batches():
                found += spec.record.from_arrow(spec.record.fit_arrow(batch, extra="drop"))
            continue
        decode = spec.record.decoder(spec.codec)
        for entry in entries_in(part.table, packing_of(spec)):
            fields = {name: value for name, value in entry.fields.items() if name != REPLAYED_FOR}
            try:
                found.append(decode(fields))
            except Exception:
                found.append(None)
    return found


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("codec", ["json", "msgpack", "fields", "arrow"])
def test_records_of_each_codec_are_erased_as_producers_have_sent_them(
    redis_url: str, codec: Codec, columns: bool
) -> None:
    """Many in an entry; the others are read again as they were."""
    stream = orders_of(codec, redis_url)
    sent = [Order(n, PEOPLE[n % 3]) for n in range(30)]
    stream.sync.send_many(sent)
    stream.app.close()
    with opened(redis_url) as raw:
        reply = raw.xrange(StreamKeys(stream.app.name, "orders").events(0))
    entries = Entries.of([[name, [part for pair in its.items() for part in pair]] for name, its in reply])
    chain = put(stream, entries, columns=columns)
    assert erased(stream, chain, "bob") == Erased(10, 0)
    assert read_again(stream, chain) == [each for each in sent if each.customer != "bob"]
    assert erased(stream, chain, "nobody") == Erased(0, 0)


def json_of(n: int, customer: str) -> bytes:
    return msgspec.json.encode(Order(n, customer))


@pytest.mark.parametrize("columns", [True, False])
def test_entries_that_are_archived_as_they_were_are_looked_into(columns: bool) -> None:
    """A replayed letter, one with other fields, and one that cannot be read, which stays and is counted."""
    entries = Entries.of(
        [
            [b"1-0", [REPLAYED_FOR, b"price", b"v", json_of(1, "bob")]],
            [b"2-0", [b"v", json_of(2, "bob"), b"x", b"of another program"]],
            [b"3-0", [b"v", b"\xff"]],
            [b"4-0", [REPLAYED_FOR, b"price", b"v", json_of(4, "ann")]],
            [b"5-0", [b"v", json_of(5, "bob"), b"h.who", b"bob"]],
            [b"6-0", [b"v", json_of(6, "ann")]],
        ]
    )
    stream = orders_of("json")
    chain = put(stream, entries, columns=columns)
    assert erased(stream, chain, "bob") == Erased(3, 1)
    assert read_again(stream, chain) == [None, Order(4, "ann"), Order(6, "ann")]


def test_of_an_entry_of_many_that_is_archived_as_it_was_only_the_key_goes() -> None:
    """As of a stream whose records shared entries before. The others become entries of their own."""
    customers = ["ann", "bobby", "cal", "bobby", "dan"]
    packed = pack([json_of(n, who) for n, who in enumerate(customers)], is_json=True)
    many = [b"7-4", [FIRST, b"7-0", b"extra", b"0", *packed]]
    stream = orders_of("json", single_entries=True)
    chain = put(stream, Entries.of([many, [b"8-0", [b"v", json_of(9, "eve")]]]), columns=True)
    assert erased(stream, chain, "bobby") == Erased(2, 0)
    assert [each.customer for each in read_again(stream, chain)] == ["ann", "cal", "dan", "eve"]
    (segment,) = chain.segments()
    found = chain.store.get(segment.name)
    assert found is not None
    assert b"bobby" not in msgspec.msgpack.encode(opened_rows(found.body))
    assert erased(stream, chain, "eve") == Erased(1, 0)


def test_of_an_entry_that_nobody_can_read_all_records_are_counted_and_stay() -> None:
    """They are of another codec."""
    packed = pack([msgspec.msgpack.encode(Order(n, "bob")) for n in range(5)], is_json=False)
    many = [b"7-4", [FIRST, b"7-0", b"extra", b"0", *packed]]
    stream = orders_of("json")
    chain = put(stream, Entries.of([many, [b"8-0", [b"v", json_of(9, "bob")]]]), columns=True)
    assert erased(stream, chain, "bob") == Erased(1, 5)


def opened_rows(body: bytes) -> list[Any]:
    file, _ = opened_segment(body, "it")
    return [{name: repr(value) for name, value in row.items()} for row in file.read().to_pylist()]


keys = st.text(st.characters(codec="utf-8"), max_size=8)


@given(st.lists(st.tuples(keys, st.integers(1, 3)), min_size=1, max_size=12), keys, st.booleans())
def test_what_is_left_is_what_has_another_key(runs: list[tuple[str, int]], extra: str, columns: bool) -> None:
    """Whatever the keys are, in whatever entries; ids and order stay."""
    stream = orders_of("json")
    reply, sent = list[Any](), list[Order]()
    for ms, (customer, n) in enumerate(runs, 1):
        mine = [Order(len(sent) + at, customer if at != 1 else extra) for at in range(n)]
        sent += mine
        if n == 1:
            reply.append([b"%d-0" % ms, [b"v", msgspec.json.encode(mine[0])]])
        else:
            packed = pack([msgspec.json.encode(each) for each in mine], is_json=True)
            reply.append([b"%d-%d" % (ms, n - 1), [FIRST, b"%d-0" % ms, b"extra", b"0", *packed]])
    chain = put(stream, Entries.of(reply), columns=columns)
    gone = runs[0][0]
    left = [each for each in sent if each.customer != gone]
    assert erased(stream, chain, gone) == Erased(len(sent) - len(left), 0)
    assert read_again(stream, chain) == left


@pytest.mark.parametrize("customers", [["bob", "ann", "bob"], ["ann", "bob", "bob"], ["bob", "bob", "ann"]])
def test_a_time_is_found_in_the_archive_of_a_log_with_segments_without_rows(
    customers: list[str],
) -> None:
    """What has no rows any more is passed over, wherever it lies; and it expires with those before it."""
    chain = log_of(customers)
    without = rows_without(["customer"], b"bob", single=True)
    assert sum(erase(chain, each, without).records for each in chain.segments()) == 4
    place = customers.index("ann")
    assert row_at(chain, 1) == 2 * place
    assert row_at(chain, 10**9) is None
    gone = [each.segment.after.ms for each, _ in expire(chain, (place + 1) * 1_000_000 + 1)]
    assert gone == [0, 2]
    assert walk(chain, deep=True).faults == []


def log_of(customers: list[str]) -> Chain:
    """Return the archive of a log: a segment with two rows of each customer."""
    chain = Chain(store_at(f"memory://{uuid.uuid4().hex}"), 0)
    for at, customer in enumerate(customers):
        offsets = [2 * at + 1, 2 * at + 2]
        columns = {
            "customer": [customer] * 2,
            "_offset": offsets,
            "_acked_at": [(at + 1) * 1_000_000_000] * 2,
        }
        types = [("customer", pa.string()), ("_offset", pa.int64()), ("_acked_at", pa.timestamp("us", "UTC"))]
        rows = pa.table(columns).cast(pa.schema(types))
        ids = [EntryId(row, 0) for row in (2 * at, *offsets)]
        assert chain.put(rows, Footer(ids[0], ids[1], ids[2], 2, 2 * at + 2, "w1", 1, "log"))
    return chain


@pytest.mark.parametrize(
    "read",
    [
        lambda chain: [*read_rows(chain, "log", 0, 9)],
        lambda chain: row_at(chain, 1),
        lambda chain: erase(chain, chain.segments()[0], rows_without(["customer"], b"bob", single=True)),
    ],
)
def test_a_segment_with_a_damaged_page_is_named_by_whoever_reads_it(read: Callable[[Chain], Any]) -> None:
    """A check finds it if it reads all."""
    chain = log_of(["ann", "bob"])
    damage(chain.store, chain.segments()[0].name, "_offset")
    with pytest.raises(ArchiveConflict, match=r"00000-0000.* is no segment"):
        read(chain)
    assert walk(chain).faults == []
    assert [each.kind for each in walk(chain, deep=True).faults] == ["object"]


def test_a_row_without_a_key_of_its_record_is_known_by_its_columns() -> None:
    """As those from before `log_metadata` was set. Where a function makes the key no column tells it."""
    rows = pa.table({"customer": ["bob", "ann", "bob", "ann"], "_key": [None, "bob", "ann", None]})
    kept, unreadable = rows_without(["customer"], b"bob", single=True)(rows)
    assert (kept["customer"].to_pylist(), unreadable) == (["bob", "ann"], 0)
    kept, unreadable = rows_without([], b"bob", single=True)(rows)
    assert (kept["_key"].to_pylist(), unreadable) == ([None, "ann", None], 2)
