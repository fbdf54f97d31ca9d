"""``streamworker acl``: prints ACL commands for Redis users with the least rights.

The command runs none of them, so that an administrator need not give this program the right to create users.
"""

import os
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from streamworker.cli.options import AsJson, argument, option
from streamworker.cli.output import print_json, say
from streamworker.errors import ConfigurationError
from streamworker.importing import resolve_app
from streamworker.redisio.admin.rights import acl_rules, password_rule
from streamworker.redisio.keys import check_name
from streamworker.settings import Settings
from streamworker.variables import ENV_PREFIX, PASSWORD_VARIABLE

DURABILITY_VARIABLE = ENV_PREFIX + "DURABILITY"
PASSWORD_CHARACTERS_MIN = 16
"""Redis stores an unsalted hash of the password, and this command prints it: a short one could be found."""

RoleName = StrEnum("RoleName", ["WORKER", "PRODUCER", "READER", "PIPELINE", "VIEWER", "LOOKUP", "OPERATOR"])
"""The roles of ``redisio/admin/rights.py``."""


def acl(
    app: Annotated[str | None, argument("APP", "MODULE:ATTRIBUTE of the App, such as shop:app.")] = None,
    roles: Annotated[
        list[RoleName] | None,
        option(
            "--user ROLE",
            "Only a worker, producer, reader, viewer, lookup or operator; may be given several times.",
        ),
    ] = None,
    name: Annotated[
        str | None, option("--name NAME", "Name of the app, if its code is not on this machine.")
    ] = None,
    login: Annotated[str | None, option("--login NAME", "Name of the user; by default APP-ROLE.")] = None,
    password_stdin: Annotated[
        bool, option("--password-stdin", "Read the user's password from the first line of stdin.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Print ACL SETUSER commands that create Redis users with the least rights.

    Pipe them to redis-cli. Each replaces the rights of an existing user and keeps its passwords.

    The password is read from stdin or from STREAMWORKER_ACL_PASSWORD, and is printed as the SHA-256
    hash that Redis stores. Without one nobody can log in as a new user.

    \b
    Examples:
      streamworker acl shop:app
      streamworker acl --user worker --name shop --json
      streamworker acl shop:app --user viewer --login dashboards
      openssl rand -hex 24 | tee password | streamworker acl shop:app --user worker --password-stdin
    """
    chosen = [role.value for role in roles or RoleName]
    app_name, durability = _app_of(app, name)
    if login is not None and len(chosen) > 1:
        raise typer.BadParameter("Give one --user: --login names a single user.", param_hint="--login")
    password = _password(password_stdin)
    if password and len(chosen) > 1:
        raise ConfigurationError(
            f"One password was given for {len(chosen)} users.",
            remedy="Choose one with --user: a shared password cannot be revoked for one user alone.",
        )
    users = [_user(app_name, role, login, password, durability) for role in chosen]
    if json:
        print_json(users)
    else:
        say(*(user["command"] for user in users))
    if not password:
        say(
            f"These commands set no password. Give one by --password-stdin or {PASSWORD_VARIABLE}.",
            error=True,
        )


def _app_of(path: str | None, name: str | None) -> tuple[str, str]:
    """Return the app's name and durability; with ``--name``, durability comes from the environment."""
    if (path is None) == (name is None):
        raise typer.BadParameter("Give either APP or --name, the app's name.")
    if name is not None:
        environ = {DURABILITY_VARIABLE: os.environ.get(DURABILITY_VARIABLE, Settings().durability)}
        return check_name("app", name), Settings.from_env(environ).durability

    app = resolve_app(path or "")
    return app.name, app.settings.durability


def _user(app: str, role: str, login: str | None, password: str | None, durability: str) -> dict[str, Any]:
    """Return a Redis user: its role, its ACL rules and the command that creates it."""
    user = check_name("user", login or f"{app}-{role}"[:64])
    rules = ["on", *([password_rule(password)] if password else []), *acl_rules(app, role, durability)]
    command = " ".join(["ACL", "SETUSER", user, *rules])
    return {"user": user, "role": role, "app": app, "rules": rules, "command": command}


def _password(from_stdin: bool) -> str | None:
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
        if not password:
            raise ConfigurationError("There is no password on stdin.", remedy="Pipe it in, as one line.")
    else:
        password = os.environ.get(PASSWORD_VARIABLE, "")
    if password and len(password) < PASSWORD_CHARACTERS_MIN:
        raise ConfigurationError(
            f"The password has {len(password)} characters.",
            remedy=f"Use {PASSWORD_CHARACTERS_MIN} or more random characters: the printed hash has no salt, "
            "so a short password can be found from it.",
        )
    return password or None
