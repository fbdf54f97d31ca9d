"""The setting: refused where it cannot be, what it takes of a user, and what `doctor` makes of it."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from streamworker import App
from streamworker.cli.doctor import in_redis
from streamworker.cli.doctor_durability import remains
from streamworker.dev.server import EmbeddedServer
from streamworker.errors import ConfigurationError
from streamworker.redisio.durability import Durability
from streamworker.redisio.info import read_info
from streamworker.redisio.rights import acl_rules
from streamworker.settings import DURABILITIES, Settings
from tests.durability.pair import Pair, raw
from tests.runtime.bench import Order, bench

PASSWORD = "long enough for a test"


def test_what_there_is_not_is_refused_by_name() -> None:
    """As an argument or in the environment, and before anything runs."""
    with pytest.raises(ConfigurationError, match=r"durability is .disk.\. .*memory, aof, replicas"):
        App("shop", durability="disk")
    with pytest.raises(ConfigurationError, match="Setting durability is 'AOF'"):
        Settings.from_env({"STREAMWORKER_DURABILITY": "AOF"})
    assert Settings.from_env({"STREAMWORKER_DURABILITY": "aof"}).durability == "aof"
    assert App("shop").settings.durability == "memory"
    for mode in DURABILITIES:
        assert bool(Durability(mode).command) is (mode != "memory")  # type: ignore[arg-type]


def test_the_last_commit_of_a_partition_has_the_time_to_be_confirmed() -> None:
    """Else each handover would cancel what waits for the disk. Who waits for nothing is not asked."""
    with pytest.raises(ConfigurationError, match="grace_period_ms is 500, and must be >= durability_timeout"):
        Settings(durability="aof", grace_period_ms=500)
    Settings(grace_period_ms=500)


# -- rights ------------------------------------------------------------------------------------


@contextlib.contextmanager
def user(server: EmbeddedServer, role: str, durability: str) -> Iterator[str]:
    """Make a user with a role's rights, and return the URL that it comes by."""
    with raw(server) as admin:
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


def said(durability: str, server: Mapping[str, str] | None = None, **info: Any) -> tuple[str, str]:
    """Return verdict and words for a setting and what a server says of itself."""
    told = read_info("\r\n".join(f"{name}:{value}" for name, value in info.items()).encode())
    check = remains(Settings(durability=durability), told, server)
    assert check.remedy or check.verdict == "ok"
    return check.verdict, check.found


@pytest.mark.parametrize(
    ("durability", "server", "replicas", "verdict", "words"),
    [
        ("memory", {}, 0, "ok", "see persistence for what is lost"),
        ("aof", {"appendfsync": "everysec"}, 0, "ok", "a crash loses nothing that was confirmed."),
        ("aof", {"appendfsync": "always"}, 1, "ok", "a failover may"),
        ("aof", {"appendfsync": "no"}, 0, "fail", "nothing is ever confirmed"),
        ("aof", None, 0, "ok", "nothing that was confirmed"),
        ("replicas", {}, 1, "ok", "a failover loses nothing that was confirmed."),
        ("replicas", {}, 2, "ok", "one to another of the 2 may"),
        ("replicas", {}, 0, "fail", "nothing is confirmed before 1 have it, and 0 are connected"),
    ],
)
def test_what_remains_to_lose_is_said_in_words(
    durability: str, server: dict[str, str] | None, replicas: int, verdict: str, words: str
) -> None:
    """Of the setting and the server together."""
    found, text = said(durability, server, aof_enabled=1, connected_slaves=replicas)
    assert found == verdict and words in text


@pytest.mark.anyio
async def test_doctor_asks_the_server_itself(pair: Pair, durable: EmbeddedServer) -> None:
    """A server that cannot do what the app asks is a failure, with the remedy that a worker would name."""

    async def check(url: str, durability: str) -> tuple[str, str]:
        checks = {
            each.name: each
            for each in await in_redis(App("shop", redis_url=url, durability=durability), "shop:app")
        }
        return checks["durability"].verdict, checks["durability"].found

    assert await check(pair.primary.url, "aof") == (
        "fail",
        'durability="aof" needs an append-only file, and this server writes none.',
    )
    assert (await check(pair.primary.url, "replicas"))[0] == "ok"
    assert (await check(durable.url, "aof"))[0] == "ok"
    assert (await check(durable.url, "replicas"))[0] == "fail"
