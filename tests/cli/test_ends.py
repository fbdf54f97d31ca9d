"""What commands tell of values at whose ends a function is called, and what they do with these ends."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from streamworker.cli.workers import exporter
from streamworker.core.snapshot import TableView
from streamworker.redisio.keys import GroupKeys
from tests.cli.conftest import Invoke, work_off
from tests.raw import opened
from tests.tui.groups import group

VISITS = """
from datetime import UTC, datetime, timedelta

visits = app.table("visits", int, ttl="1 hour")


@app.processor(orders, tables=[visits])
async def follow(order: Order) -> None:
    late = order.amount < 0
    until = datetime.now(UTC) + timedelta(minutes=-5) if late else None
    visits.set(order.customer, order.order_id, until=until)


@follow.expired(visits)
async def gone(customer: str, order_id: int) -> None:
    raise ValueError("no route")
"""
KEYS = GroupKeys("shop", "orders", "follow")


@pytest.fixture
def visited(shop: Path, streamworker: Invoke, redis_url: str) -> Invoke:
    """Values of three customers, one of which has ended, and whose call fails."""
    with (shop / "shop.py").open("a", encoding="utf-8") as file:
        file.write(VISITS)
    orders = [{"order_id": n, "customer": f"c{n}", "amount": 1 - 2 * (n == 1)} for n in range(3)]
    streamworker.does("send", "shop:orders", "-", input="\n".join(map(json.dumps, orders)))
    work_off(redis_url)
    return streamworker


def test_all_that_tells_of_tables_tells_when_their_values_end(visited: Invoke) -> None:
    """How many wait for their call, the first end, and those that should have had it."""
    now_ms = time.time() * 1000
    (listed,) = visited.tells("table", "list", "shop:app")
    assert (listed["keys"], listed["due"], listed["overdue"], listed["is_of_windows"]) == (3, 3, 1, False)
    assert now_ms - 400_000 < listed["next_ms"] < now_ms - 300_000
    assert "2 due later, 1 overdue since 5 m" in visited("table", "list", "shop:app").stdout
    assert "2 due later, 1 overdue since 5 m" in visited("status", "shop:follow").stdout
    (table,) = visited.tells("status", "shop:follow")[0]["tables"]
    assert (table["due"], table["overdue"], table["next_ms"]) == (3, 1, listed["next_ms"])
    doctor = visited("doctor", "shop:app").stdout
    assert "2 due later, 1 overdue since 5 m" in doctor
    assert "streamworker status shop:follow" in doctor


def test_the_exporter_has_no_ends_of_tables_that_call_nothing() -> None:
    """And of the others how many, those overdue, and the first."""
    tables = (TableView("plain", 9, 0), TableView("visits", 3, 0, 3, 5_000, 1))
    found = {
        (name, labels["table"]): value
        for name, labels, value in exporter.samples_of(replace(group(partitions=1, workers=1), tables=tables))
        if "table" in labels
    }
    assert found == {
        ("streamworker_table_keys", "plain"): 9,
        ("streamworker_table_keys", "visits"): 3,
        ("streamworker_table_due", "visits"): 3,
        ("streamworker_table_overdue", "visits"): 1,
        ("streamworker_table_first_end_timestamp_seconds", "visits"): 5,
    }


def test_a_scan_by_ends_begins_with_the_first(visited: Invoke) -> None:
    """Each with its time; where no function is called there are none."""
    shown = [json.loads(line) for line in visited.does("table", "scan", "shop:visits", "--due").splitlines()]
    assert [(each["key"], each["value"]) for each in shown] in (
        [("c1", 1), ("c0", 0), ("c2", 2)],
        [("c1", 1), ("c2", 2), ("c0", 0)],
    )
    assert [each["ends"] for each in shown] == sorted(each["ends"] for each in shown)
    some = visited("table", "scan", "shop:visits", "--due", "--limit", "1")
    assert json.loads(some.stdout)["key"] == "c1"
    assert some.stderr == "The first 1; --limit shows more.\n"


def test_a_scan_by_ends_is_refused_where_no_function_is_called(shop: Path, streamworker: Invoke) -> None:
    with (shop / "shop.py").open("a", encoding="utf-8") as file:
        file.write(VISITS.partition("@follow.expired")[0])
    refused = streamworker("table", "scan", "shop:visits", "--due")
    assert refused.exit_code == 2
    assert "No function is called at the ends of visits." in refused.output


def test_a_reset_that_clears_tables_clears_their_ends(visited: Invoke, redis_url: str) -> None:
    indices = [KEYS.due(p, "visits") for p in range(4)]
    with opened(redis_url) as raw:
        visited.does("reset", "shop:follow", "--to", "earliest", "-y")
        assert sum(raw.zcard(index) for index in indices) == 3
        visited.does("reset", "shop:follow", "--to", "earliest", "--clear-tables", "-y")
        assert sum(raw.exists(index) for index in indices) == 0


def test_what_is_erased_has_no_end(visited: Invoke, redis_url: str) -> None:
    visited.does("erase", "shop:app", "--key", "c1", "--yes")
    with opened(redis_url) as raw:
        ends = {key for p in range(4) for key in raw.zrange(KEYS.due(p, "visits"), 0, -1)}
    assert ends == {b"c0", b"c2"}
