"""Each kind of user does all that it must, and is refused all that it must not do.

On real servers, with the rules as ``streamworker acl`` prints them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import redis

from streamworker import App, Context, DeadLetter
from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.workers.spark import _told_why
from streamworker.core.control import GroupChanged
from streamworker.core.data.readers import ReaderPosition
from streamworker.core.protocols.membership.document import Membership
from streamworker.core.protocols.membership.events import HeartbeatDone, MendDocument
from streamworker.core.protocols.membership.mending import fingerprint
from streamworker.core.snapshot import GroupSnapshot
from streamworker.errors import StreamFull
from streamworker.redisio.admin import growth
from streamworker.redisio.admin.rights import ROLE_NAMES, ROLES
from streamworker.redisio.data import later
from streamworker.redisio.data.statetables import read_due
from streamworker.redisio.group import membership, operations
from streamworker.redisio.group.operation import Access
from streamworker.redisio.group.operations import KEY_TABLE
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY
from streamworker.spark.driver.progress import PipelineProgress
from streamworker.spark.source.archived import ArchivedLogs
from streamworker.spark.source.declared import find_columns, find_stream
from streamworker.spark.source.offsets import Slice
from streamworker.spark.source.options import parse_options
from streamworker.spark.source.schema import spark_schema
from streamworker.spark.source.statetables import TableReader
from streamworker.testing import local_worker
from streamworker.variables import URL_VARIABLE
from tests.cli.conftest import Invoke
from tests.helpers import wait_for_async
from tests.runtime.test_growth import KEYS, declared
from tests.runtime.test_growth import Order as Ordered
from tests.runtime.test_growth_ids import grow
from tests.security.conftest import UrlOf, refusals
from tests.spark.into import Staged, events_of, sink_of, table_of

pytestmark = pytest.mark.anyio


TAG, GROUP_TAG = "sw:{shop.orders.0}", "sw:{shop.orders:price}"
EVENTS, ACKED, DEAD = f"{TAG}:events", f"{TAG}:acked:price", f"{TAG}:dead:price"
LOCK, STATE, MEMBERS = f"{TAG}:lock:price", f"{TAG}:state:price", f"{GROUP_TAG}:members"
CONTROL, READERS, META = f"{GROUP_TAG}:control", f"{GROUP_TAG}:readers", "sw:{shop.orders}:stream"
TABLE = f"{TAG}:table:totals"
OTHER = "sw:{shopping.orders.0}:events"

REFUSED_TO_ALL = (
    # The server.
    ("FLUSHALL",), ("FLUSHDB",), ("SWAPDB", 0, 1), ("CONFIG", "GET", "*"), ("CONFIG", "SET", "maxmemory", 1),
    ("SHUTDOWN",), ("SAVE",), ("BGREWRITEAOF",), ("REPLICAOF", "NO", "ONE"),
    ("FAILOVER",), ("MODULE", "LIST"), ("ACL", "LIST"), ("ACL", "SETUSER", "me", "+@all"), ("SLOWLOG", "GET"),
    ("MONITOR",), ("SCRIPT", "FLUSH"), ("SCRIPT", "KILL"), ("FUNCTION", "LIST"), ("LATENCY", "LATEST"),
    ("CLIENT", "KILL", "TYPE", "normal"), ("CLIENT", "PAUSE", 1), ("CLIENT", "NO-EVICT", "on"),
    ("KEYS", "*"), ("RANDOMKEY",), ("DBSIZE",), ("PUBLISH", "c", "m"), ("SUBSCRIBE", "c"), ("WAIT", 1, 0),
    # Its own app's keys.
    ("DEL", EVENTS), ("UNLINK", EVENTS), ("RENAME", EVENTS, f"{TAG}:x"), ("COPY", EVENTS, f"{TAG}:x"),
    ("EXPIRE", LOCK, 1), ("PERSIST", LOCK), ("DUMP", EVENTS), ("RESTORE", EVENTS, 0, "x"),
    ("MIGRATE", "h", 1, EVENTS, 0, 1), ("SORT", LOCK), ("OBJECT", "ENCODING", EVENTS),
    ("EVAL", "return 1", 0), ("FCALL", "f", 0),
    ("SET", EVENTS, "x"), ("GETDEL", MEMBERS), ("APPEND", MEMBERS, "x"), ("XDEL", EVENTS, "1-0"),
    ("XGROUP", "DESTROY", EVENTS, "price"), ("XACK", EVENTS, "price", "1-0"),
    ("XREADGROUP", "GROUP", "price", "c", "STREAMS", EVENTS, ">"),
    # Another app's, also one whose name begins alike.
    ("XADD", OTHER, "*", "v", "1"), ("XLEN", OTHER), ("XRANGE", OTHER, "-", "+"),
    ("HGETALL", "sw:{other.orders.0}:lock:price"), ("HSET", "sw:{other.orders.0}:lock:price", "owner", "me"),
    ("GET", "sw:{other.orders:price}:members"), ("GET", "session:1"), ("SET", "session:1", "x"),
)  # fmt: skip

READS_RECORDS = (
    ("XRANGE", EVENTS, "-", "+"), ("XREVRANGE", EVENTS, "+", "-"), ("XREAD", "STREAMS", EVENTS, "0-0"),
    ("XINFO", "STREAM", EVENTS), ("XRANGE", DEAD, "-", "+"), ("HGETALL", STATE), ("HSCAN", STATE, 0),
)  # fmt: skip
"""What a user needs to see what people sent."""

WRITES_GROUPS = (
    ("XADD", ACKED, "*", "a", "b"), ("XADD", DEAD, "*", "a", "b"), ("XADD", CONTROL, "*", "a", "b"),
    ("HSET", LOCK, "owner", "me"), ("HDEL", LOCK, "owner"), ("HSET", STATE, "k", "v"),
    ("SET", MEMBERS, "{}"), ("XGROUP", "SETID", EVENTS, "price", "0-0"), ("XDEL", DEAD, "1-0"),
    ("XGROUP", "CREATE", EVENTS, "mine", "0"), ("XSETID", EVENTS, "9-0"),
)  # fmt: skip
"""What commits, owns, or moves a checkpoint."""

TRIMS = (("XTRIM", EVENTS, "MAXLEN", 0), ("XTRIM", ACKED, "MAXLEN", 0))
SCRIPTS = (("SCRIPT", "LOAD", "return 1"), ("EVALSHA", "0" * 40, 1, EVENTS))
SEES_ALL_KEYS = (("SCAN", 0),)

REFUSED: dict[str, tuple[tuple[Any, ...], ...]] = {
    "worker": (*SEES_ALL_KEYS, ("XDEL", DEAD, "1-0"), ("SET", LOCK, "x"), ("SET", ACKED, "x")),
    "producer": (
        ("HGETALL", TABLE), ("HMGET", TABLE, "k"),
        *SEES_ALL_KEYS, *READS_RECORDS, *WRITES_GROUPS, *TRIMS,
        ("XRANGE", ACKED, "-", "+"), ("HGETALL", LOCK), ("GET", MEMBERS), ("XLEN", ACKED), ("SET", META, "x"),
        ("HSET", META, "partitions", 1), ("CLIENT", "LIST"), ("INFO",),
    ),
    "reader": (
        *SEES_ALL_KEYS, *READS_RECORDS, *WRITES_GROUPS, *TRIMS, *SCRIPTS,
        ("XADD", EVENTS, "*", "v", "1"), ("GET", MEMBERS), ("HSET", META, "partitions", 1),
        ("HSET", f"{GROUP_TAG}:schemas", "current", "x"), ("CLIENT", "LIST"), ("HDEL", READERS, "q"),
        ("INFO",), ("HSET", TABLE, "k", "v"), ("HDEL", TABLE, "k"), ("HSET", "sw:{shop.}:declared", "f", "v"),
    ),
    "pipeline": (
        *SEES_ALL_KEYS, *READS_RECORDS, *WRITES_GROUPS, *TRIMS,
        ("GET", MEMBERS), ("HSET", f"{GROUP_TAG}:schemas", "current", "x"), ("CLIENT", "LIST"), ("INFO",),
        ("HDEL", READERS, "q"), ("HSET", TABLE, "k", "v"), ("HSET", "sw:{shop.}:declared", "f", "v"),
    ),
    "viewer": (
        ("HGETALL", TABLE), ("HMGET", TABLE, "k"),
        *SEES_ALL_KEYS, *READS_RECORDS, *WRITES_GROUPS, *TRIMS, *SCRIPTS,
        ("XADD", EVENTS, "*", "v", "1"), ("XRANGE", ACKED, "-", "+"), ("HSET", READERS, "q", "x"),
        ("HSET", META, "partitions", 1), ("HGETALL", f"{GROUP_TAG}:schemas"), ("CLIENT", "LIST"),
        ("GET", f"{TAG}:producer:p"), ("CONFIG", "GET", "maxmemory"),
    ),
    "lookup": (
        *SEES_ALL_KEYS, *READS_RECORDS, *WRITES_GROUPS, *TRIMS, *SCRIPTS,
        ("XADD", EVENTS, "*", "v", "1"), ("HSET", TABLE, "k", "v"), ("HDEL", TABLE, "k"), ("HGETALL", LOCK),
        ("GET", MEMBERS), ("XRANGE", ACKED, "-", "+"), ("CLIENT", "LIST"), ("INFO",),
    ),
    "operator": (("XDEL", ACKED, "1-0"), ("SET", LOCK, "x")),
}  # fmt: skip


class Order(msgspec.Struct):
    customer: str
    amount: int


def shop_app(url: str, coordination: str = "membership") -> App:
    """Return an app whose processor forwards, keeps state and tables, and gives up on negative amounts."""
    app = App("shop", redis_url=url, coordination=coordination, trim_interval_ms=100)
    orders = app.stream("orders", Order, key="customer", partitions=4)
    totals = app.table("totals", int, ttl="1 hour")
    held = app.table("held", int, ttl="0.1 seconds")

    @app.processor(orders, errors=DeadLetter(), tables=[totals, held])
    async def price(order: Order, ctx: Context) -> Order:
        ctx.state["last"] = order.amount
        totals.set(order.customer, (await totals.get(order.customer) or 0) + order.amount)
        if order.amount < 0:
            raise ValueError(order.amount)
        held.set(order.customer, order.amount)
        return order

    @price.expired(held)
    async def over(customer: str, amount: int, ctx: Context) -> None:
        ctx.state["over"] = amount

    return app


async def worked(url: str, coordination: str = "membership") -> None:
    """Send three records and let a worker process them, all as one user."""
    app = shop_app(url, coordination)
    async with local_worker(app, url=url) as worker:
        await app.registry.streams["orders"].send_many([Order("ann", 5), Order("bob", -1), Order("ann", 6)])
        await worker.until_drained()
        await worker.until(lambda now: sum(p.dead for p in now.processors["price"].partitions) == 1)

        async def over() -> bool:
            return await app.registry.tables["held"].count() == 0

        await wait_for_async(over, "the end of the value has called")


def test_each_role_is_in_the_table_of_what_is_refused() -> None:
    """A new role must say what it must not do; a kind of key must be one that there is."""
    assert set(REFUSED) == set(ROLE_NAMES)
    kinds = {row.kind for row in KEY_TABLE}
    for role in ROLES:
        assert {kind for grant in (role.root, *role.selectors) for kind in grant.keys} <= kinds


@pytest.mark.parametrize("role", ROLE_NAMES)
def test_what_a_role_must_not_do_is_refused(url_of: UrlOf, admin: "redis.Redis", role: str) -> None:
    allowed = []
    with redis.Redis.from_url(url_of(role), protocol=2) as user:
        for command in (*REFUSED_TO_ALL, *REFUSED[role]):
            try:
                user.execute_command(*command)
            except redis.exceptions.NoPermissionError:
                continue
            except redis.exceptions.ResponseError as error:
                allowed.append((command, str(error)))
            else:
                allowed.append((command, ""))
    admin.execute_command("ACL", "LOG", "RESET")
    assert allowed == []


def granted(admin: "redis.Redis", *categories: str) -> dict[str, set[str]]:
    """Return the commands of each role that are in one of some categories, by the server's own list."""
    found = [name.decode() for each in categories for name in admin.execute_command("ACL", "CAT", each)]
    return {
        role.name: {name for grant in (role.root, *role.selectors) for name in grant.commands} & {*found}
        for role in ROLES
    }


