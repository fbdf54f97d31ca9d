"""`streamworker erase`: a person's records go from archives, tables, dead letters and what is scheduled."""

import json
import threading
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from streamworker.archive.erasing import Erased, Finder, erase
from streamworker.archive.store import Store, store_at
from streamworker.cli.exit_codes import ExitCode
from streamworker.core.data.archives import GROUP
from streamworker.core.data.placement import canonical_key
from streamworker.errors import ArchiveUnavailable
from streamworker.importing import resolve_app, resolve_stream
from streamworker.redisio.keys import GroupKeys
from streamworker.runtime.run.modes import archive as archiver
from streamworker.testing import local_worker
from tests.cli.archiving import all_of, archived, chain_of, damage, old_records
from tests.cli.conftest import Invoke, rewrite, work_off
from tests.conftest import SpawnWorker
from tests.helpers import wait_for, wait_for_async
from tests.raw import opened

SHOP = """
import datetime as dt
import enum
from decimal import Decimal

import msgspec
from streamworker import App, Archive, DeadLetter

app = App("shop")


class Order(msgspec.Struct):
    order_id: int
    customer: str
    amount: float = 0.0


orders = app.stream(
    "orders", Order, key="customer", partitions=2, retention="2 hours", archive=Archive(URL, columns=COLUMNS),
)
totals = app.table("totals", float)
by_hour = app.table("by_hour", int, key=("customer", "hour"))


@app.processor(orders, errors=DeadLetter(), tables=[totals, by_hour], log_retention="1 hour")
async def price(order: Order) -> Order:
    if order.amount < 0:
        raise ValueError("negative")
    totals.set(order.customer, order.amount)
    by_hour.set((order.customer, 7), 1)
    return order


class Reading(msgspec.Struct):
    site: int
    day: dt.date


readings = app.stream("readings", Reading, key=("site", "day"), partitions=2)
"""
HOUR_MS = 3_600_000
KEYS = GroupKeys("shop", "orders", GROUP)


