"""`tail`, `peek`, and CSV in `send`: records as a person writes and reads them."""

import json
from pathlib import Path
from typing import Any

import pytest

from streamworker.cli.exit_codes import ExitCode
from streamworker.core.data.placement import Placement
from tests.cli.conftest import SHOP, Invoke, OpenTerminal, lines_of, rewrite, work_off
from tests.contract.support import url_of_user
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
    """Nothing was sent, nothing has this key, or all is gone, with its cause; the output stays empty."""
    nobody = sent("tail", "shop:orders", "--key", "nobody")
    assert (nobody.exit_code, nobody.stdout) == (0, "")
    assert nobody.stderr.startswith("No record of key 'nobody' is among the newest 1,000 entries")
    taken = {Placement(4).partition_of(key) for key in (b"ann", b"bob")}
    key = next(key for key in map(str, range(100)) if Placement(4).partition_of(key.encode()) not in taken)
    there = f"partition {Placement(4).partition_of(key.encode())} of orders, that of '{key}'"
    elsewhere = sent("tail", "shop:orders", "--key", key).stderr
    assert elsewhere == f"Redis knows of no record that was sent to {there}.\n"
    events = [f"sw:{{shop.orders.{p}}}:events" for p in range(4)]
    with opened(redis_url) as raw:
        for name in events:
            raw.xtrim(name, maxlen=0, approximate=False)
    shown = sent("tail", "shop:orders")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "6 records of orders were here, and none is left: all groups had committed them" in shown.stderr
    assert "or another program deleted them" in shown.stderr
    assert "app.stream(..., retention=...)" in shown.stderr
    with opened(redis_url) as raw:
        raw.flushall()
    assert sent("tail", "shop:orders").stderr == "Redis knows of no record that was sent to orders.\n"


def test_tail_takes_no_refusal_for_an_empty_stream(sent: Invoke, shop: Path, redis_url: str) -> None:
    """A user who may read entries, and not what Redis counts, is told of the right that is missing."""
    with opened(redis_url) as raw:
        raw.execute_command("ACL", "SETUSER", "reads", "on", "nopass", "~*", "+@all", "-xinfo")
    as_reader = {"STREAMWORKER_REDIS_URL": url_of_user(redis_url, "reads", "any")}
    rewrite(shop, SHOP)
    refused = sent("tail", "shop:orders", "--key", "nobody", env=as_reader)
    assert refused.exit_code == ExitCode.REDIS
    assert "xinfo" in refused.stderr and "No record" not in refused.stderr


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


def test_peek_says_why_there_are_no_rows(sent: Invoke, redis_url: str) -> None:
    """No log, no worker yet, no row yet, or rows that are gone: the output is an empty list each time."""

    def why(*arguments: str) -> str:
        shown = sent("peek", *arguments)
        assert (shown.exit_code, json.loads(shown.stdout)) == (0, [])
        return shown.stderr

    assert why("shop:audit") == "audit forwards no rows, so it has no acked log.\n"
    assert why("shop:price").startswith("price has never run there")
    work_off(redis_url)
    with opened(redis_url) as raw:
        rows = {p: int(raw.hget(f"sw:{{shop.orders.{p}}}:lock:price", "rows") or 0) for p in range(4)}
        for p in range(4):
            raw.xtrim(f"sw:{{shop.orders.{p}}}:acked:price", maxlen=0, approximate=False)
    assert why("shop:price").startswith("6 rows were in the acked log of price, and none is left.")
    without = next(p for p, count in rows.items() if not count)
    assert why("shop:price", str(without)) == "price has forwarded no rows yet.\n"


