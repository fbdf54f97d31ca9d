"""The setting: refused where it cannot be, what it takes of a user, and what `doctor` makes of it."""

import contextlib
from collections.abc import Iterator
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest
import redis

from streamworker import App
from streamworker.cli.doctor.command import in_redis
from streamworker.cli.doctor.server import remains
from streamworker.errors import ConfigurationError
from streamworker.redisio.admin.rights import acl_rules
from streamworker.redisio.wire.durability import Durability, Mode, refusal_of_policy
from streamworker.redisio.wire.info import ServerInfo, read_info
from streamworker.runtime.worker import Worker
from streamworker.settings import Settings
from tests.runtime.workbench import Order, bench
from tests.stage.pair import Pair
from tests.stage.server import Server

PASSWORD = "long enough for a test"


def test_what_there_is_not_is_refused_by_name() -> None:
    """As an argument or in the environment, and before anything runs."""
    with pytest.raises(ConfigurationError, match=r"durability is .disk.\. .*memory, aof, replicas"):
        App("shop", durability="disk")
    with pytest.raises(ConfigurationError, match="Setting durability is 'AOF'"):
        Settings.from_env({"STREAMWORKER_DURABILITY": "AOF"})
    assert Settings.from_env({"STREAMWORKER_DURABILITY": "aof"}).durability == "aof"
    assert App("shop").settings.durability == "memory"
    assert Settings.__annotations__["durability"] == Mode, "settings and redisio know nothing of each other"
    for mode in get_args(Mode):
        assert bool(Durability(mode).command) is (mode != "memory")


def test_the_last_commit_of_a_partition_has_the_time_to_be_confirmed() -> None:
    """Else each handover would cancel what waits for the disk. Who waits for nothing is not asked."""
    with pytest.raises(ConfigurationError, match="grace_period_ms is 500, and must be >= durability_timeout"):
        Settings(durability="aof", grace_period_ms=500)
    Settings(grace_period_ms=500)


# -- servers that confirm too early ------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "policy", "refused"),
    [
        ({"redis_version": "7.2.4"}, "everysec", ""),
        (
            {"redis_version": "7.4.2"},
            "everysec",
            "needs appendfsync always: with everysec, WAITAOF of Redis 7.4.2",
        ),
        ({"redis_version": "8.0.1"}, "everysec", ""),
        ({"redis_version": "8.0.1"}, None, ""),
        ({"redis_version": "8.0.1"}, "no", "would wait for ever"),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.9"}, "everysec", ""),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "everysec", "WAITAOF of Valkey 9.1.2"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "always", ""),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, None, "may not ask whether it has"),
        ({}, None, "may not ask whether it has"),
        (None, None, "needs appendfsync always with This server"),
    ],
)
def test_a_server_that_confirms_before_it_has_written_is_refused(
    version: dict[str, str] | None, policy: str | None, refused: str
) -> None:
    """Also one of which that cannot be told: a confirmation that may be wrong is none."""
    error = refusal_of_policy(policy, None if version is None else server(**version))
    assert (refused in str(error)) if refused else (error is None)


@pytest.mark.anyio
async def test_a_user_that_may_not_ask_says_how_the_server_is_set(durable: Server) -> None:
    """The rules of a producer let it see neither the version nor the settings."""
    with user(durable, "producer", "aof") as url:
        async with bench(url, run=False, durability="aof") as desk:
            with pytest.raises(ConfigurationError, match="STREAMWORKER_APPENDFSYNC_ALWAYS=1"):
                await desk.producer.send(Order(1), timeout=5)
        async with bench(url, run=False, durability="aof", appendfsync_always=True) as desk:
            await desk.producer.send(Order(1), timeout=5)


# -- rights ------------------------------------------------------------------------------------


@contextlib.contextmanager
def user(server: Server, role: str, durability: str) -> Iterator[str]:
    """Make a user with a role's rights, and return the URL that it comes by."""
    with server.client() as admin:
        rules = acl_rules("shop", role, durability)
        admin.execute_command("ACL", "SETUSER", role, "reset", "on", f">{PASSWORD}", *rules)
        try:
            yield f"redis://{role}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{urlsplit(server.url).port}/0"
        finally:
            admin.execute_command("ACL", "DELUSER", role)


