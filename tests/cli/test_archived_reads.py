"""`tail --since` and `reset` of a stream whose records only its archive still has, on a real server."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from streamworker.archive.chain import Chain
from streamworker.archive.identity import ArchiveIdentity, put_identity
from streamworker.archive.logs import read_rows
from streamworker.archive.store import store_at
from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.workers.exporter import Groups
from streamworker.core.data.archives import GROUP
from streamworker.importing import resolve_processors
from streamworker.redisio.data.trimming import trim_many
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from tests.cli.archiving import work
from tests.cli.conftest import Invoke, work_off
from tests.raw import opened

SHOP = """
import msgspec
from streamworker import App, Archive

app = App("shop")


class Order(msgspec.Struct):
    order_id: int
    customer: str


orders = app.stream(
    "orders", Order, key="customer", partitions=2, retention="0 seconds",
    archive=Archive(LAKE, every="100 ms", after="0 seconds"),
)
counts = app.table("counts", int)


@app.processor(orders, tables=[counts], forward=False)
async def count(order: Order) -> None:
    counts.set(order.customer, (await counts.get(order.customer) or 0) + 1)
"""
ARCHIVER, COUNT = GroupKeys("shop", "orders", GROUP), GroupKeys("shop", "orders", "count")
MANY = 60


def send(streamworker: Invoke, first: int, many: int = MANY) -> None:
    orders = [{"order_id": n, "customer": f"c{n % 7}"} for n in range(first, first + many)]
    streamworker.does("send", "shop:orders", "-", input="\n".join(map(json.dumps, orders)))


def archive(redis_url: str, many: int) -> None:
    """Let a worker archive so many records, and trim all of them."""
    with opened(redis_url) as raw:

        def is_archived() -> bool:
            return sum(int(raw.hget(ARCHIVER.lock(p), "entries") or 0) for p in (0, 1)) == many

        async def trim() -> None:
            async with Backend.open(redis_url, name="trim") as backend:
                await trim_many(backend, COUNT, {0: 0, 1: 0})

        work(redis_url, is_archived, "all records are archived")
        anyio.run(trim)
        assert not any(raw.xlen(ARCHIVER.events(p)) for p in (0, 1))


@pytest.fixture
def trimmed(streamworker: Invoke, shop: Path, redis_url: str) -> Iterator[None]:
    """Sixty orders that only the archive has, and five that only Redis has."""
    (shop / "shop.py").write_text(SHOP.replace("LAKE", repr(str(shop / "lake"))), "utf-8")
    with opened(redis_url) as raw:
        nodes = raw.config_get("stream-node-max-entries")["stream-node-max-entries"]
        raw.config_set("stream-node-max-entries", 1)  # A trim drops whole nodes.
        send(streamworker, 0)
        archive(redis_url, MANY)
        time.sleep(0.002)  # The next ids have another millisecond.
        send(streamworker, MANY, 5)
        yield
        raw.config_set("stream-node-max-entries", nodes)


def seen(streamworker: Invoke, *options: str) -> list[int]:
    lines = streamworker.does("tail", "shop:orders", "--json", *options).splitlines()
    return [json.loads(line)["record"]["order_id"] for line in lines]


def counted(streamworker: Invoke) -> int:
    rows = map(json.loads, streamworker.does("table", "scan", "shop:counts").splitlines())
    return sum(row["value"] for row in rows)


@pytest.mark.usefixtures("trimmed")
def test_tail_since_shows_what_only_the_archive_has_and_then_what_redis_has(
    streamworker: Invoke, redis_url: str
) -> None:
    """Each once and in order, of all or of one key; `tail` alone says that there is more."""
    everything = seen(streamworker, "--since", "2026-01-01", "--last", "1000")
    assert sorted(everything) == [*range(MANY + 5)]
    assert seen(streamworker, "--since", "1 hour", "--last", "3") == everything[:3]
    assert seen(streamworker, "--since", "earliest", "--key", "c3", "-n", "99") == [*range(3, MANY + 5, 7)]
    of_first = next(iter(streamworker.does("tail", "shop:orders", "--since", "1 hour").split("  ")))
    behind = seen(streamworker, "--since", of_first.partition("/")[2], "--last", "1000")
    assert len(behind) < MANY + 5 and set(behind) < set(everything)
    assert seen(streamworker, "--since", "2999-01-01") == []
    refused = streamworker("tail", "shop:orders", "--since", "1 hour", "--follow")
    assert refused.exit_code == ExitCode.USAGE
    archive(redis_url, MANY + 5)
    assert "--since" in streamworker("tail", "shop:orders").stderr


@pytest.mark.usefixtures("trimmed")
def test_a_table_is_built_again_from_the_archive_first(streamworker: Invoke, redis_url: str) -> None:
    """`reset --to earliest --clear-tables` runs each archived record again, and then those in Redis."""
    told = streamworker.does("reset", "shop:count", "--to", "earliest", "--clear-tables", "--yes")
    assert f"back by {MANY} records" in told
    assert streamworker.tells("lag", "shop:count")[0]["lag"] == MANY + 5
    work_off(redis_url)
    assert counted(streamworker) == MANY + 5
    assert streamworker.tells("lag", "shop:count")[0]["lag"] == 0


@pytest.mark.usefixtures("trimmed")
def test_a_reset_to_a_time_that_only_the_archive_has_counts_what_runs_again(
    streamworker: Invoke, redis_url: str
) -> None:
    """Of each partition: the records behind that time, though Redis has none of them."""
    lines = streamworker.does("tail", "shop:orders", "--json", "--since", "1 hour", "-n", "1000").splitlines()
    times = [json.loads(line)["at_ms"] for line in lines][:MANY]
    middle = times[MANY // 2]
    to = datetime.fromtimestamp(middle / 1000, UTC).isoformat(timespec="milliseconds")
    again = sum(at >= middle for at in times)
    told = streamworker.does("reset", "shop:count", "--to", to, "--dry-run")
    assert f"back by {again} record" in told
    assert streamworker.does("reset", "shop:count", "--to", to, "--clear-tables", "--yes")
    work_off(redis_url)
    assert counted(streamworker) == again + 5


@pytest.mark.usefixtures("trimmed")
def test_status_says_what_only_the_archive_has_and_from_when_on_it_is_read(streamworker: Invoke) -> None:
    """The archiver is a group like others."""
    told = streamworker.does("status", "shop:app")
    assert "shop: orders -> archive" in told
    assert f"{MANY} records only there, 5 not yet archived" in told
    shown = {each["processor"]: each for each in streamworker.tells("status", "shop:app")}
    (archived,) = [
        each["archived"] for each in shown["count"]["held"]["holdings"] if each["kind"] == "stream"
    ]
    assert (archived["records"], archived["only"], archived["waiting"]) == (MANY, MANY, 5)
    held = next(row for row in told.splitlines() if row.startswith("stream ") and " orders " in row)
    assert str(datetime.now(UTC).year) in held, "its oldest record is in the archive"
    assert "acked log" not in streamworker.does("status", "shop:orders.archive"), "it has none"
    groups = {each["processor"]: each["lag"] for each in streamworker.tells("lag", "shop:app")}
    assert groups == {"count": 5, "archive": 5}
    assert [each["processor"] for each in streamworker.tells("lag", "shop:orders.archive")] == ["archive"]


@pytest.mark.usefixtures("trimmed")
def test_doctor_warns_of_an_archive_for_which_nobody_works(streamworker: Invoke) -> None:
    """After three times `every` it says for how long, why, and when memory is full."""
    time.sleep(0.4)
    late = next(c for c in streamworker.tells("doctor", "shop:app") if c["name"] == "archive of orders")
    assert late["verdict"] == "warn"
    assert "partition 0: no worker archives it" in late["found"] and "If it stays so: " in late["found"]


def test_doctor_warns_of_an_archive_that_never_came_to_be(
    streamworker: Invoke, shop: Path, redis_url: str
) -> None:
    """Before and after a worker has tried; nothing has been archived that could tell since when."""
    (shop / "shop.py").write_text(SHOP.replace("LAKE", repr(str(shop / "lake"))), "utf-8")
    put_identity(store_at(str(shop / "lake")), ArchiveIdentity("theirs", "orders", "", "json", "its"))
    send(streamworker, 0, 5)

    def told() -> str:
        found = next(c for c in streamworker.tells("doctor", "shop:app") if c["name"] == "archive of orders")
        assert found["verdict"] == "warn"
        return str(found["found"])

    assert "5 records not archived yet; partition 0: no worker archives it" in told()

    def is_refused() -> bool:
        return all(raw.hget(ARCHIVER.lock(p), "reason") for p in (0, 1))

    with opened(redis_url) as raw:
        work(redis_url, is_refused, "the store is refused in each partition")
        assert "5 records not archived yet, the oldest for " in told()
        assert raw.hdel(ARCHIVER.lock(0), "waits_since") and raw.hdel(ARCHIVER.lock(1), "waits_since")
        assert "5 records not archived yet, the oldest for " in told()


@pytest.mark.usefixtures("trimmed")
def test_an_archiver_is_paused_by_its_streams_name_and_never_reset(streamworker: Invoke) -> None:
    """A checkpoint that is moved would trim what is not archived."""
    assert "Paused 2 partitions of orders.archive" in streamworker.does("pause", "shop:orders.archive")
    assert "Resumed 2 partitions" in streamworker.does("resume", "shop:orders.archive")
    refused = streamworker("reset", "shop:orders.archive", "--to", "latest", "--yes")
    assert refused.exit_code == ExitCode.CONFIGURATION
    assert "is no processor" in refused.stderr
    wrong = streamworker("pause", "shop:other.archive")
    assert "orders.archive" in wrong.stderr


@pytest.mark.usefixtures("trimmed")
def test_size_tells_the_bytes_objects_and_price_of_an_archive(streamworker: Invoke, shop: Path) -> None:
    """The bytes of a record are those of the files; the prices are the user's."""
    asked = ("size", "shop:app", "--rate", "100", "--archive")
    (line,) = streamworker.tells(*asked, "--prices", "0.023,5")
    files = [file.stat().st_size for file in (shop / "lake").glob("partition=*/*.parquet")]
    assert line["bytes_each"] == sum(files) / MANY
    assert line["bytes_day"] == pytest.approx(86_400 * 100 * sum(files) / MANY)
    assert line["objects_day"] == 1_728_000
    month = 30 * (line["bytes_day"] / 1e9 * 0.023 + 1.728 * 5)
    assert line["price_month"] == pytest.approx(month)
    told = streamworker.does(*asked)
    assert "orders" in told and f"{30 * 1_728_000:,}" in told
    wrong = streamworker(*asked, "--prices", "cheap")
    assert wrong.exit_code == ExitCode.USAGE


