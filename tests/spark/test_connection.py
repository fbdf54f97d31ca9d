"""Named connections: resolved where they are used, patient with a short outage, silent on secrets."""

import threading
from pathlib import Path

import pytest
import redis

from streamworker.dev.server import EmbeddedServer
from streamworker.errors import (
    AuthenticationFailed,
    BackendRefused,
    BackendUnavailable,
    ConfigurationError,
)
from streamworker.spark.source.connection import Connection, address, resolve, variable_for

URL = "redis://:canary-secret@127.0.0.1:6390/0"


def secret_file(path: Path, text: str, mode: int = 0o600) -> dict[str, str]:
    path.write_text(text)
    path.chmod(mode)
    return {"STREAMWORKER_CONNECTIONS": str(path)}


@pytest.mark.parametrize(
    ("name", "environ"),
    [
        pytest.param("eu-prod", {variable_for("eu-prod"): URL}, id="a variable of the process"),
        pytest.param("default", {"STREAMWORKER_REDIS_URL": URL}, id="the URL that workers use"),
    ],
)
def test_a_name_is_a_variable_of_the_process_that_connects(name: str, environ: dict[str, str]) -> None:
    assert resolve(name, environ) == URL


def test_a_name_is_a_line_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    """For where an environment is shown to others; a variable, which is nearer to the process, wins."""
    environ = secret_file(tmp_path / "connections.toml", f'prod = "{URL}"\n')
    assert resolve("prod", environ) == URL
    assert resolve("prod", {**environ, "STREAMWORKER_CONNECTION_PROD": "rediss://near"}) == "rediss://near"


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        pytest.param(f'prod = "{URL}"\n', 0o644, "chmod 600", id="others may read it"),
        pytest.param(f"prod = {URL}\n", 0o600, "not TOML", id="no TOML"),
        pytest.param("prod = 5\n", 0o600, "not text", id="no text"),
    ],
)
def test_a_file_that_cannot_be_taken_is_refused_and_not_quoted(
    tmp_path: Path, text: str, mode: int, says: str
) -> None:
    """It holds passwords, and the wrong line may be one with a password."""
    with pytest.raises(ConfigurationError, match=says) as caught:
        resolve("prod", secret_file(tmp_path / "connections.toml", text, mode))
    assert "canary-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"STREAMWORKER_REDIS_URL": URL}, "STREAMWORKER_CONNECTION_PROD"),
        ({"STREAMWORKER_CONNECTIONS": "nowhere.toml"}, r"nowhere\.toml"),
    ],
    ids=["no such name", "no such file"],
)
def test_a_name_that_is_nowhere_says_where_it_was_looked_for(environ: dict[str, str], says: str) -> None:
    """The remedy names the variable; a mistyped path is not taken for an empty file."""
    with pytest.raises(ConfigurationError, match=says):
        resolve("prod", environ)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:canary/secret@h:1/0",
        "redis://:canary#secret@h:1/0",
        "redis://:canary-secret@h:port/0",
        "http://canary-secret",
    ],
)
def test_a_url_that_cannot_be_read_is_not_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser of URLs would quote the part that it did not understand."""
    monkeypatch.setenv("STREAMWORKER_CONNECTION_BAD", url)
    with pytest.raises(ConfigurationError) as caught:
        Connection("bad", 100).call(lambda client: client.ping())
    text = str(caught.value) + repr(caught.value.__cause__)
    assert "canary" not in text
    assert "secret" not in text


def test_addresses_hold_no_secrets() -> None:
    assert address(URL) == "127.0.0.1:6390"
    assert address("unix://:canary-secret@/run/s.sock?db=0") == "/run/s.sock"
    assert address("redis://:canary/secret@h:1") == "an address that cannot be read"


def test_nobody_there_is_said_after_the_timeout_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMWORKER_CONNECTION_AWAY", "redis://:canary-secret@127.0.0.1:1/0")
    with pytest.raises(BackendUnavailable, match=r"127\.0\.0\.1:1") as caught:
        Connection("away", 200).call(lambda client: client.ping())
    assert "canary-secret" not in str(caught.value)
    assert "retryTimeout" in str(caught.value)


def test_a_wrong_password_fails_at_once(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    password = redis_url.partition("://:")[2].partition("@")[0]
    monkeypatch.setenv("STREAMWORKER_CONNECTION_WRONG", redis_url.replace(password, "canary-secret"))
    with pytest.raises(AuthenticationFailed) as caught:
        Connection("wrong", 60_000).call(lambda client: client.ping())
    assert "canary-secret" not in str(caught.value)


def test_a_refusal_fails_at_once(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMWORKER_CONNECTION_HERE", redis_url)
    connection = Connection("here", 60_000)
    connection.call(lambda client: client.set("text", "x"))
    with pytest.raises(BackendRefused, match="WRONGTYPE"):
        connection.call(lambda client: client.hget("text", "x"))


def test_a_call_outlives_a_restart_of_the_server(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMWORKER_CONNECTION_OWN", own_server.url)
    connection = Connection("own", 20_000)
    assert connection.call(lambda client: client.ping())
    own_server.kill()
    tried = threading.Event()

    def ping(client: redis.Redis) -> object:
        if tried.is_set():
            own_server.start()
        tried.set()
        return client.ping()

    assert connection.call(ping)
