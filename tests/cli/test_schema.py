"""`schema check` tells before a deploy what a change of types breaks."""

import json
import re
from pathlib import Path

import anyio
import pytest
import redis

from streamworker.importing import resolve_app
from streamworker.records.evolution import json_schema
from streamworker.redisio.data import streams
from streamworker.redisio.keys import StreamKeys
from streamworker.runtime.connecting import connected
from tests.cli.conftest import SHOP, Invoke, rewrite, work_off
from tests.cli.test_send import orders


@pytest.fixture
def raw(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


HOURLY = '\n\n@app.pipeline(pricing, path="lake/hourly")\ndef hourly(rows):\n    return rows\n'


def _deploy(shop: Path, before: str, after: str, more: str = "") -> None:
    assert before in SHOP
    rewrite(shop, SHOP.replace(before, after) + more)


def test_a_check_says_what_breaks_and_ends_with_an_error_only_then(
    shop: Path, streamworker: Invoke, redis_url: str
) -> None:
    nothing = streamworker("schema", "check", "shop:app")
    assert nothing.exit_code == 0 and "there is nothing to compare with" in nothing.output
    streamworker.does("send", "shop:orders", "-", input="\n".join(orders(50)))
    work_off(redis_url)
    streamworker("send", "shop:orders", "-", input="\n".join(orders(5)))
    same = streamworker("schema", "check", "shop:app")
    assert (same.exit_code, same.output) == (0, "Every record type is the one that is stored.\n")

    _deploy(shop, "amount: float", "amount: float", "\n\nnewest = app.stream('newest', Order)\n")
    partly = streamworker("schema", "check", "shop:app")
    assert (partly.exit_code, "No worker has stored those of newest yet" in partly.output) == (0, True)

    _deploy(shop, "amount: float", "amount: float\n    coupon: str | None = None")
    gained = streamworker("schema", "check", "shop:app")
    assert gained.exit_code == 0, gained.output
    newer = "\n\nnewest = app.stream('newest', Order)\n"
    _deploy(shop, "amount: float", "amount: float\n    coupon: str | None = None", newer)
    for form in ((), ("--json",)):
        both = streamworker("schema", "check", "shop:app", *form)
        assert both.stderr == "No worker has stored those of newest yet.\n", "also where others have changed"
    assert "Order gains `coupon: str | None = None`  fine: old entries read as None" in gained.output

    _deploy(shop, "partitions=4", "partitions=8")
    split = streamworker("schema", "check", "shop:app")
    assert split.exit_code == 3 and "partitions: 4 -> 8  breaks: workers refuse to start" in split.output

    _deploy(shop, "amount: float", "amount: int\n    coupon: str", HOURLY)
    broken = streamworker("schema", "check", "shop:app", "--json")
    assert broken.exit_code == 3, broken.output
    found = json.loads(broken.stdout)
    assert {each["where"] for each in found} == {"orders", "price (rows)"}
    assert any(each["effect"].endswith("its pipelines are hourly") for each in found)
    told = {each["what"]: each["breaks"] for each in found}
    assert told["Order.amount: float -> int"] and told["Order gains `coupon: str`"]
    assert told["field 'amount' was double and is int64"], "the rows that `price` forwards"
    assert "changes break what is stored." in broken.stderr


def test_entries_that_nobody_can_read_are_found_without_a_stored_schema(
    shop: Path, streamworker: Invoke
) -> None:
    """Only a producer has run: the entries themselves are decoded."""
    streamworker("send", "shop:orders", "-", input="\n".join(orders(3)))
    _deploy(shop, "amount: float", "amount: str")
    found = streamworker("schema", "check", "shop:app")
    assert found.exit_code == 3
    assert "3 of the sampled records cannot be read" in found.output
    assert "Expected `str`, got `float`" in found.output
    assert "Error: 1 of 1 changes breaks what is stored." in found.output


PYDANTIC = """
import pydantic
from streamworker import App

app = App("shop")


class Order(pydantic.BaseModel):
    order_id: int
    customer: str
    amount: float


orders = app.stream("orders", Order, key="customer", partitions=4)
"""


@pytest.mark.parametrize("program", [SHOP, PYDANTIC], ids=["msgspec", "pydantic"])
def test_an_entry_that_was_unreadable_before_stops_no_deploy_and_shows_nothing_of_it(
    shop: Path, streamworker: Invoke, raw: "redis.Redis", program: str
) -> None:
    """What is no JSON, and what lacks a field; whether the type is that of before, or gains a default."""
    rewrite(shop, program)
    app = resolve_app("shop:app")
    spec, key = app.registry.streams["orders"].spec, "sw:{shop.orders.3}:events"

    async def declare() -> None:
        async with connected(app.settings, "test", 1) as backend:
            schema = json_schema(spec.record)
            await streams.provision(backend, StreamKeys("shop", "orders"), 4, "json", schema=schema)

    anyio.run(declare)
    for payload in ("this is a SECRET", '{"customer":"SECRET","amount":1}', '{"order_id":1,"amount":1}'):
        raw.xadd(key, {"v": payload})
    raw.xadd(key, {"v": '{"order_id":1,"customer":"SECRET","amount":1.5}'})
    for more in ("", '\n    coupon: str = "none"'):
        rewrite(shop, program.replace("amount: float", f"amount: float{more}"))
        checked = streamworker("schema", "check", "shop:app")
        assert checked.exit_code == 0, checked.output
        assert "3 of the sampled records cannot be read  already unreadable: 3/" in checked.output
        assert "SECRET" not in checked.output

    rewrite(shop, program.replace("customer: str", "customer: int"))
    broken = streamworker("schema", "check", "shop:app")
    assert broken.exit_code == 3
    assert re.search("orders +1 of the sampled records cannot be read +breaks: 3/", broken.output)
    assert re.search("orders +3 of the sampled records cannot be read +already unreadable: ", broken.output)
    assert "SECRET" not in broken.output
