"""A password that occurs nowhere else is found nowhere, whatever fails.

For Spark see tests/spark/test_secrets.py.
"""

import contextlib
import json
import pickle
import re
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import anyio
import psutil
import pytest
import redis
from typer.testing import Result

from streamworker import App
from streamworker.dev import rendezvous
from streamworker.dev.server import EmbeddedServer
from streamworker.errors import StreamworkerError
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.link import Endpoint, Link
from streamworker.redisio.wire.node import Node
from tests.conftest import SpawnWorker
from tests.helpers import WorkerProcess, wait_for

SHOP = """
import msgspec
from streamworker import App, DeadLetter

app = App("shop")

class Order(msgspec.Struct):
    customer: str
    amount: int

orders = app.stream("orders", Order, key="customer", partitions=2)

@app.processor(orders, errors=DeadLetter())
async def price(order: Order) -> Order:
    if order.amount < 0:
        raise ValueError("negative")
    return order

@app.processor(orders)
async def crash(order: Order) -> None:
    raise RuntimeError("a bug in the handler")
"""
RECORDS = '{"customer": "ann", "amount": 1}\n{"customer": "bob", "amount": -1}\nno record\n'
URL = "STREAMWORKER_REDIS_URL"
FEW_S = 60


def canary_of(url: str) -> str:
    found = re.search(r"//[^:@]*:([^@]+)@", url)
    assert found is not None
    assert len(found[1]) > 20
    return found[1]


def command_lines(pids: Iterable[int]) -> str:
    """Return the command lines of processes and all that they started, as everybody can read them."""
    lines = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    lines.append(" ".join(process.cmdline()))
    return "\n".join(lines)


def files_with(canary: str, *folders: Path) -> list[Path]:
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if canary.encode() in path.read_bytes()]


def _misses_its_server(worker: WorkerProcess) -> bool:
    return "cannot be reached" in worker.log()


def test_the_password_is_nowhere_when_workers_and_commands_fail(
    own_server: EmbeddedServer, spawn: SpawnWorker, tmp_path: Path
) -> None:
    """At log level debug: handlers that raise, a server that goes away, a wrong port and a wrong password."""
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    (tmp_path / "records").write_text(RECORDS, "utf-8")
    url = own_server.url
    canary = canary_of(url)
    right = {URL: url}
    plain, as_json = (
        spawn("run", "shop:app", "--log-level", "debug", "--log-format", style, environ=right)
        for style in ("console", "json")
    )
    elsewhere = url.replace("/s?", "/nobody?")
    wrong = [
        spawn(*command, environ={URL: wrong_url})
        for command, wrong_url in (
            (("run", "shop:app", "--log-level", "debug"), elsewhere),
            (("run", "shop:app", "--log-level", "debug"), f"redis://:{canary}@127.0.0.1:1/0"),
            (("run", "shop:app", "--log-level", "debug"), f"rediss://:{canary}@127.0.0.1:1/0?ssl_x=1"),
            (("status", "shop:app"), url.replace(canary, canary + "x")),
            (("doctor", "shop:app"), f"redis://user:{canary}/x@127.0.0.1:1/0"),
        )
    ]
    sent = spawn("send", "shop:orders", "records", environ=right)
    everyone = [plain, as_json, *wrong, sent]
    seen = command_lines(process.pid for process in everyone)
    assert seen.count("streamworker") >= len(everyone)
    for process in (*wrong, sent):
        assert process.wait(FEW_S) != 0

    wait_for(lambda: "a bug in the handler" in plain.log() + as_json.log(), "a handler has failed", FEW_S)
    wait_for(lambda: "negative" in plain.log() + as_json.log(), "a record has been given up", FEW_S)
    own_server.kill()
    for worker in (plain, as_json):
        wait_for(partial(_misses_its_server, worker), "it misses its server", FEW_S)
        worker.kill()

    said = [process.log() for process in everyone]
    assert "Traceback" in said[0] + said[1]
    failed = (
        "cannot be reached",
        "cannot be reached",
        "No such",
        "refused",
        "ssl_",
        "did not accept",
        "cannot be read",
        "JSON",
    )
    assert [word for word, text in zip(failed, said, strict=True) if word not in text] == []
    assert [text for text in said if canary in text] == []
    assert canary not in seen
    assert files_with(canary, tmp_path) == []


def test_dev_keeps_the_password_of_its_server_in_one_file_that_is_ours(
    spawn: SpawnWorker, tmp_path: Path
) -> None:
    """On no command line, neither its own nor its server's, and in no output."""
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    dev: WorkerProcess = spawn("dev", "shop:app", "--workers", "1")
    file = tmp_path / rendezvous.FILE
    url = wait_for(
        lambda: file.exists() and file.read_text() and json.loads(file.read_text())["url"], "dev runs", 30
    )
    assert isinstance(url, str)
    canary, socket = canary_of(url), Path(url.rpartition("@")[2].partition("?")[0])
    wait_for(lambda: "joined" in dev.log(), "its worker has joined")
    seen = command_lines([dev.pid])
    assert "valkey" in seen or "redis" in seen
    assert "streamworker" in seen
    assert file.stat().st_mode & 0o777 == 0o600
    assert socket.stat().st_mode & 0o077 == 0
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    assert files_with(canary, tmp_path, socket.parent) == [file]
    dev.terminate()
    dev.wait(30)
    assert canary not in seen + dev.log()
    assert not file.exists()


def test_nothing_that_a_program_may_print_holds_the_password() -> None:
    """The repr of what it has, and errors with all that hangs on them."""
    canary = "canary-7f3a9c51e2d84b06"
    url = f"redis://me:{canary}@127.0.0.1:1/0"
    app = App("shop", redis_url=url)
    target = Endpoint(url, "t")
    backend = Backend.open(url, name="t", call_timeout_ms=500)
    things = (app, app.settings, target, backend, Node(target, 1, 500), Link(target), target.socket())
    shown = [f"{thing!r}{thing!s}" for thing in things] + [repr(vars(app))]

    async def call() -> None:
        async with backend:
            await backend.execute("GET", "key")

    with pytest.raises(StreamworkerError) as caught:
        anyio.run(call)
    error = caught.value
    shown += ["".join(traceback.format_exception(error)), repr(error), str(pickle.dumps(error))]
    shown += [repr(vars(error)), repr(error.__cause__)]
    assert [text for text in shown if canary in text] == []


def test_no_command_prints_the_password(
    redis_url: str, shop: Path, invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    del shop
    canary = canary_of(redis_url)
    monkeypatch.setenv(URL, redis_url)
    with redis.Redis.from_url(redis_url) as client:
        client.xadd("sw:{shop.orders.0}:events", {"v": "1"})
    for command in ("status", "lag", "history", "doctor", "dead list"):
        for options in ([], ["--json"]):
            result = invoke(*command.split(), "shop:price" if "dead" in command else "shop:app", *options)
            assert result.output
            assert canary not in result.output
