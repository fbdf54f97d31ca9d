"""`status`, `lag`, `history`, `top --once` on a group that has worked."""

import sys
from pathlib import Path

import pytest

from streamworker.cli.output import print_table
from streamworker.cli.status import memory_forecast
from streamworker.core.holdings import Holdings
from streamworker.tui.overview import COLUMNS
from tests.chaos.forked import Forked
from tests.cli.conftest import Invoke, work_off
from tests.cli.test_send import orders
from tests.conftest import SpawnWorker
from tests.helpers import wait_for
from tests.raw import opened


@pytest.fixture
def worker(streamworker: Invoke, spawn: SpawnWorker) -> Forked:
    """A worker of both processors, which has committed fifty orders."""
    streamworker.does("send", "shop:orders", "-", input="\n".join(orders(50)))
    process = spawn("run", "shop:app", "--name", "w1")
    wait_for(lambda: "worker_started" in process.log(), "the worker has started")
    wait_for(lambda: _lag(streamworker) == {"audit": 0, "price": 0}, "all orders are committed")
    return process


def _lag(streamworker: Invoke) -> dict[str, int]:
    listed = streamworker.tells("lag", "shop:app")
    return {group["processor"]: group["lag"] for group in listed}


def test_status_and_top_show_a_group_at_work(worker: Forked, streamworker: Invoke) -> None:
    """Status: each processor, owner, epoch and state of each partition, and what Redis holds, also as JSON.

    Top prints one picture for each processor where there is no terminal, without control characters.
    """
    table = streamworker.does("status", "shop:price")
    lines = table.splitlines()
    rows = [line.split() for line in lines]
    assert [row[:2] for row in rows if row and row[0].isdigit()] == [[str(p), "w1"] for p in range(4)]
    (stream,) = [line for line in lines if line.startswith("stream ")]
    assert stream.endswith("trimmed once all groups have read it")
    (log,) = [line for line in lines if line.startswith("acked log")]
    assert log.split()[2:4] == ["price", "50"]
    (unread,) = [line for line in lines if "Nobody reads the acked log of 'price'" in line]
    assert "forward=False" in unread and "log_retention=" in unread
    assert "Full at today's rate: never" in lines[-1]

    snapshot = streamworker.tells("status", "shop:price")[0]
    assert snapshot["members"][0]["name"] == "w1"
    assert {view["state"] for view in snapshot["partitions"]} == {"running"}
    assert sum(view["rows"] for view in snapshot["partitions"]) == 50
    held = snapshot["held"]
    assert {each["kind"] for each in held["holdings"]} == {"stream", "acked log", "state", "dead letters"}
    assert held["memory_used"] < held["memory_limit"]
    assert held["memory_full_in_s"] is None

    top = streamworker.does("top", "shop:app")
    assert top.count("A w1") == 4  # in the matrix and among the members, twice
    assert "\x1b" not in top

    streamworker.does("pause", "shop:price", "--partition", "2", "--why", "mail server moves")
    begin = [line.split(None, 3) for line in streamworker("status", "shop:app").stdout.splitlines()[:3]]
    assert [*begin[0][:3], *begin[0][3].split()] == list(COLUMNS)
    told = {line[1]: line[2:] for line in begin[1:]}
    assert "  0/s" in told["audit"][1]
    assert told["audit"][0] == told["price"][0] == "1"
    assert told["audit"][1].startswith("4: 4 running")
    assert told["price"][1].startswith("4: 3 running, 1 paus")
    assert "partition 2 paus" in told["price"][1] and told["price"][1].endswith('"mail server moves"')


@pytest.mark.full("waits for seconds to pass")
def test_a_stream_of_seconds_tells_no_rate_of_growth(
    streamworker: Invoke, spawn: SpawnWorker, shop: Path
) -> None:
    """Some bytes in the first second would be gigabytes in a week."""
    module = (shop / "shop.py").read_text("utf-8")
    (shop / "shop.py").write_text(module.replace("partitions=4", 'partitions=4, retention="7 days"'), "utf-8")
    streamworker.does("send", "shop:orders", "-", input="\n".join(orders(50)))
    spawn("run", "shop:app", "--name", "w1")
    wait_for(lambda: "early" in _kept(streamworker), "its oldest entry is known")
    assert _kept(streamworker).endswith("7 days, too early to tell how it grows")
    lines = streamworker("status", "shop:price").stdout.splitlines()
    assert lines[-1].endswith("Full at today's rate: too early to tell.")


