"""`reset` of a stream that has grown: all generations go back together, and each key stays in order."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio import to_thread

from streamworker.cli.data.reset import _reset
from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.support import placements
from streamworker.core.data.placement import Placement
from streamworker.importing import resolve_app, resolve_processor
from streamworker.redisio import scripts
from streamworker.redisio.data.maps import follow_maps
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire.client import Backend
from streamworker.runtime.run import generations
from streamworker.testing import local_worker
from tests.cli.conftest import Invoke, rewrite, work_off
from tests.contract.support import Raw
from tests.helpers import wait_for_async
from tests.raw import opened

SHOP = """
import msgspec
from streamworker import App

app = App("shop")
handled = []


class Order(msgspec.Struct):
    order_id: int
    customer: str


orders = app.stream("orders", Order, key="customer", partitions=2)


@app.processor(orders)
async def price(order: Order) -> None:
    handled.append((order.customer, order.order_id))
"""
PRICE = GroupKeys("shop", "orders", "price")
MAP = Placement(2, 3)
CUSTOMERS = [f"c{n}" for n in range(9)]


def send(streamworker: Invoke, order_id: int) -> None:
    orders = [{"order_id": order_id, "customer": customer} for customer in CUSTOMERS]
    streamworker.does("send", "shop:orders", "-", input="\n".join(map(json.dumps, orders)))


@pytest.fixture
def raw(redis_url: str) -> Iterator[Raw]:
    with opened(redis_url) as raw:
        yield raw


def made(streamworker: Invoke, shop: Path, redis_url: str, source: str = SHOP) -> list[tuple[str, int]]:
    """Let a stream of two partitions grow by three, and handle all of it; return what was handled."""
    rewrite(shop, source)
    send(streamworker, 1)
    send(streamworker, 2)
    work_off(redis_url)
    streamworker.does("partitions", "shop:orders", "3", "--yes")
    send(streamworker, 3)
    work_off(redis_url)
    handled: list[tuple[str, int]] = sys.modules["shop"].handled
    return handled


@pytest.fixture
def grown(streamworker: Invoke, shop: Path, redis_url: str) -> list[tuple[str, int]]:
    return made(streamworker, shop, redis_url)


def in_order(handled: list[tuple[str, int]]) -> bool:
    """Whether each key's records came one after the other, and to the last, from wherever they began."""
    for customer in CUSTOMERS:
        its = [order_id for who, order_id in handled if who == customer]
        if its[-1] != 3 or any(after > before + 1 for before, after in pairwise(its)):
            return False
    return True


def standing(raw: Raw) -> dict[bytes, list[int]]:
    """Which locks have the fields that make partitions wait."""
    return {field: [p for p in MAP.all if raw.hexists(PRICE.lock(p), field)] for field in (b"from", b"done")}


def test_all_generations_go_back_and_run_again_in_order(
    grown: list[tuple[str, int]], streamworker: Invoke, raw: Raw, redis_url: str
) -> None:
    """What follows an old partition waits until that is done again."""
    assert standing(raw) == {b"from": [], b"done": [0, 1]}
    told = streamworker.does("reset", "shop:price", "--to", "earliest", "--dry-run")
    assert "Moves 5 partitions back by 27 records" in told
    assert "Partitions 2-4 wait until 0-1 are done." in told
    assert standing(raw) == {b"from": [], b"done": [0, 1]}
    grown.clear()
    streamworker.does("reset", "shop:price", "--to", "earliest", "--yes")
    assert standing(raw) == {b"from": [2, 3, 4], b"done": []}
    assert [raw.hget(PRICE.lock(p), "from") for p in (2, 3, 4)] == [b"0", b"0 1", b"1"]
    work_off(redis_url)
    assert len(grown) == 27 and in_order(grown)
    assert standing(raw) == {b"from": [], b"done": [0, 1]}


