"""Wrong paths, servers, declarations and command lines, met by each command.

Real processes: what is tested is what somebody sees, and that no traceback is among it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import redis

from streamworker.cli.exit_codes import ExitCode
from streamworker.dev.server import EmbeddedServer, free_port
from tests.cli.conftest import SHOP, Invoke
from tests.cli.test_send import orders
from tests.conftest import SpawnWorker
from tests.helpers import wait_for

REFUSED = "redis://127.0.0.1:1/0"
"""Nobody listens at port 1."""


PIPELINE = """

@app.pipeline(pricing, path='lake')
def table(frame):
    return frame
"""
NOBODY = {"STREAMWORKER_REDIS_URL": REFUSED}


@pytest.mark.parametrize(
    ("code", "arguments", "environ", "said"),
    [
        (ExitCode.CONFIGURATION, "run shoop:app", {}, "There is no module 'shoop'"),
        (ExitCode.CONFIGURATION, "spark shop:app --pipeline tabel", {}, "Did you mean 'table'?"),
        (
            ExitCode.CONFIGURATION,
            "run shop:app",
            {"STREAMWORKER_GRACE_PERIOD_MS": "soon"},
            "STREAMWORKER_GRACE_PERIOD_MS is 'soon'",
        ),
        # Sending waits for a server that is away for a moment, and gives up in the end.
        (ExitCode.REDIS, "send shop:orders orders.jsonl", NOBODY, "127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_named_in_a_sentence(
    spawn: SpawnWorker, shop: Path, code: ExitCode, arguments: str, environ: dict[str, str], said: str
) -> None:
    """The path, the variable as the user typed it, the address; nothing hangs, and no traceback is shown."""
    (shop / "shop.py").write_text(SHOP + PIPELINE, "utf-8")
    (shop / "orders.jsonl").write_text("\n".join(orders(3)), "utf-8")
    process = spawn(*arguments.split(), environ=environ)
    assert process.wait() == code, process.log()
    assert process.log().startswith("Error: ") and said in process.log()
    assert "Traceback" not in process.log() and 'File "' not in process.log()


@pytest.mark.parametrize("command", ["status", "lag", "history", "top"])
def test_a_look_without_redis_names_its_address(invoke: Invoke, command: str) -> None:
    result = invoke(command, "shop:app", env=NOBODY)
    assert (result.exit_code, "127.0.0.1:1" in result.stderr) == (ExitCode.REDIS, True)


def test_no_redis_for_the_page(spawn: SpawnWorker, shop: Path) -> None:
    """It is served and waits, and the terminal says for what."""
    url = f"127.0.0.1:{free_port()}"
    web = spawn("web", "shop:app", "--port", url, cwd=shop, environ=NOBODY)
    wait_for(lambda: "Warning: Redis at 127.0.0.1:1 cannot be reached" in web.log(), "it is told")
    assert httpx.get(f"http://{url}", timeout=60).status_code == 200
    other = spawn("web", "shop:app", "--port", url, cwd=shop, environ=NOBODY)
    other.wait()
    assert "of 127.0.0.1: Address already in use.\nChoose another.\n" in other.log()


@pytest.mark.parametrize(
    "arguments",
    [
        "run",
        "runn shop:app",
        "run shop:app --prozessor x",
        "run shop:app --reload --tui",
        "dev shop:app -w 0",
    ],
)
def test_a_wrong_command_line(invoke: Invoke, arguments: str) -> None:
    """Usage, and what was not understood, before anything starts."""
    result = invoke(*arguments.split())
    assert (result.exit_code, "Usage: streamworker" in result.stderr) == (ExitCode.USAGE, True)


def test_spark_without_a_pipeline_is_refused_before_a_worker_starts(invoke: Invoke) -> None:
    result = invoke("run", "shop:app", "--spark")
    assert (result.exit_code, "has no pipeline" in result.stderr) == (ExitCode.CONFIGURATION, True)


def test_doctor_judges_the_server_and_the_app(invoke: Invoke, own_server: EmbeddedServer) -> None:
    """Ok ends with 0; anything that fails ends with 1 and says what to do."""

    def doctor(*arguments: str, url: str = own_server.url) -> tuple[int, dict[str, str]]:
        result = invoke("doctor", *arguments, "--json", env={"STREAMWORKER_REDIS_URL": url})
        checks = json.loads(result.stdout)
        assert all(check["remedy"] for check in checks if check["verdict"] != "ok")
        return result.exit_code, {check["name"]: check["verdict"] for check in checks}

    code, verdicts = doctor("shop:app")
    assert code == ExitCode.OK
    names = ("python", "java", "embedded server", "app", "redis", "eviction", "clock", "client list")
    assert {verdicts[name] for name in names} == {"ok"}
    with redis.Redis.from_url(own_server.url) as client:
        client.config_set("maxmemory-policy", "volatile-lru")
        client.hset("sw:{shop.orders}:stream", mapping={"partitions": 7})
    code, verdicts = doctor("shop:app")
    assert (code, verdicts["eviction"], verdicts["stream orders"]) == (ExitCode.FAILED, "fail", "fail")
    assert doctor(url=REFUSED)[1]["redis"] == "fail"
    assert doctor("nothing:app")[1]["app"] == "fail"


@pytest.mark.full("starts commands that take three seconds of a core")
def test_a_broken_pipe_is_no_traceback(shop: Path, redis_url: str) -> None:
    """`streamworker --help | head -1` closes the pipe early."""
    command = f"{sys.executable} -m streamworker --help | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr


def test_a_misspelt_variable_is_said_once_beside_what_was_asked_for(shop: Path, redis_url: str) -> None:
    """And stays a warning: stdout has the JSON and nothing else."""
    environ = {**os.environ, "STREAMWORKER_REDIS_URL": redis_url, "STREAMWORKER_GRACE_PERIOD": "20000"}
    command = [sys.executable, "-m", "streamworker", "status", "shop:app", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=shop, env=environ)
    assert done.stderr == (
        "Warning: The variable STREAMWORKER_GRACE_PERIOD sets nothing. "
        "Is STREAMWORKER_GRACE_PERIOD_MS meant?\n"
    )
    assert len(json.loads(done.stdout)) == 2
