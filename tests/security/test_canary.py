"""A password that occurs nowhere else is found nowhere, whatever fails.

For Spark see tests/spark/test_secrets.py.
"""

import pickle
import re
import traceback
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import anyio
import pytest
import redis

from streamworker import App
from streamworker.dev.server import EmbeddedServer
from streamworker.errors import StreamworkerError
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.link import Endpoint, Link
from streamworker.redisio.wire.node import Node
from tests.chaos.forked import Forked
from tests.cli.conftest import SHOP, Invoke, files_with
from tests.conftest import SpawnWorker
from tests.helpers import wait_for

CRASHING = SHOP.replace("-> None: ...", '-> None: raise RuntimeError("a bug in the handler")')
RECORDS = """{"order_id": 1, "customer": "ann", "amount": 1}
{"order_id": 2, "customer": "bob", "amount": -1}
no record
"""
URL = "STREAMWORKER_REDIS_URL"
FEW_S = 60


def canary_of(url: str) -> str:
    found = re.search(r"//[^:@]*:([^@]+)@", url)
    assert found is not None
    assert len(found[1]) > 20
    return found[1]


def _one_says(workers: Iterable[Forked], words: str) -> bool:
    return any(words in worker.log() for worker in workers)


def test_the_password_is_nowhere_when_workers_and_commands_fail(
    own_server: EmbeddedServer, spawn: SpawnWorker, shop: Path
) -> None:
    """At log level debug: handlers that raise, a server that goes away, a wrong port and a wrong password."""
    (shop / "shop.py").write_text(CRASHING, "utf-8")
    (shop / "records").write_text(RECORDS, "utf-8")
    url = own_server.url
    canary = canary_of(url)
    workers = [
        spawn("run", "shop:app", "--log-level", "debug", "--log-format", style, environ={URL: url})
        for style in ("console", "json")
    ]
    said = []
    for failed, wrong_url, command in (
        ("cannot be reached", url.replace("/s?", "/nobody?"), "run shop:app --log-level debug"),
        ("cannot be reached", f"redis://:{canary}@127.0.0.1:1/0", "run shop:app --log-level debug"),
        ("ssl_", f"rediss://:{canary}@127.0.0.1:1/0?ssl_x=1", "run shop:app --log-level debug"),
        ("did not accept", url.replace(canary, canary + "x"), "status shop:app"),
        ("cannot be read", f"redis://user:{canary}/x@127.0.0.1:1/0", "doctor shop:app"),
        ("JSON", url, "send shop:orders records"),
    ):
        process = spawn(*command.split(), environ={URL: wrong_url})
        wait_for(lambda: failed in process.log(), failed, FEW_S)  # noqa: B023 - it is called here
        if failed == "cannot be reached":
            process.kill()  # A worker waits for its server.
        assert process.wait() != 0, process.log()
        said.append(process.log())

    for failed in ("a bug in the handler", "amount is negative"):
        wait_for(partial(_one_says, workers, failed), failed, FEW_S)
    own_server.kill()
    for worker in workers:
        wait_for(partial(_one_says, [worker], "cannot be reached"), "it misses its server", FEW_S)
        worker.kill()

    said += [worker.log() for worker in workers]
    assert "Traceback" in said[-2] + said[-1]
    assert [text for text in said if canary in text] == []
    assert files_with(canary, shop) == []


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


def test_no_command_prints_the_password(redis_url: str, streamworker: Invoke) -> None:
    canary = canary_of(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        client.xadd("sw:{shop.orders.0}:events", {"v": "1"})
    for command in ("status", "lag", "history", "doctor", "dead list"):
        for options in ([], ["--json"]):
            result = streamworker(
                *command.split(), "shop:price" if "dead" in command else "shop:app", *options
            )
            assert result.output
            assert canary not in result.output
