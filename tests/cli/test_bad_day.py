"""What an operator types on a bad day, and the facts that each command must print, on examples/shop."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.forked import Forked
from tests.cli.conftest import Invoke
from tests.conftest import SpawnWorker
from tests.helpers import wait_for

pytestmark = pytest.mark.full("waits until a record has failed five times, from one second apart")

SHOP = Path(__file__).parents[2] / "examples" / "shop" / "shop.py"

WIRED = '''
"""The shop, with a price service that is away while there is a file of this name."""

from pathlib import Path

import httpx
from shop import app


async def answer(_, request):
    if Path("away").exists():
        raise httpx.ConnectError("connection refused")
    return httpx.Response({"/bad": 500}.get(request.url.path, 200), text="2.50", request=request)


httpx.AsyncHTTPTransport.handle_async_request = answer
'''

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*"
ENTRY = r"\d{13}-\d+"


class Desk:
    """The operator's terminal."""

    def __init__(self, streamworker: Invoke) -> None:
        self._streamworker = streamworker

    def types(self, *arguments: str, code: int = 0) -> str:
        """Run a command; return what it prints."""
        result = self._streamworker(*arguments)
        assert result.exit_code == code, (arguments, result.output)
        return result.output

    def reads(self, *arguments: str, facts: list[str], code: int = 0) -> str:
        """Run a command; each of the facts, patterns all, must be in what it prints."""
        printed = self.types(*arguments, code=code)
        missing = [fact for fact in facts if not re.search(fact, printed)]
        assert not missing, (arguments, missing, printed)
        return printed

    def sends(self, *orders: tuple[int, str, str, int]) -> None:
        names = ("order_id", "customer", "sku", "quantity")
        lines = [
            json.dumps(dict(zip(names, order, strict=True)) | {"placed_at": "2026-11-02T05:00:00Z"})
            for order in orders
        ]
        sent = self._streamworker("send", "shop:orders", "-", input="\n".join(lines))
        assert sent.exit_code == 0, sent.output

    def partitions(self, name: str) -> list[Any]:
        (group,) = json.loads(self.types("status", f"shop:{name}", "--json"))
        found: list[Any] = group["partitions"]
        return found

    def held_up(self, name: str) -> list[Any]:
        return [view for view in self.partitions(name) if view["state"] != "running"]

    def are_done(self, name: str, records: int) -> bool:
        """Whether a processor has committed so many: between two of them, records are in no lag."""
        views = self.partitions(name)
        return (sum(view["records"] for view in views), sum(view["lag"] for view in views)) == (records, 0)


@pytest.fixture
def desk(folder: Path, streamworker: Invoke) -> Desk:
    shutil.copy(SHOP, folder / "shop.py")
    (folder / "wired.py").write_text(WIRED, "utf-8")
    sys.modules.pop("shop", None)
    return Desk(streamworker)


@pytest.fixture
def worker(desk: Desk, spawn: SpawnWorker) -> Forked:
    """A worker that has priced the orders of bob, a big spender, and of others."""
    process = spawn("run", "wired:app", "--name", "price-1")
    desk.sends(*((n, "bob", "tea", 3_000) for n in range(2)), *((n, f"c{n}", "tea", 1) for n in range(50)))
    wait_for(lambda: desk.are_done("sum_up", 52), "all orders are summed up")
    wait_for(lambda: desk.are_done("tell", 1) and "bob: 15000.00 in 2 orders" in process.log(), "bob is told")
    return process