def _kept(streamworker: Invoke) -> str:
    lines = streamworker("status", "shop:price").stdout.splitlines()
    return next((line for line in lines if line.startswith("stream ") and "7 days" in line), "")


def test_history_tells_why_what_moved_and_how_long(streamworker: Invoke, redis_url: str) -> None:
    """A join of the first worker moves all partitions to it; its leave moves none."""
    streamworker.does("send", "shop:orders", "-", input="\n".join(orders(50)))
    work_off(redis_url)
    listed = streamworker.tells("history", "shop:price")
    assert (listed[0]["cause"], listed[0]["member"], listed[0]["moved"]) == ("join", "w1", [0, 1, 2, 3])
    assert listed[0]["ms"] >= 0
    table = streamworker("history", "shop:price").stdout
    assert "join" in table
    assert "0-3" in table
    assert len(streamworker("history", "shop:price", "--limit", "1").stdout.splitlines()) == 2


def test_a_control_stream_that_was_written_over_is_named_and_all_else_is_shown(
    worker: Forked, streamworker: Invoke, redis_url: str
) -> None:
    """`status`, `history` and `top` are what somebody looks at then."""
    key = "sw:{shop.orders:price}:control"
    with opened(redis_url) as raw:
        raw.delete(key)
        raw.set(key, "mine")
    status = streamworker.does("status", "shop:price")
    assert key in status.splitlines()[1]
    assert "running" in status
    history = streamworker("history", "shop:price")
    assert (history.exit_code, key in history.stderr) == (0, True)
    assert "no worker has joined" not in history.stdout
    top = streamworker("top", "shop:price", "--once")
    assert (top.exit_code, f"{key} cannot be read" in top.stdout) == (0, True)
    assert worker.running


def test_a_group_that_never_ran_is_shown_as_such(streamworker: Invoke, shop: Path) -> None:
    """Not as an error."""
    assert "No worker runs." in streamworker("status", "shop:app").stdout
    assert "no worker has joined" in streamworker("history", "shop:app").stdout
    streamworker.does("lag", "shop:app")
    assert "no worker runs" in streamworker("top", "shop:price", "--once").stdout


def test_a_group_whose_workers_are_dead_says_so_everywhere(streamworker: Invoke, worker: Forked) -> None:
    """`status`, `lag` and `graph` agree, and none says that something runs."""
    worker.kill()
    order = '{"order_id": 1, "customer": "a", "amount": 1}'
    streamworker.does("send", "shop:orders", "-", input=order)
    wait_for(lambda: "no worker" in streamworker("lag", "shop:app").stdout, "its silence is noticed")
    status, lag, graph = (streamworker(name, "shop:app").stdout for name in ("status", "lag", "graph"))
    assert "running" not in status + lag + graph
    assert "4: 4 no worker" in status and "no member is alive" in status
    workers = [line.split()[2] for line in status.splitlines() if line.startswith("orders ")]
    assert workers == ["0", "0"]
    assert graph.count("no worker, lag ") == 2


@pytest.mark.parametrize(("columns", "is_drawn"), [("120", True), ("60", False)])
def test_a_table_loses_nothing_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str, is_drawn: bool
) -> None:
    """Where its longest words do not fit beside each other, the terminal itself breaks its lines."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(("time", "partitions", "why"), [("2026-11-28 07:11:56.470+05:30", "x" * 40, "a b")])
    told = capsys.readouterr().out
    assert ("─" in told, "x" * 40 in told, "…" in told) == (is_drawn, True, False)


def test_memory_that_is_full_is_not_said_to_be_full_never() -> None:
    """Redis refuses what would pass the limit, so it seldom reaches it."""
    assert memory_forecast(Holdings(0, (), used=98, limit=100)).endswith("refuses to write.")
    assert "never" in memory_forecast(Holdings(0, (), used=97, limit=100))