@pytest.mark.anyio
@pytest.mark.parametrize("role", ["producer", "worker"])
async def test_a_user_may_wait_if_its_app_waits_and_not_else(pair: Pair, role: str) -> None:
    """The rules of an app that waits hold the one command more; those of another do not."""
    with user(pair.primary, role, "replicas") as url:
        async with bench(url, run=False, durability="replicas") as desk:
            await desk.producer.send(Order(1), timeout=5)
    with user(pair.primary, role, "memory") as url:
        async with bench(url, run=False, durability="replicas") as desk:
            with pytest.raises(ConfigurationError, match=r"needs the right for WAIT"):
                await desk.producer.send(Order(1), timeout=5)


def test_the_rules_of_roles_that_never_wait_are_the_same() -> None:
    """And nobody is given a command that Redis 7.0 does not know, unless he asks for it."""
    assert [role for role in ("reader", "viewer") if "+wait" in acl_rules("shop", role, "replicas")] == []
    assert "+waitaof" in acl_rules("shop", "worker", "aof")
    assert not [rule for rule in acl_rules("shop", "worker") if "wait" in rule]


# -- doctor ------------------------------------------------------------------------------------


def server(**info: Any) -> ServerInfo:
    return read_info("\r\n".join(f"{name}:{value}" for name, value in info.items()).encode())


@pytest.mark.parametrize(
    ("durability", "replicas", "verdict", "words"),
    [
        ("memory", 0, "ok", "persistence says what can be lost"),
        ("aof", 0, "ok", "a crash loses nothing that was confirmed."),
        ("aof", 1, "ok", "a failover may"),
        ("replicas", 1, "ok", "a failover loses nothing that was confirmed."),
        ("replicas", 2, "ok", "a failover to another of the 2 may"),
        ("replicas", 0, "fail", "nothing is confirmed before 1 have it, and 0 are connected"),
    ],
)
def test_what_remains_to_lose_is_said_in_words(
    durability: Mode, replicas: int, verdict: str, words: str
) -> None:
    check = remains(Settings(durability=durability), server(aof_enabled=1, connected_slaves=replicas))
    assert check.remedy or check.verdict == "ok"
    assert check.verdict == verdict and words in check.found


@pytest.mark.anyio
async def test_doctor_asks_the_server_itself(pair: Pair, durable: Server) -> None:
    """A server that cannot do what the app asks is a failure, with the remedy that a worker would name."""

    async def check(url: str, durability: str) -> tuple[str, str]:
        checks = {
            each.name: each
            for each in await in_redis(App("shop", redis_url=url, durability=durability), "shop:app")
        }
        return checks["durability"].verdict, checks["durability"].found

    verdict, found = await check(pair.primary.url, "aof")
    assert verdict == "fail" and ("this server writes none" in found or "needs WAITAOF" in found)
    assert (await check(pair.primary.url, "replicas"))[0] == "ok"
    assert (await check(durable.url, "aof"))[0] == "ok"
    with durable.client() as client:
        client.config_set("appendfsync", "everysec")
    verdict, found = await check(durable.url, "aof")
    assert verdict == "fail" and "needs appendfsync always: with everysec, WAITAOF of Valkey" in found
    assert (await check(durable.url, "replicas"))[0] == "fail"


@pytest.mark.anyio
async def test_a_worker_does_not_start_where_its_commits_would_wait_for_ever(redis_url: str) -> None:
    """It ends with what to change, before it joins and before anything is declared."""
    app = App("shop", redis_url=redis_url, durability="aof")
    orders = app.stream("orders", Order, partitions=1)

    @app.processor(orders)
    async def price(order: Order) -> None: ...

    with pytest.raises(ConfigurationError, match="this server writes none"):
        await Worker(app).run()
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
