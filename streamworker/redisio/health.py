"""What ``doctor`` and ``repair`` look at in Redis; all of it reads, and none of it blocks the server.

No KEYS and no SCAN: each key that an app can have is known from its streams and processors, and
groups that nobody declares any more are found where they do harm, at the streams that they hold back.
The number of round trips grows with the partitions by one in ``PIECE`` commands.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamworker.errors import BackendError
from streamworker.redisio.client import Backend
from streamworker.redisio.keys import KEY_TABLE, StreamKeys
from streamworker.redisio.link import Argument
from streamworker.redisio.rights import ROLES, Grant, Role
from streamworker.redisio.scripts import ALL

PIECE = 1_000
"""Commands in one round trip."""

_PLACE = re.compile(r"([.:])")
_NAME = re.compile(rb"(?:^| )name=(\S*)")

CONFIG_NAMES = ("appendonly", "appendfsync", "save", "min-replicas-to-write", "min-replicas-max-lag")


async def in_pieces(backend: Backend, commands: Sequence[Sequence[Argument]]) -> list[Any]:
    """Run commands in as many round trips as it takes; the error for each that was refused."""
    replies: list[Any] = []
    for at in range(0, len(commands), PIECE):
        replies += await backend.pipeline(commands[at : at + PIECE])
    return replies


# -- keys --------------------------------------------------------------------------------------


def stream_types(app: str, stream: str, partitions: int) -> dict[str, str]:
    """Return each key of a stream and the type that it should have.

    Examples
    --------
    >>> stream_types("shop", "orders", 1)
    {'sw:{shop.orders}:stream': 'hash', 'sw:{shop.orders.0}:events': 'stream'}
    """
    return _types(app, stream, "", partitions)


def group_types(app: str, stream: str, group: str, partitions: int) -> dict[str, str]:
    """Return each key of a group and the type that it should have.

    Examples
    --------
    >>> group_types("shop", "orders", "price", 4)["sw:{shop.orders.3}:lock:price"]
    'hash'
    """
    return _types(app, stream, group, partitions)


def _types(app: str, stream: str, group: str, partitions: int) -> dict[str, str]:
    """Return the keys of KEY_TABLE that have one type; without a group those that no group is named in."""
    types: dict[str, str] = {}
    for row in KEY_TABLE:
        tag, colon, kind = row.key.partition("}:")
        if ("GROUP" in row.key) != bool(group) or "ID" in kind or row.type == "any":
            continue
        for partition in range(partitions if ".P" in tag else 1):
            names = {"app": app, "stream": stream, "GROUP": group, "P": str(partition)}
            where = "".join(names.get(part, part) for part in _PLACE.split(tag.partition("{")[2]))
            types[f"sw:{{{where}{colon}{kind.replace('GROUP', group)}"] = row.type
    return types


async def wrong_types(backend: Backend, expected: Mapping[str, str]) -> dict[str, str]:
    """Return the keys that hold another type than they should, and which."""
    names = list(expected)
    found = await in_pieces(backend, [("TYPE", name) for name in names])
    return {
        name: kind.decode()
        for name, kind in zip(names, found, strict=True)
        if isinstance(kind, bytes) and kind.decode() not in ("none", expected[name])
    }


@dataclass(frozen=True, slots=True)
class Holder:
    """A group of Redis at a stream, which keeps it from being trimmed."""

    name: str
    partitions: tuple[int, ...]
    lag: int
    """Entries that it has not read, where Redis knows."""
    pending: int


async def holders(backend: Backend, keys: StreamKeys, partitions: int) -> list[Holder]:
    """Return all groups of Redis at a stream, whoever made them."""
    replies = await in_pieces(backend, [("XINFO", "GROUPS", keys.events(p)) for p in range(partitions)])
    found: dict[str, Holder] = {}
    for partition, reply in enumerate(replies):
        for flat in () if isinstance(reply, BackendError) else reply:
            group = dict(zip(flat[::2], flat[1::2], strict=True))
            name = group[b"name"].decode("utf-8", "replace")
            before = found.get(name, Holder(name, (), 0, 0))
            found[name] = Holder(
                name,
                (*before.partitions, partition),
                before.lag + int(group.get(b"lag") or 0),
                before.pending + int(group.get(b"pending") or 0),
            )
    return sorted(found.values(), key=lambda each: each.name)


# -- the server --------------------------------------------------------------------------------


async def configuration(backend: Backend) -> dict[str, str] | None:
    """Return the settings of the server that say what it can lose; None if it does not tell."""
    try:
        flat: Sequence[bytes] = await backend.execute("CONFIG", "GET", *CONFIG_NAMES)
    except BackendError:
        return None
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}


async def connection_names(backend: Backend) -> frozenset[str] | None:
    """Return the names of all connections that the server has, or a Cluster; None if it does not tell.

    A worker's connections bear its name, or begin with it and a colon.
    """
    try:
        listed = b"".join([await each.execute("CLIENT", "LIST") for each in await backend.primaries()])
    except BackendError:
        return None
    names = (found[1] for line in listed.splitlines() if (found := _NAME.search(line)))
    return frozenset(name.decode("utf-8", "replace") for name in names if name)


async def cached_scripts(backend: Backend) -> tuple[int, int] | None:
    """Return how many of our scripts the server has, and how many there are; None if it does not tell."""
    try:
        there: Sequence[int] = await backend.execute("SCRIPT", "EXISTS", *(script.sha for script in ALL))
    except BackendError:
        return None
    return sum(there), len(there)


# -- rights ------------------------------------------------------------------------------------

_KEY = "KEY"
SAMPLES: Mapping[str, tuple[str, ...]] = {
    "asking": (),
    "client|id": (),
    "client|list": (),
    "client|setname": ("doctor",),
    "client|unblock": ("1",),
    "cluster|slots": (),
    "command": (),
    "evalsha": ("0" * 40, "1", _KEY),
    "exists": (_KEY,),
    "get": (_KEY,),
    "getrange": (_KEY, "0", "1"),
    "hdel": (_KEY, "f"),
    "hexists": (_KEY, "f"),
    "hget": (_KEY, "f"),
    "hgetall": (_KEY,),
    "hincrby": (_KEY, "f", "1"),
    "hmget": (_KEY, "f"),
    "hscan": (_KEY, "0"),
    "hset": (_KEY, "f", "v"),
    "hsetnx": (_KEY, "f", "v"),
    "info": (),
    "memory|usage": (_KEY,),
    "ping": (),
    "rename": (_KEY, _KEY),
    "scan": ("0",),
    "script|load": ("return 1",),
    "select": ("0",),
    "set": (_KEY, "v"),
    "time": (),
    "type": (_KEY,),
    "unlink": (_KEY,),
    "xadd": (_KEY, "*", "f", "v"),
    "xdel": (_KEY, "1-0"),
    "xgroup|create": (_KEY, "g", "$"),
    "xgroup|setid": (_KEY, "g", "$"),
    "xinfo|groups": (_KEY,),
    "xinfo|stream": (_KEY,),
    "xlen": (_KEY,),
    "xpending": (_KEY, "g"),
    "xrange": (_KEY, "-", "+"),
    "xread": ("STREAMS", _KEY, "0"),
    "xrevrange": (_KEY, "+", "-"),
    "xtrim": (_KEY, "MAXLEN", "0"),
}
"""Arguments with which ``ACL DRYRUN`` is asked for a command; it runs nothing."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What the user of this connection may do."""

    user: str
    missing: Mapping[str, tuple[str, ...]]
    """Role to the commands, with a key, that a user of that role needs and this one may not run."""


