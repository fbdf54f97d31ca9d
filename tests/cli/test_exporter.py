"""`streamworker exporter` as a real process, and what it makes of snapshots."""

import json
import signal
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.support import take
from streamworker.cli.workers import exporter
from streamworker.core.snapshot import GroupSnapshot, PartitionState
from streamworker.dev.server import free_port
from streamworker.importing import resolve_processors
from tests.cli.conftest import Invoke
from tests.conftest import SpawnWorker
from tests.helpers import wait_for
from tests.tui.groups import group

ORDER = {"order_id": 1, "customer": "c", "amount": 1}


def scrape(port: int, path: str = "/metrics") -> dict[tuple[str, str], float]:
    """Return the samples of a page by name and the values of the sorted labels; none if nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError:
        raise
    except OSError:
        return {}
    return {
        (sample.name, " ".join(sample.labels.values())): sample.value
        for metric in text_string_to_metric_families(text)
        for sample in metric.samples
    }


def test_the_exporter_needs_no_worker(streamworker: Invoke, shop: Path, spawn: SpawnWorker) -> None:
    """It tells what waits, for how long, and ends with 0 at a signal."""
    orders = [{"order_id": n, "customer": f"c{n}", "amount": 1} for n in range(20)]
    (shop / "orders.jsonl").write_text("".join(json.dumps(each) + "\n" for each in orders), "utf-8")
    streamworker.does("send", "shop:orders", "orders.jsonl")
    port = free_port()
    process = spawn("exporter", "shop:app", "--port", str(port))
    wait_for(lambda: ("streamworker_up", "shop") in scrape(port), "it answers")
    first = scrape(port)
    lags = [first["streamworker_lag_records", f"shop {p} price orders"] for p in range(4)]
    assert sum(lags) == 20 and first["streamworker_up", "shop"] == 1
    assert first["streamworker_desired_workers", "shop price orders"] == 1
    assert first["streamworker_memory_bytes", "shop stream orders"] > 0
    waits = ("streamworker_oldest_uncommitted_seconds", "shop price orders")
    wait_for(lambda: scrape(port)[waits] > first[waits], "the oldest record grows older")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(port, "/livez")
    process.signal(signal.SIGTERM)
    assert process.wait() == ExitCode.OK


def test_a_partition_of_which_redis_does_not_tell_has_no_figures(
    streamworker: Invoke, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lag of 0 would end an alarm, and a counter that comes back from 0 is a rate. `up` is 0 meanwhile."""
    whole = group(partitions=2, workers=1, lag=5)
    away = replace(whole.partitions[1], state="unknown", reason="It is away.", records=0, lag=0, owner=None)
    partial = replace(whole, partitions=(whole.partitions[0], away))
    told = {(name, labels.get("partition")): value for name, labels, value in exporter.samples_of(partial)}
    assert told["streamworker_lag_records", "0"] == 5
    assert not [name for name, partition in told if partition == "1"]
    assert not [name for name, _ in told if name == "streamworker_outbox_messages"]
    groups = exporter.Groups(resolve_processors("shop:app", ["price"]))

    async def take_partial(*given: Any) -> GroupSnapshot:
        await take(*given)
        return partial

    monkeypatch.setattr(exporter, "take", take_partial)
    with capture_logs() as lines:
        up, *others = groups.collect()
    assert up.samples[0].value == 0
    assert not {"streamworker_desired_workers", "streamworker_memory_bytes"} & {each.name for each in others}
    assert "Not in the figures: 1 partition of price: 1. It is away." in lines[0]["error"]


def test_a_scrape_costs_few_round_trips(streamworker: Invoke, redis_url: str) -> None:
    """Its commands grow with the partitions by 17 for each, and go out together."""
    streamworker.does("send", "shop:orders", "-", input=json.dumps(ORDER))
    groups = exporter.Groups(resolve_processors("shop:app", ["price"]))
    with redis.Redis.from_url(redis_url) as raw:
        before = raw.info("stats")["total_commands_processed"]
        up, *_ = groups.collect()
        asked = raw.info("stats")["total_commands_processed"] - before
    assert up.samples[0].value == 1 and asked <= 17 * 4 + 30


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("all", "--port is 'all'"),
        ("localhost:0", "--port is 'localhost:0'"),
        ("8080:", "--port is '8080:'"),
        ("192.0.2.1:8080", "--port cannot use port 8080 of 192.0.2.1"),
    ],
)
def test_an_address_that_cannot_be_served_is_refused(invoke: Invoke, address: str, said: str) -> None:
    """Workers read and serve addresses alike. No signal stays blocked, else what is started would not end."""
    result = invoke("exporter", "shop:app", "--port", address)
    assert (result.exit_code, said in result.stderr) == (ExitCode.CONFIGURATION, True)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_without_redis_the_exporter_says_that_and_nothing_else(streamworker: Invoke, shop: Path) -> None:
    """What stood in the last scrape is not told again, until Redis is back."""
    del streamworker, shop
    selection = resolve_processors("shop:app")
    groups, app = exporter.Groups(selection), selection.app
    there = app.settings
    app.settings = replace(there, redis_url=f"redis://127.0.0.1:{free_port()}")
    (metric,) = groups.collect()
    (sample,) = metric.samples
    assert (sample.name, sample.labels, sample.value) == ("streamworker_up", {"app": "shop"}, 0)
    app.settings = there
    up, *others = groups.collect()
    assert up.samples[0].value == 1 and others


def test_an_epoch_has_thirteen_digits_and_all_of_them_count() -> None:
    now = replace(group(partitions=1, workers=1))
    found = {sample[0]: sample[2] for sample in exporter.samples_of(now)}
    assert found["streamworker_partition_epoch"] == 1_763_700_000_000


@pytest.mark.parametrize(
    ("state", "held_up"), [("running", 1), ("retrying", 0), ("halted", 0), ("unowned", 0)]
)
def test_only_what_runs_is_held_up_by_something_else(state: PartitionState, held_up: int) -> None:
    """The other states have alerts of their own, and that of the attempts waits for longer."""
    now = group(partitions=1, workers=1)
    now = replace(now, partitions=(replace(now.partitions[0], state=state, reason="ConnectionError"),))
    found = {sample[0]: sample[2] for sample in exporter.samples_of(now)}
    assert found["streamworker_partition_held_up"] == held_up


@pytest.mark.parametrize(
    ("state", "unowned"), [("running", 0), ("paused", 0), ("draining", 0), ("acquiring", 1), ("unowned", 1)]
)
def test_a_partition_that_nobody_works_on_is_told(state: PartitionState, unowned: int) -> None:
    """Also one that a member shall have and has not acquired: it has no owner for as long."""
    now = group(partitions=1, workers=1)
    now = replace(now, partitions=(replace(now.partitions[0], state=state),))
    found = {sample[0]: sample[2] for sample in exporter.samples_of(now)}
    assert found["streamworker_partition_unowned"] == unowned
