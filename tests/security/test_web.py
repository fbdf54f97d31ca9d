"""`streamworker web` on a real server: what it may read, what it hides, and what ten tabs cost."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import psutil
import pytest

from streamworker.cli.exit_codes import ExitCode
from streamworker.cli.workers.web import _failing_record
from streamworker.core.data.entries import EntryId
from streamworker.core.snapshot import PartitionState
from streamworker.redisio.keys import GroupKeys
from tests.chaos.forked import Forked
from tests.cli.conftest import Invoke
from tests.cli.test_probes import port
from tests.conftest import SpawnWorker
from tests.helpers import wait_for
from tests.security.conftest import UrlOf
from tests.tui.groups import group

if TYPE_CHECKING:
    import redis

__all__ = ["port"]

pytestmark = pytest.mark.full("starts processes of the command line")

FAILING = """
from shop import app, orders
from streamworker import Halt, Retry


@app.processor(orders, errors=Halt())
async def halting(order) -> None:
    raise ValueError("entry 1-1 failed")


@app.processor(orders, errors=Retry(backoff="1 minute"))
async def retrying(order) -> None:
    raise ValueError("not at entry 1-1")
"""
KEPT = """
import msgspec
from streamworker import App

app = App("shop")


class Order(msgspec.Struct):
    order_id: int
    customer: str


orders = app.stream("orders", Order, key="customer", partitions=4, archive="lake")


