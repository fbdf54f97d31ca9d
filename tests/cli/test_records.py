"""`tail`, `peek`, and CSV in `send`: records as a person writes and reads them."""

import json
from pathlib import Path
from typing import Any

import pytest

from streamworker.cli.exit_codes import ExitCode
from tests.cli.conftest import Invoke, OpenTerminal, lines_of, work_off
from tests.helpers import wait_for
from tests.raw import opened

ORDERS = "order_id,customer,amount\n" + lines_of([f"{n},{'bob' if n % 2 else 'ann'},{n}.5" for n in range(6)])


@pytest.fixture
def sent(shop: Path, streamworker: Invoke) -> Invoke:
    """Six orders of a CSV file: those of ann are even, those of bob odd."""
    (shop / "orders.csv").write_text("\ufeff" + ORDERS, "utf-8")
    result = streamworker.does("send", "shop:orders", "orders.csv")
    assert "Sent 6 records" in result
    return streamworker


def test_tail_shows_the_newest_records_of_a_csv_file_in_order(sent: Invoke) -> None:
    """Of all partitions, or of one key; as lines or as JSON."""
    shown = sent("tail", "shop:orders").stdout.splitlines()
    assert len(shown) == 6
    assert all("Order(order_id=" in line and "/" in line.split()[0] for line in shown)
    of_bob = sent("tail", "shop:orders", "--key", "bob", "--last", "2", "--json").stdout.splitlines()
    records = [json.loads(line)["record"] for line in of_bob]
    assert records == [
        {"order_id": 3, "customer": "bob", "amount": 3.5},
        {"order_id": 5, "customer": "bob", "amount": 5.5},
    ]


def test_tail_follows_a_stream(sent: Invoke, terminal: OpenTerminal) -> None:
    """New records appear as they are sent; Ctrl-C ends it."""
    following = terminal("tail", "shop:orders", "--key", "ann", "--follow")
    wait_for(lambda: "order_id=4" in following.read(), "the old records are shown")
    line = json.dumps({"order_id": 90, "customer": "ann", "amount": 1.0})
    sent.does("send", "shop:orders", "-", input=line)
    wait_for(lambda: "order_id=90" in following.read(), "the new record is shown")
    following.press("\x03")
    assert following.wait() == ExitCode.INTERRUPTED


def test_tail_says_why_there_is_nothing_to_show(sent: Invoke, redis_url: str) -> None:
    """Nothing was sent, nothing has this key, or all was handled and dropped; the output stays empty."""
    nobody = sent("tail", "shop:orders", "--key", "nobody")
    assert (nobody.exit_code, nobody.stdout) == (0, "")
    assert nobody.stderr.startswith("No record of key 'nobody' is among the newest 1,000 entries")
    work_off(redis_url)
    with opened(redis_url) as raw:
        number = sum(raw.xlen(f"sw:{{shop.orders.{p}}}:events") for p in range(4))
        for p in range(4):
            raw.xtrim(f"sw:{{shop.orders.{p}}}:events", maxlen=0, approximate=False)
    shown = sent("tail", "shop:orders")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert f"{number} records of orders were here, and none is left" in shown.stderr
    assert "app.stream(..., retention=...)" in shown.stderr
    with opened(redis_url) as raw:
        raw.flushall()
    assert sent("tail", "shop:orders").stderr == "No record was sent to orders yet.\n"


def test_peek_shows_the_rows_that_were_committed_last(sent: Invoke, redis_url: str) -> None:
    """With their numbers, oldest first, whatever the batches were: of all partitions, or of one."""
    place = sent.tells("tail", "shop:orders", "--key", "bob", "-n", "1")["id"]
    of_bob = place.split("/")[0]
    work_off(redis_url)

    def peek(*arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(sent("peek", "shop:price", *arguments).stdout)
        return found

    rows = peek("--last", "1000")
    assert len({row["partition"] for row in rows}) > 1
    assert {row["order_id"] for row in rows} == set(range(6)) and len(rows) == 6
    assert peek("--last", "2") == rows[-2:]
    by_one = [row for partition in range(4) for row in peek(str(partition), "--last", "1000")]
    assert {row["order_id"] for row in by_one} == set(range(6)) and "partition" not in by_one[0]
    last = peek(of_bob, "--last", "2")
    assert [row["order_id"] for row in last if row["customer"] == "bob"][-1] == 5
    assert last[1]["row"] == last[0]["row"] + 1
    refused = sent("peek", "shop:price", "9")
    assert refused.exit_code == ExitCode.USAGE
    assert "partitions 0 to 3" in refused.output


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("o.jsonl", ORDERS, "Line 1: "),
        ("o.jsonl", ORDERS, "comma-separated values are read from a .csv file."),
        ("o.csv", "order_id,customer,amount\n1,ann\n", "Line 2: It has 2 values, and the first line names 3"),
        ("o.csv", "order_id,customer,amount\n1,ann,much\n", "Line 2: "),
        ("o.csv", "order_id\n1,ann\n", "It has 2 values, and the first line names 1 field."),
    ],
)
def test_what_is_no_record_is_named_by_its_line(
    shop: Path, streamworker: Invoke, name: str, text: str, said: str
) -> None:
    (shop / name).write_text(text, "utf-8")
    result = streamworker("send", "shop:orders", name)
    assert result.exit_code == ExitCode.FAILED
    assert said in result.output
