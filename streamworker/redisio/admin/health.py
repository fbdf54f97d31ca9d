"""The checks of ``doctor`` and ``repair`` in Redis; they only read, and do not block the server.

They use no KEYS and no SCAN: the streams and processors of an app determine all of its keys. Groups that no
processor declares any more are found at the streams whose trimming they prevent. A round trip has at most
``PIECE`` commands.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from streamworker.errors import BackendError, ConfigurationError
from streamworker.redisio.admin.rights import ROLES, Grant, Role
from streamworker.redisio.group.loads import read_lags
from streamworker.redisio.group.operations import KEY_TABLE, SCRIPTS
from streamworker.redisio.keys import TRIMMED, GroupKeys, StreamKeys
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.failures import all_answered, is_missing_key, is_wrong_type
from streamworker.redisio.wire.info import groups_by_name, pairs_of
from streamworker.redisio.wire.link import Argument

PIECE = 1_000
"""Maximum commands in one round trip."""

CONFIG_NAMES = ("appendonly", "appendfsync", "save", "min-replicas-to-write", "min-replicas-max-lag")


async def in_pieces(backend: Backend, commands: Sequence[Sequence[Argument]]) -> list[Any]:
    """Run commands in round trips of ``PIECE``; return the error for each refused command."""
    replies: list[Any] = []
    for at in range(0, len(commands), PIECE):
        replies += await backend.pipeline(commands[at : at + PIECE])
    return replies


# -- keys --------------------------------------------------------------------------------------


def types_of_keys(app: str, stream: str, partitions: int, group: str = "") -> dict[str, str]:
    """Return each key of a group, or without a group of a stream, that has a fixed type, with that type.

    >>> list(types_of_keys("shop", "orders", 1))[:2]
    ['sw:{shop.orders}:stream', 'sw:{shop.orders.0}:events']
    """
    return {
        row.named(app, stream, group, partition): row.type
        for row in KEY_TABLE
        if ("GROUP" in row.key) == bool(group)
        and row.type != "any"
        and "ID" not in row.key
        and "TABLE" not in row.key
        for partition in range(partitions if ".P}" in row.key else 1)
    }


async def wrong_types(backend: Backend, expected: Mapping[str, str]) -> dict[str, str]:
    """Return the keys that hold another type than expected, with that type; raise if one is not told."""
    names = list(expected)
    found = all_answered(await in_pieces(backend, [("TYPE", name) for name in names]))
    return {
        name: kind.decode()
        for name, kind in zip(names, found, strict=True)
        if kind.decode() not in ("none", expected[name])
    }


@dataclass(frozen=True, slots=True)
class Holder:
    """A group of a stream, which can prevent its trimming."""

    name: str
    partitions: tuple[int, ...]
    lag: int
    """Records that it has not read; of a group of another program entries, if Redis knows the number."""
    pending: int


async def holders(backend: Backend, keys: StreamKeys, partitions: int) -> list[Holder]:
    """Return all groups of a stream: all Redis consumer groups, and listed groups that are not among them.

    A key that another program wrote over has none; it raises if Redis does not answer, or may not be asked.
    """
    shown = await in_pieces(backend, [("XINFO", "GROUPS", keys.events(p)) for p in range(partitions)])
    listed = await in_pieces(backend, [("HGETALL", keys.groups(p)) for p in range(partitions)])
    found: dict[str, Holder] = {}
    listed_names = set[str]()
    all_answered([each for each in (*shown, *listed) if not is_missing_key(each) and not is_wrong_type(each)])
    for partition, (groups, names) in enumerate(zip(shown, listed, strict=True)):
        ours: dict[bytes, dict[bytes, Any]] = {}
        if not isinstance(names, BackendError):
            ours = {name: {} for name in names[::2] if name != TRIMMED}
            listed_names.update(name.decode("utf-8", "replace") for name in ours)
        for raw, group in (ours | groups_by_name(groups)).items():
            name = raw.decode("utf-8", "replace")
            before = found.get(name, Holder(name, (), 0, 0))
            found[name] = Holder(
                name,
                (*before.partitions, partition),
                before.lag + int(group.get(b"lag") or 0),
                before.pending + int(group.get(b"pending") or 0),
            )
    for name in listed_names:
        with suppress(ConfigurationError):  # Another program wrote a name that no group can have.
            lags = await read_lags(backend, GroupKeys(keys.app, keys.stream, name), found[name].partitions)
            found[name] = replace(found[name], lag=sum(lags.values()))
    return sorted(found.values(), key=lambda each: each.name)


# -- the server --------------------------------------------------------------------------------


async def configuration(backend: Backend) -> dict[str, str] | None:
    """Return the server's durability settings; None if this user may not read them."""
    try:
        flat: Sequence[bytes] = await backend.execute("CONFIG", "GET", *CONFIG_NAMES)
    except BackendError:
        return None
    return {name.decode(): value.decode() for name, value in pairs_of(flat).items()}


async def connection_names(backend: Backend) -> frozenset[str] | None:
    """Return the names of all connections to the server or Cluster; None if this user may not list them.

    The name of a worker's connection is the worker's name, or begins with it and a colon.
    """
    if (clients := await _clients(backend)) is None:
        return None
    return frozenset(name for each in clients if (name := each.get("name", "")))


