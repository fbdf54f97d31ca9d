"""`pause`, `resume` and `retry` on groups that run: no worker is restarted."""

import json
import re
import signal
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from streamworker.cli.exit_codes import ExitCode
from streamworker.core.words import ranges
from streamworker.records.entries import Entries
from streamworker.redisio.keys import GroupKeys
from tests.chaos.forked import Forked
from tests.cli.conftest import Invoke, work_off
from tests.conftest import SpawnWorker
from tests.helpers import wait_for

FAILING = """

@app.processor(orders, name="fragile", errors=Halt(), forward=False)
async def fragile(order: Order) -> None:
    import pathlib
    if order.amount < 0 and not pathlib.Path("mended").exists():
        raise ValueError("the mail server is away")
"""


def send(streamworker: Invoke, *numbers: int, amount: float = 1.0) -> None:
    """Send orders of one customer, so that they go to one partition."""
    lines = [json.dumps({"order_id": n, "customer": "ann", "amount": amount}) for n in numbers]
    streamworker.does("send", "shop:orders", "-", input="\n".join(lines))


def partitions(streamworker: Invoke, processor: str) -> Any:
    """The partitions of a processor, as ``status`` has them."""
    return streamworker.tells("status", f"shop:{processor}")[0]["partitions"]


def states(streamworker: Invoke, processor: str) -> set[object]:
    return {view["state"] for view in partitions(streamworker, processor)}


def lag(streamworker: Invoke, processor: str) -> int:
    return sum(view["lag"] for view in partitions(streamworker, processor))


@pytest.fixture
def worker(streamworker: Invoke, spawn: SpawnWorker) -> Forked:
    """A worker that runs all partitions of ``price``."""
    process = spawn("run", "shop:price", "--name", "w1")
    wait_for(lambda: states(streamworker, "price") == {"running"}, "all partitions run")
    return process


def test_a_paused_processor_takes_nothing_and_may_be_reset_until_it_is_resumed(
    worker: Forked, streamworker: Invoke
) -> None:
    """Its worker stays the owner; who paused it, when and why is in `status` and in `history`.

    A reset leaves it paused where it is put, and all runs again once it is resumed.
    """
    owners = {view["owner"] for view in partitions(streamworker, "price")}
    paused = streamworker("pause", "shop:price", "--why", "the mail server moves", env={"LOGNAME": "ann"})
    assert paused.exit_code == 0, paused.output
    assert paused.stdout == "Paused 4 partitions of price: 0-3.\n"
    assert states(streamworker, "price") == {"paused"}
    send(streamworker, 1, 2, 3)
    status = streamworker("status", "shop:price").stdout
    assert re.search(r'paused by ann at [\d-]+ [\d:]{8}[+-]\d\d:\d\d "the mail server moves"', status)
    assert {view["owner"] for view in partitions(streamworker, "price")} == owners
    assert lag(streamworker, "price") == 3

    assert streamworker("resume", "shop:price").stdout == "Resumed 4 partitions of price: 0-3.\n"
    wait_for(lambda: lag(streamworker, "price") == 0, "the orders are handled")
    streamworker.does("pause", "shop:price")
    moved = streamworker.does("reset", "shop:price", "--to", "earliest", "--yes")
    assert "Moved 1 partition back by 3 records" in moved
    assert moved.endswith("`streamworker resume MODULE:price` lets it go on.\n")
    assert (lag(streamworker, "price"), states(streamworker, "price")) == (3, {"paused"})
    streamworker.does("resume", "shop:price")
    send(streamworker, 4)
    wait_for(lambda: lag(streamworker, "price") == 0, "they are handled again, and it goes on")
    assert sum(view["rows"] for view in partitions(streamworker, "price")) == 7
    assert states(streamworker, "price") == {"running"} and worker.running
    told = streamworker("history", "shop:price").stdout
    assert 'ann "the mail server moves"' in told and "resume" in told


def test_a_pause_holds_for_one_partition_and_for_the_next_worker(
    worker: Forked, streamworker: Invoke, spawn: SpawnWorker
) -> None:
    """It stands in the lock: neither a restart nor another owner ends it, and none needs be there."""
    streamworker.does("pause", "shop:price", "--partition", "2")
    assert [view["state"] for view in partitions(streamworker, "price")].count("paused") == 1
    worker.terminate()
    assert worker.wait() == 0
    streamworker.does("resume", "shop:price")
    paused = streamworker("pause", "shop:price", "--partition", "2")
    assert paused.exit_code == 0
    assert "Nobody owns 2 now; it holds for the worker that takes them." in paused.stdout
    spawn("run", "shop:price", "--name", "w2")
    wait_for(lambda: states(streamworker, "price") == {"running", "paused"}, "w2 has all partitions")
    assert partitions(streamworker, "price")[2]["state"] == "paused"
    resumed = streamworker.does("resume", "shop:price")
    assert resumed == "Resumed 1 partition of price: 2.\n"


