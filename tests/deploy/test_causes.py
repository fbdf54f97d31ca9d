"""Each alert fires in a real Prometheus on the series of an app in which its cause is made, and none before.

The rules are those of ``deploy/prometheus``; only their minutes are counted as seconds.
"""

import json
import math
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from streamworker.dev.server import EmbeddedServer, free_port
from streamworker.importing import resolve_stream
from streamworker.redisio.keys import GroupKeys
from tests.chaos.forked import Forked
from tests.cli.conftest import folder
from tests.conftest import SpawnWorker
from tests.deploy.test_prometheus import RULES, alerts
from tests.deploy.test_scraped import CONFIG, Prometheus
from tests.helpers import wait_for

__all__ = ["folder"]

pytestmark = [pytest.mark.soak("three minutes of load and faults, and a Spark"), pytest.mark.timeout(900)]

APP = """
import os
import time
from datetime import timedelta
from pathlib import Path

import msgspec
from streamworker import App, DeadLetter, Halt, Retry

app = App("shop")


class Order(msgspec.Struct):
    n: int
    kind: str
    key: str


orders = app.stream("orders", Order, key="key", partitions=4, retention="1 hour")


@app.processor(orders, errors=Halt())
async def halts(order: Order) -> None:
    if order.kind == "halt":
        raise ValueError(order.kind)


@halts.timer(every=timedelta(seconds=1))
async def report() -> None: ...


@app.processor(orders, errors=Retry())
async def retries(order: Order) -> None:
    if order.kind == "retry":
        raise ValueError(order.kind)


@app.processor(orders, errors=DeadLetter())
async def gives_up(order: Order) -> None:
    if order.kind == "bad":
        raise ValueError(order.kind)


@app.processor(orders)
async def dies(order: Order) -> None:
    if order.kind == "kill":
        os._exit(1)


@app.processor(orders)
async def stops_the_loop(order: Order) -> None:
    if order.kind == "slow":
        time.sleep(1.5)


@app.processor(orders)
async def prices(order: Order) -> Order:
    return order


@app.pipeline(prices, path="lake", trigger="1 second")
def lake(rows):
    return rows.where("assert_true(kind <> 'bad') is null")
"""
WORKERS = 4


def of_seconds(rules: str) -> str:
    """Return the rules with each minute as a second: durations, ranges, and the times they compare with."""
    rules = rules.replace(":30s]", ":500ms]").replace("[1h", "[60m").replace("[1d", "[1440m")
    rules = re.sub(r"\b(\d+)m\b", r"\1s", rules)
    return re.sub(r"seconds > (\d\d+)", lambda found: f"seconds > {int(found[1]) // 60}", rules)


class Load:
    """Fifty orders in each tenth of a second, among them one of each kind that is asked for."""

    def __init__(self) -> None:
        self.always: list[str] = []
        self.once: list[str] = []
        self._stream = resolve_stream("shop:orders")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        order, n = self._stream.spec.record.python_type, 0
        while not self._ended.wait(0.1):
            once, self.once = self.once, []
            kinds = [*once, *self.always, *["usual"] * 50]
            keys = [str(at) if kind == "usual" else kind for at, kind in enumerate(kinds)]
            self._stream.sync.send_many([order(n, kind, key) for kind, key in zip(kinds, keys, strict=True)])
            n += len(kinds)


@pytest.fixture
def its_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(maxmemory="0") as its_server:
        yield its_server


