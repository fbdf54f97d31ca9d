"""The least rights that a user of Redis needs, as rules for ``ACL SETUSER``.

A worker, a producer and the command line need the same ones; Spark's queries need few.

A command that a server does not know makes ``ACL SETUSER`` fail: ``CLIENT SETINFO`` came with
Redis 7.2, and is left out, since redis-py does not mind being refused it.
"""

from streamworker.redisio.keys import check_name

COMMANDS = (
    "client|id",
    "client|list",
    "client|setname",
    "client|unblock",
    "evalsha",
    "exists",
    "get",
    "getrange",
    "hdel",
    "hexists",
    "hget",
    "hgetall",
    "hincrby",
    "hmget",
    "hscan",
    "hset",
    "hsetnx",
    "info",
    "ping",
    "scan",
    "script|load",
    "select",
    "set",
    "time",
    "type",
    "xadd",
    "xdel",
    "xgroup|create",
    "xgroup|setid",
    "xinfo|groups",
    "xinfo|stream",
    "xlen",
    "xpending",
    "xrange",
    "xread",
    "xrevrange",
    "xtrim",
)
"""``client|list`` and ``client|unblock`` may be left out: a dead worker is then noticed later, and
a read is woken by closing its connection."""

READER_COMMANDS = ("client|setname", "hget", "hmget", "hset", "ping", "select", "time", "xrange")
"""What a Spark query needs. It writes one hash: its own position."""


def reader_rules(app: str) -> list[str]:
    """Return the rules for a user of Spark queries on one app's acked logs.

    Examples
    --------
    >>> reader_rules("shop")[1:4]
    ['%R~sw:{shop.*', '~sw:{shop.*:readers', 'resetchannels']
    """
    keys = f"sw:{{{check_name('app', app)}.*"
    allowed = (f"+{command}" for command in READER_COMMANDS)
    return ["resetkeys", f"%R~{keys}", f"~{keys}:readers", "resetchannels", "-@all", *allowed]


def acl_rules(app: str) -> list[str]:
    """Return the rules for a user of one app's workers, without name and password.

    Examples
    --------
    >>> acl_rules("shop")[:4]
    ['resetkeys', '~sw:{shop.*', 'resetchannels', '-@all']
    """
    keys = f"~sw:{{{check_name('app', app)}.*"
    return ["resetkeys", keys, "resetchannels", "-@all", *(f"+{command}" for command in COMMANDS)]