HEAD = b"order_id,customer,amount\n"
LATIN = "1,Zoë,1.5\n".encode("cp1252")
UNREADABLE: dict[str, tuple[bytes, str, list[str]]] = {
    # The file, what is said of it, and the customers that are sent with --on-error skip.
    "cp1252": (
        HEAD + LATIN + b"2,b,1\n",
        "Line 2: It is no UTF-8 (byte 4). Convert the file: iconv -f cp1252",
        ["b"],
    ),
    "utf-16": ((HEAD + b"1,a,1\n").decode().encode("utf-16"), "iconv -f utf-16", []),
    "utf-16 without a BOM": (
        (HEAD + b"1,a,1\n").decode().encode("utf-16-le"),
        "Line 1: It has a NUL byte",
        [],
    ),
    "bare CR": (HEAD.replace(b"\n", b"\r") + b"1,a,1\r", "Line 1: Its lines end with bare CR.", []),
    "text behind a quote": (HEAD + b'1,"a"b,1\n2,b,1\n', "Line 2: It is no line of a .csv file: ", ["b"]),
    "text behind a quote later": (HEAD + b'1,"a,1\n2,"b",1\n3,c,1\n', "Lines 2 to 3: It is no line", ["c"]),
    "no end of a quote": (HEAD + b'1,a,1\n2,"b,1\n3,c,1\n', "Lines 3 to 4: A quote is not closed.", ["a"]),
    "space in a name": (
        HEAD.replace(b",", b", ") + b"1, a, 1\n",
        "It names ' customer', and the field is",
        [],
    ),
    "name twice": (b"customer," + HEAD + b"x,1,a,1\n", "Line 1: It names 'customer' twice.", []),
    "semicolons": (HEAD.replace(b",", b";") + b"1;a;1\n", "Line 1: It names no field", []),
    "long": (
        HEAD + b"1," + b"x" * 17_000_000 + b",1\n2,b,1\n",
        "Line 2: It is no line of a .csv file: field la",
        ["b"],
    ),
}


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("case", UNREADABLE)
def test_a_csv_file_that_cannot_be_read_is_refused_by_line_and_nothing_of_it_is_stored(
    shop: Path, streamworker: Invoke, case: str, skip: bool
) -> None:
    content, said, customers = UNREADABLE[case]
    (shop / "o.csv").write_bytes(content)
    result = streamworker("send", "shop:orders", "o.csv", *(["--on-error", "skip"] if skip else []))
    assert result.exit_code == ExitCode.FAILED
    assert said in result.output
    lines = streamworker("tail", "shop:orders", "--json").stdout.splitlines()
    before = [each for each in customers if content.index(f",{each},".encode()) < len(HEAD) + 4]
    assert [json.loads(line)["record"]["customer"] for line in lines] == (customers if skip else before)


def test_a_csv_file_may_have_values_of_several_lines_long_ones_and_columns_that_are_no_fields(
    shop: Path, streamworker: Invoke
) -> None:
    long = "x" * 140_000
    values = ["a\nb\r\n\nc", 'say ""hi""', long, "é"]
    rows = "".join(f'{n},"{value}",1,?\r\n' for n, value in enumerate(values))
    text = "\ufefforder_id,customer,amount,more\r\n\r\n" + rows
    (shop / "o.csv").write_bytes(text.rstrip().encode())
    assert "Sent 4 records" in streamworker.does("send", "shop:orders", "o.csv")
    lines = streamworker("tail", "shop:orders", "--json").stdout.splitlines()
    found = {json.loads(line)["record"]["customer"] for line in lines}
    assert found == {"a\nb\r\n\nc", 'say "hi"', long, "é"}


def test_json_lines_may_begin_with_a_bom_and_are_utf_8(shop: Path, streamworker: Invoke) -> None:
    line = json.dumps({"order_id": 1, "customer": "Zoë", "amount": 1.5}, ensure_ascii=False)
    (shop / "o.jsonl").write_bytes(line.encode("utf-8-sig"))
    assert "Sent 1 record " in streamworker.does("send", "shop:orders", "o.jsonl")
    for encoding, said in (("cp1252", "It is no UTF-8 (byte"), ("utf-16", "iconv -f utf-16")):
        (shop / "o.jsonl").write_bytes(line.encode(encoding))
        refused = streamworker("send", "shop:orders", "o.jsonl")
        assert refused.exit_code == ExitCode.FAILED
        assert "Line 1: " in refused.output and said in refused.output


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