def test_no_role_has_a_dangerous_command_but_those_that_are_named(
    url_of: UrlOf, admin: "redis.Redis"
) -> None:
    """A command that a later server adds to its list is refused, too."""
    del url_of
    worker = {"client|list", "client|unblock", "info"}
    assert granted(admin, "dangerous", "admin") == {
        "worker": worker, "producer": set(), "reader": set(), "pipeline": set(), "viewer": {"info"},
        "operator": worker,
        "lookup": set(),
    }  # fmt: skip


def test_what_a_role_can_write_is_what_its_work_writes(url_of: UrlOf, admin: "redis.Redis") -> None:
    """A viewer nothing at all, a reader its position."""
    del url_of
    writes = granted(admin, "write")
    assert writes["viewer"] == set()
    assert writes["reader"] == {"hset"}
    assert writes["pipeline"] == {"hdel", "hset", "hsetnx", "xadd"}
    assert writes["producer"] == {"hdel", "hset", "hsetnx", "set", "xadd", "zadd", "zrem"}
    assert writes["operator"] == writes["worker"]
    deletes = {
        role.name: grant.keys for role in ROLES for grant in role.selectors if "xdel" in grant.commands
    }
    assert deletes == {"worker": ("outbox",), "operator": ("dead", "outbox")}


