"""The least rights of each kind of user of Redis, as rules for ``ACL SETUSER``.

Scripts run with the rights of whoever calls them: ``EVALSHA`` itself needs all keys that it is
given, for reading and writing, and each call inside is checked as if the user had made it. So a
role lists the commands that its scripts make, and a user who loads a script of its own gains nothing
by it.

Rules have a root and selectors in parentheses, which Redis knows since 7.0: what is in a selector
holds for that selector's keys alone. ``SET`` for instance may write the membership document, and
would overwrite a stream if it were allowed everywhere.

A command that a server does not know makes ``ACL SETUSER`` fail: ``CLIENT SETINFO`` came with
Redis 7.2, and is left out, since redis-py does not mind being refused it.
"""

import hashlib
from dataclasses import dataclass
from typing import cast

from streamworker.errors import ConfigurationError
from streamworker.redisio.durability import Durability, Mode
from streamworker.redisio.keys import KEY_TABLE, check_name

KINDS = tuple(row.key.partition("}:")[2].partition(":")[0] for row in KEY_TABLE)
"""Kinds of keys: what stands behind the braces."""

_NAMED = frozenset(row.key.partition("}:")[2].partition(":")[0] for row in KEY_TABLE if row.key[-1].isupper())
"""Kinds whose keys end with the name of a group or a producer."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Commands on some kinds of keys of one app."""

    commands: tuple[str, ...]
    keys: tuple[str, ...] = ()
    """Kinds of keys; all of them if none is named."""
    read_only: bool = False
    """May these keys only be read? Then no script is given them either: that takes both rights."""

    def rules(self, app: str) -> list[str]:
        """Return patterns of keys and what may be done with them."""
        sign = "%R~" if self.read_only else "~"
        keys = [f"{sign}{_pattern(app, kind)}" for kind in self.keys] or [f"{sign}sw:{{{app}.*"]
        return [*keys, *(f"+{command}" for command in sorted(self.commands))]


def _pattern(app: str, kind: str) -> str:
    return f"sw:{{{app}.*}}:{kind}{':*' if kind in _NAMED else ''}"


@dataclass(frozen=True, slots=True)
class Role:
    """What one kind of user does, and which rights that takes."""

    name: str
    does: str
    """For whom it is, and what it can do."""
    never: str
    """What Redis refuses it, that somebody might expect or fear."""
    root: Grant
    """All of these commands are allowed on all of these keys."""
    selectors: tuple[Grant, ...] = ()


_CONNECT = ("asking", "client|setname", "cluster|slots", "ping", "select", "time")
"""Two of these are for a Cluster: to be told where its slots are, and to follow one that moves."""
_SCRIPTS = ("evalsha", "script|load", "type")

_WORKER = Grant(
    (
        *_CONNECT,
        *_SCRIPTS,
        *("client|id", "client|list", "client|unblock", "info"),
        *("hdel", "hexists", "hget", "hgetall", "hincrby", "hmget", "hscan", "hset", "hsetnx"),
        *("exists", "xadd", "xgroup|create", "xgroup|setid", "xinfo|groups", "xinfo|stream", "xlen"),
        *("xpending", "xrange", "xread", "xrevrange", "xtrim"),
    )
)
_DOCUMENTS = Grant(("get", "getrange", "set"), ("members", "producer"))
_DAMAGED = Grant(("getrange", "memory|usage", "rename", "set", "unlink"), ("members", "damaged"))
"""To put a membership document aside that somebody else wrote over, and to look at that."""
_DAMAGED_BEATS = Grant(("getrange", "memory|usage", "rename", "unlink"), ("beats", "damaged"))
"""The same for heartbeats."""