@app.processor(orders)
async def price(order: Order) -> None: ...
"""
ORDER = b'{"order_id": 1, "customer": "secret-bob", "amount": -1}\n'


@pytest.fixture
def failed(streamworker: Invoke, spawn: SpawnWorker, admin: "redis.Redis") -> None:
    """A group that has one dead letter, and no worker."""
    streamworker.does("send", "shop:orders", "-", input=ORDER)
    worker = spawn("run", "shop:price", "--name", "w1")
    keys = GroupKeys("shop", "orders", "price")
    wait_for(lambda: any(admin.xlen(keys.dead(p)) for p in range(4)), "the record is a dead letter")
    worker.terminate()
    worker.wait()


def events(port: str) -> Iterator[tuple[str, Any]]:
    """Yield what a tab gets."""
    with httpx.stream("GET", f"http://127.0.0.1:{port}/events?processor=price", timeout=30) as answer:
        name = ""
        for line in answer.iter_lines():
            kind, _, value = line.partition(": ")
            if kind == "event":
                name = value
            elif kind == "data":
                yield name, msgspec.json.decode(value)


def first(port: str, name: str) -> Any:
    return next(data for kind, data in events(port) if kind == name)


def served(spawn: SpawnWorker, port: str, *options: str, app: str = "shop:app", **environ: str) -> Forked:
    process = spawn("web", app, "--port", port, *options, environ=environ)
    wait_for(lambda: f"Serving shop at http://127.0.0.1:{port}" in process.log(), "it serves")
    return process


def test_records_are_hidden_unless_they_are_asked_for(failed: None, spawn: SpawnWorker, port: str) -> None:
    """The error and the id are shown in any case."""
    process = served(spawn, port)
    facts = first(port, "facts")
    (letter,) = facts["letters"]
    assert (letter["processor"], letter["value"]) == ("price", None)
    assert "amount is negative" in letter["error"]
    assert "secret-bob" not in str([data for _, data in zip(range(4), events(port), strict=False)])
    process.terminate()
    process.wait()
    served(spawn, port, "--show-values")
    assert "secret-bob" in first(port, "facts")["letters"][0]["value"]


def test_halted_and_retrying_records_are_shown_if_they_are_asked_for(
    streamworker: Invoke, shop: Path, spawn: SpawnWorker, port: str, url_of: UrlOf, admin: "redis.Redis"
) -> None:
    """Their errors and ids in any case; what they hold to those alone who may read it."""
    (shop / "failing.py").write_text(FAILING, "utf-8")
    streamworker.does("send", "shop:orders", "-", input=ORDER)
    spawn("run", "failing:app", "--processor", "halting", "--processor", "retrying")

    def fails() -> bool:
        groups = streamworker.tells("status", "failing:app")
        states = {group["processor"]: {view["state"] for view in group["partitions"]} for group in groups}
        return "halted" in states["halting"] and "retrying" in states["retrying"]

    wait_for(fails, "a partition is halted, and one retries")
    for role, options in (("operator", ()), ("operator", ("--show-values",)), ("viewer", ("--show-values",))):
        url = url_of(role)
        process = served(spawn, port, *options, app="failing:app", STREAMWORKER_REDIS_URL=url)
        seen = list(islice(events(port), 4))
        facts = dict(seen)["facts"]
        if options and role == "operator":
            assert {each["processor"] for each in facts["failing"]} == {"halting", "retrying"}
            assert all("secret-bob" in each["value"] for each in facts["failing"])
        else:
            assert ("records" in facts["hidden"], facts["failing"]) == (role == "viewer", [])
            assert "secret-bob" not in str(seen)
        process.terminate()
        process.wait()
    admin.execute_command("ACL", "LOG", "RESET")


@pytest.mark.parametrize(
    ("state", "reason", "record"),
    [
        ("halted", "entry 7-0 failed after 3 attempts: ValueError: at entry 1-1", "7-0"),
        ("halted", "entries 7-0 to 9-0 failed: ValueError: x", "7-0"),
        ("halted", "5 workers died in a row in the call of record 2/7-0. Set it aside: ...", "7-0"),
        ("retrying", "ValueError: no price at entry 1-1 at entry 7-0; the window behind it is full", "7-0"),
        ("retrying", f"ValueError: at entry {'9' * 400}-0", None),
        ("retrying", "timer flush fails, ValueError: x", None),
    ],
)
def test_the_record_that_fails_is_found_in_the_reason(
    state: PartitionState, reason: str, record: str | None
) -> None:
    """Whatever else an error names."""
    view = replace(group(partitions=1, workers=1).partitions[0], state=state, reason=reason)
    assert _failing_record(view) == (record and EntryId.parse(record))


def test_a_viewer_sees_how_far_an_archive_is(
    streamworker: Invoke, shop: Path, spawn: SpawnWorker, port: str, url_of: UrlOf
) -> None:
    (shop / "kept.py").write_text(KEPT, "utf-8")
    streamworker.does("send", "kept:orders", "-", input=ORDER)
    served(spawn, port, app="kept:app", STREAMWORKER_REDIS_URL=url_of("viewer"))
    (archive,) = first(port, "facts")["archives"]
    assert [archive[name] for name in ("stream", "url", "upto_ms", "only", "waiting")] == [
        "orders",
        "lake",
        0,
        0,
        1,
    ]
    assert "no worker archives it" in archive["why"]


def test_a_viewers_rights_suffice(
    failed: None, spawn: SpawnWorker, port: str, url_of: UrlOf, admin: "redis.Redis"
) -> None:
    """What such a user may not read is named, is asked for once, and hides nothing else."""
    served(spawn, port, STREAMWORKER_REDIS_URL=url_of("viewer"))
    seen = events(port)
    facts = next(data for name, data in seen if name == "facts")
    assert ([*facts["hidden"]], facts["letters"]) == (["letters"], [])
    assert "NOPERM" in facts["hidden"]["letters"]
    frames = [next(data for name, data in seen if name == "frame") for _ in range(7)]
    assert sum(frames[-1]["group"]["dead"].values()) == 1
    assert [each["cause"] for each in facts["record"]] == ["left", "leave", "join"]
    refused: list[tuple[str, Any]] = [(str(each["object"]), each["count"]) for each in admin.acl_log()]
    asked = [(key.endswith("dead:price"), count) for key, count in refused if key != "client|setinfo"]
    assert asked == [(True, 1)]
    admin.execute_command("ACL", "LOG", "RESET")


def test_ten_tabs_cost_redis_what_one_costs(
    failed: None, spawn: SpawnWorker, port: str, admin: "redis.Redis"
) -> None:
    """One look serves them all; of the server's CPU each takes a little."""
    web = psutil.Process(served(spawn, port).pid)

    def cost(tabs: int) -> tuple[float, float]:
        """Return the commands and the CPU seconds of one look."""
        with ExitStack() as stack:
            opened = [events(port) for _ in range(tabs)]
            for tab in opened:
                stack.callback(tab.close)  # type: ignore[attr-defined]
                next(data for name, data in tab if name == "frame")
            ms = next(data for name, data in opened[0] if name == "frame")["group"]["t"]
            before, cpu = admin.info("stats")["total_commands_processed"], sum(web.cpu_times()[:2])
            for _ in range(10):
                for tab in opened:
                    last = next(data for name, data in tab if name == "frame")["group"]["t"]
            commands = admin.info("stats")["total_commands_processed"] - before
            looks = (last - ms) / 1000
            return commands / looks, (sum(web.cpu_times()[:2]) - cpu) / looks

    (one, cpu), (ten, cpus) = cost(1), cost(10)
    print(f"one tab: {one:.0f} commands/s, {100 * cpu:.1f} % CPU; ten: {ten:.0f}, {100 * cpus:.1f} %")
    assert ten < 1.25 * one


def test_other_machines_are_served_with_a_token_only(
    streamworker: Invoke, spawn: SpawnWorker, port: str
) -> None:
    """And a token that could be guessed is refused everywhere."""
    for options, said in (
        (["--port", f"0.0.0.0:{port}"], "no token was given"),
        (["--port", f"0.0.0.0:{port}", "--token", "short"], "5 characters"),
        (["--port", port, "--token", "short"], "5 characters"),
        (["--port", "eighty"], "--port is 'eighty'"),
        (["--port", f"192.0.2.1:{port}", "--token", "x" * 16], "cannot use port"),
    ):
        result = streamworker("web", "shop:app", *options)
        assert (result.exit_code, said in result.stderr) == (ExitCode.CONFIGURATION, True), result.stderr
    token = "a-long-token-of-a-test"
    process = spawn("web", "shop:app", "--port", f"0.0.0.0:{port}", environ={"STREAMWORKER_WEB_TOKEN": token})
    wait_for(lambda: "Serving shop at" in process.log(), "it serves")
    assert "without encryption" in process.log()
    assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 401
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", follow_redirects=True) as client:
        assert client.get("/", params={"token": token}).status_code == 200
        assert client.get("/static/page.js").status_code == 200
    assert token not in process.log()