async def test_a_worker_has_all_that_it_needs(url_of: UrlOf) -> None:
    """It joins, reads, keeps state, forwards, gives up on a record, trims and leaves."""
    await worked(url_of("worker"))


async def mends(backend: Backend, keys: GroupKeys, seen: str) -> None:
    after = Membership.empty(4, "range")
    effect = MendDocument(seen, after, GroupChanged(0, "repaired", "w1", ()), 1)
    await operations.OPERATIONS[MendDocument](Access(backend, keys, 1_000), effect)


async def beats(backend: Backend, keys: GroupKeys, seen: str) -> None:
    (reply,) = await membership.heartbeat(backend, [membership.Renewal(keys, "a.1", 1, "run")])
    assert isinstance(reply, HeartbeatDone) and reply.lost


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@pytest.mark.parametrize(("key", "put_aside"), [("members", mends), ("beats", beats)])
async def test_a_worker_and_an_operator_may_put_aside_what_stands_in_place_of_a_key(
    url_of: UrlOf, admin: "redis.Redis", key: str, put_aside: Callable[..., Awaitable[None]]
) -> None:
    """A string, a value of another type, one that is too large to be kept, and one more than is kept."""
    keys = GroupKeys("shop", "orders", "price")
    name = getattr(keys, key)
    for role in ("worker", "operator"):
        async with Backend.open(url_of(role), name=role) as backend:
            for seen, *values in (
                (fingerprint(b"x"), "SET", "x"),
                ("list", "RPUSH", "x"),
                ("list", "RPUSH", *["x" * 100_000] * 20),
                ("list", "RPUSH", "one more"),
            ):
                admin.delete(name)
                if values[-1] != "one more":
                    admin.delete(keys.damaged)
                admin.execute_command(values[0], name, *values[1:])
                await put_aside(backend, keys, seen)
                assert not admin.exists(name)
                assert await membership.quarantined(backend, keys)
        assert admin.unlink(keys.damaged)


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@pytest.mark.parametrize("coordination", ["claim", "lease"])
async def test_a_worker_has_all_that_the_other_protocols_need(url_of: UrlOf, coordination: str) -> None:
    """On one server: the rights are the same, and a claim takes a second."""
    await worked(url_of("worker"), coordination)


