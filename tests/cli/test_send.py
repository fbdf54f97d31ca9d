"""`streamworker send`."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
import redis
from pyarrow import parquet

from streamworker.cli.exit_codes import ExitCode
from streamworker.redisio.data.columns import unpacked
from tests.cli.conftest import Invoke, OpenTerminal, lines_of
from tests.helpers import wait_for
from tests.raw import records_in


def orders(count: int) -> list[str]:
    """JSON lines of so many orders."""
    return [json.dumps({"order_id": n, "customer": f"c{n % 7}", "amount": 1.5}) for n in range(count)]


def stored(redis_url: str) -> list[int]:
    """The order ids in Redis, by partition."""
    with redis.Redis.from_url(redis_url) as client:
        return [
            json.loads(fields[b"v"])["order_id"]
            for partition in range(4)
            for _, fields in records_in(client, f"sw:{{shop.orders.{partition}}}:events")
        ]


def test_a_file_is_sent_in_order(streamworker: Invoke, shop: Path, redis_url: str) -> None:
    """Every line arrives, and within a partition in the order of the lines."""
    (shop / "orders.jsonl").write_text(lines_of(orders(3_000)), "utf-8")
    result = streamworker.does("send", "shop:orders", "orders.jsonl")
    assert "Sent 3,000 records to shop:orders" in result
    found = stored(redis_url)
    assert sorted(found) == list(range(3_000))
    for customer in range(7):
        mine = [number for number in found if number % 7 == customer]
        assert mine == sorted(mine)


def test_stdin_is_read_to_its_end_with_or_without_a_last_newline(
    streamworker: Invoke, redis_url: str
) -> None:
    """As `zcat orders.gz | streamworker send shop:app -` gives it."""
    streamworker.does("send", "shop:app", "-", input=lines_of(orders(5)).rstrip())
    assert len(stored(redis_url)) == 5


def test_ctrl_c_ends_the_input_of_a_terminal(terminal: OpenTerminal, redis_url: str) -> None:
    """The first one: the record before it is sent and counted, and the exit code is that of Ctrl-C."""
    sending = terminal("send", "shop:orders", "-", "--on-error", "skip")
    sending.press(f"{orders(1)[0]}\nbad\n")
    wait_for(lambda: "Line 2:" in sending.read(), "it has read both lines")
    sending.press("\x03")
    assert sending.wait() == ExitCode.INTERRUPTED
    assert "Sent 1 record to shop:orders" in sending.text
    assert stored(redis_url) == [0]


def test_a_bad_line_stops_the_sending_and_is_named_by_its_number(
    streamworker: Invoke, shop: Path, redis_url: str
) -> None:
    """What was before it is sent, nothing behind it is, and the command for the rest sends nothing twice.

    It can leave out bad lines, and names each; an empty line is neither a record nor an error.
    """
    lines = [*orders(10), '{"order_id": "ten"}', *orders(3)]
    (shop / "orders.jsonl").write_text(lines_of(lines), "utf-8")
    result = streamworker("send", "shop:orders", "orders.jsonl")
    assert result.exit_code == ExitCode.FAILED
    assert "Line 11: " in result.stderr
    assert "Sent 10 records" in result.stdout
    assert len(stored(redis_url)) == 10
    assert "tail -n +11 orders.jsonl | streamworker send shop:orders -" in result.stderr
    rest = [*lines[10:], "", "not json", "[1, 2]"]
    skipping = streamworker("send", "shop:orders", "-", "--on-error", "skip", input=lines_of(rest))
    assert skipping.exit_code == ExitCode.FAILED
    assert all(f"Line {number}: " in skipping.stderr for number in (1, 6, 7))
    assert "3 were left out" in skipping.stderr
    assert len(stored(redis_url)) == 13


@pytest.mark.parametrize("arguments", [["nothing.jsonl"], ["."]])
def test_a_file_that_cannot_be_read_is_a_wrong_command_line(
    streamworker: Invoke, arguments: list[str]
) -> None:
    """Named, with the system's reason."""
    result = streamworker("send", "shop:orders", *arguments)
    assert result.exit_code == ExitCode.USAGE
    assert arguments[0] in result.stderr


def test_on_a_terminal_a_long_sending_shows_its_progress(terminal: OpenTerminal, shop: Path) -> None:
    """A bar while it goes on, and only the result when it is over."""
    (shop / "orders.jsonl").write_text(lines_of(orders(20_000)), "utf-8")
    process = terminal("send", "shop:orders", "orders.jsonl")
    assert process.wait(60) == ExitCode.OK
    assert "sending" in process.text
    assert re.search(r"\d+%", process.text)
    assert "Sent 20,000 records" in process.text.splitlines()[-1]


def table(count: int) -> pa.Table:
    """The same orders as columns, with types that about fit."""
    return pa.table(
        {
            "amount": pa.array([1.5] * count, pa.float32()),
            "customer": pa.array([f"c{n % 7}" for n in range(count)]).dictionary_encode(),
            "order_id": pa.array(range(count), pa.int32()),
        }
    )


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "feather"])
def test_a_file_of_columns_is_sent_as_its_records(
    streamworker: Invoke, shop: Path, redis_url: str, suffix: str
) -> None:
    """Parquet, and both forms of Arrow; into a stream of JSON and into one of columns."""
    path = shop / f"orders.{suffix}"
    if suffix == "parquet":
        parquet.write_table(table(300), path)
    else:
        write = pa.ipc.new_file if suffix == "feather" else pa.ipc.new_stream
        with write(str(path), table(1).schema) as writer:
            writer.write_table(table(300))
    module = shop / "columns.py"
    module.write_text(
        (shop / "shop.py").read_text("utf-8").replace('"shop"', '"wide"').replace("=4)", '=4, codec="arrow")')
    )
    for target in ("shop", "columns"):
        result = streamworker.does("send", f"{target}:orders", path.name)
        assert "Sent 300 records" in result
    assert sorted(stored(redis_url)) == list(range(300))
    with redis.Redis.from_url(redis_url) as client:
        fields = [
            fields
            for partition in range(4)
            for _, fields in client.xrange(f"sw:{{wide.orders.{partition}}}:events")
        ]
    assert sorted(n for each in fields for n in unpacked(each)["order_id"].to_pylist()) == list(range(300))


def test_a_file_of_columns_that_does_not_fit_is_refused_by_name(streamworker: Invoke, shop: Path) -> None:
    """The column; that it is no such file; and what cannot be asked for."""
    parquet.write_table(table(3).drop_columns("customer"), shop / "orders.parquet")
    result = streamworker("send", "shop:orders", "orders.parquet")
    assert result.exit_code != ExitCode.OK
    assert "no column 'customer'" in result.stderr and "Sent" not in result.output
    late = table(12_000).set_column(2, "order_id", pa.array([*range(11_999), None], pa.int32()))
    parquet.write_table(late, shop / "late.parquet", row_group_size=10_000)
    some = streamworker("send", "shop:orders", "late.parquet")
    assert (some.exit_code, some.stdout) == (ExitCode.FAILED, "")
    assert "Sent 10,000 records of late.parquet, from its beginning." in some.stderr
    assert streamworker("send", "shop:orders", "orders.parquet", "--on-error", "skip").exit_code == 2
    (shop / "orders.arrow").write_text("number\n1\n")
    assert "orders.arrow" in streamworker("send", "shop:orders", "orders.arrow").stderr
    assert "gone.parquet" in streamworker("send", "shop:orders", "gone.parquet").stderr
