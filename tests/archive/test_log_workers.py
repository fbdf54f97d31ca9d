"""Workers archive the acked logs that they own, and trim what is archived; others load none of it."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from streamworker import App, Archive, ConfigurationError, Stream
from streamworker.archive.chain import Chain
from streamworker.archive.logs import read_rows
from streamworker.archive.store import store_at
from streamworker.core.data.archives import GROUP
from streamworker.core.data.readers import ReaderPosition, read_position
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.testing import local_worker
from tests.helpers import wait_for_async
from tests.raw import opened
from tests.runtime.test_grown_groups import grow
from tests.runtime.workbench import Order

pytestmark = [pytest.mark.anyio, pytest.mark.full("starts workers, and waits for what they archive")]

KEYS = GroupKeys("shop", "orders", "price")
ROUND = 100


class Keyed(msgspec.Struct):
    customer: str
    n: int


class Odd(msgspec.Struct):
    number: int
    _offset: int = 0


async def test_workers_archive_their_logs_and_trim_them_then(redis_url: str, tmp_path: Path) -> None:
    """The reader is there before the first row; what a killed worker leaves is archived by the next."""
    lake = str(tmp_path / "lake")
    with opened(redis_url) as raw:

        def position() -> ReaderPosition:
            return read_position(raw.hget(KEYS.readers, GROUP))

        raw.config_set("stream-node-max-entries", 1)
        for start in range(0, 3 * ROUND, ROUND):
            app = App("shop", redis_url=redis_url, trim_interval_ms=50)
            orders = app.stream("orders", Order, partitions=2, single_entries=True)
            archive = Archive(lake, every="200ms", after="0 seconds")

            @app.processor(orders, log_archive=archive, log_metadata=True)
            async def price(order: Order) -> Order:
                return order

            async with local_worker(app, url=redis_url) as worker:
                assert raw.hexists(KEYS.readers, GROUP)
                await orders.send_many([Order(n) for n in range(start, start + ROUND)])
                await worker.until_drained()
                if start == ROUND:
                    await worker.kill()
                    continue

                def all_archived(end: int = start + ROUND) -> bool:
                    return sum(position().rows.values()) == end

                def all_trimmed() -> bool:
                    return bool(raw.xlen(KEYS.acked(0)) == raw.xlen(KEYS.acked(1)) == 0)

                await wait_for_async(all_archived, "all is archived")
                await wait_for_async(all_trimmed, "the log is trimmed")
        raw.config_set("stream-node-max-entries", 100)
        assert raw.hget(KEYS.meta, "archive:price") == lake.encode()
        found = []
        for p in (0, 1):
            for commit in read_rows(Chain(store_at(lake), p), position().logs[p], 0, position().rows[p]):
                assert "sw:sent_at" in commit.rows.schema.names
                found += commit.rows["number"].to_pylist()
    assert sorted(found) == [*range(3 * ROUND)]


def grown_app(url: str, lake: str, every: str, partitions: int) -> tuple[App, Stream[Keyed]]:
    app = App("shop", redis_url=url, trim_interval_ms=50, heartbeat_interval_ms=200)
    orders = app.stream("orders", Keyed, key="customer", partitions=partitions)

    @app.processor(orders, log_archive=Archive(lake, every=every, after="0 seconds"))
    async def price(order: Keyed) -> Keyed:
        return order

    return app, orders


async def test_what_a_sealed_partition_leaves_is_archived_though_nobody_owns_it(
    redis_url: str, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    app, orders = grown_app(redis_url, lake, "1 day", 1)
    with opened(redis_url) as raw:
        async with local_worker(app, url=redis_url) as worker, Backend.open(redis_url, name="t") as backend:
            await orders.send_many([Keyed(f"c{n}", n) for n in range(50)])
            await worker.until_drained()
            await grow(backend, 2)
            await orders.send_many([Keyed(f"c{n}", n) for n in range(50)])
            await worker.until_drained()
            await wait_for_async(lambda: bool(raw.hget(KEYS.lock(0), "done")), "the old partition is done")
        app, orders = grown_app(redis_url, lake, "100ms", 1)

        def archived() -> dict[int, int]:
            return dict(read_position(raw.hget(KEYS.readers, GROUP)).rows)

        async with local_worker(app, url=redis_url):
            await wait_for_async(lambda: sum(archived().values()) == 100, "all is archived")
    assert archived()[0] == 50
    footer = Chain(store_at(lake), 0).last()
    assert footer is not None
    assert (footer.owner, footer.epoch) == ("", 0)


async def test_a_redis_that_was_emptied_under_workers_keeps_its_archive_and_halts_it(
    redis_url: str, tmp_path: Path
) -> None:
    """The rows of the new log have the numbers of archived ones. The processor goes on."""
    lake = str(tmp_path / "lake")
    app, orders = grown_app(redis_url, lake, "100ms", 1)
    with opened(redis_url) as raw:

        def position() -> ReaderPosition:
            return read_position(raw.hget(KEYS.readers, GROUP) or b"")

        async with local_worker(app, url=redis_url) as worker:
            await orders.send_many([Keyed(f"c{n}", n) for n in range(10)])
            await wait_for_async(lambda: sum(position().rows.values()) == 10, "all is archived")
            before = raw.hget(KEYS.meta, "archive_id:price")
            raw.flushall()
            await wait_for_async(lambda: bool(raw.hexists(KEYS.readers, GROUP)), "workers declare it again")
            await orders.send_many([Keyed(f"c{n}", n) for n in range(10)])
            await wait_for_async(lambda: "began anew" in position().failed, "the archive halts")
            await orders.send(Keyed("c1", 1))
            await worker.until_drained()
        assert raw.hget(KEYS.meta, "archive_id:price") == before
        assert position().rows == {}
    assert len(store_at(lake).names("partition=0")) == 1


async def test_rows_with_a_column_of_the_archives_are_refused_at_the_start(
    redis_url: str, tmp_path: Path
) -> None:
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order)

    @app.processor(orders, log_archive=str(tmp_path))
    async def price(order: Order) -> Odd:
        return Odd(order.number)

    with pytest.raises(ConfigurationError, match="column '_offset'"):
        async with local_worker(app, url=redis_url):
            pass


async def test_a_processor_without_an_acked_log_has_no_archive(tmp_path: Path) -> None:
    app = App("shop")
    orders = app.stream("orders", Order)
    with pytest.raises(ConfigurationError, match="has log_archive, and no acked log"):

        @app.processor(orders, log_archive=str(tmp_path))
        async def price(order: Order) -> None: ...


NONE = """
import asyncio, sys
import msgspec
from streamworker import App
from streamworker.testing import local_worker

class Order(msgspec.Struct):
    number: int

app = App("shop")
orders = app.stream("orders", Order)

@app.processor(orders)
async def price(order: Order) -> Order:
    return order

async def main():
    async with local_worker(app) as worker:
        await orders.send(Order(1))
        await worker.until_drained()
        assert len(await worker.rows(price)) == 1

asyncio.run(main())
ours = ("streamworker.archive", "streamworker.runtime.archive.", "obstore", "pyarrow.parquet")
print([name for name in sys.modules if name.startswith(ours)])
"""


def test_a_worker_without_an_archive_loads_none_of_it(tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(NONE)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
