"""`pause`, `resume` and `retry` on groups that run: no worker is restarted."""

import json
from pathlib import Path

import pytest

from streamworker.cli.exit_codes import ExitCode
from tests.cli.conftest import Invoke
from tests.conftest import SpawnWorker
from tests.helpers import WorkerProcess, wait_for

FAILING = """

@app.processor(orders, name="fragile", on_error="halt", attempts=1, forward=False)
async def fragile(order: Order) -> None:
    import pathlib
    if order.amount < 0 and not pathlib.Path("mended").exists():
        raise ValueError("the mail server is away")
"""


def send(streamworker: Invoke, *numbers: int, amount: float = 1.0) -> None:
    """Send orders of one customer, so that they go to one partition."""
    lines = [json.dumps({"order_id": n, "customer": "ann", "amount": amount}) for n in numbers]
    sent = streamworker("send", "shop:orders", "-", input="\n".join(lines))
    assert sent.exit_code == 0, sent.output


def partitions(streamworker: Invoke, processor: str) -> list[dict[str, object]]:
    """The partitions of a processor, as ``status`` has them."""
    taken = json.loads(streamworker("status", f"shop:{processor}", "--json").stdout)
    found: list[dict[str, object]] = taken[0]["partitions"]
    return found


def states(streamworker: Invoke, processor: str) -> set[object]:
    return {view["state"] for view in partitions(streamworker, processor)}


def lag(streamworker: Invoke, processor: str) -> int:
    return sum(int(str(view["lag"])) for view in partitions(streamworker, processor))


@pytest.fixture
def worker(streamworker: Invoke, spawn: SpawnWorker) -> WorkerProcess:
    """A worker that runs all partitions of ``price``."""
    process = spawn("run", "shop:price", "--name", "w1")
    wait_for(lambda: states(streamworker, "price") == {"running"}, "all partitions run")
    return process


def test_a_paused_processor_takes_nothing_until_it_is_resumed(
    worker: WorkerProcess, streamworker: Invoke
) -> None:
    """Its worker stays the owner; who paused it, when and why is in `status` and in `history`."""
    owners = {view["owner"] for view in partitions(streamworker, "price")}
    paused = streamworker("pause", "shop:price", "--why", "the mail server moves", env={"LOGNAME": "ann"})
    assert paused.exit_code == 0, paused.output
    assert paused.stdout == "Paused 4 partitions of price: 0-3.\n"
    assert states(streamworker, "price") == {"paused"}
    send(streamworker, 1, 2, 3)
    status = streamworker("status", "shop:price").stdout
    assert "paused by ann" in status and '"the mail server moves"' in status
    assert {view["owner"] for view in partitions(streamworker, "price")} == owners
    assert lag(streamworker, "price") == 3

    assert streamworker("resume", "shop:price").stdout == "Resumed 4 partitions of price: 0-3.\n"
    wait_for(lambda: lag(streamworker, "price") == 0, "the orders are handled")
    assert states(streamworker, "price") == {"running"}
    told = streamworker("history", "shop:price").stdout
    assert 'ann "the mail server moves"' in told and "resume" in told
    assert worker.running


def test_a_pause_holds_for_one_partition_and_for_the_next_worker(
    worker: WorkerProcess, streamworker: Invoke, spawn: SpawnWorker
) -> None:
    """It stands in the lock: neither a restart nor another owner ends it."""
    assert streamworker("pause", "shop:price", "--partition", "2").exit_code == 0
    assert [view["state"] for view in partitions(streamworker, "price")].count("paused") == 1
    worker.terminate()
    assert worker.wait() == 0
    spawn("run", "shop:price", "--name", "w2")
    wait_for(lambda: states(streamworker, "price") == {"running", "paused"}, "w2 has all partitions")
    assert partitions(streamworker, "price")[2]["state"] == "paused"
    resumed = streamworker("resume", "shop:price")
    assert resumed.exit_code == 0
    assert resumed.stdout == "Resumed 1 partition of price: 2.\n"


def test_a_pause_without_a_worker_holds_for_the_first_that_comes(
    worker: WorkerProcess, streamworker: Invoke
) -> None:
    worker.terminate()
    assert worker.wait() == 0
    paused = streamworker("pause", "shop:price")
    assert paused.exit_code == 0
    assert "Nobody owns 0-3 now; it holds for the worker that takes them." in paused.stdout


def test_a_halted_partition_is_retried_without_a_restart(
    shop: Path, streamworker: Invoke, spawn: SpawnWorker
) -> None:
    """The function works again; the partition goes on at its checkpoint, in order."""
    (shop / "shop.py").write_text((shop / "shop.py").read_text("utf-8") + FAILING, "utf-8")
    send(streamworker, 1, amount=-1.0)
    send(streamworker, 2)
    worker = spawn("run", "shop:fragile", "--name", "w1")
    wait_for(lambda: "halted" in states(streamworker, "fragile"), "the partition halts")
    again = streamworker("retry", "shop:fragile")
    assert again.exit_code == 0, again.output
    wait_for(lambda: "halted" in states(streamworker, "fragile"), "it fails again")
    (shop / "mended").touch()
    assert streamworker("retry", "shop:fragile").stdout == "Retried 4 partitions of fragile: 0-3.\n"
    wait_for(lambda: lag(streamworker, "fragile") == 0, "both orders are handled")
    assert worker.running


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("resume", "shop:price"), ExitCode.FAILED, "No partition of price is paused."),
        (("pause", "shop:price", "--partition", "9"), ExitCode.USAGE, "has partitions 0 to 3, and not 9"),
        (("pause", "shop:price", "--wait", "soon"), ExitCode.CONFIGURATION, "--wait"),
    ],
)
def test_what_cannot_be_ordered_is_said(
    worker: WorkerProcess, streamworker: Invoke, arguments: tuple[str, ...], code: ExitCode, text: str
) -> None:
    del worker
    result = streamworker(*arguments)
    assert result.exit_code == code, result.output
    assert text in result.output
    assert states(streamworker, "price") == {"running"}


def test_a_group_that_has_never_run_takes_no_order(streamworker: Invoke) -> None:
    result = streamworker("pause", "shop:price")
    assert result.exit_code == ExitCode.CONFIGURATION
    assert "price has never run in these partitions" in result.output


def test_an_order_that_no_worker_confirms_is_not_said_to_be_done(
    worker: WorkerProcess, streamworker: Invoke
) -> None:
    """It stands, and the worker obeys it once it is back."""
    worker.pause()
    try:
        result = streamworker("pause", "shop:price", "--wait", "300 ms")
        assert result.exit_code == ExitCode.FAILED
        assert "Partition 0: w1 has not confirmed it yet" in result.output
        assert "Paused" not in result.stdout
        assert states(streamworker, "price") == {"pausing"}
    finally:
        worker.resume()
    wait_for(lambda: states(streamworker, "price") == {"paused"}, "the worker has obeyed")