def test_a_halted_partition_is_retried_without_a_restart(
    shop: Path, streamworker: Invoke, spawn: SpawnWorker
) -> None:
    """The function works again; the partition goes on at its checkpoint, in order."""
    source = "from streamworker import Halt" + (shop / "shop.py").read_text("utf-8") + FAILING
    (shop / "shop.py").write_text(source, "utf-8")
    send(streamworker, 1, amount=-1.0)
    send(streamworker, 2)
    worker = spawn("run", "shop:fragile", "--name", "w1")
    wait_for(lambda: "halted" in states(streamworker, "fragile"), "the partition halts")
    again = streamworker("retry", "shop:fragile")
    assert again.exit_code == 0, again.output
    wait_for(lambda: "halted" in states(streamworker, "fragile"), "it fails again")
    (shop / "mended").touch()
    (p,) = (view["partition"] for view in partitions(streamworker, "fragile") if view["state"] == "halted")
    others = ranges(sorted({0, 1, 2, 3} - {p}))
    retried = streamworker("retry", "shop:fragile").stdout
    assert retried == f"Retried 1 partition of fragile: {p}.\nNeither halted nor retrying: {others}.\n"
    wait_for(lambda: lag(streamworker, "fragile") == 0, "both orders are handled")
    wait_for(lambda: states(streamworker, "fragile") == {"running"}, "it runs")
    nothing = streamworker("retry", "shop:fragile", "--partition", "1")
    assert (nothing.exit_code, nothing.stdout) == (ExitCode.OK, "Neither halted nor retrying: 1.\n")
    assert worker.running


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("pause shop:price", "price has never run in these partitions"),
        ("resume shop:price", "price has never run in these partitions"),
        ("retry shop:price", "price has never run in these partitions"),
        ("dead put shop:price 0/1-0 --yes", "Partition 0 of orders has no record 1-0."),
        ("dead show shop:price 0/1-0", "There is no dead letter 0/1-0 of price."),
        ("dead replay shop:price 0/1-0", "1 did not exist: 0/1-0."),
        ("dead drop shop:price 0/1-0 --yes", "1 did not exist."),
        (
            "reset shop:price --to latest --yes",
            "It will start where it says: @app.processor(",
        ),
        ("timers run-now shop:flush", "No worker has run 'flush' yet."),
        ("repair shop:app --forget-group old --yes", "No stream that 'shop' declares has a group 'old'."),
        ("repair shop:app --forget-reader old --yes", "No acked log of 'shop' has a reader 'old'."),
        ("spark shop:app --forget old", "No processor of app 'shop' has a reader 'old'."),
        ("later cancel shop:orders one", "Nothing was cancelled"),
    ],
)
def test_what_redis_does_not_hold_ends_a_command_with_one(
    streamworker: Invoke, shop: Path, arguments: str, text: str
) -> None:
    """Of any command, and it says what is missing."""
    module, more = shop / "shop.py", '\n\n@pricing.timer(every="1 hour")\nasync def flush() -> None: ...\n'
    module.write_text(module.read_text("utf-8") + more, "utf-8")
    result = streamworker(*arguments.split())
    assert result.exit_code == ExitCode.FAILED, result.output
    assert text in result.output


@pytest.mark.parametrize("request_", ["pause", "resume"])
def test_a_partition_that_did_not_take_a_request_is_named_and_fails_the_command(
    redis_url: str, shop: Path, streamworker: Invoke, request_: str
) -> None:
    """The others took it. One had no lock yet, and the lock of another is a key of another type."""
    work_off(redis_url)
    streamworker.does("pause", "shop:price")
    keys = GroupKeys("shop", "orders", "price")
    with redis.Redis.from_url(redis_url) as raw:
        raw.delete(keys.lock(1), keys.lock(2))
        raw.set(keys.lock(2), "mine")
    said = streamworker(request_, "shop:price")
    assert said.exit_code == ExitCode.FAILED
    assert said.stdout.startswith(f"{request_.capitalize()}d 2 partitions of price: 0,3.")
    assert "Partition 1: the group has never run in it." in said.stderr
    assert "Partition 2: Redis refused" in said.stderr