def test_what_is_there(desk: Desk, worker: Forked) -> None:
    """Graph and status: streams, processors, tables; workers, partitions, lag, rate; memory and how long."""
    del worker
    desk.reads(
        "graph",
        "shop:app",
        facts=[
            r"orders x16 ──► price  \d+/s, lag 0",
            r"──► priced x32  \d+/s",
            r"priced x32 ──► sum_up ",
            r"totals  51 keys  [\d.]+ kB",
            r"alerts x4 ──► tell ",
        ],
    )
    kept = [rf"stream +{name} +52 +[\d.]+ kB +{TIME} +7 days" for name in ("orders", "priced")]

    def looked() -> bool:
        text = desk.types("status", "shop:app")
        return all(re.search(fact, text) for fact in kept)

    wait_for(looked, "workers have looked what is oldest")
    desk.reads(
        "status",
        "shop:app",
        facts=[
            r"price +1 +16: 16 running +0 +\d+/s",
            r"sum_up +1 +32: 32 running",
            r"tell +1 +4: 4 running",
            rf"stream +priced +52 +[\d.]+ kB +{TIME} +7 days, 20 GB",
            "are used",
        ],
    )


def test_a_service_is_away_and_one_order_is_poison(desk: Desk, worker: Forked, folder: Path) -> None:
    """Retry, pause, set aside, look, replay: each says what it did, and where to look next."""
    (folder / "away").touch()
    desk.sends((88123, "bob", "tea", 1))
    wait_for(lambda: bool(desk.held_up("price")), "the order of bob is tried again")
    (view,) = desk.held_up("price")
    held, record = view["partition"], view["reason"].rpartition(" ")[2]
    since = r"since \d\d:\d\d:\d\d \(attempt \d+, next in .*\): ConnectError: connection refused"
    desk.reads("status", "shop:app", facts=[rf"16: 15 running, 1 retrying +1 .*partition {held} {since}"])
    retried = desk.types("retry", "shop:price", "--partition", str(held))
    assert retried == f"Retried 1 partition of price: {held}.\n"

    pause = ("pause", "shop:tell", "--partition", "2", "--why", "mail server moves")
    assert desk.types(*pause) == "Paused 1 partition of tell: 2.\n"
    paused = rf'partition 2 paused by \S+ {TIME[:-10]}.* "mail server moves"'
    desk.reads("status", "shop:app", facts=[r"4: 3 running, 1 paused", paused])
    desk.reads("history", "shop:tell", facts=[rf'{TIME} .* pause +\S+ "mail server moves" +1 +0 +2'])
    assert desk.types("resume", "shop:tell") == "Resumed 1 partition of tell: 2.\n"

    put = desk.reads(
        "dead",
        "put",
        "shop:price",
        f"{held}/{record}",
        "--yes",
        facts=[rf"Done by worker price-1 at {TIME}: streamworker dead show shop:price {held}/{ENTRY}"],
    )
    letter = put.split()[-1]
    facts = [
        "order_id=88123, customer='bob'",
        rf"{record} in partition {held}",
        f"{TIME} by price-1",
        "SetAside",
    ]
    desk.reads("dead", "show", "shop:price", letter, facts=facts)
    desk.reads("dead", "show", "shop:price", f"{held}/{record}", facts=facts)

    (folder / "away").unlink()
    desk.sends((88124, "eve", "bad", 1))
    such = ("shop:price", "--error", "HTTPStatusError", "--since", "2 hours")
    wait_for(lambda: "500" in desk.types("dead", "list", *such), "the service has refused five times")
    desk.reads("dead", "list", *such, facts=[rf"\d+/{ENTRY} +{TIME} +5 +HTTPStatusError: .*500"])
    replayed = r'Replayed 1 of 1 dead letter to the group "price", and to no other: \S+/s\.'
    desk.reads("dead", "replay", *such, facts=[replayed])
    assert "Nothing was changed." in desk.types("dead", "replay", *such, code=1)

    tail = desk.reads(
        "tail", "shop:orders", "--key", "bob", facts=[rf"{held}/{record}  {TIME}  Order\(order_id"]
    )
    assert len(tail.splitlines()) == 3
    rows = json.loads(desk.types("peek", "shop:price", str(held), "--last", "99"))
    assert [row["total"] for row in rows if row["customer"] == "bob"] and all("row" in row for row in rows)
    assert json.loads(desk.types("table", "get", "shop:totals", "bob")) == {"orders": 2, "spent": 15_000.0}
    assert worker.running
