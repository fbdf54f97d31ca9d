"""What a server says about itself, and whether it will do."""

import re
from dataclasses import dataclass

from streamworker.errors import ConfigurationError
from streamworker.redisio.failures import CLUSTER_REMEDY

VERSION_MIN = (7, 0)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says about itself; None for what it does not tell."""

    version: str
    """Of Redis or of Valkey: Valkey calls itself Redis 7.2.4 besides."""
    is_valkey: bool
    run_id: str
    """New with each start of the server."""
    maxmemory_policy: str | None
    used_memory: int
    maxmemory: int
    """Bytes; 0 for no limit."""
    aof_enabled: bool
    aof_written: bool
    """Whether the last write to the append-only file was done; while not, Redis refuses all writes."""
    rdb_last_save_ms: int
    role: str
    """``master`` or ``slave``."""
    replicas: int
    """That are connected."""
    in_cluster: bool
    """Whether it is a node of a Cluster."""

    @property
    def name(self) -> str:
        """``Valkey 9.1.2``."""
        return f"{'Valkey' if self.is_valkey else 'Redis'} {self.version}"


def read_info(text: bytes) -> ServerInfo:
    """Read the reply to ``INFO``."""
    values: dict[str, str] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values[name] = value
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
        rdb_last_save_ms=1000 * int(values.get("rdb_last_save_time", 0)),
        role=values.get("role", ""),
        replicas=int(values.get("connected_slaves", 0)),
        in_cluster=values.get("cluster_enabled") == "1",
    )


def check_server(info: ServerInfo, *, as_cluster: bool = False) -> None:
    """Refuse a server that would lose data or lacks what is needed.

    Parameters
    ----------
    as_cluster
        Whether it was asked as a node of a Cluster, which takes another URL.

    Raises
    ------
    ConfigurationError
        For a version below 7.0, or a policy that evicts: streams and locks have no expiry,
        and an evicting server drops them when memory is full. For a node of a Cluster whose URL is
        that of one server: it has some of the keys.
    """
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
    if info.in_cluster and not as_cluster:
        raise ConfigurationError("The server is a node of a Redis Cluster.", remedy=CLUSTER_REMEDY)