async def rights(backend: Backend, app: str) -> Rights | None:
    """Return which roles the user has the rights for; None if it may not ask.

    ``ACL DRYRUN`` answers without running anything.
    """
    questions = [(role, *question) for role in ROLES for question in _questions(role, app)]
    try:
        user: bytes = await backend.execute("ACL", "WHOAMI")
        asked = await in_pieces(backend, [("ACL", "DRYRUN", user, *command) for _, command, _ in questions])
    except BackendError:
        return None
    if any(isinstance(reply, BackendError) for reply in asked):
        return None
    missing: dict[str, tuple[str, ...]] = {role.name: () for role in ROLES}
    for (role, _, label), reply in zip(questions, asked, strict=True):
        if reply != b"OK" and label not in missing[role.name]:
            missing[role.name] += (label,)
    return Rights(user.decode("utf-8", "replace"), missing)


def _questions(role: Role, app: str) -> Iterable[tuple[tuple[str, ...], str]]:
    """Return commands to ask about, each with how it is called for people."""
    for grant in (role.root, *role.selectors):
        for command in grant.commands:
            keys = _keys_of(grant, app) if _KEY in SAMPLES[command] else ("",)
            for key in keys:
                arguments = (key if each == _KEY else each for each in SAMPLES[command])
                label = command.replace("|", " ").upper()
                yield (*command.split("|"), *arguments), f"{label} {key}".strip()


def _keys_of(grant: Grant, app: str) -> list[str]:
    """Return one key of each kind that a grant is about; of one kind where it is about all."""
    rows = [row.key.replace("GROUP", "g").replace("ID", "id") for row in KEY_TABLE]
    kinds = grant.keys or ("lock",)
    wanted = [key for key in rows if key.partition("}:")[2].partition(":")[0] in kinds]
    return [re.sub(r"\{[^}]*\}", f"{{{app}.doctor}}", key) for key in wanted]
