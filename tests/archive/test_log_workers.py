"""Workers archive the acked logs that they own, and trim what is archived; others load none of it."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from streamworker import App, Archive, ConfigurationError
from streamworker.archive.chain import Chain
from streamworker.archive.logs import read_rows
from streamworker.archive.store import store_at
from streamworker.core.data.archives import GROUP
from streamworker.core.data.readers import ReaderPosition, read_position
from streamworker.redisio.keys import GroupKeys
from streamworker.testing import local_worker
from tests.helpers import wait_for_async
from tests.raw import opened
from tests.runtime.workbench import Order

pytestmark = pytest.mark.anyio

KEYS = GroupKeys("shop", "orders", "price")
ROUND = 100


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
