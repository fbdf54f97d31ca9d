"""`streamworker run` as a real process: how it ends, and what else it can do."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamworker.cli.exit_codes import ExitCode
from streamworker.dev.server import free_port
from tests.chaos.forked import Forked
from tests.cli.conftest import SHOP, Invoke, OpenTerminal, work_off
from tests.cli.test_send import orders
from tests.conftest import SpawnWorker
from tests.helpers import process_is_gone, wait_for

BLOCKING = SHOP.replace(
    "-> None: ...", '-> None:\n    import time\n    print("blocked", flush=True)\n    time.sleep(60)'
)


def started(worker: Forked) -> None:
    """Wait until a worker has begun; it joins its groups next."""
    wait_for(lambda: "worker_started" in worker.log(), "the worker has started")


def test_a_worker_under_a_name_logs_json_and_drains_and_leaves_at_sigterm(
    streamworker: Invoke, spawn: SpawnWorker
) -> None:
    """Only the named processor has it as a member, and none afterwards.

    Where there is no terminal each line is an object with event, level and time: also that of a misspelt
    variable, and the address of the probes.
    """
    worker = spawn(
        *("run", "shop:app", "--processor", "price", "--name", "price-1", "--loop", "asyncio"),
        *("--log-format", "auto", "--health-port", str(free_port())),
        environ={"STREAMWORKER_HOLD": "20000"},
    )

    def members() -> dict[str, list[str]]:
        taken = streamworker.tells("status", "shop:app")
        return {s["processor"]: [m["name"] for m in s["members"]] for s in taken}

    wait_for(lambda: any(members().values()), "it has joined")
    assert members() == {"audit": [], "price": ["price-1"]}
    worker.terminate()
    assert worker.wait() == ExitCode.OK
    assert members() == {"audit": [], "price": []}
    lines = [json.loads(line) for line in worker.log().splitlines()]
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    (warning,) = [line["event"] for line in lines if line["level"] == "warning"]
    assert warning.endswith("Is STREAMWORKER_HOLD_MS meant?")
    (serving,) = [line["url"] for line in lines if line["event"] == "serving"]
    assert serving.startswith("http://127.0.0.1:")


@pytest.mark.full("starts workers")
def test_a_worker_runs_where_the_standard_streams_are_closed(streamworker: Invoke, shop: Path) -> None:
    """Some supervisors close all three for what they start. It leaves at Ctrl-C, too."""
    command = f"exec {sys.executable} -m streamworker run shop:app <&- >&- 2>&-"
    worker = subprocess.Popen(["bash", "-c", command], cwd=shop)
    try:
        wait_for(lambda: f" {worker.pid} " in streamworker("status", "shop:audit").stdout, "it is a member")
    finally:
        worker.send_signal(signal.SIGINT)
    assert worker.wait(60) == ExitCode.OK
    assert "No worker runs." in streamworker("status", "shop:audit").stdout


def test_a_command_whose_output_is_closed_does_not_end_as_if_it_had_shown_something(shop: Path) -> None:
    """A script that reads an empty answer and 0 would take it for all is well."""
    command = f"exec {sys.executable} -m streamworker lag shop:app >&-"
    done = subprocess.run(["bash", "-c", command], cwd=shop, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.FAILED
    assert done.stderr.startswith("Error: Standard output is closed")


@pytest.mark.full("starts commands that take four seconds of a core")
def test_a_command_whose_output_finds_no_room_says_that_what_it_did_stands(
    shop: Path, redis_url: str
) -> None:
    """It has done its work, and only the word of it is lost: no traceback."""
    work_off(redis_url)
    command = f"exec {sys.executable} -m streamworker pause shop:price > /dev/full"
    environ = os.environ | {"STREAMWORKER_REDIS_URL": redis_url}
    done = subprocess.run(
        ["bash", "-c", command], cwd=shop, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == ExitCode.FAILED
    assert done.stderr == (
        "Error: Standard output cannot be written: No space left on device.\n"
        "What the command has changed stands. It was to print: Paused 4 partitions of price: 0-3.\n"
    )


def test_a_worker_that_is_told_twice_ends_with_5(
    streamworker: Invoke, spawn: SpawnWorker, shop: Path
) -> None:
    """Whatever its handler does."""
    streamworker.does("send", "shop:orders", "-", input="\n".join(orders(1)))
    (shop / "blocking.py").write_text(BLOCKING, "utf-8")
    worker = spawn("run", "blocking:app")
    wait_for(lambda: "blocked" in worker.log(), "the handler blocks")
    worker.terminate()
    wait_for(lambda: "worker_stopping" in worker.log(), "the first signal is seen")

    def told_again() -> bool:
        # Python misses a signal in the moment in which a blocking call begins, until that call returns.
        worker.terminate()
        return not worker.running

    wait_for(told_again, "it has ended")
    assert worker.wait(10) == ExitCode.FORCED


def test_a_worker_ends_with_its_parent(streamworker: Invoke, spawn: SpawnWorker) -> None:
    """`run --reload`, `run --spark` and `dev` leave no worker behind, even if they are killed: it drains."""
    parent = spawn("run", "shop:app", "--reload")
    started(parent)
    (worker,) = psutil.Process(parent.pid).children()
    parent.kill()
    wait_for(lambda: process_is_gone(worker.pid), "the worker has ended")
    assert "worker_left" in parent.log()
    assert "No worker runs." in streamworker("status", "shop:audit").stdout


@pytest.mark.full("starts workers again and again")
def test_with_reload_a_change_starts_the_worker_anew(
    streamworker: Invoke, spawn: SpawnWorker, shop: Path
) -> None:
    """The old one leaves first; a broken file is waited out; a signal ends all of it."""
    source = (shop / "shop.py").read_text("utf-8")
    worker = spawn("run", "shop:app", "--reload")
    started(worker)
    (shop / "shop.py").write_text(source + "\n1 / 0\n", "utf-8")
    wait_for(lambda: "ZeroDivisionError" in worker.log(), "the broken file is tried")
    assert worker.running
    (shop / "shop.py").write_text(source + "\n# repaired, and longer\n", "utf-8")
    wait_for(lambda: worker.log().count("worker_started") == 2, "the repaired file runs")
    assert "worker_left" in worker.log()
    child = psutil.Process(worker.pid).children()[0]
    worker.terminate()
    assert worker.wait() == ExitCode.OK
    assert process_is_gone(child.pid)


def test_a_worker_serves_its_own_metrics_for_prometheus(streamworker: Invoke, spawn: SpawnWorker) -> None:
    """And no facts of groups, which each worker would tell whole."""
    port = free_port()
    worker = spawn("run", "shop:app", "--metrics-port", str(port), "--name", "w1")
    started(worker)
    url = f"http://127.0.0.1:{port}"
    streamworker.does("send", "shop:orders", "-", input="\n".join(orders(3)))

    def samples() -> dict[tuple[str, str | None], float]:
        return {
            (sample.name, sample.labels.get("processor")): sample.value
            for metric in text_string_to_metric_families(_get(f"{url}/metrics"))
            for sample in metric.samples
        }

    wait_for(lambda: samples()["streamworker_records_total", "price"] == 3, "all are counted")
    assert samples()["process_cpu_seconds_total", None] > 0
    assert "streamworker_lag_records" not in {name for name, _ in samples()}, "the exporter tells it"
    second = spawn("run", "shop:app", "--metrics-port", str(port))
    assert second.wait() == ExitCode.CONFIGURATION
    assert f"port {port}" in second.log()


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_run_with_the_live_view_stops_its_worker_when_it_is_left(
    terminal: OpenTerminal, streamworker: Invoke, shop: Path
) -> None:
    """Log lines are in the file, not across the picture."""
    view = terminal("run", "shop:app", "--tui", "--name", "w1")
    wait_for(lambda: "A w1" in view.read(), "the worker is in the picture")
    view.press("q")
    assert view.wait() == ExitCode.OK
    assert "worker_left" in (shop / "streamworker.log").read_text("utf-8")
    assert "worker_started" not in view.text
    assert "No worker runs." in streamworker("status", "shop:audit").stdout


@pytest.mark.full("starts processes")
@pytest.mark.parametrize(("command", "code"), [("run", 0), ("spark", 0), ("spark --once", 1)])
def test_a_signal_before_the_app_is_there_is_success_only_where_nothing_was_to_be_done(
    spawn: SpawnWorker, shop: Path, command: str, code: int
) -> None:
    """A scheduled job that is stopped while its program is imported has read nothing."""
    # A signal that comes just before a sleep does not end it, and is handled after it: so they are short.
    (shop / "slow.py").write_text(
        "import pathlib, time\npathlib.Path('begun').touch()\nwhile True: time.sleep(0.1)\n", "utf-8"
    )
    name, *options = command.split()
    worker = spawn(name, "slow:app", *options)
    wait_for((shop / "begun").exists, "the program is imported")
    worker.terminate()
    assert worker.wait(60) == code
