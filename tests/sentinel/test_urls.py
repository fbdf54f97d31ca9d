"""URLs that name sentinels: what they say, what is wrong with them, and what is never shown of them."""

import pytest

from streamworker.errors import ConfigurationError
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.primaries import Answer
from streamworker.redisio.wire.sentinel import SentinelTarget, target_for
from streamworker.settings import Settings
from streamworker.spark.source import connection
from streamworker.spark.source.connection import Connection, address, resolve
from streamworker.urls import read_sentinels

SECRET = "canary-Pa55word"


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://ann:pw@s1:26379,s2,s3:26381/2?service=orders",
        "redis+sentinel://ann:pw@s1,s2,s3:26381/orders/2",
        "REDIS+SENTINEL://ann:pw@s1,s2,s3:26381/?service=orders&db=2",
        "redis+sentinel://s1,s2,s3:26381/2?service=orders&username=ann&password=pw",
    ],
)
def test_a_url_says_who_is_asked_for_what_and_how_redis_is_got_into(url: str) -> None:
    """In the form of this project, and in the one that other libraries have."""
    found = read_sentinels(url)
    assert found.hosts == (("s1", 26379), ("s2", 26379), ("s3", 26381))
    assert found.service == "orders"
    assert found.server_url("db1", 6379) == "redis://ann:pw@db1:6379/2"
    assert found.urls[0] == "redis://s1:26379/0"


def test_sentinels_have_a_password_of_their_own() -> None:
    """That of Redis is not sent to them; options for TLS hold for both."""
    found = read_sentinels(
        "rediss+sentinel://:of%20redis@s1/0?service=o&sentinel_username=bob&sentinel_password=a%2Fb"
        "&ssl_ca_certs=/ca.pem"
    )
    assert found.urls == ["rediss://bob:a%2Fb@s1:26379/0?ssl_ca_certs=%2Fca.pem"]
    assert found.server_url("::1", 7000) == "rediss://:of%20redis@[::1]:7000/0?ssl_ca_certs=%2Fca.pem"


@pytest.mark.parametrize(
    "url",
    [
        f"redis+sentinel://:{SECRET}/x@s1:26379/0?service=orders",
        f"redis+sentinel://:{SECRET}#x@s1:26379/0?service=orders",
        f"redis+sentinel://:{SECRET}@s1:port/0?service=orders",
        f"redis+sentinel://:{SECRET}@s1:70000/0?service=orders",
        f"redis+sentinel://:{SECRET}@/0?service=orders",
        f"redis+sentinel://:{SECRET}@s1/0/1/2?service=orders",
        f"redis+sentinel://:{SECRET}@s1/0",
        f"redis+sentinel://:{SECRET}@s1/0?service=orders&socket_timeout=3",
        f"redis+sentinel://s1/0?service=orders&sentinel_password={SECRET}&socket_timeout=3",
        f"rediss+sentinel://:{SECRET}@s1/0?service=orders&ssl_nonsense={SECRET}",
    ],
)
def test_a_wrong_url_is_refused_and_not_shown(url: str) -> None:
    """Any piece of it may be one of a password."""
    with pytest.raises(ConfigurationError) as caught:
        target_for(url, "t", allow_plaintext=True)
    assert "canary" not in str(caught.value) + repr(caught.value.__cause__)
    assert caught.value.remedy
    assert SECRET not in address(url)


def test_a_url_without_a_service_says_what_to_add() -> None:
    with pytest.raises(ConfigurationError, match=r"\?service=NAME"):
        read_sentinels("redis+sentinel://s1,s2/0")


def test_nothing_that_is_shown_holds_a_password() -> None:
    """Not the target's name for itself, not what a debugger prints."""
    url = f"redis+sentinel://ann:{SECRET}@s1,s2/0?service=orders&sentinel_password={SECRET}"
    shown = address(url) + SentinelTarget(url, "t").address + repr(read_sentinels(url))
    assert "s1:26379" in shown
    assert "canary" not in shown


def test_plain_text_to_any_of_the_hosts_is_refused() -> None:
    url = f"redis+sentinel://:{SECRET}@localhost,db.example:26379/0?service=orders"
    for refused in (
        lambda: Settings(redis_url=url),
        lambda: resolve("prod", {"STREAMWORKER_CONNECTION_PROD": url}),
        lambda: Backend.open(url, name="t"),
        lambda: Backend.open(f"redis://:{SECRET}@db.example", name="t"),
    ):
        with pytest.raises(ConfigurationError, match=r"plain text to db\.example") as caught:
            refused()
        assert SECRET not in str(caught.value)
    Backend.open(url, name="t", allow_plaintext=True)
    Backend.open(url.replace("redis+", "rediss+"), name="t")


def test_spark_sends_nothing_as_plain_text_to_a_machine_that_only_sentinels_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The URL speaks of this machine alone: whoever wrote it has not said that a password may leave it."""
    monkeypatch.setenv(
        "STREAMWORKER_CONNECTION_FAR", f"redis+sentinel://:{SECRET}@localhost:1/0?service=orders"
    )
    monkeypatch.setattr(connection, "_find_primary", lambda sentinels, epoch: Answer(("db.example", 6379), 9))
    with pytest.raises(ConfigurationError, match=r"sentinels name.*plain text to db\.example") as caught:
        Connection("far", 0).call(lambda client: client.get("a"))
    assert SECRET not in f"{caught.value}{caught.value.remedy}"