def test_what_cannot_be_ordered_or_is_not_confirmed_is_not_said_to_be_done(
    worker: Forked, streamworker: Invoke
) -> None:
    """An order that stands is obeyed once the worker is back."""
    for arguments, code, text in (
        (("resume", "shop:price"), ExitCode.FAILED, "Not paused: 4 partitions of price: 0-3."),
        (("pause", "shop:price", "--partition", "9"), ExitCode.USAGE, "has partitions 0 to 3, and not 9"),
        (("pause", "shop:price", "--wait", "soon"), ExitCode.USAGE, "--wait"),
        (("wait", "shop:price", "--timeout", "3"), ExitCode.USAGE, "is no duration"),
    ):
        result = streamworker(*arguments)
        assert (result.exit_code, text in result.output) == (code, True), result.output
    assert states(streamworker, "price") == {"running"}
    worker.pause()
    try:
        result = streamworker("pause", "shop:price", "--wait", "1 second")
        assert result.exit_code == ExitCode.FAILED
        assert "Partition 0: w1 has not confirmed it yet" in result.output
        assert "Paused" not in result.stdout
        assert states(streamworker, "price") == {"pausing"}
    finally:
        worker.resume()
    wait_for(lambda: states(streamworker, "price") == {"paused"}, "the worker has obeyed")


def test_a_request_is_told_by_a_look_at_the_partitions_that_it_names(
    worker: Forked, streamworker: Invoke, spawn: SpawnWorker
) -> None:
    """Of others it says nothing. A look is made whatever the time to wait; one that is cut short says so."""
    streamworker.does("pause", "shop:price", "--partition", "2")
    other = streamworker("resume", "shop:price", "--partition", "3")
    assert (other.exit_code, other.output) == (ExitCode.FAILED, "Not paused: 1 partition of price: 3.\n")
    streamworker.does("resume", "shop:price")
    worker.pause()
    asking = spawn("pause", "shop:price", "--wait", "1 minute")
    wait_for(lambda: states(streamworker, "price") == {"pausing"}, "it waits")
    asking.signal(signal.SIGINT)
    assert asking.wait() == ExitCode.INTERRUPTED
    assert "The request was written, and stands; whether it is obeyed by now is not known." in asking.log()
    worker.resume()
    worker.terminate()
    assert worker.wait() == 0
    assert streamworker.does("resume", "shop:price", "--wait", "0 seconds").startswith("Resumed 4 partitions")
    free = streamworker.does("retry", "shop:price")
    assert free == "Nobody owns 0-3 now; it holds for the worker that takes them.\n"


POISON = """

@app.processor(orders, name="retries", errors=Retry(), forward=False, batch=10)
async def retries(batch: list[Order]) -> None:
    for order in batch:
        if order.amount < 0:
            raise ValueError("no such customer")
"""


def test_one_poison_record_is_set_aside_on_a_group_that_runs(
    shop: Path, streamworker: Invoke, redis_url: str, spawn: SpawnWorker
) -> None:
    """It is one of five in an entry; the others are handled by the same worker. The modes: test_set_aside.

    Until then `status` tells the error, its attempts and when the next is due, which `retry` brings forward.
    """
    source = "from streamworker import Retry" + (shop / "shop.py").read_text("utf-8") + POISON
    (shop / "shop.py").write_text(source, "utf-8")
    orders = [{"order_id": n, "customer": "ann", "amount": -1.0 if n == 3 else 1.0} for n in range(1, 6)]
    streamworker.does("send", "shop:orders", "-", input="\n".join(map(json.dumps, orders)))
    worker = spawn("run", "shop:retries", "--name", "w1")

    stands = r"1 retrying .*partition \d since [\d: +-]+ \(attempt \d+, next in .*\): ValueError: no such"
    wait_for(lambda: re.search(stands, streamworker("status", "shop:app").stdout), "it stands at the record")
    assert streamworker("retry", "shop:retries").stdout.startswith("Retried 1 partition of retries: ")
    done = streamworker.does(
        "dead", "put", "shop:retries", place_of(redis_url, 3), "--yes", "--why", "a test"
    )
    assert re.match(r"Done by worker w1 at \S+ \S+: streamworker dead show shop:\w+ \d/\d+-0$", done)
    wait_for(lambda: lag(streamworker, "retries") == 0, "the others are handled")
    (letter,) = streamworker.tells("dead", "list", "shop:retries")
    assert letter["record"]["order_id"] == 3
    assert "Set aside by " in letter["error"] and ": a test" in letter["error"]
    assert states(streamworker, "retries") == {"running"}
    assert worker.running
    assert "put" in streamworker("history", "shop:retries").stdout