async def test_a_stream_grows_with_the_rights_of_an_operator_and_of_its_workers(url_of: UrlOf) -> None:
    """A worker may also go on with a growth that somebody has left."""
    app, keys = App("shop", redis_url=url_of("worker")), StreamKeys("shop", "orders")
    orders, handled = app.stream("orders", Order, partitions=2), list[Order]()

    @app.processor(orders)
    async def count(order: Order) -> None:
        handled.append(order)

    async with app, app.worker():
        for number, role in enumerate(("operator", "worker"), 3):
            await orders.send_many([Order("ann", n) for n in range(50)])
            async with Backend.open(url_of(role), name="t") as backend:
                await growth.prepare(backend, keys, number, MEMORY)
                await growth.go_on(backend, keys, MEMORY, "t")
                assert await growth.heal(backend, keys, range(2 + number), MEMORY) == ""
        await wait_for_async(lambda: len(handled) == 100, "all is handled")


async def test_a_producer_has_all_that_it_needs(url_of: UrlOf, redis_url: str) -> None:
    """It declares, sends one and many; a full partition makes it wait, and drops nothing."""
    app = shop_app(url_of("producer"))
    orders = app.registry.streams["orders"]
    try:
        await orders.send(Order("ann", 1))
        await orders.send_many([Order("ann", n) for n in range(50)])
    finally:
        await app.aclose()
    async with Backend.open(redis_url, name="t") as backend:
        snapshot = await take_snapshot(backend, "shop", "orders", "price")
    assert sum(view.length for view in snapshot.partitions) == 51


