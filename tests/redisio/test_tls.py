"""TLS: ``rediss://`` against a server with a certificate of its own authority."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamworker.errors import BackendUnavailable
from streamworker.redisio.client import Backend
from tests.conftest import NO_REDIS_SERVER, REDIS_SERVER
from tests.helpers import wait_for

pytestmark = pytest.mark.anyio

PASSWORD = "canary-Pa55word"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, and a key and certificate for ``localhost`` signed by it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.fail("These tests make their certificates with openssl: apt-get install openssl")
    folder = tmp_path_factory.mktemp("tls")
    (folder / "names").write_text("subjectAltName=DNS:localhost")
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout ca.key -out ca.crt -subj /CN=authority",
        "req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=localhost",
        "x509 -req -in request.pem -CA ca.crt -CAkey ca.key -days 2 -extfile names -out cert.pem",
    ):
        subprocess.run([openssl, *command.split()], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module", params=["redis7"])
def port(certificates: Path) -> Iterator[int]:
    """The port of a server that speaks TLS only: Debian's Redis, since Valkey's wheel has no TLS."""
    if REDIS_SERVER is None:
        pytest.fail(NO_REDIS_SERVER)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free: int = probe.getsockname()[1]
    config = f"""
        port 0
        tls-port {free}
        bind 127.0.0.1
        tls-cert-file {certificates}/cert.pem
        tls-key-file {certificates}/key.pem
        tls-ca-cert-file {certificates}/ca.crt
        tls-auth-clients no
        requirepass {PASSWORD}
        save ""
        dir {certificates}
    """
    with subprocess.Popen(
        [REDIS_SERVER, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(config)
        process.stdin.close()
        wait_for(lambda: _listens(free), "the TLS server listens")
        yield free
        process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


async def test_a_call_goes_through_tls(certificates: Path, port: int) -> None:
    """With the authority named, certificate and host are verified and the call is made."""
    url = f"rediss://:{PASSWORD}@localhost:{port}/0?ssl_ca_certs={certificates}/ca.crt"
    async with Backend.open(url, name="tls") as backend:
        assert await backend.execute("PING") == b"PONG"


@pytest.mark.parametrize("option", ["", "&ssl_check_hostname=true"])
async def test_a_certificate_that_cannot_be_verified_is_refused(port: int, option: str) -> None:
    """Verification is on without being asked for; nothing of the password is sent or shown."""
    url = f"rediss://:{PASSWORD}@localhost:{port}/0?db=0{option}"
    async with Backend.open(url, name="tls") as backend:
        with pytest.raises(BackendUnavailable, match=r"(?i)certificate") as caught:
            await backend.execute("PING")
    assert PASSWORD not in str(caught.value)


async def test_a_certificate_for_another_host_is_refused(certificates: Path, port: int) -> None:
    """The name in the URL must be one that the certificate is for."""
    url = f"rediss://:{PASSWORD}@127.0.0.1:{port}/0?ssl_ca_certs={certificates}/ca.crt"
    async with Backend.open(url, name="tls") as backend:
        with pytest.raises(BackendUnavailable, match=r"(?i)certificate"):
            await backend.execute("PING")


async def test_plain_text_to_a_tls_port_has_no_answer(port: int) -> None:
    """A ``redis://`` URL where ``rediss://`` is needed ends soon, with the address."""
    async with Backend.open(
        f"redis://:{PASSWORD}@localhost:{port}/0", name="t", call_timeout_ms=1_000
    ) as backend:
        with pytest.raises(BackendUnavailable, match=f"localhost:{port}"):
            await backend.execute("PING")
