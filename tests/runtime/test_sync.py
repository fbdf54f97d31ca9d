"""Programs without an event loop send, too: `stream.sync`, and what opens and closes around it."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median

import msgspec
import pytest

from streamworker import App, ConfigurationError, RecordError, Stream
from streamworker.dev.server import EmbeddedServer
from streamworker.testing import local_worker
from tests.helpers import wait_for
from tests.raw import opened

THREAD = "streamworker-sync"


class Order(msgspec.Struct):
    number: int
    customer: str = "ann"


class Shop:
    """An app with one stream of one partition, and what that holds."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = App("shop", redis_url=url)
        self.orders: Stream[Order] = self.app.stream(
            "orders", Order, key="customer", partitions=1, single_entries=True
        )

    def numbers(self) -> list[int]:
        with opened(self.url) as client:
            entries = client.xrange("sw:{shop.orders.0}:events")
        return [msgspec.json.decode(fields[b"v"], type=Order).number for _, fields in entries]


@pytest.fixture
def shop(redis_url: str) -> Iterator[Shop]:
    made = Shop(redis_url)
    yield made
    made.app.close()


def test_a_script_sends_without_an_event_loop_of_its_own(shop: Shop) -> None:
    """One record, a list and a generator are in Redis, in order, when the calls return."""
    first = shop.orders.sync.send(Order(0), headers={"from": "script"})
    assert shop.orders.sync.send_many([Order(1), Order(2)]) == 2
    assert shop.orders.sync.send_many(Order(number) for number in range(3, 5_000)) == 4_997
    assert shop.numbers() == list(range(5_000))
    with opened(shop.url) as client:
        entries = client.xrange("sw:{shop.orders.0}:events", count=1)
    assert entries == [
        (str(first.entry_id).encode(), {b"v": msgspec.json.encode(Order(0)), b"h.from": b"script"})
    ]


PROGRAM = """
import os, sys, threading, time
import msgspec, redis
from streamworker import App

class Order(msgspec.Struct):
    number: int
    customer: str = "ann"

app = App("shop", redis_url=sys.argv[1])
orders = app.stream("orders", Order, key="customer", partitions=1, single_entries=True)
orders.sync.send(Order(1))
if os.fork() == 0:
    orders.sync.send_many(Order(number) for number in range(100, 200))
    raise SystemExit(3)
orders.sync.send_many(Order(number) for number in range(2, 100))
assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
orders.sync.send(Order(200))
with redis.Redis.from_url(sys.argv[1]) as client:
    client.client_pause(500, all=False)  # So that the next send is under way when the program ends.
threading.Thread(target=orders.sync.send, args=[Order(201)], daemon=True).start()
((_, producers),) = app._opened.values()
while not any(lane.in_flight for lane in producers["orders"]._lanes._lanes.values()):
    time.sleep(0.01)
"""


def test_a_program_ends_by_itself_says_nothing_and_sends_what_is_under_way(shop: Shop) -> None:
    """The thread that sends keeps no program alive, and is another in a forked child.

    A thread that the end of the program does not wait for has begun the last send; it is not lost.
    """
    # From Python 3.12 on, each fork of a process with threads warns.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, shop.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = shop.numbers()
    assert sorted(found) == list(range(1, 202))
    assert [number for number in found if number < 100] == list(range(1, 100))
    assert found[-2:] == [200, 201]


def test_threads_share_one_loop_and_each_learns_its_own_id(shop: Shop) -> None:
    """A web service with twenty threads has one thread more, and one set of connections."""
    with ThreadPoolExecutor(20) as pool:
        sent = list(pool.map(shop.orders.sync.send, map(Order, range(400))))
    assert [thread.name for thread in threading.enumerate()].count(THREAD) == 1
    assert sorted(shop.numbers()) == list(range(400))
    assert len({each.entry_id for each in sent}) == 400


@pytest.mark.anyio
async def test_a_notebook_sends_from_the_thread_of_its_running_loop(shop: Shop) -> None:
    """A cell runs while the notebook's loop does, and may call what blocks."""
    assert shop.orders.sync.send(Order(1)).partition == 0
    assert shop.orders.sync.send_many(Order(number) for number in (2, 3)) == 2
    await shop.orders.send(Order(4))
    await shop.app.aclose()
    assert shop.numbers() == [1, 2, 3, 4]


