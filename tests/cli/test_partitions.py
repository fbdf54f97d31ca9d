"""`partitions` shows the generations of a stream, and lets it grow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from streamworker.cli.data.partitions import _copies
from streamworker.cli.exit_codes import ExitCode
from streamworker.core.data.placement import Placement
from streamworker.importing import resolve_app, resolve_stream
from streamworker.redisio.admin import growth
from streamworker.redisio.data import streams
from streamworker.redisio.keys import GroupKeys, StreamKeys
from streamworker.redisio.scripts import SEAL, Call, Script
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY, Durability
from tests.cli.conftest import Invoke, OpenTerminal
from tests.helpers import wait_for
from tests.raw import opened

KEYS = StreamKeys("shop", "orders")
PRICE = GroupKeys("shop", "orders", "price")


async def made(url: str) -> None:
    """Send some orders, and register a group that has read none."""
    app = resolve_app("shop:app")
    stream = app.registry.streams["orders"]
    order = stream.spec.record.python_type
    async with app:
        await stream.send_many([order(n, f"c{n}", 1.0) for n in range(20)])
    async with Backend.open(url, name="t") as backend:
        await streams.register(backend, PRICE, Placement(4), "earliest")


@pytest.fixture
def orders(streamworker: Invoke, shop: Path, redis_url: str) -> str:
    del streamworker, shop
    anyio.run(made, redis_url)
    return redis_url


def test_a_stream_grows_and_says_how_far_its_groups_are(streamworker: Invoke, orders: str) -> None:
    """The command asks for nothing that it was told, and each further one is refused or goes on."""
    planned = streamworker("partitions", "shop:orders", "6", "--dry-run")
    assert planned.exit_code == ExitCode.OK, planned.output
    assert (
        "orders: 4 → 4+6. 4 partitions of today (0-3) take nothing more, 6 new ones (4-9)" in planned.output
    )
    assert "price" in planned.output and "Nothing was changed." in planned.output
    assert "Senders wait until all are sealed, about 1" in planned.output
    grown = streamworker("partitions", "shop:orders", "6", "--yes")
    assert grown.exit_code == ExitCode.OK, grown.output
    assert "orders has 4+6 partitions" in grown.output
    with opened(orders) as raw:
        assert raw.hget(KEYS.meta, "partitions") == raw.hget(KEYS.meta, "growing") == b"4+6"
        parents = [raw.hget(PRICE.lock(p), "from") for p in range(10)]
        assert parents[:4] == [None] * 4
        assert parents[4:] == [
            " ".join(map(str, Placement(4, 6).parents_of(p))).encode() for p in range(4, 10)
        ]
        messages = [fields for _, fields in raw.xrange(PRICE.control)]
        assert messages[-1][b"kind"] == b"grown" and messages[-1][b"map"] == b"4+6"
    shown = streamworker("partitions", "shop:orders").output.splitlines()
    assert [line.split()[:2] for line in shown[1:]] == [["1", "0-3"], ["2", "4-9"]]
    assert "wait: 4-9" in shown[2] and "open" in shown[1]
    assert "partitions" not in streamworker.does("schema", "check", "shop:app")
    fewer = streamworker("partitions", "shop:orders", "6", "--yes")
    assert fewer.exit_code != ExitCode.OK
    assert "a stream only grows" in fewer.output


@pytest.mark.parametrize("steps", range(6))
def test_a_growth_that_was_cut_off_goes_on_when_it_is_run_again(
    streamworker: Invoke, orders: str, steps: int
) -> None:
    """After each of its calls of Redis."""

    class Cut(Exception):
        pass

    async def cut() -> None:
        async with Backend.open(orders, name="t") as backend:
            await growth.prepare(backend, KEYS, 6, MEMORY)
            real, left = backend.server.exchange, steps

            async def exchange(*args: object, **named: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Cut
                return await real(*args, **named)  # type: ignore[arg-type]

            backend.server.exchange = exchange  # type: ignore[method-assign, assignment]
            with pytest.raises(Cut):
                await growth.go_on(backend, KEYS, MEMORY, "t")

    anyio.run(cut)
    assert "is growing from 4 to 4+6" in streamworker("partitions", "shop:orders", "8", "--yes").output
    assert "It is growing to 4+6" in streamworker("partitions", "shop:orders").output
    assert streamworker("partitions", "shop:orders", "6", "--yes").exit_code == ExitCode.OK
    with opened(orders) as raw:
        assert raw.hget(KEYS.meta, "partitions") == b"4+6"
        assert all(raw.hget(PRICE.lock(p), "from") for p in range(4, 10))
        for p in range(4):
            with pytest.raises(Exception, match="exhausted"):
                raw.xadd(KEYS.events(p), {"v": "x"})


def test_on_a_terminal_it_shows_how_far_the_groups_are_until_all_have_caught_up(
    terminal: OpenTerminal, orders: str
) -> None:
    """The growth itself is done before."""
    run = terminal("partitions", "shop:orders", "6", "--yes")
    with opened(orders) as raw:
        wait_for(lambda: "0/6 caught up" in run.read(), "it shows the group")
        raw.hdel(PRICE.lock(4), "from")
        wait_for(lambda: "1/6 caught up" in run.read(), "it shows one that is open")
        assert raw.hget(KEYS.meta, "partitions") == b"4+6"
        for p in range(4, 10):
            raw.hdel(PRICE.lock(p), "from")
    assert run.wait() == ExitCode.OK
    assert "Caught up: price." in run.text


def test_programs_of_earlier_releases_are_named_before_they_are_refused(
    streamworker: Invoke, orders: str
) -> None:
    """Connections tell their release in their names, and those of before do not."""
    planned = streamworker.does("partitions", "shop:orders", "6", "--dry-run")
    assert "No program of an earlier release is connected." in planned
    with opened(orders) as raw:
        raw.client_setname("shop:producer")
        planned = streamworker.does("partitions", "shop:orders", "6", "--dry-run")
        assert "1 connection of earlier releases: shop:producer at " in planned
        refused = streamworker("partitions", "shop:orders", "6")
        assert refused.exit_code == ExitCode.FAILED
        assert "Programs of earlier releases are connected. Nothing was changed." in refused.stderr
        assert not raw.hexists(KEYS.meta, "growing")
        raw.client_setname("other:producer")
        assert "No program of" in streamworker.does("partitions", "shop:orders", "6", "--yes")


def test_a_growth_says_what_is_copied_and_what_of_the_state_is_no_key(
    streamworker: Invoke, orders: str
) -> None:
    """A field is a key where the key's partition is; those of timers are neither."""
    del streamworker
    stream, placement = resolve_stream("shop:orders"), Placement(4)
    with opened(orders) as raw:
        for n in range(40):
            raw.hset(PRICE.state(placement.partition_of(b"c%d" % n)), f"c{n}", "1")
        for p in range(4):
            raw.hset(PRICE.state(p), "sum", "1")
            raw.hset(PRICE.state(p), "\0tick:sweep", "1")

    async def copies() -> tuple[str, set[str]]:
        async with Backend.open(orders, name="t") as backend:
            return await _copies(backend, stream, placement, "price")

    assert anyio.run(copies) == ("44 keys of ctx.state: about 3 ms", {"sum"})


