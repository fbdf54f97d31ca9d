"""A server that can be hurt: restarted, frozen, emptied, its files damaged, its limits lowered."""

import contextlib
import ctypes
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from unittest import mock

import redis

from tests.chaos.proxy import Proxy, ProxyThread
from tests.stage.server import Server, rewrite

FAKETIME = next(
    (
        path
        for folder in ("/usr/lib", "/usr/local/lib", "/opt/homebrew/lib")
        for below in ("", "*/")
        for path in sorted(Path(folder).glob(f"{below}faketime/libfaketime.so.1"))
    ),
    None,
)
"""libfaketime, where it is installed."""

NEEDS_ROOT = "only root can mount a small disk: run as root"
"""Why a test is skipped, and what to do."""
ROOM = "2gb"
"""Memory that the server may take while nobody makes it full."""
CLIENTS = 10_000
TMPFS_BYTES = 1024 * 1024 * 1024
PAGE_BYTES = 4096
MS_REMOUNT = 32


class FakeClock:
    """The wall clock of a process, by libfaketime: it reads a file for the difference to the true one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.step(0)

    def step(self, seconds: float) -> None:
        self._path.write_text(f"{seconds:+.3f}s\n")

    def environ(self) -> dict[str, str]:
        assert FAKETIME is not None, "libfaketime is not installed"
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Give it to the processes that are started meanwhile."""
        return mock.patch.dict(os.environ, self.environ())


class Namespace:
    """A network of its own for a process, joined with ours by a link that can be cut. Needs root."""

    def __init__(self, number: int = 0) -> None:
        own = os.getpid()
        self.name = f"swchaos-{own}-{number}"
        self._ours, self._theirs = f"swo{own}.{number}", f"swt{own}.{number}"
        net = f"10.213.{own % 256}"
        self.host, self._peer = f"{net}.{4 * number + 1}", f"{net}.{4 * number + 2}"

    def __enter__(self) -> Self:
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", self._ours, "type", "veth", "peer", "name", self._theirs, "netns", self.name)
            _ip("addr", "add", f"{self.host}/30", "dev", self._ours)
            _ip("-n", self.name, "addr", "add", f"{self._peer}/30", "dev", self._theirs)
            for words in (("-n", self.name, "link", "set", self._theirs), ("link", "set", self._ours)):
                _ip(*words, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            _ip("netns", "del", self.name)

    def cut(self) -> None:
        """Take the link down: packets are lost, and nobody is told."""
        _ip("link", "set", self._ours, "down")

    def mend(self) -> None:
        _ip("link", "set", self._ours, "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class ChaosServer(Server):
    """A server with its data on disk, any number of proxies before it, and handles for faults.

    With ``small_disk`` its data lies on a file system of its own, for :meth:`fill_disk`; where that cannot be
    mounted, it has none. With ``clock`` its wall clock can be set by ``clock.step``, which needs libfaketime.
    """

    name = "server"
    """What reports call it."""
    holds = "server"
    """What a fault of it takes hold of."""

    def __init__(
        self,
        folder: Path,
        *arguments: Any,
        small_disk: bool = False,
        clock: bool = False,
        proxies: ProxyThread | None = None,
        more: str = "",
        **options: Any,
    ) -> None:
        super().__init__(*arguments, more=f"appendfsync no\n{more}", **options)
        self.folder = self.data_dir = folder.absolute()
        self.appendonly, self._maxmemory = True, ROOM
        self.proxies = proxies or ProxyThread()
        self._has_own_proxies = proxies is None
        self._small_disk = small_disk
        self._mounted = False
        self.clock = FakeClock(folder.with_suffix(".clock")) if clock else None
        self._inside: Any = None

    def proxy(self, host: str = "127.0.0.1") -> Proxy:
        return self.proxies.open(self.url, host)

    def any_server(
        self,
        rng: random.Random,
        taken: frozenset[str],
        fits: Callable[["ChaosServer"], bool] = lambda _: True,
    ) -> "ChaosServer | None":
        """Return a server that a fault may be about: this one."""
        return self

    def server_of(self, key: str) -> "ChaosServer | None":
        return self

    def connections(self) -> list[str]:
        with self.client() as client:
            mine = str(client.client_id())
            # Replicas of a Cluster's primary are connected for good.
            found = client.client_list(_type="normal")
        return [f"{row['name'] or '?'} {row['cmd']}" for row in found if row["id"] != mine]

    @property
    def has_small_disk(self) -> bool:
        return self._mounted

    # -- life ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        # What was begun is ended in turn, whatever fails: a mount would outlive the tests.
        with contextlib.ExitStack() as begun:
            if self._small_disk:
                options = f"size={TMPFS_BYTES},mode=700"
                mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)]
                self._mounted = not subprocess.run(mount, check=False, capture_output=True).returncode
                begun.callback(self._unmount)
            begun.callback(self.stop)
            self.start()
            if self._has_own_proxies:
                begun.enter_context(self.proxies)
            self._begun = begun.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._begun.close()

    def _unmount(self) -> None:
        if self._mounted:
            subprocess.run(["umount", self.folder], check=True)
            self._mounted = False

    def start(self) -> Self:
        """Start it on what its files hold; returns once it answers."""
        with self.clock.around() if self.clock else contextlib.nullcontext():
            return super().start()

    # -- limits --------------------------------------------------------------------------------

    def fill_disk(self) -> None:
        """Leave no room on its disk: no write is taken any more. Needs ``small_disk``."""
        stat = os.statvfs(self.folder)
        used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        self._resize(used + 2 * PAGE_BYTES)

    def free_disk(self) -> None:
        """Give the room back, and have the append-only file written anew.

        As an operator must: Redis 7.0 and Valkey 9.1 leave zeros in a file that was rewritten before the disk
        was full, and do not load it after their next end; see docs/durability.md.
        """
        self.give_room()
        with self.client() as client:
            rewrite(client)

    def give_room(self) -> None:
        self._resize(TMPFS_BYTES)

    def _resize(self, size: int) -> None:
        # Not by mount(8): it looks the mount up in a list from which others may be taking theirs meanwhile.
        where, options = os.fsencode(self.folder), f"size={size}".encode()
        if ctypes.CDLL(None, use_errno=True).mount(b"tmpfs", where, b"tmpfs", MS_REMOUNT, options):
            raise OSError(ctypes.get_errno(), f"{self.folder} cannot be given {size} bytes")

    def fill_memory(self, room_bytes: int = 16_384) -> None:
        with self.client() as client:
            client.config_set("maxmemory", client.info("memory")["used_memory"] + room_bytes)

    def free_memory(self) -> None:
        self.config("maxmemory", ROOM)

    def limit_clients(self, more: int = 1) -> None:
        # Who wants to lift the limit may not be let in any more, so this one stays.
        self._inside = redis.Redis.from_url(self.url, single_connection_client=True, socket_timeout=5)
        self._inside.config_set("maxclients", self._inside.info("clients")["connected_clients"] + more)

    def free_clients(self) -> None:
        if self._inside is not None:
            self._inside.config_set("maxclients", CLIENTS)
            self._inside.close()
            self._inside = None