def test_what_goes_back_to_after_the_growth_leaves_the_old_partitions(
    grown: list[tuple[str, int]], streamworker: Invoke, raw: Raw, redis_url: str
) -> None:
    """Also one partition alone: what comes before it is done."""
    grown.clear()
    streamworker.does("reset", "shop:price", "--to", "earliest", "--partition", "3", "--yes")
    opened_ms = int(raw.hget(PRICE.meta, "opened:2") or 0)
    streamworker.does("reset", "shop:price", "--to", f"{opened_ms}-0", "--yes")
    assert standing(raw) == {b"from": [], b"done": [0, 1]}
    work_off(redis_url)
    assert len(grown) == 9 and in_order(grown)


def test_an_old_partition_does_not_go_back_alone(
    grown: list[tuple[str, int]], streamworker: Invoke, raw: Raw, redis_url: str
) -> None:
    """Those that follow it have handled later records of its keys. To skip needs nothing else."""
    refused = streamworker("reset", "shop:price", "--to", "earliest", "--partition", "0", "--yes")
    assert refused.exit_code == ExitCode.FAILED
    assert "Partitions 2-3 follow 0: what they have handled came later." in refused.stderr
    assert "Nothing was changed." in refused.stderr and standing(raw)[b"done"] == [0, 1]
    named = [word for p in (0, 2, 3) for word in ("--partition", str(p))]
    grown.clear()
    streamworker.does("reset", "shop:price", "--to", "earliest", "--yes", *named)
    assert standing(raw) == {b"from": [2, 3], b"done": [1]}
    streamworker.does("reset", "shop:price", "--to", "latest", "--yes", "--partition", "0")
    work_off(redis_url)
    assert {order_id for _, order_id in grown} == {3}
    assert standing(raw) == {b"from": [], b"done": [0, 1]}


def test_a_group_goes_to_the_end_before_it_is_done_with_the_growth(
    streamworker: Invoke, shop: Path, raw: Raw, redis_url: str
) -> None:
    """It skips what both generations have, and handles what comes."""
    rewrite(shop, SHOP)
    send(streamworker, 1)
    work_off(redis_url)
    send(streamworker, 2)
    streamworker.does("partitions", "shop:orders", "3", "--yes")
    send(streamworker, 3)
    streamworker.does("reset", "shop:price", "--to", "latest", "--yes")
    send(streamworker, 4)
    work_off(redis_url)
    assert {len(raw.hgetall(PRICE.lock(p))) > 0 for p in MAP.all} == {True}
    assert standing(raw) == {b"from": [], b"done": [0, 1]}
    assert streamworker.tells("lag", "shop:price")[0]["lag"] == 0


class Cut(Exception):
    """The command dies."""


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("writes", [1, 3, 4, 6])
def test_a_worker_that_starts_in_the_middle_of_a_reset_keeps_each_key_in_order(
    grown: list[tuple[str, int]], streamworker: Invoke, raw: Raw, redis_url: str, writes: int, dies: bool
) -> None:
    """Between any two writes of the command, which goes on then, or has died and is run again."""
    app, spec = resolve_processor("shop:price")

    async def work() -> None:
        async with local_worker(resolve_app("shop:app"), url=redis_url):
            done = lambda: all(raw.hexists(PRICE.lock(p), "done") for p in (0, 1))  # noqa: E731
            await wait_for_async(done, "the old partitions are done")

    async def cut() -> None:
        async with Backend.open(redis_url, name="t") as backend:
            await follow_maps(backend, placements(app))
            real, left = backend.server.exchange, writes

            async def exchange(keys: Any, packed: Any, script: Any = None, *rest: Any, **named: Any) -> Any:
                nonlocal left
                if script in (scripts.MOVE_CHECKPOINT, scripts.SET_FIELD):
                    left -= 1
                    if left == -1:
                        await work()
                if dies and left < 0:
                    raise Cut
                return await real(keys, packed, script, *rest, **named)

            backend.server.exchange = exchange  # type: ignore[method-assign, assignment]
            with pytest.raises(Cut) if dies else nullcontext():
                await _reset(backend, app, spec, "earliest", None, False, False, True)

    grown.clear()
    anyio.run(cut)
    if dies:
        streamworker.does("reset", "shop:price", "--to", "earliest", "--yes")
    work_off(redis_url)
    assert len(grown) >= 27 and in_order(grown)
    assert standing(raw) == {b"from": [], b"done": [0, 1]}


