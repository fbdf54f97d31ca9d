"""`streamworker table`, and what other commands tell of tables, on what a worker has counted."""

import json
from pathlib import Path

import pytest

from streamworker.cli.exit_codes import ExitCode
from tests.cli.conftest import Invoke, rewrite, work_off
from tests.raw import opened

COUNTED = """
totals = app.table("totals", dict[str, float], ttl="400 days")
by_order = app.table("by_order", int, key=("customer", "order_id"))


@app.processor(orders, tables=[totals, by_order])
async def count(order: Order) -> None:
    total = await totals.get(order.customer) or {"orders": 0, "spent": 0.0}
    totals.set(order.customer, {"orders": total["orders"] + 1, "spent": total["spent"] + order.amount})
    by_order.set((order.customer, order.order_id), 1)
"""
ORDERS = [{"order_id": n, "customer": f"c{n % 3}", "amount": 2.5} for n in range(12)]


@pytest.fixture
def counted(shop: Path, streamworker: Invoke, redis_url: str) -> Invoke:
    """Twelve orders of three customers that a worker has counted, before it left."""
    with (shop / "shop.py").open("a", encoding="utf-8") as file:
        file.write(COUNTED)
    streamworker.does("send", "shop:orders", "-", input="\n".join(map(json.dumps, ORDERS)))
    work_off(redis_url)
    return streamworker


def test_tables_are_listed_and_their_values_shown(counted: Invoke) -> None:
    """By key, some of them, and all of them in a file; what is not there is no success."""
    listed = counted.tells("table", "list", "shop:app")
    assert [(each["table"], each["processor"], each["keys"]) for each in listed] == [
        ("totals", "count", 3),
        ("by_order", "count", 12),
    ]
    assert all(each["bytes"] > 0 for each in listed)
    assert "400 d 00 h" in counted("table", "list", "shop:app").stdout
    assert json.loads(counted("table", "get", "shop:totals", "c1").stdout) == {"orders": 4, "spent": 10.0}
    assert json.loads(counted("table", "get", "shop:by_order", "c1", "4").stdout) == 1
    missing = counted("table", "get", "shop:totals", "nobody")
    assert missing.exit_code == ExitCode.FAILED
    assert "has no value for nobody" in missing.stderr
    assert counted("table", "get", "shop:by_order", "c1").exit_code == ExitCode.CONFIGURATION
    assert "has 1 part." in counted("table", "get", "shop:totals", "c1", "4").stderr
    some = counted("table", "scan", "shop:by_order", "--limit", "5")
    assert len(some.stdout.splitlines()) == 5
    assert some.stderr == "The first 5; --limit shows more.\n"
    assert counted("table", "scan", "shop:by_order", "--limit", "12").stderr == "", "these are all"
    exported = counted("table", "export", "shop:by_order", "--to", "out.jsonl")
    assert exported.stdout == "Wrote 12 keys of by_order to out.jsonl.\n"
    parts = [word for p in (0, 1, 2, 3, 0) for word in ("--partition", str(p))]
    scanned = counted("table", "scan", "shop:by_order", *parts).stdout.splitlines()
    assert len(scanned) == len(set(scanned)) == 12, "each partition that is named, once"
    nowhere = counted("table", "export", "shop:by_order", "--to", "nowhere/out.jsonl")
    assert nowhere.exit_code == ExitCode.USAGE
    assert "nowhere/out.jsonl: No such file or directory" in nowhere.output
    beyond = counted("table", "export", "shop:by_order", "--to", "beyond.jsonl", "--partition", "99")
    assert beyond.exit_code != 0 and not list(Path().glob("*.part")), "nothing is left of what failed"
    assert "is a directory" in counted("table", "export", "shop:by_order", "--to", ".").output
    keys = sorted(json.loads(line)["key"] for line in Path("out.jsonl").read_text("utf-8").splitlines())
    assert keys == sorted([order["customer"], order["order_id"]] for order in ORDERS)


def test_a_table_that_cannot_be_read_whole_is_not_said_to_be_empty(
    counted: Invoke, shop: Path, redis_url: str
) -> None:
    """No key at all is said; a program with other partitions than the stream has is refused."""
    declared = (shop / "shop.py").read_text("utf-8")
    rewrite(shop, declared.replace("partitions=4", "partitions=2"))
    for command in ("scan shop:totals", "get shop:totals c1", "export shop:totals --to part.jsonl"):
        refused = counted("table", *command.split())
        assert (refused.exit_code, refused.stdout) == (ExitCode.CONFIGURATION, "")
    assert not Path("part.jsonl").exists()
    rewrite(shop, declared)
    with opened(redis_url) as raw:
        raw.flushall()
    empty = counted("table", "scan", "shop:totals")
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", "Table totals has no keys.\n")


def test_status_doctor_and_graph_tell_of_tables(counted: Invoke) -> None:
    """How many keys, and how much memory."""
    snapshot = counted.tells("status", "shop:count")[0]
    assert [(table["name"], table["keys"]) for table in snapshot["tables"]] == [
        ("totals", 3),
        ("by_order", 12),
    ]
    assert "by_order    12" in counted("status", "shop:count").stdout
    assert "3 keys, " in counted("doctor", "shop:app").stdout
    assert "    └─ totals  3 keys  " in counted("graph", "shop:app").stdout


def test_a_reset_says_that_tables_are_not_undone(counted: Invoke) -> None:
    """With --clear-tables they are emptied in the partitions that are reset."""
    kept = counted("reset", "shop:count", "--to", "earliest", "-y")
    assert "totals, by_order hold what was counted since and is not undone: add --clear-tables" in kept.stdout
    assert json.loads(counted("table", "get", "shop:totals", "c1").stdout) == {"orders": 4, "spent": 10.0}
    cleared = counted("reset", "shop:count", "--to", "earliest", "--clear-tables", "-y")
    assert "Empties totals, by_order in 4 partitions." in cleared.stdout
    listed = counted.tells("table", "list", "shop:app")
    assert [(each["keys"], each["bytes"]) for each in listed] == [(0, 0), (0, 0)]


def test_a_check_of_types_says_which_values_could_not_be_read(counted: Invoke, shop: Path) -> None:
    """Before the deploy, and how many values the table holds."""
    module = (shop / "shop.py").read_text("utf-8")
    counted.does("schema", "check", "shop:app")
    rewrite(shop, module.replace("dict[str, float]", "list[int]"))
    found = counted("schema", "check", "shop:app")
    assert found.exit_code == ExitCode.CONFIGURATION
    assert "3 of the sampled values cannot be read" in found.stdout
    assert "breaks: 3 stored values; Expected `array`, got `object`" in found.stdout


def test_a_path_that_names_no_table_lists_them(shop: Path, invoke: Invoke) -> None:
    """A name of a stream, and a name of nothing."""
    with (shop / "shop.py").open("a", encoding="utf-8") as file:
        file.write(COUNTED)
    for path in ("shop:orders", "shop:nothing"):
        result = invoke("table", "get", path, "c1")
        assert result.exit_code == ExitCode.CONFIGURATION
        assert "by_order, totals" in result.stderr
