"""URLs, and what becomes of redis-py's errors."""

import pytest
from redis import exceptions

from streamworker.errors import (
    AuthenticationFailed,
    BackendError,
    BackendRefused,
    BackendUnavailable,
    ConfigurationError,
)
from streamworker.redisio.wire.failures import no_answer, translate
from streamworker.redisio.wire.link import Endpoint

SECRET = "canary-Pa55word"


@pytest.mark.parametrize(
    "url, address",
    [
        ("redis://localhost", "localhost:6379"),
        (f"redis://me:{SECRET}@db.example:7000/3", "db.example:7000"),
        (f"rediss://:{SECRET}@db.example/0?ssl_cert_reqs=required", "db.example:6379"),
        (f"unix:///run/redis.sock?db=2&password={SECRET}", "/run/redis.sock"),
        (f"unix://:{SECRET}@/run/redis.sock?db=2", "/run/redis.sock"),
    ],
)
def test_an_address_never_holds_the_password(url: str, address: str) -> None:
    """It is what messages and logs show."""
    assert Endpoint(url, "t").address == address


def test_credentials_in_a_url_are_decoded_once() -> None:
    """A password with any character can be written percent-encoded."""
    assert Endpoint("redis://us%2Fer:p%40ss%2525@h", "t").login == ("us/er", "p@ss%25")


@pytest.mark.parametrize(
    "url",
    [
        f"http://:{SECRET}@localhost",
        f"redis://:{SECRET}@localhost:port",
        f"redis://:{SECRET}/x@localhost",
        f"redis://:{SECRET}@[localhost",
        f"redis://:{SECRET}@localhost/?db=first",
        f"rediss://:{SECRET}@localhost?ssl_no_such_option=1",
        SECRET,
        "",
    ],
)
def test_a_url_that_cannot_be_read_is_not_shown(url: str) -> None:
    """Urllib would quote the part that it did not understand, which may be the password."""
    with pytest.raises(ConfigurationError) as caught:
        Endpoint(url, "t")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("option", ["socket_timeout=5", "retry_on_timeout=1", "protocol=3", "client_name=x"])
def test_an_option_that_would_change_our_policy_is_refused(option: str) -> None:
    """Timeouts, retries and the protocol are ours; the message names the option."""
    with pytest.raises(ConfigurationError, match=f"option '{option.partition('=')[0]}'"):
        Endpoint(f"redis://localhost/0?{option}", "t")


def _server_says(text: str) -> exceptions.RedisError:
    """Return what redis-py makes of an error reply."""
    from redis._parsers.base import BaseParser

    error = BaseParser.parse_error(text)
    assert isinstance(error, exceptions.RedisError)
    return error


@pytest.mark.parametrize(
    "reply, kind, words",
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", BackendRefused, "out of memory"),
        ("READONLY You can't write against a read only replica.", BackendRefused, "connect to the primary"),
        ("MISCONF Errors writing to the AOF file: No space left", BackendRefused, "cannot write to its disk"),
        ("NOREPLICAS Not enough good replicas to write.", BackendRefused, "min-replicas-to-write"),
        ("NOPERM this user has no permissions", BackendRefused, "give this user the right"),
        ("WRONGTYPE Operation against a key", BackendRefused, "Another program wrote to this key"),
        ("MOVED 1 127.0.0.1:7001", BackendRefused, "Redis Cluster"),
        ("CROSSSLOT Keys in request don't hash to the same slot", BackendRefused, "Redis Cluster"),
        ("ERR unknown command 'FOO'", BackendRefused, "unknown command 'FOO'. A Sentinel's URL begins with"),
        ("ERR DB index is out of range", BackendRefused, "end of the URL"),
        ("NOAUTH Authentication required.", AuthenticationFailed, "did not accept"),
        ("WRONGPASS invalid username-password pair", AuthenticationFailed, "did not accept"),
        ("ERR invalid password", AuthenticationFailed, "did not accept"),
        ("LOADING Redis is loading the dataset in memory", BackendUnavailable, "loading its data"),
        ("BUSY Redis is busy running a script.", BackendUnavailable, "busy with a script"),
        ("UNBLOCKED force unblock from blocking operation", BackendUnavailable, "primary becomes a replica"),
        ("MASTERDOWN Link with MASTER is down", BackendUnavailable, "lost its primary"),
        ("CLUSTERDOWN The cluster is down", BackendUnavailable, "not available"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", BackendUnavailable, "moving its slots"),
        ("ERR max number of clients reached", BackendUnavailable, "maxclients"),
    ],
)
def test_each_answer_of_the_server_becomes_an_error_with_a_remedy(
    reply: str, kind: type[BackendError], words: str
) -> None:
    """No, or not now, or who are you: callers act on the difference."""
    error = translate(_server_says(reply), "db.example:6379")
    assert type(error) is kind
    assert "db.example:6379" in str(error)
    assert words in str(error)


def test_at_the_address_of_the_default_one_learns_how_to_get_a_server() -> None:
    """The app may have named that address itself, and then neither hint helps."""
    refused = ConnectionRefusedError(111, "Connection refused")
    hint = "If the app names no redis_url, run `streamworker dev` or set STREAMWORKER_REDIS_URL."
    assert hint in str(translate(refused, "localhost:6379"))
    assert "`streamworker dev`" not in str(translate(refused, "db.example:6379"))


def test_no_answer_says_that_nobody_knows() -> None:
    """The outcome is open, and the message says so."""
    error = no_answer("db.example:6379", 2_500)
    assert str(error).startswith("Redis at db.example:6379 gave no answer within 2500 ms. It may or may not")


def test_a_long_text_of_the_server_is_cut() -> None:
    """An error that quotes a whole payload does not fill the log."""
    assert len(str(translate(_server_says("ERR " + "x" * 10_000), "h:1"))) < 500
