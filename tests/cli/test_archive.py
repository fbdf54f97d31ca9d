"""`archive status|check|adopt|expire`, on archives in a folder and in memory."""

import json
import re
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from streamworker.archive.chain import Chain
from streamworker.archive.identity import put_identity, read_identity
from streamworker.archive.store import Store, store_at
from streamworker.cli.archive import adopting
from streamworker.cli.exit_codes import ExitCode
from streamworker.core.data.archives import GROUP, name_of
from streamworker.core.data.entries import ZERO, EntryId
from streamworker.core.data.readers import read_position
from streamworker.errors import ArchiveUnavailable, CoordinationError
from streamworker.importing import resolve_stream
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime.run.modes import archive as archiver
from tests.cli.archiving import all_of, archived, chain_of, old_records, work
from tests.cli.conftest import Invoke, rewrite
from tests.helpers import wait_for
from tests.raw import opened

SHOP = """
import msgspec
from streamworker import App, Archive

app = App("shop")


class Order(msgspec.Struct):
    order_id: int
    customer: str


orders = app.stream(
    "orders", Order, key="customer", partitions=2, retention="2 hours",
    archive=Archive(URL, every="10 minutes", keep="2 years"),
)
"""
YEAR_MS = 31_536_000_000
KEYS, PRICE = GroupKeys("shop", "orders", GROUP), GroupKeys("shop", "orders", "price")


STORES = pytest.mark.parametrize("url", ["files", "memory", "s3"], indirect=True)


