"""``streamworker acl``: what it prints is what a server takes, and no password is in it."""

import hashlib

import pytest
import redis

from streamworker.cli.acl import RoleName
from streamworker.redisio.admin.rights import ROLE_NAMES, acl_rules
from streamworker.variables import PASSWORD_VARIABLE
from tests.cli.conftest import Invoke
from tests.security.conftest import PASSWORD, UrlOf

HASH = hashlib.sha256(PASSWORD.encode()).hexdigest()


def test_it_has_a_user_for_each_role(invoke: Invoke) -> None:
    """Also for an app whose code is elsewhere; stdout has the commands and nothing else."""
    assert [role.value for role in RoleName] == list(ROLE_NAMES)
    by_code, by_name = invoke("acl", "shop:app"), invoke("acl", "--name", "shop")
    assert by_code.exit_code == 0
    assert by_code.stdout == by_name.stdout
    lines = by_code.stdout.splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["ACL", "SETUSER", f"shop-{role}", "on"] for role in ROLE_NAMES
    ]
    assert "These commands set no password" in by_code.stderr


def test_a_printed_line_lets_the_user_in_with_its_password(
    invoke: Invoke, url_of: UrlOf, admin: "redis.Redis"
) -> None:
    """As piped into redis-cli; the password goes in by stdin or a variable, and does not come out."""
    by_pipe = invoke("acl", "shop:app", "--user", "viewer", "--password-stdin", input=f"{PASSWORD}\n")
    by_variable = invoke("acl", "--name", "shop", "--user", "viewer", env={PASSWORD_VARIABLE: PASSWORD})
    assert by_pipe.output == by_variable.output
    assert PASSWORD not in by_pipe.output
    assert f"#{HASH}" in by_pipe.stdout
    admin.execute_command(*by_pipe.stdout.split())
    with redis.Redis.from_url(url_of("viewer").replace("//viewer", "//shop-viewer")) as user:
        assert user.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            user.set("sw:{shop.orders:price}:members", "x")
    admin.execute_command("ACL", "LOG", "RESET")
    admin.execute_command("ACL", "DELUSER", "shop-viewer")


def test_a_line_takes_away_what_a_user_had(invoke: Invoke, url_of: UrlOf, admin: "redis.Redis") -> None:
    """Whoever runs it again after an update has the new rights only; the password stays."""
    admin.execute_command("ACL", "SETUSER", "viewer", "~*", "&*", "+@all", "(~other +get)")
    line = invoke("acl", "--name", "shop", "--user", "viewer", "--login", "viewer").stdout
    admin.execute_command(*line.split())
    with redis.Redis.from_url(url_of("viewer")) as user:
        for forbidden in (("GET", "other"), ("CONFIG", "GET", "*"), ("PUBLISH", "c", "m")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                user.execute_command(*forbidden)
    admin.execute_command("ACL", "LOG", "RESET")


def test_json_has_the_rules_one_by_one(invoke: Invoke) -> None:
    (user,) = invoke.tells("acl", "--name", "shop", "--user", "reader")
    assert (user["user"], user["role"], user["app"]) == ("shop-reader", "reader", "shop")
    assert user["rules"] == ["on", *acl_rules("shop", "reader")]
    assert user["command"] == " ".join(["ACL SETUSER shop-reader", *user["rules"]])


@pytest.mark.parametrize(
    "arguments, given, said",
    [
        (["--name", "shop", "--user", "worker"], "lemon", "5 characters"),
        (["--name", "shop", "--user", "worker", "--password-stdin"], "", "no password on stdin"),
        (["--name", "shop"], PASSWORD, "One password was given for 7 users"),
        (["--name", "sh{op"], "", "'{'"),
        (["--name", "shop", "--user", "worker", "--login", "a b"], "", "' '"),
        (["shop:app", "--name", "shop"], "", "either APP or --name"),
        ([], "", "either APP or --name"),
        (["--name", "shop", "--login", "me"], "", "--login"),
        (["--name", "shop", "--user", "root"], "", "'root'"),
    ],
)
def test_what_cannot_be_is_refused(invoke: Invoke, arguments: list[str], given: str, said: str) -> None:
    result = invoke("acl", *arguments, env={PASSWORD_VARIABLE: given}, input="")
    assert result.exit_code in {2, 3}
    assert said in result.stderr
    assert result.stdout == ""
    assert not given or given not in result.stderr
