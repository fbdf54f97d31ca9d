"""A credential provider gives each new connection its user and password: tokens that expire."""

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis
from redis.credentials import CredentialProvider

from streamworker import App, ConfigurationError
from streamworker.dev.cluster import EmbeddedCluster
from streamworker.dev.server import EmbeddedServer
from streamworker.errors import AuthenticationFailed, BackendUnavailable
from streamworker.runtime.connecting import connected
from streamworker.settings import Settings
from streamworker.spark.source.connection import Connection
from streamworker.testing import local_worker
from streamworker.urls import without_login
from tests.stage.trio import Trio

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    customer: str


class Tokens(CredentialProvider):
    """Makes a new token for each connection."""

    def __init__(self, admin: "redis.Redis") -> None:
        self._admin = admin
        self._numbers = itertools.count(1)
        self.given: list[str] = []

    def get_credentials(self) -> tuple[str, str]:
        token = f"token-{next(self._numbers)}"
        rules = ["on", f">{token}", "~*", "+@all"]
        self._admin.execute_command("ACL", "SETUSER", "service", *rules)
        self.given.append(token)
        return "service", token


class AsyncTokens(Tokens):
    """A provider that has the async method of redis-py as well."""

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


@pytest.fixture
def admin(own_server: EmbeddedServer) -> Iterator["redis.Redis"]:
    """A server on which nobody but an administrator may do anything without a token."""
    with redis.Redis.from_url(own_server.url) as before:
        before.execute_command("ACL", "SETUSER", "admin", "on", ">secret", "~*", "&*", "+@all")
        before.execute_command("ACL", "SETUSER", "default", "off")
    bare = without_login(own_server.url)
    with redis.Redis.from_url(bare, username="admin", password="secret", protocol=2) as client:
        yield client
        client.execute_command("ACL", "SETUSER", "default", "on")


@pytest.mark.parametrize("kind", [Tokens, AsyncTokens])
async def test_workers_and_senders_log_in_with_the_token_of_the_moment(
    own_server: EmbeddedServer, admin: "redis.Redis", kind: type[Tokens]
) -> None:
    """Each connection asks anew, also after the server has closed all of them."""
    tokens = kind(admin)
    app = App("shop", redis_url=own_server.url, credential_provider=tokens)
    orders = app.stream("orders", Order, key="customer", partitions=2)
    seen: list[str] = []

    @app.processor(orders)
    async def take(order: Order) -> None:
        seen.append(order.customer)

    async with local_worker(app, url=own_server.url) as worker:
        await orders.send(Order("ann"))
        await worker.until_drained()
        before = len(tokens.given)
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await orders.send(Order("bob"))
        await worker.until_drained()
    assert seen == ["ann", "bob"]
    assert len(tokens.given) > before > 1


@pytest.mark.full("runs each command")
@pytest.mark.parametrize("server", ["cluster", "sentinel"], indirect=True, scope="session")
async def test_every_node_of_a_cluster_and_what_sentinels_name_get_what_the_provider_gives(
    server: EmbeddedCluster | Trio, emptied: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The URL has no password; sentinels keep their own."""
    code = f"import redis\nlogin = redis.UsernamePasswordCredentialProvider(password={server.password!r})\n"
    (tmp_path / "nodes_auth.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nodes_auth", raising=False)
    bare = without_login(emptied)
    assert server.password not in bare
    app = App("shop", redis_url=bare, credential_provider="nodes_auth:login")
    orders = app.stream("orders", Order, key="customer", partitions=6)
    seen = app.table("seen", bool)

    @app.processor(orders, tables=[seen])
    async def take(order: Order) -> None:
        seen.set(order.customer, True)

    names = {f"customer {number}" for number in range(100)}
    async with local_worker(app, url=bare) as worker:
        await orders.send_many([Order(name) for name in sorted(names)])
        await worker.until_drained()
        assert {name async for name, _ in seen.scan()} == names

    monkeypatch.setattr("streamworker.spark.source.connection._clients", {})
    monkeypatch.setitem(os.environ, "STREAMWORKER_REDIS_URL", bare)
    monkeypatch.setitem(os.environ, "STREAMWORKER_CREDENTIAL_PROVIDER", "nodes_auth:login")
    assert Connection("default", 1_000).pipeline([("GET", "x")]) == [None]
    monkeypatch.delitem(os.environ, "STREAMWORKER_CREDENTIAL_PROVIDER")

    without = App("shop", redis_url=bare)
    with pytest.raises(AuthenticationFailed):
        await without.stream("orders", Order, key="customer", partitions=6).send(Order("ann"))


async def test_a_provider_that_fails_is_named_and_asked_again(
    own_server: EmbeddedServer, admin: "redis.Redis"
) -> None:
    """As a server that is away is; a token that the server refuses is an error at once."""

    class Failing(Tokens):
        fails = True

        def get_credentials(self) -> tuple[str, str]:
            if self.fails:
                raise ZeroDivisionError("the token service is away")
            return super().get_credentials()

    provider = Failing(admin)
    settings = Settings(redis_url=own_server.url, credential_provider=provider)
    async with connected(settings, "test", 1) as backend:
        with pytest.raises(BackendUnavailable, match=r"provider failed: ZeroDivisionError.*token service"):
            await backend.execute("PING")
        provider.fails = False

        async def pinged() -> bytes:
            while True:
                try:
                    return bytes(await backend.execute("PING"))
                except BackendUnavailable:
                    continue

        assert await pinged() == b"PONG"
    wrong = Settings(
        redis_url=own_server.url, credential_provider=redis.UsernamePasswordCredentialProvider("x", "y")
    )
    async with connected(wrong, "test", 1) as backend:
        with pytest.raises(AuthenticationFailed):
            await backend.execute("PING")


def test_spark_processes_take_the_provider_that_their_environment_names(
    own_server: EmbeddedServer, admin: "redis.Redis", monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An object does not travel to an executor; its name does, as the URL's variable does."""
    admin.execute_command("ACL", "SETUSER", "spark", "on", ">token", "~*", "+@all")
    code = "import redis\nlogin = redis.UsernamePasswordCredentialProvider('spark', 'token')\n"
    (tmp_path / "shop_auth.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("streamworker.spark.source.connection._clients", {})
    monkeypatch.setitem(os.environ, "STREAMWORKER_REDIS_URL", own_server.url)
    monkeypatch.setitem(os.environ, "STREAMWORKER_CREDENTIAL_PROVIDER", "shop_auth:login")
    connection = Connection("default", 1_000)
    assert connection.pipeline([("ACL", "WHOAMI")]) == [b"spark"]
    assert Settings.from_env().credentials is not None
    monkeypatch.undo()


@pytest.mark.parametrize("wrong", ["shop.auth", 7, object()])
def test_what_is_no_provider_is_refused_when_the_app_is_made(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match=r"credential_provider is .*no redis\.credentials"):
        App("shop", credential_provider=wrong)


def test_a_provider_that_cannot_be_imported_is_named() -> None:
    """When it is needed: importing an app imports nothing of it."""
    app = App("shop", credential_provider="no_such_module:login")
    with pytest.raises(ConfigurationError, match="no_such_module:login' cannot be imported"):
        _ = app.settings.credentials