@pytest.fixture(params=["files", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the archive is."""
    if request.param == "files":
        return str(tmp_path / "lake")
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    found: str = request.getfixturevalue("bucket")
    return found


@pytest.fixture
def orders(streamworker: Invoke, shop: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A stream with an archive, a processor and tables; the store."""
    del streamworker  # which names the server
    monkeypatch.setattr(archiver, "_known", {})  # No worker of an earlier test has seen it.
    (shop / "shop.py").write_text(SHOP.replace("URL", repr(url)).replace("COLUMNS", "True"), "utf-8")
    return store_at(url)


def order(n: int, customer: str, amount: float = 1.0) -> Any:
    return resolve_stream("shop:orders").spec.record.python_type(n, customer, amount)


def people(path: str = "shop:orders") -> list[str]:
    return [json.loads(payload)["customer"] for payload in all_of(path)]


def filled(redis_url: str, *, trim: bool = True) -> None:
    """Archive forty orders of ann, bob, cal and dan in segments of five."""
    names = ["ann", "bob", "cal", "dan"]
    old_records(redis_url, "shop:orders", [order(n, names[n % 4]) for n in range(40)], 1_000)
    archived(redis_url, "shop:orders", at_once=5, trim=trim)


def told(streamworker: Invoke, *options: str) -> Any:
    return streamworker.tells("erase", "shop:app", "--key", *options, "--yes")


def test_the_records_of_a_key_go_from_old_segments_and_the_chain_stays(
    streamworker: Invoke, redis_url: str, orders: Store
) -> None:
    """Names, ids and counts hold; the footers say how many went; a second run finds nothing."""
    filled(redis_url)
    before = {p: [each.name for each in chain_of("shop:orders", p).segments()] for p in range(2)}
    report = told(streamworker, "bob", "--dry-run")
    assert [each["number"] for each in report["gone"]] == [10] and people().count("bob") == 10
    report = told(streamworker, "bob")
    assert [(each["number"], each["what"]) for each in report["gone"]] == [(10, "record")]
    assert sorted(set(people())) == ["ann", "cal", "dan"] and len(people()) == 30
    assert {p: [each.name for each in chain_of("shop:orders", p).segments()] for p in range(2)} == before
    checked = streamworker.tells("archive", "check", "shop:orders", "--deep")
    assert (checked["records"], checked["erased"], checked["faults"]) == (30, 10, [])
    assert told(streamworker, "bob")["gone"] == []
    assert "Nothing of 'bob' was there" in streamworker.does("erase", "shop:app", "--key", "bob", "--yes")
    assert orders.get("_stream.json") is not None


def test_a_damaged_segment_is_named_and_the_others_are_erased(
    streamworker: Invoke, redis_url: str, orders: Store
) -> None:
    """Its records stay until it is restored."""
    filled(redis_url)
    placement = resolve_stream("shop:orders").spec.placement
    chain = chain_of("shop:orders", placement.partition_of(b"bob"))
    its, next_one, *_ = chain.segments()
    damage(orders, its.name)
    result = streamworker("erase", "shop:app", "--key", "bob", "--yes", "--json")
    assert result.exit_code == ExitCode.FAILED
    assert [its.name in each for each in json.loads(result.stdout)["failed"]] == [True]
    left = [each for part in chain.read(next_one.after) for each in part.table["_payload"].to_pylist()]
    assert left and not any(b"bob" in each for each in left)


def test_a_segment_without_any_record_left_is_read_over(
    streamworker: Invoke, redis_url: str, orders: Store
) -> None:
    """It keeps its place: the next one begins where it ends."""
    del orders
    old_records(redis_url, "shop:orders", [order(n, "bob") for n in range(10)], 1_000)
    archived(redis_url, "shop:orders", at_once=5, trim=True)
    assert told(streamworker, "bob")["gone"][0]["number"] == 10
    assert people() == []
    old_records(redis_url, "shop:orders", [order(n, "bob") for n in range(3)], 5_000)
    archived(redis_url, "shop:orders", trim=True)
    assert people() == ["bob"] * 3
    assert streamworker.tells("archive", "check", "shop:orders", "--deep")["faults"] == []


def test_what_redis_still_has_is_left_and_named_with_its_time(
    streamworker: Invoke, redis_url: str, orders: Store
) -> None:
    """Run again once it is gone, it takes the rest; a check accepts both."""
    del orders
    now_ms = int(time.time() * 1000)
    filled(redis_url)
    young = now_ms - HOUR_MS
    old_records(redis_url, "shop:orders", [order(n, "bob") for n in range(4)], young)
    archived(redis_url, "shop:orders")
    report = told(streamworker, "bob")
    assert [each["number"] for each in report["gone"]] == [10]
    assert people().count("bob") == 4
    stream, segment = report["later"]
    assert (stream["place"], stream["number"]) == ("stream orders", 4)
    assert stream["when_ms"] == segment["when_ms"] == young + 3 + 2 * HOUR_MS
    assert segment["number"] == 4
    assert streamworker.tells("archive", "check", "shop:orders")["faults"] == []
    with opened(redis_url) as raw:
        for p in range(2):
            raw.xtrim(KEYS.events(p), maxlen=0, approximate=False)
    report = told(streamworker, "bob")
    assert ([each["number"] for each in report["gone"]], report["later"]) == ([4], [])
    assert "bob" not in people()


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_tables_dead_letters_and_scheduled_records_of_a_key_go(
    streamworker: Invoke, redis_url: str, orders: Store
) -> None:
    """By one command; those of others stay. Rows of the acked log go with its retention."""
    del orders
    stream = resolve_stream("shop:orders")
    both = [("ann", 1.0), ("ann", -1.0), ("bob", 1.0), ("bob", -1.0)]
    stream.sync.send_many([order(n, *each) for n, each in enumerate(both)])
    for name in ("ann", "bob"):
        stream.sync.schedule(order(9, name), id=f"ask-{name}", after="1 hour")
    stream.app.close()
    work_off(redis_url)
    report = told(streamworker, "bob", "--dry-run")
    gone = {each["place"]: each["number"] for each in report["gone"]}
    assert gone == {
        "orders, scheduled": 1, "dead letters of price": 1, "table totals": 1, "table by_hour": 1,
    }  # fmt: skip
    assert {each["place"]: each["number"] for each in report["later"]} == {
        "stream orders": 2, "acked log of price": 1,
    }  # fmt: skip
    assert streamworker("table", "get", "shop:totals", "bob").exit_code == ExitCode.OK
    report = told(streamworker, "bob")
    assert {each["place"]: each["number"] for each in report["gone"]} == gone
    for name, code in (("bob", ExitCode.FAILED), ("ann", ExitCode.OK)):
        assert streamworker("table", "get", "shop:totals", name).exit_code == code
        assert streamworker("table", "get", "shop:by_hour", name, "7").exit_code == code
    assert [each["key"] for each in streamworker.tells("later", "list", "shop:orders")] == ["ann"]
    letters = streamworker.tells("dead", "list", "shop:price")
    assert [each["record"]["customer"] for each in letters] == ["ann"]
    assert told(streamworker, "bob")["gone"] == []


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_a_key_has_the_declared_type_and_streams_that_cannot_have_it_are_told(
    streamworker: Invoke, redis_url: str, orders: Store
) -> None:
    """Of several parts it is given part by part; nothing is taken for a key that is none."""
    del redis_url, orders
    report = told(streamworker, "bob")
    assert "stream readings: its key has 2 parts: site, day" in report["not_looked_at"]
    report = streamworker.tells("erase", "shop:app", "--key", "7", "2026-11-29", "--dry-run")
    assert "stream orders: its key has 1 part: customer" in report["not_looked_at"]
    result = streamworker("erase", "shop:app", "--key", "seven", "2026-11-29", "--dry-run")
    assert result.exit_code == ExitCode.CONFIGURATION
    assert "its key site is of type int, and 'seven' is none" in result.stderr
    result = streamworker("erase", "shop:app", "--key", "bob", "--stream", "nosuch", "--yes")
    assert result.exit_code == ExitCode.CONFIGURATION
    assert "has no stream 'nosuch'" in result.stderr


@pytest.mark.parametrize("url", ["memory"], indirect=True)
@pytest.mark.parametrize("customer", ["bøb 🙂", "a'b\"c", "", "\u202ebob", "bob\n", "1:2"])
@pytest.mark.parametrize("columns", ["True", "False"])
def test_odd_keys_are_found_with_and_without_columns(
    streamworker: Invoke, shop: Path, redis_url: str, url: str, customer: str, columns: str
) -> None:
    """And no key that only looks alike."""
    (shop / "shop.py").write_text(SHOP.replace("URL", repr(url)).replace("COLUMNS", columns), "utf-8")
    others = [each for each in ("bob", "b", "ann", "a", "12") if each != customer]
    old_records(redis_url, "shop:orders", [order(1, each) for each in (customer, *others, customer)], 1_000)
    archived(redis_url, "shop:orders", trim=True)
    assert told(streamworker, customer)["gone"][0]["number"] == 2
    assert sorted(people()) == sorted(others)


def test_an_erasure_that_is_killed_between_two_segments_is_run_again(
    streamworker: Invoke, redis_url: str, orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is a chain with what it did; the report claims no more."""
    filled(redis_url)
    replace, calls = type(orders).replace, list[str]()

    def failing(store: Store, name: str, *rest: Any) -> bool:
        if len(calls) == 2:
            raise ArchiveUnavailable("The store did not answer: timeout.", remedy="It is asked again.")
        calls.append(name)
        return replace(store, name, *rest)

    with monkeypatch.context() as context:
        context.setattr(type(orders), "replace", failing)
        result = streamworker("erase", "shop:app", "--key", "bob", "--yes", "--json")
    assert result.exit_code == ExitCode.FAILED
    report = json.loads(result.stdout)
    assert "did not answer" in report["failed"][0]
    left = people().count("bob")
    assert 0 < left < 10 and sum(each["number"] for each in report["gone"]) == 10 - left
    assert streamworker.tells("archive", "check", "shop:orders", "--deep")["faults"] == []
    assert told(streamworker, "bob")["gone"][0]["number"] == left
    assert "bob" not in people()


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_a_key_is_looked_for_in_all_partitions_that_it_has_had(
    streamworker: Invoke, redis_url: str, orders: Store
) -> None:
    """A stream that has grown has its older records in the partitions that are sealed."""
    del orders
    filled(redis_url)
    with opened(redis_url) as raw:
        raw.hset(KEYS.meta, "partitions", "2+3")
    streamworker.does("archive", "status", "shop:orders")  # From now on this process knows the map.
    old_records(redis_url, "shop:orders", [order(n, "bob") for n in range(3)], 5_000)
    assert sum(archived(redis_url, "shop:orders", trim=True).values()) == 3
    assert told(streamworker, "bob")["gone"][0]["number"] == 13
    assert "bob" not in people() and len(people()) == 30
    assert streamworker.tells("archive", "check", "shop:orders", "--deep")["faults"] == []
    with opened(redis_url) as raw:
        raw.hset(KEYS.meta, "partitions", "7")
    result = streamworker("erase", "shop:app", "--key", "bob", "--yes")
    assert (result.exit_code, "has partitions=7" in result.stderr) == (ExitCode.CONFIGURATION, True)


@pytest.mark.parametrize("url", ["files"], indirect=True)
def test_a_process_that_is_killed_while_it_erases_leaves_a_chain(
    streamworker: Invoke, redis_url: str, shop: Path, orders: Store, spawn: SpawnWorker
) -> None:
    """Wherever the signal meets it; and the next one takes the rest."""
    names = ["ann", "bob", "cal", "dan"]
    old_records(redis_url, "shop:orders", [order(n, names[n % 4]) for n in range(320)], 1_000)
    archived(redis_url, "shop:orders", at_once=5, trim=True)

    def changed() -> int:
        chains = [chain_of("shop:orders", p) for p in range(2)]
        footers = [chain.footer(each.after) for chain in chains for each in chain.segments()]
        return sum(each.erased for each in footers if each)

    for kills in range(1, 3):
        process = spawn("erase", "shop:app", "--key", "bob", "--yes", cwd=shop)
        wait_for(partial(lambda least: changed() > least or changed() == 80, kills), "it has begun")
        process.kill()
        process.wait()
        assert len(people()) == 320 - changed()
        assert streamworker.tells("archive", "check", "shop:orders", "--deep")["faults"] == []
    streamworker.does("erase", "shop:app", "--key", "bob", "--yes")
    assert sorted(people()) == ["ann"] * 80 + ["cal"] * 80 + ["dan"] * 80
    assert not list(Path(orders.url).glob("partition=*/*_new*"))


def test_of_two_that_erase_at_the_same_time_neither_undoes_the_other(redis_url: str, orders: Store) -> None:
    """A segment is replaced only as the version that was read."""
    filled(redis_url)
    spec = resolve_stream("shop:orders").spec
    work = [(p, each) for p in range(2) for each in chain_of("shop:orders", p).segments()]
    done: list[Erased] = []

    def run(name: str) -> None:
        finder = Finder(spec, canonical_key(name) or b"")
        done.extend(erase(chain_of("shop:orders", p), each, finder.without) for p, each in work)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("ann", "bob", "cal")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each.records for each in done) == 30
    assert people() == ["dan"] * 10
    footers = [chain_of("shop:orders", p).footer(each.after) for p, each in work]
    assert sum(each.erased for each in footers if each) == 30
    del orders


OFTEN = 'every="100 ms", after="0 seconds"'
LATE = """

@app.processor(orders, start="earliest", batch=10)
async def late(batch: list[Order]) -> list[Order]:
    return batch
"""


def work(redis_url: str, people: list[str] | None = None, *, archived: int = 0) -> list[str]:
    """Send orders, and let a worker handle and archive all; return whose the rows of `late` are."""

    async def run() -> list[str]:
        app, stream = resolve_app("shop:app"), resolve_stream("shop:orders")
        async with local_worker(app, url=redis_url, name="w1") as worker:
            await stream.send_many([order(n, name) for n, name in enumerate(people or ())])
            await worker.until_drained()
            await wait_for_async(lambda: archived_now() >= archived, "all is archived")
            if "late" not in app.registry.processors:
                return []
            return [row["customer"] for row in await worker.rows("late")]

    def archived_now() -> int:
        with opened(redis_url) as raw:
            return sum(int(raw.hget(KEYS.lock(p), "entries") or 0) for p in range(2))

    return anyio.run(run)


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_what_a_worker_archives_later_follows_what_was_erased_and_a_new_processor_gets_the_rest(
    streamworker: Invoke, shop: Path, redis_url: str, orders: Store
) -> None:
    """It gets all but that, in order, and has no lag then. Records of many sends share entries."""
    del orders
    source = (shop / "shop.py").read_text("utf-8").replace("columns=True", OFTEN)
    rewrite(shop, source)
    work(redis_url, ["ann", "bob"] * 50, archived=100)
    with opened(redis_url) as raw:
        for p in range(2):
            raw.xtrim(KEYS.events(p), maxlen=0, approximate=False)
    assert 50 in [each["number"] for each in told(streamworker, "bob")["gone"]]
    assert people() == ["ann"] * 50
    work(redis_url, ["ann", "bob"] * 50, archived=200)
    assert sorted(people()) == ["ann"] * 100 + ["bob"] * 50
    assert streamworker.tells("archive", "check", "shop:orders", "--deep")["faults"] == []
    rewrite(shop, source + LATE)
    assert sorted(work(redis_url)) == ["ann"] * 100 + ["bob"] * 50
