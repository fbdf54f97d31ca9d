"""Probes of a worker process, and the commands that ask for them."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from streamworker.cli.exit_codes import ExitCode
from streamworker.dev.server import free_port
from tests.cli.conftest import SHOP, Invoke
from tests.cli.test_send import orders
from tests.conftest import SpawnWorker
from tests.helpers import wait_for

SLOW = SHOP.replace(
    "-> None: ...",
    """-> None:
    from pathlib import Path
    import time, anyio
    Path("in call").touch()
    while not Path("go on").exists():
        if Path("block").exists():
            time.sleep(0.01)
        else:
            await anyio.sleep(0.01)""",
)
"""An app whose call lasts until a file is there, and blocks the event loop while another one is."""


@pytest.fixture
def port() -> str:
    return str(free_port())


def ask(port: str, path: str) -> tuple[int, str]:
    """Return the status and the text of a page; 0 if nobody serves it yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return int(answer.status), answer.read().decode().strip()
    except urllib.error.HTTPError as problem:
        return problem.code, problem.read().decode().strip()
    except OSError:
        return 0, ""


def test_a_worker_is_ready_from_its_join_until_it_drains_and_lives_throughout(
    streamworker: Invoke, spawn: SpawnWorker, shop: Path, port: str
) -> None:
    """Metrics are beside the probes, and nothing else is there."""
    (shop / "slow.py").write_text(SLOW, "utf-8")
    worker = spawn("run", "slow:app", "--health-port", port)
    wait_for(lambda: ask(port, "/readyz") == (200, "ok"), "it has joined")
    assert [ask(port, path)[0] for path in ("/livez", "/startupz", "/other", "/")] == [200, 200, 404, 404]
    assert "streamworker_event_loop_lag_seconds{" in ask(port, "/metrics")[1]
    streamworker.does("health", "readyz", "--health-port", port)
    streamworker.does("send", "shop:orders", "-", input="\n".join(orders(1)))
    wait_for((shop / "in call").exists, "a call runs")
    worker.terminate()
    wait_for(lambda: ask(port, "/readyz") == (503, "the worker drains and leaves"), "it drains")
    assert (ask(port, "/livez")[0], ask(port, "/startupz")[0]) == (200, 200)
    said = streamworker("health", "readyz", "--health-port", port)
    assert (said.exit_code, said.stderr.strip()) == (ExitCode.FAILED, "the worker drains and leaves")
    (shop / "go on").touch()
    assert worker.wait() == ExitCode.OK
    said = streamworker("health", "livez", "--health-port", port)
    assert said.exit_code == ExitCode.FAILED
    assert said.stderr == f"No worker answers at 127.0.0.1:{port}: Connection refused.\n"
    said = streamworker("health", "livez", "--health-port", "8080a")
    assert (said.exit_code, "Give a port" in said.stderr) == (ExitCode.CONFIGURATION, True)


def test_a_worker_whose_event_loop_is_blocked_does_not_live(
    streamworker: Invoke, spawn: SpawnWorker, shop: Path, port: str
) -> None:
    """It is ready all the same, since its heartbeats go on; after the call it lives again."""
    (shop / "slow.py").write_text(SLOW, "utf-8")
    (shop / "block").touch()
    environ = {"STREAMWORKER_MAX_PROCESSING_TIME_MS": "300"}
    spawn("run", "slow:app", "--health-port", f"127.0.0.1:{port}", environ=environ)
    wait_for(lambda: ask(port, "/readyz")[0] == 200, "it has joined")
    streamworker.does("send", "shop:orders", "-", input="\n".join(orders(1)))
    wait_for(lambda: "the event loop has not run for" in ask(port, "/livez")[1], "the probe fails")
    assert ask(port, "/livez")[0] == 503
    assert ask(port, "/readyz")[0] == 200
    (shop / "go on").touch()
    wait_for(lambda: ask(port, "/livez")[0] == 200, "it lives")


def test_a_deploy_waits_for_workers_that_own_all_partitions(
    streamworker: Invoke, spawn: SpawnWorker, shop: Path
) -> None:
    """A worker that leaves does not count, and what is missing is told at the timeout."""
    said = streamworker("wait", "shop:app", "--timeout", "0 seconds")
    assert said.exit_code == ExitCode.FAILED
    assert said.stderr.splitlines() == [
        "audit: 0 of 1 workers have joined.",
        "price: 0 of 1 workers have joined.",
    ]
    (shop / "slow.py").write_text(SLOW, "utf-8")
    first = spawn("run", "slow:app")
    streamworker.does("wait", "shop:app")
    streamworker.does("send", "shop:orders", "-", input="\n".join(orders(1)))
    wait_for((shop / "in call").exists, "a call runs")
    spawn("run", "slow:app")
    streamworker.does("wait", "shop:app", "--joined", "2")
    first.terminate()
    wait_for(
        lambda: (
            "1 of 2 workers" in streamworker("wait", "shop:app", "--joined", "2", "--timeout", "0 s").stderr
        ),
        "the first one leaves",
    )
    said = streamworker("wait", "shop:audit", "--timeout", "0 seconds")
    assert "audit: no worker that stays owns partitions" in said.stderr
    (shop / "go on").touch()
    streamworker.does("wait", "shop:app")
