"""``streamworker acl``: users of Redis with the least rights for what they do.

It prints commands and runs none: whoever may create users need not let this program do it.
"""

import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from streamworker.cli.support import AsJson, print_json, say
from streamworker.errors import ConfigurationError
from streamworker.redisio.keys import check_name
from streamworker.redisio.rights import acl_rules, password_rule
from streamworker.settings import ENV_PREFIX, Settings

DURABILITY_VARIABLE = ENV_PREFIX + "DURABILITY"
PASSWORD_VARIABLE = "STREAMWORKER_ACL_PASSWORD"  # noqa: S105  (a variable's name)
PASSWORD_CHARACTERS_MIN = 16
"""Redis keeps a hash without salt, and so does whoever sees the printed line."""


class RoleName(StrEnum):
    """For whom a user is; the roles of redisio/rights.py."""

    WORKER = "worker"
    PRODUCER = "producer"
    READER = "reader"
    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class User:
    """One user, as the commands describe it."""

    user: str
    role: str
    app: str
    rules: list[str]
    command: str


def acl(
    app: Annotated[
        str | None, typer.Argument(metavar="APP", help="MODULE:ATTRIBUTE of the App, such as shop:app.")
    ] = None,
    roles: Annotated[
        list[RoleName] | None,
        typer.Option(
            "--user",
            metavar="ROLE",
            help="Only a worker, producer, reader, viewer or operator; may be given several times.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the app, where its code is not here."),
    ] = None,
    login: Annotated[
        str | None, typer.Option("--login", metavar="NAME", help="Name of the user; else APP-ROLE.")
    ] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the user's password from the first line of stdin.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Print users of Redis with the least rights, as ACL SETUSER commands.

    Each goes to one line, for the prompt of redis-cli or valkey-cli, or to be piped into it. It
    replaces the rights of a user that is there, and keeps its passwords.

    A password is read from stdin or from STREAMWORKER_ACL_PASSWORD, never from the command line,
    and is printed as the SHA-256 that Redis keeps. Without one the lines set none, and nobody can
    log in as a new user.

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
        raise typer.BadParameter("It needs one --user: each has a name of its own.", param_hint="--login")
    password = _password(password_stdin)
    if password and len(chosen) > 1:
        raise ConfigurationError(
            f"One password was given for {len(chosen)} users.",
            remedy="Say which by --user: a password that several know cannot be taken from one of them.",
        )
    users = [_user(app_name, role, login, password, durability) for role in chosen]
    if json:
        print_json(users)
    else:
        for user in users:
            say(user.command)
    if not password:
        say(
            f"No password is set by this. Give one by --password-stdin or {PASSWORD_VARIABLE}.",
            error=True,
        )


def _app_of(path: str | None, name: str | None) -> tuple[str, str]:
    """Return the app's name and durability; of one whose code is not here, what the environment says."""
    if (path is None) == (name is None):
        raise typer.BadParameter("Give either APP or --name, the name that it was made with.")
    if name is not None:
        told = {DURABILITY_VARIABLE: os.environ.get(DURABILITY_VARIABLE, Settings().durability)}
        return check_name("app", name), Settings.from_env(told).durability
    from streamworker.importing import resolve_app

    app = resolve_app(path or "")
    return app.name, app.settings.durability


def _user(app: str, role: str, login: str | None, password: str | None, durability: str) -> User:
    user = check_name("user", login or f"{app}-{role}"[:64])
    rules = ["on", *([password_rule(password)] if password else []), *acl_rules(app, role, durability)]
    return User(user, role, app, rules, " ".join(["ACL", "SETUSER", user, *rules]))


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
            remedy=f"Use {PASSWORD_CHARACTERS_MIN} or more, at random: what is printed is a hash without "
            "salt, from which a short one is found.",
        )
    return password or None