def test_the_calling_thread_iterates_and_an_error_leaves_what_came_before_it(shop: Shop) -> None:
    """Rows of a database session belong to the thread that opened it."""
    threads: set[str] = set()

    def rows(wrong: bool) -> Iterator[Order]:
        for number in range(3_000):
            threads.add(threading.current_thread().name)
            yield Order(number)
        if wrong:
            yield "no order"  # type: ignore[misc]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shop.orders.sync.send_many(rows(wrong=False))
    assert shop.numbers() == list(range(3_000))
    with pytest.raises(RecordError):
        shop.orders.sync.send_many(rows(wrong=True))
    assert shop.numbers() == [*range(3_000), *range(3_000)]
    assert threads == {threading.current_thread().name}


def test_a_send_within_a_send_is_refused_and_does_not_hang(redis_url: str) -> None:
    """A key function runs in the one thread that could answer it."""
    app = App("shop", redis_url=redis_url)
    plain = app.stream("plain", Order, key="customer")
    nested = app.stream("nested", Order, key=lambda order: str(plain.sync.send(order)))
    with pytest.raises(ConfigurationError, match=r"code that another one runs"):
        nested.sync.send(Order(1))
    app.close()


def test_ctrl_c_ends_the_wait_for_a_server_that_is_away(own_server: EmbeddedServer) -> None:
    """The record is given up with it: it is not sent once the server is back."""
    shop = Shop(own_server.url)
    shop.orders.sync.send(Order(1))
    own_server.kill()

    def is_under_way() -> bool:
        return any(lane.in_flight for lane in lanes._lanes.values())

    def press() -> None:
        wait_for(is_under_way, "the send is under way")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    ((_, producers),) = shop.app._opened.values()
    lanes = producers["orders"]._lanes
    threading.Thread(target=press).start()
    # The processes of pytest-xdist ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            shop.orders.sync.send(Order(2))
    finally:
        signal.signal(signal.SIGINT, before)
    wait_for(lambda: not is_under_way(), "a try that has begun before has ended")
    own_server.start()
    shop.orders.sync.send(Order(3))
    shop.app.close()
    assert 2 not in shop.numbers()


@pytest.mark.anyio
async def test_a_test_sends_to_the_server_in_memory() -> None:
    """What `sync` opened within the block is closed with it."""
    app = App("shop")
    orders = app.stream("orders", Order, key="customer", partitions=2)
    seen: list[int] = []

    @app.processor(orders)
    async def take(order: Order) -> None:
        seen.append(order.number)

    for turn in range(2):
        async with local_worker(app) as worker:
            orders.sync.send_many(Order(number) for number in range(turn, 50))
            await worker.until_drained()
        assert sorted(seen) == list(range(turn, 50))
        seen.clear()


@pytest.mark.anyio
async def test_lifespan_closes_what_a_web_service_opened(shop: Shop) -> None:
    """A framework calls it with the service, or without anything; the next lifespan opens anew."""
    for number in range(2):
        async with shop.app.lifespan("the service"):
            await shop.orders.send(Order(number))
            assert asyncio.get_running_loop() in shop.app._opened
        assert asyncio.get_running_loop() not in shop.app._opened
    async with shop.app.lifespan():
        await shop.orders.send(Order(2))
    assert shop.numbers() == [0, 1, 2]


@pytest.mark.soak  # It compares times; what is sent is looked at by the tests above.
def test_sync_sends_at_seven_tenths_of_the_rate_of_async(redis_url: str) -> None:
    """Lists and generators, in turns, on the same server."""
    app = App("shop", redis_url=redis_url)
    orders = app.stream("orders", Order, key="customer", partitions=8)
    records = [Order(number, f"customer-{number % 100}") for number in range(50_000)]

    async def awaited(as_list: bool) -> None:
        await orders.send_many(records if as_list else iter(records))
        await app.aclose()

    for as_list in (True, False):
        ratios: list[float] = []
        for _ in range(7):
            times = [time.perf_counter()]
            asyncio.run(awaited(as_list))
            times.append(time.perf_counter())
            orders.sync.send_many(records if as_list else iter(records))
            times.append(time.perf_counter())
            by_async, by_sync = (after - before for before, after in pairwise(times))
            ratios.append(by_async / by_sync)
        print(f"{'list' if as_list else 'generator'}: {median(ratios):.2f} of the async rate")
        assert median(ratios) >= 0.7
    app.close()