@pytest.fixture(params=["files", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the archive is."""
    if request.param == "s3":
        found: str = request.getfixturevalue("bucket")
        return found
    return str(tmp_path / "lake") if request.param == "files" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def orders(streamworker: Invoke, shop: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A stream with an archive; its store."""
    del streamworker  # which names the server
    monkeypatch.setattr(archiver, "_known", {})  # No worker of an earlier test has seen it.
    (shop / "shop.py").write_text(SHOP.replace("URL", repr(url)), "utf-8")
    return store_at(url)


def order(n: int, customer: str = "ann") -> Any:
    return resolve_stream("shop:orders").spec.record.python_type(n, customer)


def now_ms() -> int:
    return int(time.time() * 1000)


def filled(redis_url: str, at_ms: int = 1_000) -> None:
    """Archive twenty orders of ten customers in segments of three."""
    old_records(redis_url, "shop:orders", [order(n, f"c{n % 10}") for n in range(20)], at_ms)
    archived(redis_url, "shop:orders", at_once=3)


@STORES
def test_what_is_listed_of_a_chain_begins_shortly_before_what_is_asked_for(url: str) -> None:
    """All is listed where nothing begins there."""
    store = store_at(url)
    day, hour = 86_400_000, 3_600_000
    afters = [ZERO, *(EntryId(ms, 7) for ms in (5 * day, 10 * day, 10 * day + hour, 10 * day + 2 * hour))]
    for after in afters:
        store.put_new(name_of(1, after), b"it")
    chain = Chain(store, 1)
    listed = chain.store.names("partition=1", name_of(1, EntryId(9 * day, 0)))
    assert [each.name for each in listed] == [name_of(1, each) for each in afters[2:]]
    for at, since in [(0, ZERO), (0, EntryId(5 * day, 6)), (1, EntryId(8 * day, 0)), *enumerate(afters)]:
        assert [each.after for each in chain.segments(since)] == afters[at:]
    with pytest.MonkeyPatch.context() as context:
        context.setattr(type(store), "names", lambda _, prefix, after: listed if after else [])
        assert [each.after for each in chain.segments(afters[-1])] == afters[-1:], "one list is enough"


def kinds(streamworker: Invoke, *options: str) -> list[str]:
    result = streamworker("archive", "check", "shop:orders", "--json", *options)
    assert result.exit_code == ExitCode.FAILED, result.output
    return [fault["kind"] for fault in json.loads(result.stdout)["faults"]]


@pytest.mark.usefixtures("orders")
def test_an_archive_that_is_whole_passes_its_check(streamworker: Invoke, redis_url: str) -> None:
    """It counts the records, and those that Redis still has."""
    filled(redis_url)
    for options in ((), ("--deep",)):
        found = streamworker.tells("archive", "check", "shop:orders", *options)
        assert (found["records"], found["compared"], found["faults"]) == (20, 20, [])
    assert "Result: nothing is wrong." in streamworker.does("archive", "check", "shop:orders")


def test_a_missing_segment_a_stray_object_and_a_wrong_count_are_named(
    streamworker: Invoke, redis_url: str, orders: Store
) -> None:
    """Each with its partition, and the exit code is 1."""
    filled(redis_url)
    chain = chain_of("shop:orders", 0)
    second = chain.segments()[1]
    orders.delete([second.name])
    orders.put_new("partition=0/part-0001.parquet", b"of an optimizer")
    orders.put_new("partition=7/00000000000000000000-00000000000000000000.parquet", b"of another stream")
    assert sorted(kinds(streamworker)) == ["missing", "stray", "stray"]
    said = streamworker("archive", "check", "shop:orders").stdout
    assert f"Partition 0: there is no segment after {second.after}" in said
    assert "partition=0/part-0001.parquet is no segment" in said
    orders.put_new(second.name, b"no Parquet")
    assert "object" in kinds(streamworker)


def test_a_segment_that_lost_its_end_is_found_and_one_with_wrong_ids_only_by_a_deep_check(
    streamworker: Invoke, redis_url: str, orders: Store
) -> None:
    """The checkpoint in Redis is above the end then."""
    filled(redis_url)
    chain = chain_of("shop:orders", 1)
    last, first = chain.segments()[-1], chain.segments()[0]
    orders.delete([last.name])
    assert kinds(streamworker) == ["checkpoint"]
    footer = chain.footer(first.after)
    assert footer is not None
    part = next(chain.read(ZERO)).table.slice(0, 3)
    orders.delete([first.name])
    assert chain.put(part.take([2, 1, 0]), footer)
    assert kinds(streamworker) == ["checkpoint"]
    assert kinds(streamworker, "--deep").count("ids") == 2


def test_records_that_differ_from_those_in_redis_are_a_conflict(
    streamworker: Invoke, redis_url: str, orders: Store
) -> None:
    """Two histories share ids. What Redis has lost is no fault, and is counted."""
    del orders
    filled(redis_url)
    with opened(redis_url) as raw:
        raw.xdel(KEYS.events(0), raw.xrange(KEYS.events(0))[1][0])
        found = streamworker.tells("archive", "check", "shop:orders")
        assert (found["compared"], found["alone"], found["faults"]) == (19, 1, [])
        before = raw.xrange(KEYS.events(1))
        raw.delete(KEYS.events(1))
        for its, fields in before:
            raw.xadd(KEYS.events(1), fields | {b"v": fields[b"v"].replace(b'"c', b'"d')}, id=its)
    assert kinds(streamworker) == ["records"]


def test_status_says_how_far_an_archive_is_and_what_waits(
    streamworker: Invoke, redis_url: str, orders: Store
) -> None:
    """A record that waits for hours, and nobody who archives it."""
    del orders
    filled(redis_url)
    (found,) = streamworker.tells("archive", "status", "shop:orders")
    assert sum(each["records"] for each in found["partitions"]) == 20
    assert sum(each["segments"] for each in found["partitions"]) == 7
    assert (found["waits_ms"], found["objects_a_day_max"]) == (None, 288)
    assert "0, at most 288" in streamworker.does("archive", "status", "shop:orders")
    old_records(redis_url, "shop:orders", [order(1, "c1")], now_ms() - 7_300_000)
    archived(redis_url, "shop:orders")
    assert "1, at most 288" in streamworker.does("archive", "status", "shop:orders")
    placement = resolve_stream("shop:orders").spec.placement
    names = (f"c{n}" for n in range(10))
    elsewhere = next(c for c in names if placement.partition_of(c.encode()) != placement.partition_of(b"c1"))
    assert "1970-01-01" not in streamworker.does("archive", "status", "shop:orders")
    old_records(redis_url, "shop:orders", [order(1, elsewhere)], now_ms() - 7_201_000)
    assert "orders   1970-01-01" in streamworker.does("archive", "status", "shop:orders"), (
        "its partition's end"
    )
    assert "orders is archived up to 1970-01-01" in streamworker.does("status", "shop:app")
    (found,) = streamworker.tells("archive", "status", "shop:app")
    assert 7_200_000 <= found["waits_ms"] < 7_900_000
    assert [each["problem"] for each in found["partitions"] if each["problem"]] == [
        "no worker owns the partition"
    ]
    with opened(redis_url) as raw:
        raw.hset(KEYS.lock(0), mapping={"reason": "the store of lake refused a call", "owner": "w1"})
    assert "the store of lake refused a call" in streamworker.does("archive", "status", "shop:app")


def test_a_store_that_is_away_is_told_and_nothing_is_claimed(
    streamworker: Invoke, redis_url: str, orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command says so, and its exit code is 1."""
    filled(redis_url)

    def away(*_: object) -> None:
        raise ArchiveUnavailable("The store of lake did not answer: timeout.", remedy="It is asked again.")

    with monkeypatch.context() as context:
        for name in ("names", "tail", "get", "put_new", "replace", "delete"):
            context.setattr(type(orders), name, away)
        for command in (["status"], ["check"], ["adopt", "--yes"], ["expire", "--yes"]):
            result = streamworker("archive", command[0], "shop:orders", *command[1:])
            assert result.exit_code == ExitCode.FAILED, command
            assert "did not answer" in result.output
            assert "Deleted" not in result.output and "adopted" not in result.output
    assert len(all_of("shop:orders")) == 20


def test_an_archive_is_adopted_by_its_id_and_an_empty_store_gets_one(
    streamworker: Invoke, redis_url: str, orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis has it before the store; what the archive lacks is said. Who begins while it asks is seen."""
    said = streamworker.does("archive", "adopt", "shop:orders", "--yes")
    new = read_identity(orders)
    assert new is not None and f"It is a new archive, with the id {new.id}" in said
    with opened(redis_url) as raw:
        assert raw.hget(KEYS.meta, "archive_id").decode() == new.id
        raw.hset(KEYS.meta, mapping={"archive_id": "another", "partitions": 2})
        raw.hset(KEYS.lock(1), mapping={"checkpoint": "5000-0", "entries": 5})
        assert kinds(streamworker) == ["identity", "checkpoint"]
        with monkeypatch.context() as context:
            context.setattr(adopting, "_is_run", Began())
            context.setattr(adopting, "confirm", str)
            assert "It is run by w1" in streamworker("archive", "adopt", "shop:orders").stderr
        assert raw.hget(KEYS.meta, "archive_id") == b"another"
        said = streamworker.does("archive", "adopt", "shop:orders", "--yes")
        assert "Redis forgets the archive with the id another" in said
        assert "In partition 1 the archive lacks" in said
        assert raw.hget(KEYS.meta, "archive_id").decode() == new.id
        assert raw.hget(KEYS.lock(1), "checkpoint") == b"0-0"
    assert "Nothing was changed" in streamworker.does("archive", "adopt", "shop:orders", "--yes")


class Began:
    """Refuses to go on when it is asked the second time: a worker has begun."""

    asked = 0

    async def __call__(self, *_: Any) -> bool:
        self.asked += 1
        if self.asked == 2:
            raise CoordinationError("It is run by w1.", remedy="Stop it.")
        return False


def test_a_worker_goes_on_with_an_archive_that_was_emptied_once_it_is_adopted(
    streamworker: Invoke, redis_url: str, shop: Path, orders: Store
) -> None:
    """It refuses it before, says why, and keeps all; then the archive has again what Redis still has."""
    source = (shop / "shop.py").read_text("utf-8")
    rewrite(shop, source.replace('every="10 minutes"', 'every="100 ms", after="0 seconds"'))
    sent = resolve_stream("shop:orders")
    sent.sync.send_many([order(n, f"c{n}") for n in range(20)])
    sent.app.close()
    with opened(redis_url) as raw:

        def archived_records() -> int:
            return sum(int(raw.hget(KEYS.lock(p), "entries") or 0) for p in range(2))

        work(redis_url, lambda: archived_records() == 20, "all is archived")
        assert streamworker.tells("archive", "check", "shop:orders", "--deep")["compared"] == 20
        orders.delete([each.name for each in orders.names("")])
        work(redis_url, lambda: b"held records before" in raw.hget(KEYS.lock(0), "reason"), "it is refused")
        assert {"identity", "checkpoint"} <= set(kinds(streamworker))
        assert "It is a new archive" in streamworker.does("archive", "adopt", "shop:orders", "--yes")
        assert archived_records() == 0
        work(redis_url, lambda: archived_records() == 20, "all is archived again")
    found = streamworker.tells("archive", "check", "shop:orders", "--deep")
    assert (found["records"], found["compared"]) == (20, 20)


@STORES
def test_only_whole_old_segments_expire_oldest_first(
    streamworker: Invoke, redis_url: str, orders: Store
) -> None:
    """The last one stays, however old, and what a group has not read; the default is the declared keep."""
    filled(redis_url)
    old_records(redis_url, "shop:orders", [order(n, f"c{n}") for n in range(10)], now_ms() - YEAR_MS)
    archived(redis_url, "shop:orders")
    said = streamworker.does("archive", "expire", "shop:orders", "--dry-run")
    assert said.startswith("Would delete 7 segments with 20 records")
    assert len(all_of("shop:orders")) == 30
    chain = chain_of("shop:orders", 0)
    _, second, *_ = chain.segments()
    with opened(redis_url) as raw:
        raw.hset(KEYS.groups(0), "late", "")
        raw.hset(GroupKeys("shop", "orders", "late").lock(0), "checkpoint", str(second.after))
    said = streamworker.does("archive", "expire", "shop:orders", "--yes")
    left = len(chain.segments()) - 1
    assert said.startswith(f"Deleted {7 - left} segments") and chain.segments()[0] == second
    assert f"Left {left} segments" in said and "late has not read all of it" in said
    said = streamworker.does("archive", "expire", "shop:orders", "--even-unread", "--yes")
    assert said.startswith(f"Deleted {left} segments")
    assert len(all_of("shop:orders")) == 10
    streamworker.does("archive", "check", "shop:orders")
    said = streamworker.does("archive", "expire", "shop:orders", "--older-than", "1 hour", "--yes")
    assert "has no segment whose last record is older than 1 hour" in said
    assert orders.names("partition=0") and orders.names("partition=1")


@STORES
def test_an_expiry_that_is_killed_leaves_a_chain(
    streamworker: Invoke, redis_url: str, orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes the oldest first, one by one, says how far it came, and goes on when it is run again."""
    filled(redis_url)
    delete, calls = type(orders).delete, list[str]()

    def killed(store: Store, names: list[str]) -> None:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.extend(names)
        delete(store, names)

    with monkeypatch.context() as context:
        context.setattr(type(orders), "delete", killed)
        result = streamworker("archive", "expire", "shop:orders", "--yes")
    assert result.exit_code == ExitCode.INTERRUPTED
    assert "Deleted 2 segments with 6 records" in result.stderr
    assert calls[0] == name_of(0, ZERO) and calls == sorted(calls)
    assert streamworker.tells("archive", "check", "shop:orders")["records"] == 14
    streamworker.does("archive", "expire", "shop:orders", "--yes")
    assert len(chain_of("shop:orders", 0).segments()) == len(chain_of("shop:orders", 1).segments()) == 1


@pytest.mark.parametrize("field", ["id", "stream"])
def test_the_archive_of_somebody_else_is_left_alone(
    streamworker: Invoke, redis_url: str, orders: Store, field: str
) -> None:
    """Behind a wrong URL, also an empty one: nothing expires, is erased or published, until it is adopted."""
    filled(redis_url)
    theirs = read_identity(orders)
    assert theirs is not None
    orders.delete(["_stream.json"])
    put_identity(orders, theirs._replace(**{field: "other"}))
    erasure = "erase", "shop:app", "--key", "c1", "--yes"
    for command in (
        ("archive", "expire", "shop:orders", "--older-than", "1 day", "--yes"),
        ("archive", "publish", "shop:orders", "--delta"),
        erasure,
    ):
        result = streamworker(*command)
        assert result.exit_code == ExitCode.FAILED, command
        assert "is left alone. It" in result.output
    assert len(all_of("shop:orders")) == 20 and not orders.names("_delta_log")
    orders.delete([each.name for each in orders.names("")])
    assert "is left alone. The store has no _stream.json" in streamworker(*erasure).output


def test_what_has_no_archive_is_refused_and_what_has_one_is_listed(invoke: Invoke, shop: Path) -> None:
    """By app and by stream; without a time what stays for ever does not expire."""
    result = invoke("archive", "status", "shop:app")
    assert result.exit_code == ExitCode.CONFIGURATION
    assert "App 'shop' has no archive." in result.stderr
    source = SHOP.replace("URL", "'lake'").replace(', keep="2 years"', "")
    (shop / "kept.py").write_text(source + "other = app.stream('other', Order, archive='lake2')\n", "utf-8")
    result = invoke("archive", "check", "kept:app")
    assert "Name one of them: kept:orders, kept:other." in result.stderr
    result = invoke("archive", "expire", "kept:orders")
    assert result.exit_code == ExitCode.USAGE
    assert "stays for ever" in result.stderr


LOGS = """
import msgspec
from streamworker import App, Archive

app = App("shop", heartbeat_interval_ms=200, founding_pause_ms=0, trim_interval_ms=600_000)


class Order(msgspec.Struct):
    order_id: int
    customer: str


class Priced(msgspec.Struct):
    order_id: int
    price: float


orders = app.stream("orders", Order, key=lambda order: order.customer, partitions=2)


@app.processor(orders, log_metadata=META, log_archive=Archive(URL, every="100 ms", after="0 seconds"))
async def price(order: Order) -> Priced:
    return Priced(order.order_id, float("nan"))
"""


@pytest.fixture
def logs(streamworker: Invoke, shop: Path, url: str, redis_url: str, request: pytest.FixtureRequest) -> Store:
    """An acked log of forty rows of ann, bob, cal and dan, archived by a worker; the store."""
    del streamworker
    meta = str(getattr(request, "param", True))
    rewrite(shop, LOGS.replace("URL", repr(url)).replace("META", meta))
    log_rows(redis_url, 40)
    return store_at(url)


def log_rows(redis_url: str, total: int) -> None:
    """Send forty orders, and let a worker archive their rows, so many in all."""
    sent = resolve_stream("shop:orders")
    sent.sync.send_many([order(n, ("ann", "bob", "cal", "dan")[n % 4]) for n in range(40)])
    sent.app.close()

    def archived_rows() -> int:
        found = read_position(raw.hget(PRICE.readers, GROUP) or b"")
        return sum(found.rows.values())

    with opened(redis_url) as raw:
        work(redis_url, lambda: archived_rows() == total, "all rows are archived")


def test_the_archive_of_an_acked_log_is_checked_and_shown_as_that_of_a_stream(
    streamworker: Invoke, redis_url: str, logs: Store
) -> None:
    """It is named by its processor; rows are compared with those that Redis still has."""
    found = streamworker.tells("archive", "check", "shop:price", "--deep")
    assert (found["records"], found["compared"], found["faults"]) == (40, 40, [])
    (found,) = streamworker.tells("archive", "status", "shop:app")
    assert (found["processor"], found["waits_ms"]) == ("price", None)
    assert sum(each["records"] for each in found["partitions"]) == 40
    said = streamworker.does("archive", "expire", "shop:price", "--older-than", "1 day", "--dry-run")
    assert "has no segment whose last row is older than 1 day" in said
    log_rows(redis_url, 80)
    with opened(redis_url) as raw:
        raw.hset(PRICE.readers, "spark", '{"p":{"0":0,"1":99},"log":{},"at":1}')
    expire = "archive", "expire", "shop:price", "--older-than", "1 second", "--dry-run"
    said = r"Would delete .*\nLeft .*: spark has not read all of it"
    wait_for(lambda: re.search(said, streamworker.does(*expire)), "the rows are old")
    assert "Left" not in streamworker.does(*expire, "--even-unread")
    bodies = {each.name: logs.get(each.name) for each in logs.names("partition=0")}
    logs.delete(bodies)
    found = streamworker("archive", "check", "shop:price")
    assert found.exit_code == ExitCode.FAILED
    refused = streamworker("archive", "adopt", "shop:price", "--yes")
    assert (refused.exit_code, "that of a log has no gap" in refused.stderr) == (ExitCode.FAILED, True)
    for name, found in bodies.items():
        assert found is not None and logs.put_new(name, found.body)
    refused = streamworker("repair", "shop:app", "--yes", "--forget-reader", GROUP)
    assert "has a reader 'archive'" in refused.stderr, "it is no reader that does not come back"
    with opened(redis_url) as raw:
        raw.hset(PRICE.meta, "archive_id:price", "another")
    assert "Redis knows it by the id another" in streamworker("archive", "check", "shop:price").stdout
    assert "It is adopted" in streamworker.does("archive", "adopt", "shop:price", "--yes")


@pytest.mark.parametrize("logs", [True, False], indirect=True)
def test_rows_of_a_key_go_from_the_archive_of_an_acked_log_where_it_has_the_key(
    streamworker: Invoke, redis_url: str, logs: Store, request: pytest.FixtureRequest
) -> None:
    """With `log_metadata` it has; else the report says that nobody knows. The live log goes by itself."""
    has_key = bool(request.node.callspec.params["logs"])
    run = ("erase", "shop:app", "--key", "bob", "--yes")
    report = streamworker.tells(*run)
    assert report["failed"] == []
    later = [each["place"] for each in report["later"]]
    assert ("acked log of price" in later) is has_key
    acked = [PRICE.acked(p) for p in range(2)]
    with opened(redis_url) as raw:
        before = list(map(raw.dump, acked))
        for key in acked:
            raw.xtrim(key, maxlen=0, approximate=False)
        report = streamworker.tells(*run)
        assert [each["number"] for each in report["gone"]] == ([10] if has_key else [])
        assert any("cannot be read" in line for line in report["not_looked_at"]) is not has_key
        left = 30 if has_key else 40
        found = streamworker.tells("archive", "check", "shop:price", "--deep")
        assert (found["records"], found["compared"], found["faults"]) == (left, 0, [])
        for key, value in zip(acked, before, strict=True):
            raw.restore(key, 0, value, replace=True)
    found = streamworker.tells("archive", "check", "shop:price")
    assert (found["records"], found["compared"], found["faults"]) == (left, left, [])
    assert logs.get("_stream.json") is not None
