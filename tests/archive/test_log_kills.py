"""Workers are killed, and stopped until others own their partitions, while they archive their logs."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from streamworker.archive.chain import Chain
from streamworker.archive.store import store_at
from streamworker.core.data.archivelife import faults_in
from streamworker.core.data.archives import GROUP
from streamworker.core.data.readers import read_position
from streamworker.redisio.keys import GroupKeys
from tests.conftest import SpawnWorker
from tests.helpers import wait_for
from tests.raw import opened

PARTITIONS = 4
KEYS = GroupKeys("shop", "orders", "price")
APP = """
import msgspec
from streamworker import App, Archive

app = App(
    "shop", heartbeat_interval_ms=200, session_timeout_ms=1_500, dead_after_ms=600, call_timeout_ms=500,
    trim_interval_ms=100,
)

class Order(msgspec.Struct):
    n: int

orders = app.stream("orders", Order, partitions=4, single_entries=True)

@app.processor(orders, batch=50, log_archive=Archive("LAKE", every="100ms", after="0 seconds"))
async def price(batch: list[Order]) -> list[Order]:
    return batch
"""


@pytest.mark.full("workers are killed for half a minute")
@pytest.mark.timeout(300)
def test_killed_and_stopped_owners_leave_one_chain_with_each_row_once(
    redis_url: str, spawn: SpawnWorker, write_app: Callable[[str, str], Path], tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    write_app("shop", APP.replace("LAKE", str(lake)))
    rng, names, sent = random.Random(5), iter(range(100)), 0
    workers = [spawn("run", "shop:app", "--name", f"w{next(names)}") for _ in range(3)]
    with opened(redis_url) as raw:
        wait_for(lambda: raw.exists(KEYS.members), "workers have joined")

        def send(records: int) -> None:
            nonlocal sent
            pipe = raw.pipeline(transaction=False)
            for n in range(sent, sent + records):
                pipe.xadd(KEYS.events(rng.randrange(PARTITIONS)), {"v": f'{{"n":{n}}}'})
            pipe.execute()
            sent += records

        for hit in range(12):
            for _ in range(10):
                send(40)
                time.sleep(0.05)
            worker = rng.choice(workers)
            if hit % 3 == 2:
                worker.pause()
                end = time.monotonic() + 2.5  # Others take its partitions meanwhile.
                while time.monotonic() < end:
                    send(20)
                    time.sleep(0.05)
                worker.resume()
            else:
                worker.kill()
                workers.remove(worker)
                workers.append(spawn("run", "shop:app", "--name", f"w{next(names)}"))
        wait_for(lambda: archived(raw) == sent, f"all {sent} rows are archived", timeout_s=60)
        assert read_position(raw.hget(KEYS.readers, GROUP)).failed == ""
    for p in range(PARTITIONS):
        chain = Chain(store_at(str(lake)), p)
        links = [link for each in chain.segments() if (link := chain.footer(each.after)) is not None]
        assert faults_in(links, p) == []
        assert links[0].after.ms == 0
        assert sum(link.records for link in links) == links[-1].last.ms
    files = f"from '{lake}/partition=*/*.parquet'"
    once = "count(*), count(distinct n), count(distinct (_partition, _offset)), min(n), max(n)"
    assert duckdb.execute(f"select {once} {files}").fetchall() == [(sent, sent, sent, 0, sent - 1)]
    steps = "_offset - lag(_offset) over w as step, n - lag(n) over w as later"
    window = "window w as (partition by _partition order by _offset)"
    wrong = f"select * from (select {steps} {files} {window}) where step <> 1 or later <= 0"
    assert duckdb.execute(wrong).fetchall() == []
    said = "".join(each.read_text() for each in tmp_path.glob("process-*.log")).count("archive_went_on")
    print(f"{sent} rows in {len([*lake.rglob('*.parquet')])} segments, of which {said} were found and passed")


def archived(raw: Any) -> int:
    """Return how many rows the archive has, if it has all that the locks count."""
    rows = read_position(raw.hget(KEYS.readers, GROUP) or b"").rows
    locks = [int(raw.hget(KEYS.lock(p), "rows") or 0) for p in range(PARTITIONS)]
    return sum(rows.values()) if [rows.get(p, 0) for p in range(PARTITIONS)] == locks else -1
