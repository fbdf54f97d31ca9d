"""A primary and a replica that change places, and a proxy that clients find the primary behind."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from streamworker.dev.server import EmbeddedServer
from tests.chaos.proxy import Proxy
from tests.helpers import wait_for

FOLLOW_TIMEOUT_S = 15.0


class OnFile(EmbeddedServer):
    """A server that keeps what it has in an append-only file, and loses nothing by SIGKILL that it confirmed.

    While an fsync takes its time, `everysec` answers before it writes. Without any fsync each write is the
    kernel's before its answer goes out; with `always` it is on the disk, which a power failure leaves.
    """

    def __init__(self, data_dir: Path, *, appendfsync: str = "no", **options: Any) -> None:
        super().__init__(data_dir=data_dir, appendonly=True, **options)
        self._appendfsync = appendfsync

    def _config(self) -> str:
        return f"{super()._config()}appendfsync {self._appendfsync}\n"


class Switch(Proxy):
    """A proxy that can be pointed at another server, as a name in the DNS can."""

    def point_at(self, url: str) -> None:
        """Send new connections there, and end those that there are."""
        self._parts = urlsplit(url)
        self.reset()


class Pair:
    """Two servers, of which one follows the other."""

    def __init__(self, binary: str | None = None) -> None:
        self.primary = EmbeddedServer(binary=binary, port=0)
        self.replica = EmbeddedServer(binary=binary, port=0)
        # Clients know one password, whoever is the primary.
        self.replica._password = self.primary._password

    def start(self) -> None:
        self.primary.start()
        self.replica.start()
        self.follow()

    def stop(self) -> None:
        """End both, also one that is stopped."""
        for server in (self.primary, self.replica):
            if server.running:
                os.kill(server.pid, signal.SIGCONT)
            server.stop()

    def follow(self) -> None:
        """Let the replica follow the primary, and wait until it does."""
        parts = urlsplit(self.primary.url)
        with raw(self.primary) as primary, raw(self.replica) as replica:
            primary.config_set("repl-diskless-sync", "no")
            replica.config_set("repl-diskless-load", "swapdb")  # Else Valkey looks for it once a second.
            replica.config_set("masterauth", str(parts.password))
            replica.replicaof("127.0.0.1", str(parts.port))
            wait_for(
                lambda: replica.info("replication").get("master_link_status") == "up",
                "the replica follows",
                FOLLOW_TIMEOUT_S,
            )
            wait_for(lambda: primary.wait(1, 100) == 1, "the primary counts it", FOLLOW_TIMEOUT_S)

    def rejoin(self) -> None:
        """Start the server that was killed, empty, and let it follow."""
        self.replica.start()
        self.follow()

    def promote(self) -> None:
        """Make the replica the primary; the primary, whatever it does, is the other one now."""
        with raw(self.replica) as client:
            client.replicaof("NO", "ONE")
        self.primary, self.replica = self.replica, self.primary

    def pause_replica(self) -> None:
        os.kill(self.replica.pid, signal.SIGSTOP)

    def resume_replica(self) -> None:
        os.kill(self.replica.pid, signal.SIGCONT)


@contextlib.contextmanager
def raw(server: EmbeddedServer) -> Iterator[Any]:
    with redis.Redis.from_url(server.url, socket_timeout=10) as client:
        yield client


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


async def some_time(rng: random.Random, most_s: float) -> None:
    await asyncio.sleep(rng.uniform(0, most_s))
