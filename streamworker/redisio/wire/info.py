"""Reads a server's ``INFO``, and checks whether streamworker can use the server."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamworker.errors import BackendError, ConfigurationError
from streamworker.redisio.wire.failures import CLUSTER_REMEDY

VERSION_MIN = (7, 0)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The parsed reply to ``INFO``; None for a value that it does not contain."""

    version: str
    """Version of Redis or of Valkey; Valkey reports Redis 7.2.4, too, which is ignored."""
    is_valkey: bool
    run_id: str
    """An id that changes with each start of the server."""
    maxmemory_policy: str | None
    used_memory: int
    maxmemory: int
    """Memory limit in bytes; 0 for no limit."""
    aof_enabled: bool
    aof_written: bool
    """Whether the last write to the append-only file succeeded; if not, Redis refuses all writes."""
    rdb_written: bool
    """Whether the last snapshot succeeded; if not, Redis refuses all writes by default."""
    role: str
    """``master`` or ``slave``."""
    replicas: int
    expiring: int
    """Keys that expire, of all databases."""
    lacks_keys: bool
    """Whether the server is a node of a Cluster, and is called as if it had all keys."""

    @property
    def name(self) -> str:
        """Name and version, for instance ``Valkey 9.1.2``."""
        return f"{'Valkey' if self.is_valkey else 'Redis'} {self.version}"


def read_info(text: bytes, *, has_all_keys: bool = True) -> ServerInfo:
    """Parse the reply to ``INFO`` of a server that is called as if it had all keys, or as a node."""
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    values = {name: value for name, colon, value in lines if colon}
    valkey = values.get("valkey_version")
    return ServerInfo(
        version=valkey or values.get("redis_version", "0.0.0"),
        is_valkey=valkey is not None,
        run_id=values.get("run_id", ""),
        maxmemory_policy=values.get("maxmemory_policy"),
        used_memory=int(values.get("used_memory", 0)),
        maxmemory=int(values.get("maxmemory", 0)),
        aof_enabled=values.get("aof_enabled") == "1",
        aof_written=values.get("aof_last_write_status", "ok") == "ok",
        rdb_written=values.get("rdb_last_bgsave_status", "ok") == "ok",
        role=values.get("role", ""),
        replicas=int(values.get("connected_slaves", 0)),
        expiring=sum(map(int, re.findall(rb"^db\d+:.*?\bexpires=(\d+)", text, re.MULTILINE))),
        lacks_keys=has_all_keys and values.get("cluster_enabled") == "1",
    )


def check_server(info: ServerInfo) -> None:
    """Refuse a server that is too old or evicts keys, and a node of a Cluster with the URL of one server."""
    numbers = re.match(r"(\d+)\.(\d+)", info.version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < VERSION_MIN:
        raise ConfigurationError(
            f"The server is {info.name}.", remedy="Redis 7.0 or Valkey 8.0, or later, is needed."
        )
    policy = info.maxmemory_policy
    if policy is not None and policy.startswith(("allkeys-", "volatile-")):
        raise ConfigurationError(
            f"The server's maxmemory-policy is {policy}: it drops keys when memory is full, and streams, "
            "locks and checkpoints with them.",
            remedy="Set maxmemory-policy noeviction.",
        )
    check_holds_keys(info)


def check_holds_keys(info: ServerInfo) -> None:
    """Refuse a node of a Cluster with the URL of one server: it has a part of the keys."""
    if info.lacks_keys:
        raise ConfigurationError("The server is a node of a Redis Cluster.", remedy=CLUSTER_REMEDY)


def pairs_of(flat: Sequence[Any]) -> dict[bytes, Any]:
    """Return the names and values of a flat list in a reply."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def groups_by_name(reply: Any) -> dict[bytes, dict[bytes, Any]]:
    """Return the reply to ``XINFO GROUPS`` by group name; empty if Redis refused the command."""
    if isinstance(reply, BackendError):
        return {}
    return {group[b"name"]: group for group in map(pairs_of, reply)}


def ms_of(time: Sequence[bytes]) -> int:
    """Return the reply to ``TIME`` in ms."""
    return int(time[0]) * 1000 + int(time[1]) // 1000


class RecordCounts(NamedTuple):
    """What a partition's ``counts`` say of the records in entries that hold many; see parts/counts.lua."""

    extra: int = 0
    before: int = 0
    dropped: int = -1
    """Entries that are no longer there, as of the last trim; negative if that is not known."""
    retained: int = 0
    oldest: int = 0
    """The time of the oldest record, ms, of a stream with retention; 0 if it is not known."""

    @classmethod
    def command(cls, key: str) -> tuple[str, ...]:
        """Return the command that reads them."""
        return ("HMGET", key, *cls._fields)

    @classmethod
    def of(cls, reply: Any) -> "RecordCounts":
        """Read its reply; a refused command and a missing key count nothing."""
        known = reply if isinstance(reply, list) else ()
        return cls(
            **{
                name: int(value)
                for name, value in zip(cls._fields, known, strict=False)
                if value and value.isdigit()
            }
        )

    def present(self, length: int) -> int:
        """Return how many records a stream with so many entries holds."""
        return length + self.extra - self.before if length else 0

    def lag(self, length: int, committed: int, archived: int = 0) -> int:
        """Return how many records follow a group that has passed ``committed`` of those ever added.

        >>> RecordCounts(dropped=5).lag(10, 12)
        3

        What it has not read of the first ``archived`` ones need not be there.

        >>> RecordCounts(dropped=500).lag(10, 100), RecordCounts(dropped=500).lag(10, 100, archived=490)
        (10, 410)
        """
        present = self.present(length)
        if self.dropped < 0:
            return present  # An earlier release wrote the counts: all that is there counts as lag.
        behind = max(0, length + self.dropped + self.extra - committed)
        return behind if committed < archived else min(present, behind)
