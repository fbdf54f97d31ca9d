"""An app on disk, and the command line in this process."""

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import anyio
import pytest
from typer.testing import CliRunner, Result

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.root import app
from streamworker.importing import resolve_app
from streamworker.testing import local_worker
from tests.chaos.forked import Forge
from tests.cli.terminal import Terminal
from tests.helpers import logging_set_back, wait_for
from tests.stage.server import free_ports

SHOP = """
import msgspec
from streamworker import App, DeadLetter

app = App("shop")


class Order(msgspec.Struct):
    order_id: int
    customer: str
    amount: float


orders = app.stream("orders", Order, key="customer", partitions=4)


@app.processor(orders)
async def audit(order: Order) -> None: ...


@app.processor(orders, batch=100, errors=DeadLetter(), name="price")
async def pricing(batch: list[Order]) -> list[Order]:
    for order in batch:
        if order.amount < 0:
            raise ValueError(f"order {order.order_id}: amount is negative")
    return batch
"""


class Invoke:
    """``streamworker ARGUMENTS`` in this process."""

    def __call__(
        self, *arguments: str, input: str | bytes | None = None, env: dict[str, str] | None = None
    ) -> Result:
        """Run a command, whatever becomes of it."""
        with logging_set_back():
            return CliRunner().invoke(app, list(arguments), input=input, env=env, prog_name="streamworker")

    def does(self, *arguments: str, **given: Any) -> str:
        """Run a command that succeeds; return what it prints."""
        result = self(*arguments, **given)
        assert result.exit_code == ExitCode.OK, result.output
        return result.stdout

    def tells(self, *arguments: str, **given: Any) -> Any:
        """Run a command that succeeds; return what it prints as JSON."""
        return json.loads(self.does(*arguments, "--json", **given))


OpenTerminal = Callable[..., Terminal]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with modules that are forgotten after the test."""
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in [name for name in os.environ if name.startswith("STREAMWORKER_")]:
        monkeypatch.delenv(name)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def shop(folder: Path) -> Path:
    """A folder with shop.py in it."""
    (folder / "shop.py").write_text(SHOP, "utf-8")
    return folder


@pytest.fixture
def invoke(shop: Path) -> Invoke:
    """Run ``streamworker ARGUMENTS`` in this process, without Redis."""
    del shop
    return Invoke()


@pytest.fixture
def streamworker(invoke: Invoke, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run ``streamworker ARGUMENTS`` in this process on an empty server."""
    monkeypatch.setenv("STREAMWORKER_REDIS_URL", redis_url)
    return invoke


@pytest.fixture
def terminal(shop: Path, redis_url: str, forge: Forge) -> Iterator[OpenTerminal]:
    """Run ``streamworker ARGUMENTS`` on a terminal, ended with the test at the latest."""
    opened: list[Terminal] = []
    its = {"STREAMWORKER_REDIS_URL": redis_url, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}

    def run(*arguments: str, **environ: str) -> Terminal:
        environ = os.environ | its | environ
        opened.append(
            Terminal(
                lambda name: forge.run(
                    arguments, cwd=shop, environ=environ, log_path=shop / "terminal", terminal=name
                )
            )
        )
        return opened[-1]

    yield run
    for each in opened:
        each.end()


def work_off(redis_url: str, app: str = "shop:app") -> None:
    """Let a worker ``w1`` of this process handle all that was sent to an app, and leave.

    It trims nothing meanwhile, however slow the machine is.
    """
    found = resolve_app(app)

    async def work() -> None:
        async with local_worker(found, url=redis_url, name="w1") as worker:
            await worker.until_drained()

    settings, found.settings = found.settings, replace(found.settings, trim_interval_ms=600_000)
    try:
        anyio.run(work)
    finally:
        found.settings = settings


def rewrite(shop: Path, source: str) -> None:
    """Write another shop.py in place of the one that this process has imported."""
    (shop / "shop.py").write_text(source, "utf-8")
    sys.modules.pop("shop", None)


def lines_of(records: Sequence[str]) -> str:
    """Join lines as a file has them."""
    return "".join(f"{record}\n" for record in records)


def files_with(secret: str, folder: Path) -> list[Path]:
    """Return the files of a folder that hold a secret."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if secret.encode() in path.read_bytes()]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Where an S3 listens, in a process of its own: deltalake lets no other thread run while it waits."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        wait_for(lambda: is_open(port), "it listens")
        yield f"http://127.0.0.1:{port}"
        server.kill()


def is_open(port: int) -> bool:
    """Whether somebody of this machine listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a folder in an S3 bucket of this process."""
    name = f"b{uuid.uuid4().hex}"
    its = {"ENDPOINT_URL": s3_server, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "REGION": "us-east-1"}
    for variable, value in its.items():
        monkeypatch.setenv(f"AWS_{variable}", value)
    with urlopen(Request(f"{s3_server}/{name}", method="PUT")):
        pass
    return f"s3://{name}/orders"