def test_dead_put_does_not_say_what_did_not_happen(
    worker: Forked, streamworker: Invoke, redis_url: str
) -> None:
    """A record that was handled, one that never was, one that a paused or absent worker will come to."""
    send(streamworker, 7)
    wait_for(lambda: lag(streamworker, "price") == 0, "the order is handled")
    streamworker("pause", "shop:price")
    send(streamworker, 8)
    place = place_of(redis_url, 8)
    paused = streamworker("dead", "put", "shop:price", place, "--yes")
    assert paused.exit_code == ExitCode.FAILED
    assert "was not set aside: an operator has paused the partition. The request stands" in paused.output
    streamworker("resume", "shop:price")
    wait_for(lambda: len(streamworker.tells("dead", "list", "shop:price")) == 1, "the order was obeyed later")
    late = streamworker("dead", "put", "shop:price", place, "--yes")
    assert late.exit_code == ExitCode.FAILED
    assert "the group has committed it already" in late.output
    streamworker("pause", "shop:price")
    send(streamworker, 9)
    place = place_of(redis_url, 9)
    at_once = streamworker("dead", "put", "shop:price", place, "--yes", "--wait", "0 seconds")
    assert "an operator has paused the partition. The request stands" in at_once.output
    del worker


def place_of(redis_url: str, order_id: int) -> str:
    """PARTITION/ID of the record of an order, which may be one of many in an entry."""
    client = redis.Redis.from_url(redis_url)
    for partition in range(4):
        stored = cast(list[Any], client.xrange(f"sw:{{shop.orders.{partition}}}:events"))
        for entry in Entries.of(
            [[name, [part for pair in fields.items() for part in pair]] for name, fields in stored]
        ):
            if json.loads(entry.fields[b"v"])["order_id"] == order_id:
                return f"{partition}/{entry.id}"
    raise AssertionError(f"no order {order_id}")


DEADLY = """

import pathlib
from dataclasses import dataclass

@dataclass
class Deadly:
    n: int

    def __post_init__(self):
        with pathlib.Path("decoded").open("a") as file:
            file.write(f"{self.n} ")

kills = app.stream("kills", Deadly, partitions=1)

@app.processor(kills, forward=False)
async def deadly(record: Deadly) -> None:
    pass
"""


def test_what_kills_while_it_is_decoded_is_set_aside_and_shown_without_its_code(
    shop: Path, streamworker: Invoke, redis_url: str, spawn: SpawnWorker
) -> None:
    """Or the remedy would end the command, too. Who has not confirmed a request is told from the lock."""
    (shop / "shop.py").write_text((shop / "shop.py").read_text("utf-8") + DEADLY, "utf-8")
    streamworker.does("send", "shop:kills", "-", input='{"n": 1}')
    worker = spawn("run", "shop:deadly", "--name", "w1")
    wait_for(lambda: lag(streamworker, "deadly") == 0, "it is handled")
    client = redis.Redis.from_url(redis_url)

    def put(number: int) -> str:
        """Send a record, and ask for it to be set aside."""
        streamworker.does("send", "shop:kills", "-", input=f'{{"n": {number}}}')
        (shop / "decoded").unlink()
        (entry, _) = cast(list[Any], client.xrevrange("sw:{shop.kills.0}:events", count=1))[0]
        place = f"0/{entry.decode()}"
        return streamworker("dead", "put", "shop:deadly", place, "--yes", "--wait", "0.2 seconds").output

    streamworker.does("pause", "shop:deadly")
    assert "an operator has paused the partition. The request stands" in put(2)
    streamworker.does("resume", "shop:deadly")
    wait_for(lambda: lag(streamworker, "deadly") == 0, "it is set aside")
    (letter,) = streamworker.tells("dead", "list", "shop:deadly")
    assert letter["record"] == {"n": 2}
    assert "{'n': 2}" in streamworker.does("dead", "show", "shop:deadly", letter["letter"])
    assert not (shop / "decoded").exists()
    worker.pause()
    assert "w1 has not confirmed it within 0.2 seconds: a call runs, or it is away. The request" in put(3)
