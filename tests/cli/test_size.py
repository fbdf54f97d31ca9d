"""``streamworker size``: what it computes is what Redis uses."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Invoke, lines_of, rewrite, work_off
from tests.contract.support import url_of_user
from tests.raw import opened

KEPT = """
import msgspec
from streamworker import App

app = App("shop")


class Order(msgspec.Struct):
    order_id: int
    customer: str
    amount: float


orders = app.stream("orders", Order, key="customer", partitions=4, retention="20_000 records",
                    single_entries=True)
others = app.stream("others", Order, key="customer", partitions=4, id_window="1 hour")


@app.processor(orders, batch=100, log_retention="1 day")
async def price(batch: list[Order]) -> list[Order]:
    return [order for order in batch if order.order_id % 2]
"""


@pytest.fixture
def kept(shop: Path) -> Path:
    (shop / "shop.py").write_text(KEPT, "utf-8")
    rng = random.Random(7)
    orders = [{"order_id": n, "customer": f"c{rng.randrange(500)}", "amount": n / 4} for n in range(20_000)]
    (shop / "orders.jsonl").write_text(lines_of([json.dumps(order) for order in orders]))
    (shop / "sample.jsonl").write_text(lines_of([json.dumps(order) for order in orders[::39]]))
    return shop


def of(lines: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [line for line in lines if (line["kind"], line["name"]) == (kind, name)]
    return found


def sized(streamworker: Invoke, *arguments: str) -> Any:
    return streamworker.tells("size", "shop:app", *arguments)


def test_a_sample_tells_the_memory_of_a_stream_that_nobody_has_filled(
    streamworker: Invoke, kept: Path, redis_url: str
) -> None:
    """What a fortieth of 20,000 records tells is within a tenth of what all of them take."""
    asked = ("--rate", "1000", "--sample", "sample.jsonl", "--stream", "orders")
    told = of(sized(streamworker, *asked), "stream", "orders")
    with opened(redis_url) as redis:
        assert redis.dbsize() == 0, "it writes nothing to the app's Redis"
        streamworker.does("send", "shop:orders", "orders.jsonl")
        keys = list(redis.scan_iter(match="*events*"))
        used = sum(redis.memory_usage(key, samples=0) for key in keys)
    assert told["stays_at"] == pytest.approx(used, rel=0.1)
    print(f"told {told['stays_at']:,.0f} bytes, and Redis uses {used:,}")


def test_a_sample_of_fewer_records_than_a_call_of_many_tells_no_less(
    streamworker: Invoke, kept: Path
) -> None:
    """A sample that is repeated in one call would shrink to a fraction by compression."""

    def bytes_each(file: str) -> Any:
        asked = ("--rate", "1", "--sample", file, "--stream", "others", "--together")
        return of(sized(streamworker, *asked), "stream", "others")["bytes_each"]

    assert 0.9 * bytes_each("orders.jsonl") < bytes_each("sample.jsonl") < 2 * bytes_each("orders.jsonl")


def test_a_rate_tells_at_how_much_memory_each_thing_stays(
    streamworker: Invoke, kept: Path, redis_url: str
) -> None:
    """A log has half a row for each record here, and stays for a day; ids stay for their window."""
    streamworker.does("send", "shop:orders", "sample.jsonl")
    work_off(redis_url)
    lines = sized(streamworker, "--rate", "10", "--rate", "others=2")
    log = of(lines, "acked log", "price")
    numbers = [json.loads(line)["order_id"] for line in (kept / "sample.jsonl").read_text().splitlines()]
    rows_a_record = sum(number % 2 for number in numbers) / len(numbers)
    assert log["hour"] == pytest.approx(10 * rows_a_record * log["bytes_each"] * 3_600)
    assert log["stays_at"] == pytest.approx(24 * log["hour"])
    assert of(lines, "ids", "others")["stays_at"] == 2 * 256 * 3_600
    assert "no record is there" in of(lines, "stream", "others")["why"]
    shown = streamworker("size", "shop:app", "--rate", "10").stdout
    assert "What has a limit stays at" in shown and "acked log" in shown
    assert "orders has only 513 records, so what an empty stream takes counts much" in shown


def test_what_nothing_tells_the_size_of_is_not_counted_as_nothing(
    streamworker: Invoke, kept: Path, redis_url: str
) -> None:
    """An empty stream, and one whose memory this user may not ask for."""
    empty = streamworker.does("size", "shop:app", "--rate", "10")
    assert "Nothing here has a limit; ids" in empty and "stays at 0" not in empty
    assert "Not counted, since nothing tells its size: stream orders, stream others." in empty
    streamworker.does("send", "shop:orders", "sample.jsonl")
    with opened(redis_url) as raw:
        raw.execute_command("ACL", "SETUSER", "some", "on", ">any", "~*", "+@all", "-memory")
    rewrite(kept, KEPT)
    as_some = {"STREAMWORKER_REDIS_URL": url_of_user(redis_url, "some", "any")}
    (line,) = [
        each
        for each in streamworker.tells("size", "shop:app", "--rate", "10", env=as_some)
        if (each["kind"], each["name"]) == ("stream", "orders")
    ]
    assert (line["why"], line["bytes_each"]) == ("Redis does not tell its memory", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rate", "many"), "'many' is no rate"),
        (("--rate", "nan"), "'nan' is no rate"),
        (("--rate", "older=5"), "no stream 'older'. It has: orders, others"),
        (("--rate", "1", "--sample", "sample.jsonl"), "Name the stream of the sample"),
        (("--rate", "1", "--sample", "sample.jsonl", "--stream", "older"), "no stream 'older'"),
        (("--rate", "1", "--sample", "nowhere", "--stream", "orders"), "No such file"),
        (("--rate", "1", "--sample", "shop.py", "--stream", "orders"), "Line 2"),
        (("--rate", "1", "--sample", "empty", "--stream", "orders"), "it has no line"),
    ],
)
def test_what_cannot_be_computed_is_named(
    invoke: Invoke, kept: Path, arguments: tuple[str, ...], message: str
) -> None:
    (kept / "empty").touch()
    result = invoke("size", "shop:app", *arguments)
    assert result.exit_code != 0
    assert message in " ".join(result.output.replace("│", " ").split())