@pytest.fixture
def shop(folder: Path, its_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STREAMWORKER_REDIS_URL", its_server.url)
    (folder / "shop.py").write_text(APP, "utf-8")
    (folder / "rules.yml").write_text(of_seconds(RULES.read_text("utf-8")), "utf-8")
    return folder


@pytest.fixture
def load(shop: Path) -> Iterator[Load]:
    load = Load()
    yield load
    load.end()


def test_each_alert_fires_on_its_cause_and_none_while_all_is_well(
    shop: Path, spawn: SpawnWorker, its_server: EmbeddedServer, load: Load
) -> None:
    """A quiet half minute, then all causes that can stand beside one another, at last the ends of servers."""
    ports = [free_port() for _ in range(WORKERS + 1)]
    environ = {"STREAMWORKER_REDIS_URL": its_server.url}
    exporter = spawn("exporter", "shop:app", "--port", str(ports[-1]), cwd=shop, environ=environ)

    def run(at: int, *more: str, hold_ms: int = 30_000) -> Forked:
        options = ("--name", f"w{at}", "--metrics-port", str(ports[at]), *more)
        held = {"STREAMWORKER_HOLD_MS": str(hold_ms)}
        return spawn("run", "shop:app", *options, cwd=shop, environ=environ | held)

    workers = [run(at) for at in range(WORKERS)]
    spawn("spark", "shop:app", cwd=shop, environ=environ)
    targets = json.dumps([f"127.0.0.1:{port}" for port in ports[:-1]])
    config = CONFIG.replace("500ms", "1s").format(
        rules=shop / "rules.yml", exporter=ports[-1], workers=targets
    )
    with Prometheus(shop, config) as prometheus:

        def fired() -> set[str]:
            since = f"{math.ceil(time.monotonic() - begun_s)}s"
            query = f'count by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{since}]))'
            return set(prometheus.ask(query, "alertname"))

        def wait_for_alerts(*names: str) -> None:
            try:
                wait_for(lambda: fired() >= set(names), f"{len(names)} alerts have fired", timeout_s=180)
            except AssertionError as error:
                error.add_note(f"silent: {sorted(set(names) - fired())}")
                raise

        active = 'min(streamworker_members{state="active"})'
        wait_for(lambda: prometheus.ask(active) == {"": WORKERS}, "the workers have joined", timeout_s=60)
        read = "min(streamworker_reader_lag_rows)"
        wait_for(lambda: prometheus.ask(read).get("", 1000) < 1000, "Spark reads", timeout_s=240)
        wait_for(lambda: prometheus.alerts() == ([], set()), "each rule is evaluated", timeout_s=120)
        begun_s = time.monotonic()
        time.sleep(30)  # The half hour in which nothing may fire, not a wait.
        assert fired() == set()

        load.always, load.once = ["bad", "slow"], ["halt", "retry", "kill"]
        with redis.Redis.from_url(its_server.url) as raw:
            raw.config_set("maxmemory", raw.info("memory")["used_memory"] + 30_000_000)
            wait_for_alerts("StreamworkerRecordKills")
            gone = [at for at, each in enumerate(workers) if not each.running]
            *new, seat = [run(at) for at in gone[:-1]] + [run(gone[-1], "--static-id=seat", hold_ms=600_000)]
            wait_for(lambda: all("joined" in each.log() for each in (*new, seat)), "all are there")
            seat.kill()  # Its partitions wait for it, so that they have no owner.
            keys = GroupKeys("shop", "orders", "prices")
            raw.delete(keys.acked(1))
            raw.set(keys.acked(1), "of another program")  # It holds up a partition, and ends the query.
            given_up = GroupKeys("shop", "orders", "gives_up")
            while "StreamworkerCommitsFenced" not in fired():
                for p in range(4):  # As if another worker had them.
                    raw.hincrby(given_up.lock(p), "epoch", 1)
                time.sleep(2)  # They are fenced meanwhile, and again.
            last = {"StreamworkerRedisDown", "StreamworkerExporterDown", "StreamworkerNoWorker"}
            elsewhere = {
                "StreamworkerDataLost"
            }  # tests/runtime/test_meters.py: these workers have just begun.
            wait_for_alerts(*alerts().keys() - last - elsewhere)
        load.end()
        for worker in (*workers, *new):
            worker.kill()
        wait_for_alerts("StreamworkerNoWorker")
        its_server.stop()
        wait_for_alerts("StreamworkerRedisDown")
        exporter.kill()
        wait_for_alerts("StreamworkerExporterDown")
        print(f"{len(fired())} alerts fired within {time.monotonic() - begun_s:.0f} s")