def test_a_worker_that_waits_goes_on_when_the_reset_is_run_again(
    grown: list[tuple[str, int]], streamworker: Invoke, raw: Raw, redis_url: str
) -> None:
    """It has the lock of a partition that a reset has left closed."""
    for p in MAP.active:
        raw.hset(PRICE.lock(p), "from", f"0 1 {p}")

    async def wait() -> None:
        async with local_worker(resolve_app("shop:app"), url=redis_url):
            said = lambda: b"a reset" in (raw.hget(PRICE.lock(3), "reason") or b"")  # noqa: E731
            await wait_for_async(said, "its owner says what it waits for")
            shown = await to_thread.run_sync(streamworker.does, "status", "shop:price")
            assert "run `streamworker reset` again" in shown
            for p in MAP.active:
                raw.hset(PRICE.lock(p), "from", "0 1")
            await wait_for_async(lambda: standing(raw)[b"from"] == [], "all are open")

    anyio.run(wait)
    assert grown and in_order(grown)


COUNTING = SHOP.replace("import App", "import App, Context").replace(
    """
@app.processor(orders)
async def price(order: Order) -> None:
""",
    """
totals = app.table("totals", int)


@app.processor(orders, tables=[totals])
async def price(order: Order, ctx: Context) -> None:
    totals.set(order.customer, (await totals.get(order.customer) or 0) + 1)
    ctx.state[order.customer] = ctx.state.get(order.customer, 0) + 1
    ctx.state["sum"] = ctx.state.get("sum", 0) + 1
""",
)


def test_tables_and_state_count_from_nothing_where_they_have_moved_on(
    streamworker: Invoke, shop: Path, raw: Raw, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an old partition had is in those that follow, so all of them are cleared, or none goes back."""
    monkeypatch.setattr(generations, "LOOK_S", 0.1)  # It removes what has moved at its second look.
    handled = made(streamworker, shop, redis_url, COUNTING)

    async def until_moved() -> None:
        async with local_worker(resolve_app("shop:app"), url=redis_url):
            moved = lambda: all(raw.hexists(PRICE.lock(p), "moved") for p in (0, 1))  # noqa: E731
            await wait_for_async(moved, "the old partitions have nothing any more")

    anyio.run(until_moved)
    refused = streamworker("reset", "shop:price", "--to", "earliest", "--yes")
    assert refused.exit_code == ExitCode.FAILED
    assert "What totals, ctx.state held for partitions that go back is in those that foll" in refused.stderr
    assert standing(raw) == {b"from": [], b"done": [0, 1]}
    alone = streamworker.does("reset", "shop:price", "--to", "earliest", "--partition", "3", "--dry-run")
    assert "The state holds what was counted since, and is not undone." in alone
    told = streamworker.does("reset", "shop:price", "--to", "earliest", "--clear-tables", "--yes")
    assert "Empties totals, ctx.state in 5 partitions." in told
    handled.clear()
    work_off(redis_url)
    assert len(handled) == 27 and in_order(handled)
    state = [pair for p in MAP.active for pair in raw.hgetall(PRICE.state(p)).items() if pair[0][:1] != b"\0"]
    counts = [(name, msgspec.msgpack.decode(value)) for name, value in state]  # type: ignore[arg-type]
    assert sorted(n for name, n in counts if name != b"sum") == [3] * 9
    assert sum(n for name, n in counts if name == b"sum") == 27
    assert streamworker.does("table", "get", "shop:totals", "c4").strip() == "3"
