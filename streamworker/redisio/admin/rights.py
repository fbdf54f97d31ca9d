"""The minimum rights of each kind of Redis user, as rules for ``ACL SETUSER``.

A script runs with the rights of its caller: ``EVALSHA`` itself needs read and write access to all of its
keys, and Redis checks each call inside as if the user had made it. So a role lists the commands that its
scripts call, and a user who loads another script gains no rights.

Rules have a root, and selectors in parentheses since Redis 7.0: the commands in a selector are allowed on
that selector's keys only. ``SET``, for instance, may write the membership document, and could overwrite a
stream if it were allowed on all keys.

A command that a server does not know makes ``ACL SETUSER`` fail. ``CLIENT SETINFO`` came with Redis 7.2
and is left out, since redis-py accepts that it is refused.
"""

import hashlib
from dataclasses import dataclass
from typing import cast

from streamworker.errors import ConfigurationError
from streamworker.redisio.group.operations import KEY_TABLE
from streamworker.redisio.keys import check_name
from streamworker.redisio.wire.durability import Durability, Mode

_NAMED = frozenset(row.kind for row in KEY_TABLE if row.key[-1].isupper())
"""Kinds whose keys end with the name of a group, a table or a producer."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Commands that are allowed on some kinds of keys of one app."""

    commands: tuple[str, ...]
    keys: tuple[str, ...] = ()
    """Kinds of keys; all kinds if empty."""
    read_only: bool = False
    """Whether these keys may only be read. Scripts cannot use them then, since they need both rights."""

    def rules(self, app: str) -> list[str]:
        """Return key patterns and the commands that are allowed on them."""
        sign = "%R~" if self.read_only else "~"
        keys = [f"{sign}sw:{{{app}.*}}:{kind}{':*' if kind in _NAMED else ''}" for kind in self.keys]
        return [*(keys or [f"{sign}sw:{{{app}.*"]), *(f"+{command}" for command in sorted(self.commands))]


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of user, and the rights that it needs; docs/security.md says what it does and is refused."""

    name: str
    root: Grant
    """The commands of the root rules, allowed on all keys of the root rules."""
    selectors: tuple[Grant, ...] = ()


_CONNECT = ("asking", "client|setname", "cluster|slots", "ping", "select", "time")
"""``cluster|slots`` and ``asking`` are for a Cluster: to read the slot map, and to follow a moving slot."""
_SCRIPTS = ("evalsha", "script|load", "type")

_WORKER = Grant(
    (
        *_CONNECT,
        *_SCRIPTS,
        *("client|id", "client|list", "client|unblock", "info"),
        *("hdel", "hexists", "hget", "hgetall", "hincrby", "hmget", "hscan", "hset", "hsetnx"),
        *("exists", "xadd", "xgroup|create", "xgroup|setid", "xinfo|groups", "xinfo|stream", "xlen"),
        *("memory|usage", "xpending", "xrange", "xread", "xrevrange", "xtrim"),
        *("hlen", "zadd", "zcard", "zcount", "zrange", "zrangebyscore", "zrem", "zscore"),
    )
)
_DOCUMENTS = Grant(("get", "getrange", "set"), ("members", "producer", "seen"))
_DAMAGED = Grant(("getrange", "memory|usage", "rename", "set", "unlink"), ("members", "damaged"))
"""Rights to move a damaged membership document aside, and to read it."""
_GROWS = (
    Grant(("xsetid",), ("events",)),
    Grant(("hkeys",), ("groups",)),
    Grant(("unlink",), ("table", "expiry", "due", "state")),
)
"""Rights to let a stream grow, to go on when somebody has left that, and to remove what has moved."""
_DAMAGED_BEATS = Grant(("getrange", "memory|usage", "rename", "unlink"), ("beats", "damaged"))
"""The same rights for heartbeats."""

# redis-py's Cluster client calls COMMAND to find the keys in commands.
_READS_LOGS = Grant(
    (*_CONNECT, "command", "hget", "hkeys", "hmget", "xrange", "xread"),
    ("stream", "lock", "acked", "schemas", "declared"),
    read_only=True,
)
_READER = (
    Grant(("hget", "hset"), ("readers", "holds")),
    Grant(("hgetall", "hlen"), ("table",), read_only=True),
)

ROLES = (
    Role("worker", _WORKER, (_DOCUMENTS, _DAMAGED, _DAMAGED_BEATS, *_GROWS, Grant(("xdel",), ("outbox",)))),
    Role(
        "producer",
        Grant(
            (*_CONNECT, *_SCRIPTS, "hmget", "hsetnx", "xadd", "xlen"),
            ("stream", "events", "producer", "counts", "seen", "later", "delayed"),
        ),
        (
            Grant(("get", "set"), ("producer", "seen")),
            Grant(("hset",), ("counts", "delayed")),
            Grant(("hdel", "hget", "hlen", "zadd", "zrem", "zscore"), ("later", "delayed")),
        ),
    ),
    Role("reader", _READS_LOGS, _READER),
    Role(
        "pipeline",
        _READS_LOGS,
        (
            *_READER,
            Grant(
                (*_SCRIPTS, "hdel", "hget", "hmget", "hset", "hsetnx", "xadd", "xlen"),
                ("stream", "events", "counts", "taken"),
            ),
        ),
    ),
    Role(
        "viewer",
        Grant(
            (*_CONNECT, "get", "hget", "hgetall", "hmget", "info", "memory|usage", "xinfo|groups", "xlen"),
            (
                *("stream", "events", "groups", "counts", "lock", "acked", "dead", "outbox"),
                *("members", "beats", "readers", "risks"),
            ),
            read_only=True,
        ),
        (
            Grant(("xrevrange",), ("control",), read_only=True),
            Grant(("memory|usage",), ("state",), read_only=True),
            Grant(
                ("exists", "hlen", "memory|usage", "zcard", "zcount", "zrange"),
                ("table", "expiry", "due"),
                read_only=True,
            ),
        ),
    ),
    Role(
        "lookup",
        Grant(
            (*_CONNECT, *("exists", "hgetall", "hlen", "hmget", "memory|usage", "zcard", "zcount", "zrange")),
            ("table", "expiry", "due"),
            read_only=True,
        ),
        # Where values are while a stream grows.
        (Grant(("hget", "hmget"), ("stream", "lock"), read_only=True),),
    ),
    Role(
        "operator",
        _WORKER,
        # SCAN returns the names of all keys of the server, since key patterns do not apply to it.
        (
            *(_DOCUMENTS, _DAMAGED, _DAMAGED_BEATS, *_GROWS),
            Grant(("xdel",), ("dead", "outbox")),
            Grant(("scan",), ("members",)),
            Grant(("memory|usage",), ("table", "expiry", "due")),
        ),
    ),
)
"""The roles in one app. A worker works without ``client|list`` and ``client|unblock``: peers then detect
a dead worker later, and the worker wakes a read by closing its connection."""

ROLE_NAMES = tuple(role.name for role in ROLES)


_WAITING = ("worker", "producer", "pipeline", "operator")
"""Roles that may use the command that waits for durability: it has no key, and blocks only its own
connection."""


def acl_rules(app: str, role: str, durability: str = "memory") -> list[str]:
    """Return the rules for a user with a role in an app, without name and password.

    The rules remove all earlier rights of the user, but not its passwords. With ``durability`` "aof" or
    "replicas" the user may use the command that waits.

    >>> acl_rules("shop", "reader")[:5]
    ['resetkeys', 'resetchannels', 'clearselectors', '-@all', '%R~sw:{shop.*}:stream']
    >>> acl_rules("shop", "reader")[-1]
    '(%R~sw:{shop.*}:table:* +hgetall +hlen)'
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
    """Return the rule that sets a user's password, as a hash.

    Redis stores and accepts the SHA-256 of a password. The hash is not salted: short passwords can be
    recovered from it, long random ones cannot.

    >>> password_rule("a long random password")[:9]
    '#16720ef7'
    """
    return f"#{hashlib.sha256(password.encode()).hexdigest()}"
