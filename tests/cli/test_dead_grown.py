"""Dead letters of a stream that has grown since: they go where their keys are now."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from streamworker.cli.exit_codes import ExitCode
from streamworker.core.data.placement import Placement
from streamworker.importing import resolve_app
from streamworker.records.entries import REPLAYED_FOR
from streamworker.redisio.keys import GroupKeys
from streamworker.testing import local_worker
from tests.cli.conftest import Invoke, work_off
from tests.helpers import wait_for_async
from tests.raw import opened

PRICE, AUDIT = (GroupKeys("shop", "orders", name) for name in ("price", "audit"))
ORDERS = [{"order_id": n, "customer": f"c{n}", "amount": -1.0} for n in range(12)]


def letters(streamworker: Invoke) -> Any:
    return streamworker.tells("dead", "list", "shop:price")


def replayed(raw: Any, partitions: range) -> list[tuple[int, dict[bytes, bytes]]]:
    """Return the replayed entries in some partitions."""
    found = [(p, fields) for p in partitions for _, fields in raw.xrange(PRICE.events(p))]
    return [(p, fields) for p, fields in found if REPLAYED_FOR in fields]


@pytest.fixture
def grown(streamworker: Invoke, redis_url: str) -> None:
    """A stream of four partitions with letters in each, which has grown by six."""
    streamworker.does("send", "shop:orders", "-", input="\n".join(map(json.dumps, ORDERS)))
    work_off(redis_url)
    assert len({letter["partition"] for letter in letters(streamworker)}) == 4
    streamworker.does("partitions", "shop:orders", "6", "--yes")


def test_a_letter_goes_to_the_partition_that_has_its_key_now(
    grown: None, streamworker: Invoke, redis_url: str
) -> None:
    """It is handled by its group, and by no other, and dies there again."""
    one = letters(streamworker)[0]["letter"]
    assert "amount is negative" in streamworker.does("dead", "show", "shop:price", one)
    assert "Replayed 1 of 1" in streamworker.does("dead", "replay", "shop:price", one)
    assert "Replayed 11 of 11" in streamworker.does("dead", "replay", "shop:price", "--all")
    assert letters(streamworker) == []
    with opened(redis_url) as raw:
        found = replayed(raw, range(10))
        assert [fields[REPLAYED_FOR] for _, fields in found] == [b"price"] * 12
        customers = {json.loads(fields[b"v"])["customer"]: p for p, fields in found}
        assert customers == {f"c{n}": Placement(4, 6).partition_of(b"c%d" % n) for n in range(12)}
        died = partial(wait_for_async, lambda: sum(raw.xlen(PRICE.dead(p)) for p in range(4, 10)) == 12)
        anyio.run(_work_until, redis_url, partial(died, "all have died again"))
    assert len(letters(streamworker)) == 12


async def _work_until(url: str, is_done: Callable[[], Awaitable[None]]) -> None:
    async with local_worker(resolve_app("shop:app"), url=url):
        await is_done()


def test_a_letter_that_was_sent_and_not_deleted_is_not_sent_again(
    grown: None, streamworker: Invoke, redis_url: str
) -> None:
    """The command died between both. A letter of another group with the same id is another letter."""
    with opened(redis_url) as raw:
        stored = {p: raw.xrange(PRICE.dead(p)) for p in range(4)}
        streamworker.does("dead", "replay", "shop:price", "--all")
        for p, its in stored.items():
            raw.delete(PRICE.dead(p))
            for name, fields in its:
                raw.xadd(PRICE.dead(p), fields, id=name)
                raw.xadd(AUDIT.dead(p), fields, id=name)
        assert "Replayed 12 of 12" in streamworker.does("dead", "replay", "shop:price", "--all")
        assert len(replayed(raw, range(10))) == 12
        assert "Replayed 12 of 12" in streamworker.does("dead", "replay", "shop:audit", "--all")
        assert len(replayed(raw, range(10))) == 24


def test_a_letter_that_cannot_be_read_stays_and_keeps_its_page_back(
    grown: None, streamworker: Invoke, redis_url: str
) -> None:
    """Nothing says which partition has its key; others are replayed by name."""
    with opened(redis_url) as raw:
        bad = raw.xadd(PRICE.dead(0), {"at": 5, "id": "5-0", "error": "no", "f.v": "{"}).decode()
        result = streamworker("dead", "replay", "shop:price", f"0/{bad}")
        assert result.exit_code == ExitCode.FAILED
        assert f"dead letter 0/{bad} cannot be read" in result.stderr
        assert replayed(raw, range(10)) == []
        assert len(letters(streamworker)) == 13


def test_a_letter_is_edited_after_the_growth(grown: None, streamworker: Invoke, redis_url: str) -> None:
    """Its key must be one of its partition before the growth."""
    (line,) = streamworker.does("dead", "export", "shop:price").splitlines()[:1]
    edited = json.loads(line)
    edited["record"]["amount"] = 3.0
    with opened(redis_url) as raw:
        assert "Replayed 1 of 1" in _from(streamworker, edited)
        ((p, fields),) = replayed(raw, range(10))
        record = json.loads(fields[b"v"])
        assert (p, record["amount"]) == (Placement(4, 6).partition_of(record["customer"].encode()), 3.0)


def _from(streamworker: Invoke, letter: object) -> str:
    Path("letters.jsonl").write_text(json.dumps(letter), "utf-8")
    return streamworker.does("dead", "replay", "shop:price", "--from", "letters.jsonl")