async def test_a_producer_cannot_trim_a_full_partition_that_a_worker_may_trim(
    url_of: UrlOf, admin: "redis.Redis"
) -> None:
    """Its send finds the partition full until somebody who may trims it, and Redis has refused it nothing."""
    as_producer, as_worker = (
        App("shop", redis_url=url_of(role), partition_records_max=10) for role in ("producer", "worker")
    )
    senders = [
        app.stream("orders", Order, partitions=1, single_entries=True) for app in (as_producer, as_worker)
    ]
    try:
        await senders[0].send_many([Order("ann", n) for n in range(10)])
        admin.execute_command("XGROUP", "CREATE", EVENTS, "price", "$")
        with pytest.raises(StreamFull):
            await senders[0].send(Order("ann", 10), on_full="raise")
        assert admin.xlen(EVENTS) == 10
        await senders[1].send(Order("ann", 10), timeout=30)
        assert admin.xlen(EVENTS) == 1
    finally:
        for app in (as_producer, as_worker):
            await app.aclose()


async def view_of(url: str) -> GroupSnapshot:
    async with Backend.open(url, name="t") as backend:
        return replace(await take_snapshot(backend, "shop", "orders", "price"), taken_ms=0)


def test_a_viewer_has_all_that_it_needs(
    url_of: UrlOf, redis_url: str, shop: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees of a group what somebody sees who may do anything; each command that shows it works."""
    del shop
    anyio.run(worked, redis_url)
    seen = anyio.run(view_of, url_of("viewer"))
    assert seen == anyio.run(view_of, redis_url)
    assert (seen.lag, sum(view.dead for view in seen.partitions)) == (0, 1)
    monkeypatch.setenv(URL_VARIABLE, url_of("viewer"))
    for command in ("status", "lag", "history", "top"):
        result = invoke(command, "shop:price")
        assert (result.exit_code, "price" in result.output) == (0, True), result.output


async def test_a_web_service_that_looks_up_values_has_all_that_it_needs(
    url_of: UrlOf, redis_url: str
) -> None:
    """It gets, scans and counts what a worker has committed."""
    await worked(redis_url)
    async with shop_app(url_of("lookup")) as app:
        totals = app.registry.tables["totals"]
        assert (await totals.get("ann"), await totals.get("bob")) == (11, None)
        assert [each async for each in totals.scan()] == [("ann", 11)]
        assert await totals.count() == 1
        assert await read_due(app.backend(), GroupKeys("shop", "orders", "price"), "held", 0, 10) == []


def test_a_viewer_sees_the_true_lag_after_a_deletion(
    url_of: UrlOf, redis_url: str, admin: "redis.Redis"
) -> None:
    """After XDEL Redis does not know it; the lock and the counts of the stream do; a viewer reads them."""
    anyio.run(worked, redis_url)
    partition = 3
    events = f"sw:{{shop.orders.{partition}}}:events"
    admin.xadd(events, {"v": "{}"}, id="99999999999999-0")
    admin.xadd(events, {"v": "{}"}, id="99999999999999-1")
    admin.xdel(events, "99999999999999-0")
    assert anyio.run(view_of, url_of("viewer")).partitions[partition].lag == 1
    admin.execute_command("ACL", "LOG", "RESET")


def test_an_operator_has_all_that_it_needs(
    url_of: UrlOf,
    redis_url: str,
    admin: "redis.Redis",
    shop: Path,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks at dead letters, replays and drops them, erases, moves a checkpoint and asks the doctor."""
    del shop
    anyio.run(worked, redis_url)
    monkeypatch.setenv(URL_VARIABLE, url_of("operator"))
    for command in (
        ("dead", "list", "shop:price"),
        ("erase", "shop:app", "--key", "bob", "--yes"),
        ("dead", "drop", "shop:price", "--all", "--yes"),
        ("dead", "replay", "shop:price", "--all"),
        ("reset", "shop:price", "--to", "latest", "--clear-tables", "--yes"),
        ("table", "list", "shop:app"),
        ("status", "shop:price"),
        ("doctor", "shop:app"),
    ):
        if command[1] == "replay":
            anyio.run(worked, redis_url)  # The letter before was dropped.
        result = invoke(*command)
        assert (result.exit_code, "NOPERM" in result.output) == (0, False), (command, result.output)
    # CONFIG GET would show the server's passwords; the doctor then says what it could not look at.
    allowed = {"client|setinfo", "config|get", "acl|whoami", "script|exists"}
    assert {refused for _, refused in refusals(admin)} <= allowed
    admin.execute_command("ACL", "LOG", "RESET")


def test_a_reader_has_all_that_it_needs(
    url_of: UrlOf, redis_url: str, admin: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark's driver and executors ask, and the position that they leave."""
    anyio.run(worked, redis_url)
    monkeypatch.setenv(URL_VARIABLE, url_of("reader"))
    clients: dict[object, Any] = {}
    monkeypatch.setattr("streamworker.spark.source.connection._clients", clients)
    logs = ArchivedLogs(
        parse_options({"app": "shop", "stream": "orders", "processor": "price", "reader": "q"})
    )
    tails = logs.tails()
    logs.first_positions(tails)
    assert logs.schema().names == ["customer", "amount"]
    assert find_stream(parse_options({"app": "shop", "processor": "price"})) == "orders"
    options = parse_options({"app": "shop", "stream": "orders", "table": "totals"})
    table = TableReader(options, find_columns(options), spark_schema(find_columns(options), options))
    rows = [row for task in table.partitions() for page in table.read(task) for row in page.to_pylist()]
    assert rows == [{"customer": "ann", "value": 11}]
    slices = [Slice(p, tail.log, 0, tail.rows) for p, tail in tails.items() if tail.rows]
    assert sum(entry.batch.num_rows for part in slices for entry in logs.read(part)) == 2
    logs.register(tails, 1, retry=False)
    logs.hold(["late"], tails, 1, retry=False)
    logs.renew("batch-1", ReaderPosition({0: 0}, {0: tails[0].log}, 1), retry=False)
    assert admin.hexists(READERS, "q") and admin.hexists(READERS, "late")
    assert admin.hexists(f"{GROUP_TAG}:holds", "batch-1")
    for opened in clients.values():
        opened.close()


def test_a_pipeline_has_all_that_it_needs_to_send_into_a_stream(
    url_of: UrlOf, admin: "redis.Redis", tmp_path: Path
) -> None:
    """Beside what a reader has: it declares the stream, appends once, and looks where partitions stand."""
    stream = events_of(url_of("pipeline"))
    for number in range(3):
        sink = sink_of(stream, tmp_path)
        sink.begin(rows := Staged(table_of(range(number * 50, number * 50 + 50))))
        sink(rows, number)
    assert admin.xlen("sw:{shop.events.0}:events") > 0
    assert {refused for _, refused in refusals(admin)} <= {"client|setinfo"}
    admin.execute_command("ACL", "LOG", "RESET")


def test_a_run_of_spark_by_a_reader_succeeds_without_a_look_at_partitions(
    url_of: UrlOf, admin: "redis.Redis", capsys: pytest.CaptureFixture[str]
) -> None:
    """A viewer may look, a reader only reads rows: what it could not see is said, and is no failure."""
    for user, said in (("viewer", ""), ("reader", "Whether partitions stand still is not known.")):
        app = App("shop", redis_url=url_of(user))
        price = app.processor(app.stream("orders", Order, key="customer"), name="price")(lambda order: order)
        app.pipeline(price, name="prices", path="lake")(lambda rows: rows)
        assert (
            _told_why(app, None, {"prices": PipelineProgress("prices", "done")}, has_read=True) == ExitCode.OK
        )
        assert said in capsys.readouterr().err
    admin.execute_command("ACL", "LOG", "RESET")


async def test_a_producer_goes_on_with_ids_and_delays_when_its_stream_grows(
    url_of: UrlOf, redis_url: str
) -> None:
    """It asks old partitions for an id, and moves what it has scheduled; workers move the rest."""
    app, orders = declared(url_of("producer"))
    async with app, Backend.open(redis_url, name="tool") as tool:
        first = await orders.send(Ordered("ann", "me", 1), id="a")
        for number in range(3):
            await orders.schedule(Ordered("ann", "me", number), id=str(number), after=60)
        await grow(tool, 12)
        assert (await orders.send(Ordered("ann", "me", 2), id="a")).entry_id == first.entry_id
        assert await orders.cancel("1", key="ann")
        assert (await orders.schedule(Ordered("ann", "me", 9), id="2", after=60)).duplicate
        async with Backend.open(url_of("worker"), name="worker") as worker:
            place_of = orders.spec.placement.partition_of
            assert await later.hand_on(worker, KEYS, 3, place_of, MEMORY) == 0
            assert {each.id for each in await later.waiting(worker, KEYS, 13)} == {"0", "2"}