@pytest.mark.usefixtures("trimmed")
def test_the_exporter_tells_what_waits_and_an_archiver_wants_no_worker_for_it() -> None:
    """It waits for its interval: more workers would archive no sooner."""
    time.sleep(0.4)
    samples = [each for family in Groups(resolve_processors("shop:app")).collect() for each in family.samples]
    of_stream = {each.name: each.value for each in samples if "processor" not in each.labels}
    assert of_stream["streamworker_archive_waiting_records"] == 5
    assert of_stream["streamworker_archive_waiting_seconds"] >= 0.4
    assert of_stream["streamworker_archive_late"] == 1
    assert of_stream["streamworker_archive_only_records"] == MANY
    wants = {each.labels["processor"] for each in samples if each.name == "streamworker_desired_workers"}
    assert wants == {"count"}


LOGGED = (
    SHOP.replace("forward=False)", 'log_archive=Archive(LAKE + "/log", every="100 ms", after="0 seconds"))')
    .replace("async def count(order: Order) -> None:", "async def count(order: Order) -> Order:")
    .replace("or 0) + 1)", "or 0) + 1)\n    return order")
)


def test_peek_shows_rows_that_only_the_archive_has(streamworker: Invoke, shop: Path, redis_url: str) -> None:
    """The newest of all, whether Redis has none of them, some or enough."""
    (shop / "shop.py").write_text(LOGGED.replace("LAKE", repr(str(shop / "lake"))), "utf-8")

    def logged() -> list[int]:
        found = [read_rows(Chain(store_at(f"{shop}/lake/log"), p), log_of(p), 0, MANY) for p in (0, 1)]
        return [n for rows in found for commit in rows for n in commit.rows["order_id"].to_pylist()]

    with opened(redis_url) as raw:

        def log_of(partition: int) -> str:
            return (raw.hget(COUNT.lock(partition), "log") or b"").decode()

        for sent in (0, MANY // 2):
            send(streamworker, sent, MANY // 2)
            work(redis_url, lambda: len(logged()) == sent + MANY // 2, "all rows are archived")  # noqa: B023
        whole = json.loads(streamworker.does("peek", "shop:count", "--last", "1000"))
        assert sorted(row["order_id"] for row in whole) == [*range(MANY)]
        for left in (5, 1, 0):
            for p in (0, 1):
                raw.xtrim(COUNT.acked(p), maxlen=left, approximate=False)
            assert json.loads(streamworker.does("peek", "shop:count", "--last", "1000")) == whole
            assert json.loads(streamworker.does("peek", "shop:count", "--last", "7")) == whole[-7:]
            of_one = json.loads(streamworker.does("peek", "shop:count", "1", "--last", "3"))
            assert [{"partition": 1, **row} for row in of_one] == [r for r in whole if r["partition"] == 1][
                -3:
            ]
    chain = Chain(store_at(f"{shop}/lake/log"), 1)
    first, second, *_ = chain.segments()
    chain.store.delete([first.name])
    left = json.loads(streamworker.does("peek", "shop:count", "1", "--last", "1000"))
    assert left[0]["row"] == second.after.ms, "what has expired is passed over"


@pytest.mark.usefixtures("trimmed")
def test_top_shows_the_archiver_beside_the_processors(streamworker: Invoke) -> None:
    frames = streamworker.does("top", "shop:app", "--once")
    assert "orders → count" in frames and "orders → archive" in frames
