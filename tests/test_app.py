"""An app sends from any event loop, and holds on to nothing that has ended."""

import asyncio
import contextlib
import gc
import inspect
import threading
from collections import Counter
from dataclasses import dataclass, fields
from typing import Any

import pytest
import redis

from streamworker import App, Claim, Lease, Stream
from streamworker.core.protocols.registry import PROTOCOLS
from streamworker.dev.server import EmbeddedServer
from streamworker.errors import ConfigurationError, RecordError
from streamworker.runtime.worker import Worker
from streamworker.settings import Settings
from streamworker.variables import OTHER_VARIABLES
from tests.helpers import wait_for
from tests.raw import records_in


@dataclass
class Order:
    customer: str
    n: int


def _orders(url: str) -> tuple[App, Stream[Order]]:
    app = App("shop", redis_url=url)
    return app, app.stream("orders", Order, key="customer", partitions=4)


def _length(raw: "redis.Redis") -> int:
    return sum(len(records_in(raw, f"sw:{{shop.orders.{p}}}:events")) for p in range(4))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_event_loops_that_ended_leave_no_connection_behind(own_server: EmbeddedServer) -> None:
    """A program may send from one asyncio.run after the other and never close the app."""
    app, orders = _orders(own_server.url)
    with redis.Redis.from_url(own_server.url) as raw:
        for n in range(10):
            asyncio.run(orders.send(Order("ann", n)))
        gc.collect()
        wait_for(lambda: len(raw.client_list()) <= 3, "the connections of ended event loops are closed")
    del app, orders
    gc.collect()  # What the last one left is warned of here, and not in somebody else's test.


