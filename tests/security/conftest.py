"""Fixtures of the security tests: users with the rights of each role, on both servers."""

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit, urlunsplit

import pytest
import redis

from streamworker.redisio.admin.rights import ROLE_NAMES, acl_rules
from tests.cli.conftest import folder, invoke, shop, streamworker

__all__ = ["folder", "invoke", "shop", "streamworker"]

PASSWORD = "canary-of-the-roles-4711"
UrlOf = Callable[[str], str]


def refusals(admin: "redis.Redis") -> set[tuple[str, str]]:
    log = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in admin.execute_command("ACL", "LOG")]
    return {(entry[b"username"].decode(), entry[b"object"].decode()) for entry in log}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what needs the users on both servers, unless it names one: their ACLs are different programs."""
    named = any("server" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "url_of" in metafunc.fixturenames and not named:
        metafunc.parametrize("server", ["valkey", "redis7"], indirect=True, scope="session")


@pytest.fixture
def admin(redis_url: str) -> Iterator["redis.Redis"]:
    """A client that may do anything, on an empty server."""
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        yield client


@pytest.fixture
def url_of(redis_url: str, admin: "redis.Redis") -> Iterator[UrlOf]:
    """Return the URL of a user by its role; afterwards the server must have refused it nothing.

    A test that makes it refuse something empties its log with ``ACL LOG RESET``.
    """
    for role in ROLE_NAMES:
        admin.execute_command("ACL", "SETUSER", role, "reset", "on", f">{PASSWORD}", *acl_rules("shop", role))
    admin.execute_command("ACL", "LOG", "RESET")
    parts = urlsplit(redis_url)
    place = parts.netloc.rpartition("@")[2]

    yield lambda role: urlunsplit(parts._replace(netloc=f"{role}:{PASSWORD}@{place}"))

    refused = refusals(admin)
    admin.execute_command("ACL", "DELUSER", *ROLE_NAMES)
    # redis-py tells its version where the server takes it, and does not mind where it may not.
    assert {command for _, command in refused} <= {"client|setinfo"}
