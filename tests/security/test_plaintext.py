"""Plain text leaves this machine only where somebody said so."""

from pathlib import Path

import pytest

from streamworker import App
from streamworker.errors import ConfigurationError
from streamworker.redisio.wire.link import Endpoint
from streamworker.settings import Settings
from streamworker.spark.source.connection import resolve
from tests.cli.conftest import Invoke

SECRET = "canary-Pa55word"


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:6379/0",
        f"redis://:{SECRET}@LOCALHOST./0",
        "redis://worker.localhost",
        "redis://127.0.0.1",
        "redis://127.8.9.1:7000",
        "redis://[::1]:6379",
        "redis://",
        "redis:///0",
        f"unix://:{SECRET}@/run/redis.sock?db=2",
        f"rediss://:{SECRET}@db.example:6380/0",
        "rediss://10.0.0.7",
    ],
)
def test_what_stays_here_or_is_encrypted_needs_no_word(url: str) -> None:
    assert Settings(redis_url=url).redis_url == url
    assert resolve("prod", {"STREAMWORKER_CONNECTION_PROD": url}) == url


@pytest.mark.parametrize(
    "url, named",
    [
        ("redis://db.example:6379/0", "db.example"),
        (f"redis://me:{SECRET}@db.example:6379/0", "db.example"),
        ("redis://redis", "redis"),
        ("redis://10.0.0.7:6379", "10.0.0.7"),
        ("redis://[2001:db8::1]:6379", "2001:db8::1"),
        ("redis://0.0.0.0", "0.0.0.0"),
        ("redis://127.0.0.1.example", "127.0.0.1.example"),
        ("redis://localhost%2eexample", "localhost.example"),
        ("redis:///0?host=db.example", "db.example"),
    ],
)
def test_plain_text_to_another_machine_is_refused_by_name(url: str, named: str) -> None:
    """Before anything is sent; the message has the host, the way out, and no password."""
    for refused in (
        lambda: Settings(redis_url=url),
        lambda: App("shop", redis_url=url),
        lambda: resolve("prod", {"STREAMWORKER_CONNECTION_PROD": url}),
    ):
        with pytest.raises(ConfigurationError) as caught:
            refused()
        said = str(caught.value)
        assert named in said
        assert "rediss://" in said
        assert "STREAMWORKER_ALLOW_PLAINTEXT=1" in said
        assert SECRET not in said


def test_who_trusts_the_network_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "redis://db.example:6379/0"
    assert App("shop", redis_url=url, allow_plaintext=True).settings.redis_url == url
    for text in ("1", "true", "YES"):
        environ = {"STREAMWORKER_REDIS_URL": url, "STREAMWORKER_ALLOW_PLAINTEXT": text}
        assert Settings.from_env(environ).allow_plaintext
        assert resolve("default", environ) == url
    for text in ("0", "no", "False"):
        environ = {"STREAMWORKER_REDIS_URL": url, "STREAMWORKER_ALLOW_PLAINTEXT": text}
        for read in (Settings.from_env, lambda environ: resolve("default", environ)):
            with pytest.raises(ConfigurationError, match=r"db\.example"):
                read(environ)
    monkeypatch.setenv("STREAMWORKER_ALLOW_PLAINTEXT", "perhaps")
    with pytest.raises(ConfigurationError, match=r"'perhaps'.*must be 1 or 0"):
        App("shop")


def test_a_url_with_a_password_that_is_not_encoded_is_refused_and_not_shown() -> None:
    """What stands before the / of its password looks like a host, or a host and a port, and is not shown."""
    with pytest.raises(ConfigurationError) as caught:
        Settings(redis_url=f"redis://{SECRET}/rest@db.example:6379/0")
    assert SECRET.lower() not in str(caught.value).lower()
    url = f"redis://me:{SECRET}/rest@db.example:6379/0"
    with pytest.raises(ConfigurationError, match=r"no number of a database.*percent-encoded") as refused:
        Settings(redis_url=url)
    assert SECRET.lower() not in str(refused.value).lower()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Endpoint(url, "t")


def test_spark_is_told_what_the_app_allows() -> None:
    """Its processes look the URL up by themselves."""
    from streamworker.spark.driver.session import _jvm_environment

    given = _jvm_environment(Path("java"), "redis://db.example", local=False)
    assert resolve("default", given) == "redis://db.example"
    assert "STREAMWORKER_ALLOW_PLAINTEXT" not in _jvm_environment(
        Path("java"), "redis://localhost", local=False
    )


def test_a_command_refuses_it_with_its_exit_code(invoke: Invoke) -> None:
    """The message is all: no traceback, nothing is sent."""
    done = invoke("doctor", "shop:app", env={"STREAMWORKER_REDIS_URL": f"redis://:{SECRET}@db.example"})
    assert "plain text to db.example" in done.stdout
    assert SECRET not in done.output
    assert done.exit_code == 1
