"""A server that tests hurt: killed, paused, set otherwise, made a replica, its file cut.

Each kind of server of the stage is made of these: one on file (:func:`on_file`), the two of a ``Pair``, the
servers and sentinels of a ``Trio``, the nodes of a ``Cluster``, and those with a disk or clock of their own.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from streamworker.dev.server import EmbeddedServer
from tests.helpers import wait_for

QUIET_MS = 30_000
"""How long a server may be silent where no failover is wanted: a busy machine must not change roles."""
ROLE_S = 0.5
"""How long a server is asked for its role."""


class Server(EmbeddedServer):
    """A server with handles for faults; its arguments are those of the embedded server, and some more.

    ``more`` is added to its configuration, and the password may be one that others have, too.
    """

    def __init__(self, *arguments: Any, more: str = "", password: str | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.password = self._password = password or self._password
        self.is_paused = False
        """Whether it was stopped where it stands."""
        self._more = more
        self._leader: int | None = None

    def _config(self) -> str:
        of = "" if self._leader is None else f"replicaof 127.0.0.1 {self._leader}\n"
        return f"{super()._config()}masterauth {self.password}\n{self._more}{of}"

    @property
    def port(self) -> int:
        """Its port for clients; a server on a socket has none."""
        assert self._port is not None
        return self._port

    # -- life ----------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop it where it stands."""
        self.is_paused = True
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on, if it runs."""
        self.is_paused = False
        if self.running:
            os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop it where it stands meanwhile."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def kill(self) -> None:
        """Kill it, as in a crash, also where it is paused."""
        self.is_paused = False
        super().kill()

    def stop(self) -> None:
        """End it, also where it is paused."""
        self.resume()
        super().stop()

    def follow(self, primary: "Server | None") -> None:
        """Make it a replica of a server, or a primary; where it does not run, from its next start on."""
        self._leader = None if primary is None else primary.port
        if self.running:
            self.call("REPLICAOF", *(("127.0.0.1", primary.port) if primary else ("NO", "ONE")))

    # -- asking --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def client(self, timeout_s: float = 5.0, **options: Any) -> Iterator[Any]:
        """Open a plain client, past all proxies; it calls again at once if a failover has hung up."""
        limits = {"socket_timeout": timeout_s, "socket_connect_timeout": min(timeout_s, 2.0)}
        options = {"retry": Retry(NoBackoff(), 1), "protocol": 2, **limits, **options}
        with redis.Redis.from_url(self.url, **options) as client:
            yield client

    def call(self, *words: Any) -> Any:
        """Run one command; what redis-py makes of its answer, as text."""
        with self.client(decode_responses=True) as client:
            return client.execute_command(*words)

    def clients(self) -> list[dict[str, str]]:
        with self.client(decode_responses=True) as client:
            found: list[dict[str, str]] = client.client_list()
            return found

    def config(self, name: str, value: str | int) -> None:
        self.call("CONFIG", "SET", name, value)

    def replication(self) -> dict[str, Any]:
        """Return what it says of its role; nothing if it does not answer."""
        if not self.running or self.is_paused:
            return {}
        with contextlib.suppress(redis.RedisError), self.client(ROLE_S) as client:
            found: dict[str, Any] = client.info("replication")
            return found
        return {}

    @property
    def role(self) -> str:
        """``master``, ``slave``, or nothing if it does not answer."""
        return str(self.replication().get("role", ""))

    @property
    def is_primary(self) -> bool:
        return self.role == "master"

    @property
    def follows(self) -> int | None:
        """The port of its primary, if it is a replica that hears of every write."""
        said = self.replication()
        return said["master_port"] if said.get("master_link_status") == "up" else None


def on_file(data_dir: Path, *, appendfsync: str = "no", **options: Any) -> Server:
    """Return a server that keeps what it has in a file, and loses nothing by SIGKILL that it confirmed.

    While an fsync takes its time, `everysec` answers before it writes. Without any fsync each write is the
    kernel's before its answer goes out; with `always` it is on the disk, which a power failure leaves.
    """
    return Server(data_dir, appendonly=True, more=f"appendfsync {appendfsync}\n", **options)


@contextlib.contextmanager
def cut_off(primary: Server, *replicas: Server) -> Iterator[None]:
    """Let no replica receive anything meanwhile: what is written now, a failover loses.

    To pause the replicas would not do: what is in their sockets they would read when they go on.
    """
    for replica in replicas:
        replica.config("masterauth", "wrong")
    primary.call("CLIENT", "KILL", "TYPE", "replica")
    wait_for(lambda: not any(replica.follows for replica in replicas), "they are cut off")
    try:
        yield
    finally:
        for replica in replicas:
            replica.config("masterauth", primary.password)


def rewrite(client: Any) -> None:
    """Have a server write its append-only file anew; returns when that is done."""

    def rests() -> bool:
        found = client.info("persistence")
        return not (found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])

    for step in (lambda: None, client.bgrewriteaof):
        step()
        wait_for(rests, "the append-only file is not being written anew", timeout_s=30)


def newest_aof(data_dir: Path) -> Path:
    return max(data_dir.glob("appendonlydir/*.incr.aof"), key=lambda path: path.stat().st_mtime)


def cut(path: Path, count: int) -> None:
    """Cut bytes off the end of an append-only file, and with them all of a transaction that has no end then.

    A server leaves such a transaction out when it starts. But Redis 7.0 leaves its beginning in the file, and
    executes it at its next start (docs/durability.md). That is a fault of the server, and no crash.
    """
    os.truncate(path, max(0, path.stat().st_size - count))
    left = path.read_bytes()
    begun = left.rfind(b"*1\r\n$5\r\nMULTI\r\n")
    if begun > left.rfind(b"*1\r\n$4\r\nEXEC\r\n"):
        os.truncate(path, begun)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on; all are held at a time, so that they differ."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