ROLES = (
    Role(
        "worker",
        "Runs processors: reads, commits, shares partitions, forwards, sends, trims what all are past.",
        "Delete a group, a dead letter, or a key but the membership document and the heartbeats; overwrite a "
        "stream; touch another app.",
        _WORKER,
        (_DOCUMENTS, _DAMAGED, _DAMAGED_BEATS),
    ),
    Role(
        "producer",
        "Sends records and declares streams.",
        "Read a record, trim, commit, see a group, a lock, state or a dead letter.",
        Grant((*_CONNECT, *_SCRIPTS, "hmget", "hsetnx", "xadd", "xlen"), ("stream", "events", "producer")),
        (Grant(("get", "set"), ("producer",)),),
    ),
    Role(
        "reader",
        "Runs Spark's queries: reads acked logs and their schemas, and keeps its own position.",
        "Run a script, write a log, read source entries, state, dead letters or members.",
        # redis-py's client of a Cluster asks which commands there are: it finds keys in them by that.
        Grant(
            (*_CONNECT, "command", "hget", "hmget", "xrange"),
            ("stream", "lock", "acked", "schemas"),
            read_only=True,
        ),
        (Grant(("hget", "hset"), ("readers",)),),
    ),
    Role(
        "viewer",
        "Shows: `status`, `lag`, `top`, `history`.",
        "Write anything, run a script, read a record, a forwarded row, state or a dead letter.",
        Grant(
            (*_CONNECT, "get", "hget", "hgetall", "xinfo|groups", "xlen"),
            ("stream", "events", "lock", "acked", "dead", "members", "beats", "readers"),
            read_only=True,
        ),
        (Grant(("xrevrange",), ("control",), read_only=True),),
    ),
    Role(
        "operator",
        "Runs commands: what a worker may, and `dead replay`, `dead drop`, `reset`, `doctor`.",
        "Delete a source entry, or a key but the membership document and the heartbeats; overwrite a stream; "
        "touch another app or the server.",
        _WORKER,
        # SCAN sees the names of all keys of the server: it asks for no key.
        (_DOCUMENTS, _DAMAGED, _DAMAGED_BEATS, Grant(("xdel",), ("dead",)), Grant(("scan",), ("members",))),
    ),
)
"""Users of one app. ``client|list`` and ``client|unblock`` of a worker may be left out: a dead worker
is then noticed later, and a read is woken by closing its connection."""

ROLE_NAMES = tuple(role.name for role in ROLES)


_WAITING = ("worker", "producer", "operator")
"""Who may use the command that waits for a durability: it asks for no key, and holds up its own connection
alone."""


def acl_rules(app: str, role: str, durability: str = "memory") -> list[str]:
    """Return the rules for a user with a role in an app, without name and password.

    They take away what the user had before, but for its passwords.

    Parameters
    ----------
    app, role
        The app's name, and what the user does in it.
    durability
        The app's: whoever waits for a disk or for replicas needs the command that does.

    Raises
    ------
    ConfigurationError
        For a name that cannot be an app's, or a role that there is not.

    Examples
    --------
    >>> acl_rules("shop", "reader")[:5]
    ['resetkeys', 'resetchannels', 'clearselectors', '-@all', '%R~sw:{shop.*}:stream']
    >>> acl_rules("shop", "reader")[-1]
    '(~sw:{shop.*}:readers +hget +hset)'
    """
    check_name("app", app)
    found = next((known for known in ROLES if known.name == role), None)
    if found is None:
        raise ConfigurationError(
            f"There is no role {role!r}.", remedy=f"Use one of: {', '.join(ROLE_NAMES)}."
        )
    rules = ["resetkeys", "resetchannels", "clearselectors", "-@all", *found.root.rules(app)]
    waits = Durability(cast(Mode, durability)).command
    if role in _WAITING and waits:
        rules.append(f"+{str(waits[0]).lower()}")
    return [*rules, *(f"({' '.join(grant.rules(app))})" for grant in found.selectors)]


def password_rule(password: str) -> str:
    """Return the rule that lets a user in with a password, without showing the password.

    Redis keeps and takes the SHA-256 of a password. It is not salted: short passwords can be found
    from it, long random ones cannot.

    Examples
    --------
    >>> password_rule("a long random password")[:9]
    '#16720ef7'
    """
    return f"#{hashlib.sha256(password.encode()).hexdigest()}"