def test_what_a_failover_lost_is_done_again(streamworker: Invoke, orders: str) -> None:
    """A seal, and the map of which the seals have a note."""
    assert streamworker("partitions", "shop:orders", "6", "--yes").exit_code == ExitCode.OK

    async def heals(*partitions: int) -> str:
        async with Backend.open(orders, name="t") as backend:
            return await growth.heal(backend, KEYS, partitions, MEMORY)

    with opened(orders) as raw:
        last = raw.xinfo_stream(KEYS.events(1))["last-entry"][0]
        raw.execute_command("XSETID", KEYS.events(1), last)
        assert anyio.run(heals, 0, 4) == ""
        assert anyio.run(heals, 0, 1) == "the seal of 1"
        assert raw.hget(KEYS.counts(1), "sealed") == last + b" 4+6"
        raw.hset(KEYS.meta, "partitions", "4")
        raw.hdel(KEYS.meta, "growing")
        assert anyio.run(heals, 2) == "the map 4+6"
    assert "It is growing to 4+6" in streamworker("partitions", "shop:orders").output
    assert streamworker("partitions", "shop:orders", "6", "--yes").exit_code == ExitCode.OK


def test_what_another_does_meanwhile_is_no_loss(orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks for losses may have read the map before."""

    async def heals() -> str:
        async with Backend.open(orders, name="t") as backend:
            before = await growth.read_maps(backend, KEYS)
            await growth.prepare(backend, KEYS, 6, MEMORY)
            await backend.run_many(SEAL, [SEAL.at(KEYS, 0, map="4+6")])

            async def read_before(*_: object) -> growth.Maps:
                return before

            monkeypatch.setattr(growth, "read_maps", read_before)
            return await growth.heal(backend, KEYS, (0,), MEMORY)

    assert anyio.run(heals) == ""


def test_a_preparation_that_a_failover_has_lost_is_not_gone_on_with(
    orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another number could be prepared, and the two maps would not fit."""
    read_maps, maps = growth.read_maps, list[growth.Maps]()

    async def read_and_lose(backend: Backend, keys: StreamKeys) -> growth.Maps:
        maps.append(await read_maps(backend, keys))
        await backend.execute("HDEL", keys.meta, "growing")
        return maps[-1]

    async def goes_on() -> None:
        async with Backend.open(orders, name="t") as backend:
            await growth.prepare(backend, KEYS, 6, MEMORY)
            monkeypatch.setattr(growth, "read_maps", read_and_lose)
            await growth.go_on(backend, KEYS, MEMORY, "t")

    anyio.run(goes_on)
    assert [each.is_changing for each in maps] == [True, False]
    with opened(orders) as raw:
        assert raw.hget(KEYS.meta, "partitions") == b"4"
        assert not any(raw.hexists(KEYS.counts(p), "sealed") for p in range(4))


def test_each_step_of_a_growth_waits_until_it_is_durable(
    orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover must lose neither that a group is registered, nor when the partitions were opened."""
    made = list[tuple[Script, Durability]]()

    async def run_many(
        self: Backend, script: Script, calls: Sequence[Call], *, durability: Durability = MEMORY
    ) -> list[Any]:
        made.extend([(script, durability)] if calls else [])
        return await true(self, script, calls)

    async def grows() -> None:
        async with Backend.open(orders, name="t") as backend:
            await backend.execute("HSET", KEYS.meta, "opened:4", "7")
            await growth.prepare(backend, KEYS, 6, MEMORY)
            monkeypatch.setattr(Backend, "run_many", run_many)
            await growth.go_on(backend, KEYS, wanted, "t")

    true, wanted = Backend.run_many, Durability("replicas", 1, 10)
    anyio.run(grows)
    assert {script.name for script, _ in made} == {"data/set_field", "group/register", "growth/seal"}
    assert {durability for _, durability in made} == {wanted}
    with opened(orders) as raw:
        assert raw.hget(KEYS.meta, "opened:4") == b"7"


def test_a_stream_with_entries_of_an_earlier_one_is_refused(streamworker: Invoke, orders: str) -> None:
    """Nothing is sealed or written then."""
    with opened(orders) as raw:
        raw.xadd(KEYS.events(7), {"v": "left"})
        refused = streamworker("partitions", "shop:orders", "6", "--yes")
        assert refused.exit_code != ExitCode.OK
        assert "Partitions 7 of stream 'orders' hold entries" in refused.output
        assert not raw.hexists(KEYS.meta, "growing")


def test_new_partitions_keep_what_retention_keeps_from_the_start(streamworker: Invoke, orders: str) -> None:
    """No sender trims them, also before a worker sees them."""
    with opened(orders) as raw:
        raw.hset(KEYS.meta, "retention", "1 day")
        assert streamworker("partitions", "shop:orders", "6", "--yes").exit_code == ExitCode.OK
        assert {raw.hget(KEYS.counts(p), "retained") for p in range(4, 10)} == {b"0"}
