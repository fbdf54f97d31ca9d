"""A real Prometheus scrapes the exporter and three workers under load, and one of them is killed.

SCRAPED_SECONDS=600 makes the load longer.
"""

import json
import os
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
import redis

from streamworker.dev.server import free_port
from streamworker.importing import resolve_stream
from streamworker.redisio.keys import GroupKeys
from tests.cli.conftest import SHOP, folder
from tests.conftest import SpawnWorker
from tests.helpers import LoggedProcess, wait_for

__all__ = ["folder"]

pytestmark = [
    pytest.mark.full("needs prometheus of the package prometheus, and a load"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

RULES = Path(__file__).parents[2] / "deploy/prometheus/rules.yml"
SECONDS = float(os.environ.get("SCRAPED_SECONDS", "8"))
WORKERS = ("w1", "w2", "w3")
CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: streamworker-exporter
    static_configs: [{{targets: ["127.0.0.1:{exporter}"]}}]
  - job_name: streamworker-worker
    static_configs: [{{targets: {workers}}}]
"""


class Prometheus:
    """The program, and queries to it."""

    def __init__(self, at: Path, config: str) -> None:
        (at / "prometheus.yml").write_text(config, "utf-8")
        self.port = free_port()
        options = [f"--web.listen-address=127.0.0.1:{self.port}", f"--storage.tsdb.path={at / 'data'}"]
        command = ["prometheus", f"--config.file={at / 'prometheus.yml'}", *options]
        self.process = LoggedProcess(command, cwd=at, log_path=at / "prometheus.log", environ=os.environ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(30)

    def get(self, path: str, **given: str) -> Any:
        """Return what its interface answers; an empty result while it does not answer."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?" + urllib.parse.urlencode(given)
        with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
        return {"result": []}

    def ask(self, query: str, label: str = "") -> dict[str, float]:
        """Return the values of a query by a label."""
        found = self.get("query", query=query)["result"]
        return {each["metric"].get(label, ""): float(each["value"][1]) for each in found}

    def alerts(self) -> tuple[list[str], set[str]]:
        """Return the errors of rules that could not be evaluated, and the alerts that fire."""
        rules = [rule for group in self.get("rules")["groups"] for rule in group["rules"]]
        assert len(rules) > 10 and all(rule["health"] != "unknown" for rule in rules)
        wrong = [rule["lastError"] for rule in rules if rule["health"] != "ok"]
        return wrong, {rule["name"] for rule in rules if rule["state"] == "firing"}


@pytest.fixture
def shop(folder: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an app whose acked log says which worker committed what."""
    monkeypatch.setenv("STREAMWORKER_REDIS_URL", redis_url)
    (folder / "shop.py").write_text(SHOP.replace("partitions=4", "partitions=12"), "utf-8")
    return folder


@pytest.fixture
def ports() -> dict[str, int]:
    return {name: free_port() for name in ("exporter", *WORKERS)}


@pytest.fixture
def prometheus(shop: Path, ports: dict[str, int]) -> Iterator[Prometheus]:
    targets = json.dumps([f"127.0.0.1:{ports[name]}" for name in WORKERS])
    with Prometheus(shop, CONFIG.format(rules=RULES, exporter=ports["exporter"], workers=targets)) as program:
        yield program


def committed_by(raw: Any, partitions: int) -> Counter[str]:
    """Return the records of each worker, from the acked logs: each entry names its owner."""
    found: Counter[str] = Counter()
    for p in range(partitions):
        before = 0
        for entry_id, fields in raw.xrange(GroupKeys("shop", "orders", "price").acked(p)):
            rows = int(entry_id.partition(b"-")[0])
            found[fields[b"owner"].decode().partition(".")[0]] += rows - before
            before = rows
    return found


def test_what_prometheus_sums_is_what_was_sent_though_a_worker_was_killed(
    shop: Path, spawn: SpawnWorker, prometheus: Prometheus, ports: dict[str, int], redis_url: str
) -> None:
    """Exactly, by the exporter and by each worker; of the killed one all that was scraped is true."""
    spawn("exporter", "shop:app", "--port", str(ports["exporter"]), cwd=shop)
    workers = {
        name: spawn("run", "shop:app", "--name", name, "--metrics-port", str(ports[name]), cwd=shop)
        for name in WORKERS
    }
    active = 'streamworker_members{state="active", processor="price"}'
    wait_for(lambda: prometheus.ask(active) == {"": 3}, "Prometheus sees three workers")
    stream = resolve_stream("shop:orders")
    order, sent, until_s = stream.spec.record.python_type, 0, time.monotonic() + SECONDS
    while time.monotonic() < until_s:
        batch = [order(n, f"c{n % 97}", 1.0) for n in range(50)]
        stream.sync.send_many(batch)
        sent += len(batch)
        if workers["w1"].running and time.monotonic() > until_s - SECONDS / 2:
            workers["w1"].kill()
        time.sleep(0.05)  # The load, not a wait.
    total = 'sum(streamworker_committed_records_total{processor="price"})'
    wait_for(lambda: prometheus.ask(total) == {"": sent}, "the exporter has counted what was sent, once")
    with redis.Redis.from_url(redis_url, protocol=2) as raw:
        truth = committed_by(raw, stream.spec.placement.total)
    assert sum(truth.values()) == sent and set(truth) == set(WORKERS)
    counted = 'last_over_time(streamworker_records_total{processor="price"}[1h])'
    names = {f"127.0.0.1:{ports[name]}": name for name in WORKERS}

    def by_worker() -> dict[str, float]:
        return {names[at]: value for at, value in prometheus.ask(counted, "instance").items()}

    others = {name: truth[name] for name in WORKERS[1:]}
    wait_for(lambda: others.items() <= by_worker().items(), f"the living have counted {others}")
    assert 0 < by_worker()["w1"] <= truth["w1"]
    gone = f"127.0.0.1:{ports['w1']}"
    wait_for(lambda: prometheus.ask("up", "instance")[gone] == 0, "Prometheus misses the killed worker")
    died = prometheus.ask('streamworker_rebalances_total{processor="price", cause="death"}')
    print(json.dumps({"sent": sent, "committed": truth, "by workers": by_worker(), "deaths": died}))
    assert died == {"": 1}
    wrong, firing = prometheus.alerts()
    assert wrong == []
    assert firing <= {"StreamworkerMembersMissing"}, "one is missing, and nothing else is wrong"