def test_threads_send_each_from_its_own_event_loop(redis_url: str) -> None:
    """Nothing of an app belongs to one thread."""
    app, orders = _orders(redis_url)

    async def send() -> None:
        async with app:
            await orders.send_many(Order(f"c{n}", n) for n in range(500))

    threads = [threading.Thread(target=lambda: asyncio.run(send())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with redis.Redis.from_url(redis_url) as raw:
        assert _length(raw) == 2_000


def test_sends_under_way_are_done_before_the_app_is_closed(redis_url: str) -> None:
    """Who closes the app behind a send has not lost it; and a closed app opens again."""
    app, orders = _orders(redis_url)

    async def main() -> list[Any]:
        sends = [asyncio.create_task(orders.send(Order(f"c{n}", n))) for n in range(1_500)]
        await asyncio.sleep(0)
        await app.aclose()
        replies = await asyncio.gather(*sends, return_exceptions=True)
        await orders.send(Order("ann", 1))
        await app.aclose()
        return replies

    replies = asyncio.run(main())
    assert Counter(type(reply).__name__ for reply in replies) == {"Sent": 1_500}
    with redis.Redis.from_url(redis_url) as raw:
        assert _length(raw) == 1_501


@pytest.mark.parametrize("headers", [{"\ud800": "x"}, {"x": "\ud800"}, {5: "x"}, {"x": 5}, "x=5"])
def test_a_header_that_is_no_text_is_refused_by_name(redis_url: str, headers: Any) -> None:
    """Whatever is wrong with a record is a RecordError, and nothing was sent."""
    _, orders = _orders(redis_url)
    with pytest.raises(RecordError, match="eader"):
        asyncio.run(orders.send(Order("ann", 1), headers=headers))


def test_a_protocol_is_chosen_by_name_with_its_settings_or_by_a_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An argument takes precedence over the environment; settings that were given are all there are."""
    assert App("shop").settings.coordination.name == "membership"
    assert App("shop", coordination="claim").settings.coordination == Claim()
    assert App("shop", coordination="lease", lease_normal_ms=6_000).settings.coordination == Lease(
        normal_ms=6_000
    )
    monkeypatch.setenv("STREAMWORKER_COORDINATION", "lease")
    monkeypatch.setenv("STREAMWORKER_LEASE_NORMAL_MS", "7000")
    assert App("shop").settings.coordination == Lease(normal_ms=7_000)
    assert App("shop", lease_normal_ms=6_000).settings.coordination == Lease(normal_ms=6_000)
    assert App("shop", coordination=Lease(max_ms=30_000)).settings.coordination == Lease(max_ms=30_000)
    assert App("shop", coordination="claim").settings.coordination == Claim()


@pytest.mark.parametrize("name", [entry for entry in PROTOCOLS if entry != "membership"])
def test_each_rule_of_a_protocol_is_checked_with_its_app(name: str) -> None:
    """One less than the rule asks for is refused with both names."""
    usual = Settings(coordination=PROTOCOLS[name].settings())
    defaults = {spec.name: getattr(usual, spec.name) for spec in fields(Settings)}
    defaults |= usual.coordination.values()
    for rule in usual.coordination.RULES:
        least = rule.factor * defaults[rule.other] + (rule.relation == ">")
        with pytest.raises(ConfigurationError, match=f"{rule.name} .* {rule.other}"):
            Settings.from_env({}, coordination=name, **{rule.name: least - 1})


LONG: dict[str, Any] = {"grace_period_ms": 20_000, "drain_deadline_ms": 20_000}
WEIGHTED: dict[str, Any] = {"assignment": "weighted"}


@pytest.mark.parametrize(
    ("says", "given"),
    [
        ("'raft'.*claim, lease, membership", {"coordination": "raft"}),
        ("no setting 'lease_length_ms'", {"coordination": "lease", "lease_length_ms": 1}),
        ("no setting 'lease_normal_ms'", {"coordination": Lease(), "lease_normal_ms": 6_000}),
        ("lease_max_shutdown_ms", {"coordination": "lease", **LONG}),
        ("assignment='weighted' does not work with coordination", {"coordination": "claim", **WEIGHTED}),
        ("assignment='weighted' does not work with coordination", {"coordination": "lease", **WEIGHTED}),
        ("assignment='sticky' does not work", {"coordination": "lease", "assignment": "sticky"}),
        ("Raise balance_interval_ms to 1000 or more", {"balance_interval_ms": 999}),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused_by_name(says: str, given: dict[str, Any]) -> None:
    """Before anything connects; the limits of each setting by itself are tried in test_arguments.py."""
    with pytest.raises(ConfigurationError, match=says):
        App("shop", **given)


def test_a_static_id_is_refused_by_a_protocol_that_keeps_no_seat() -> None:
    """It was taken, and did nothing."""
    with pytest.raises(ConfigurationError, match="static id does not work with coordination='claim'"):
        Worker(App("shop", coordination="claim"), static_id="one")


def test_rules_about_a_protocol_that_is_not_used_bind_nobody() -> None:
    """An owner may drain for long under the default, and share by load."""
    app = App("shop", **WEIGHTED, **LONG)
    assert (app.assignment, app.settings.grace_period_ms) == ("weighted", 20_000)


@pytest.mark.parametrize(
    "variable, near",
    [
        ("GRACE_PERIOD", "GRACE_PERIOD_MS"),
        ("HEARTBEAT_INTERVALL_MS", "HEARTBEAT_INTERVAL_MS"),
        ("URL", "REDIS_URL"),
        ("ALLOW_PLAIN_TEXT", "ALLOW_PLAINTEXT"),
        ("CONECTIONS", "CONNECTIONS"),
        ("ACL_PASWORD", "ACL_PASSWORD"),
        ("CORDINATION", "COORDINATION"),
        ("LEASE_NORMAL", "LEASE_NORMAL_MS"),
    ],
)
def test_a_misspelt_variable_is_warned_about_with_the_nearest_name(variable: str, near: str) -> None:
    """It would be ignored otherwise, and nobody would know."""
    with pytest.warns(
        RuntimeWarning, match=f"STREAMWORKER_{variable} .* STREAMWORKER_{near} meant"
    ) as warned:
        assert Settings.from_env({f"STREAMWORKER_{variable}": "1"}) == Settings()
    assert len(warned) == 1


def test_variables_that_are_not_misspelt_are_not_warned_about() -> None:
    """Each of ours, and what Kubernetes makes for a service of our name. Warnings are errors here."""
    own = [name for entry in PROTOCOLS.values() for name in entry.settings().values()]
    ours = [f"STREAMWORKER_{name.upper()}" for name in (*(spec.name for spec in fields(Settings)), *own)]
    theirs = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR"]
    named = dict.fromkeys([*OTHER_VARIABLES, "STREAMWORKER_CONNECTION_CONECTION"], "x")
    Settings.from_env({**{f"STREAMWORKER_{each}": "x" for each in theirs}, **named})
    for name in ours:
        with contextlib.suppress(ConfigurationError):
            Settings.from_env({name: "1"})


def test_help_shows_the_decorators_of_an_app_as_methods() -> None:
    """They are functions of other modules, which take the app."""
    for name in ("stream", "table", "processor", "timer", "cron", "resource", "middleware", "pipeline"):
        assert str(inspect.signature(getattr(App, name))).startswith("(self, "), name