async def _clients(backend: Backend) -> list[dict[str, str]] | None:
    try:
        listed = b"".join([await each.execute("CLIENT", "LIST") for each in await backend.primaries()])
    except BackendError:
        return None
    lines = listed.decode("utf-8", "replace").splitlines()
    return [dict(field.partition("=")[::2] for field in line.split()) for line in lines]


async def cached_scripts(backend: Backend) -> tuple[int, int] | None:
    """Return how many of our scripts the server has cached, and how many exist; None if refused."""
    try:
        there: Sequence[int] = await backend.execute("SCRIPT", "EXISTS", *(script.sha for script in SCRIPTS))
    except BackendError:
        return None
    return sum(there), len(there)


async def of_earlier_releases(backend: Backend, names: Collection[str]) -> list[str] | None:
    """Return the connections of some names that tell no release, with their addresses.

    Before streams could grow, none told it. The result is None if this user may not list connections.
    """
    if (clients := await _clients(backend)) is None:
        return None
    found = set[str]()
    for each in clients:
        who, _, rest = each.get("name", "").partition(":")
        if who in names and not rest.rpartition(":")[2][:1].isdigit():
            found.add(f"{each['name']} at {each.get('addr', '?')}")
    return sorted(found)


# -- rights ------------------------------------------------------------------------------------

_KEY = "KEY"
SAMPLES: Mapping[str, tuple[str, ...]] = {
    command: arguments
    for arguments, commands in (
        ((), ("asking", "client|id", "client|list", "cluster|slots", "command", "info", "ping", "time")),
        ((_KEY,), ("exists", "get", "hgetall", "hkeys", "hlen", "memory|usage", "type", "unlink")),
        ((_KEY,), ("xinfo|groups", "xinfo|stream", "xlen", "zcard")),
        ((_KEY, "f"), ("hdel", "hexists", "hget", "hmget", "zrem", "zscore")),
        ((_KEY, "1", "f"), ("zadd",)),
        ((_KEY, "0", "1"), ("getrange", "zcount", "zrange", "zrangebyscore")),
        ((_KEY, "f", "v"), ("hset", "hsetnx")),
        ((_KEY, "f", "1"), ("hincrby",)),
        ((_KEY, "0"), ("hscan",)),
        ((_KEY, "v"), ("set",)),
        ((_KEY, _KEY), ("rename",)),
        ((_KEY, "*", "f", "v"), ("xadd",)),
        ((_KEY, "1-0"), ("xdel", "xsetid")),
        ((_KEY, "g", "$"), ("xgroup|create", "xgroup|setid")),
        ((_KEY, "g"), ("xpending",)),
        ((_KEY, "-", "+"), ("xrange",)),
        ((_KEY, "+", "-"), ("xrevrange",)),
        ((_KEY, "MAXLEN", "0"), ("xtrim",)),
        (("STREAMS", _KEY, "0"), ("xread",)),
        (("doctor",), ("client|setname",)),
        (("1",), ("client|unblock",)),
        (("0",), ("scan", "select")),
        (("return 1",), ("script|load",)),
        (("0" * 40, "1", _KEY), ("evalsha",)),
    )
    for command in commands
}
"""Arguments for ``ACL DRYRUN`` of each command; Redis does not run the command."""


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of this connection's user: for each role the commands that it needs and the user lacks."""

    user: str
    missing: Mapping[str, tuple[str, ...]]
    loads: bool = True
    """Whether the user ``default`` may write: as that user some servers load the transactions, and so all
    calls of scripts, that are in their append-only file. They leave out what this user may not do."""


async def rights(backend: Backend, app: str) -> Rights | None:
    """Return which rights of each role the user lacks, by ``ACL DRYRUN``; None if the user may not ask."""
    questions = [(role, *question) for role in ROLES for question in _questions(role, app)]
    try:
        user: bytes = await backend.execute("ACL", "WHOAMI")
        loads = await backend.execute("ACL", "DRYRUN", "default", "XADD", "sw:", *SAMPLES["xadd"][1:])
        asked = await in_pieces(backend, [("ACL", "DRYRUN", user, *command) for _, command, _ in questions])
    except BackendError:
        return None
    if any(isinstance(reply, BackendError) for reply in asked):
        return None
    missing: dict[str, tuple[str, ...]] = {role.name: () for role in ROLES}
    for (role, _, label), reply in zip(questions, asked, strict=True):
        if reply != b"OK" and label not in missing[role.name]:
            missing[role.name] += (label,)
    return Rights(user.decode("utf-8", "replace"), missing, loads == b"OK")


def _questions(role: Role, app: str) -> Iterable[tuple[tuple[str, ...], str]]:
    """Yield the commands to check for a role, each with its label for display."""
    for grant in (role.root, *role.selectors):
        for command in grant.commands:
            keys = _keys_of(grant, app) if _KEY in SAMPLES[command] else ("",)
            for key in keys:
                arguments = (key if each == _KEY else each for each in SAMPLES[command])
                label = command.replace("|", " ").upper()
                yield (*command.split("|"), *arguments), f"{label} {key}".strip()


def _keys_of(grant: Grant, app: str) -> list[str]:
    """Return one key of each kind in a grant; one key if the grant covers all kinds."""
    wanted = [row for row in KEY_TABLE if row.kind in (grant.keys or ("lock",))]
    return [re.sub(r"\{[^}]*\}", f"{{{app}.doctor}}", row.named(app, "", "g", 0, "id")) for row in wanted]
