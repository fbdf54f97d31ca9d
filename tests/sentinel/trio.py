"""A primary, two replicas and three sentinels on loopback, with passwords; all end with the test."""

import os
import secrets
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from streamworker.dev.children import Child
from streamworker.dev.server import find_server
from tests.helpers import PATIENCE_S, wait_for

SERVICE = "orders"
QUORUM = 2
DOWN_AFTER_MS = 600
"""How long a server is silent before a sentinel thinks it down. 30 s in Redis' own example file."""
QUIET_MS = 30_000
"""The same where no failover is wanted: on a busy machine a server is silent for longer than the above."""
FAILOVER_TIMEOUT_MS = 3_000
"""A failover that failed is begun again after twice this."""
PUBLISH_PERIOD_MS = 500
"""How often sentinels tell each other what they know, for which Redis has 2 s. A primary that comes back
after it was replaced, or was replaced by plan, stays one for four of these: 8 s in the field."""


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on; all are held at a time, so that they differ."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


INFO_PERIOD_MS = 500
"""How often they ask servers what they are, for which Redis has 10 s."""


class Instance:
    def __init__(self, binary: Path, folder: Path, port: int, password: str, config: str) -> None:
        self.port = port
        self.password = password
        self.folder = folder
        folder.mkdir(mode=0o700)
        self._binary = binary
        self._config = folder / "server.conf"
        self._config.write_text(config, "utf-8")
        self._config.chmod(0o600)
        self._child: Child | None = None
        self._arguments: list[str] = []

    def start(self, *arguments: str) -> None:
        self._child = Child(
            [str(self._binary), str(self._config), *arguments], log_path=self.folder / "server.log"
        )
        wait_for(self.answers, f"the server at port {self.port} answers; its log: {self._child.log_tail()}")

    def client(self) -> redis.Redis:
        return redis.Redis(
            port=self.port,
            password=self.password,
            socket_timeout=5,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            protocol=2,
        )

    def ask(self, *words: Any) -> Any:
        """Run one command; once more if a failover closed the connection."""
        with self.client() as client:
            try:
                return client.execute_command(*words)
            except redis.ConnectionError:
                return client.execute_command(*words)

    def clients(self) -> list[dict[str, str]]:
        lines = str(self.ask("CLIENT", "LIST")).splitlines()
        return [dict(word.split("=", 1) for word in line.split()) for line in lines]

    def answers(self) -> bool:
        try:
            return bool(self.ask("PING"))
        except redis.RedisError:
            return False

    @property
    def role(self) -> str:
        """``master``, ``slave``, or nothing if it does not answer."""
        try:
            return str(self.ask("ROLE")[0])
        except redis.RedisError:
            return ""

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def pause(self) -> None:
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGCONT)

    def end(self) -> None:
        if self.running:
            self.resume()
        self.kill()


class Trio:
    """Three servers, one of which is the primary, and three sentinels."""

    def __init__(
        self, folder: Path, binary: str | None = None, *, down_after_ms: int = DOWN_AFTER_MS
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.password, self.sentinel_password = secrets.token_hex(16), secrets.token_hex(16)
        program = find_server(binary)
        ports = free_ports(6)
        ids = [secrets.token_hex(20) for _ in range(3)]
        self.servers = [
            Instance(
                program, folder / f"server-{port}", port, self.password, self._server_config(folder, port)
            )
            for port in ports[:3]
        ]
        known = "".join(
            f"sentinel known-replica {SERVICE} 127.0.0.1 {port}\n" for port in ports[1:3]
        ) + "".join(
            f"sentinel known-sentinel {SERVICE} 127.0.0.1 {port} {name}\n"
            for port, name in zip(ports[3:], ids, strict=True)
        )
        self.sentinels = [
            Instance(
                program,
                folder / f"sentinel-{port}",
                port,
                self.sentinel_password,
                f"port {port}\nbind 127.0.0.1\ndir {folder / f'sentinel-{port}'}\n"
                f"requirepass {self.sentinel_password}\nsentinel sentinel-pass {self.sentinel_password}\n"
                f"sentinel myid {name}\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {ports[0]} {QUORUM}\n"
                f"sentinel auth-pass {SERVICE} {self.password}\n"
                f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}\n"
                f"sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT_MS}\n"
                f"sentinel parallel-syncs {SERVICE} 2\n"
                + "".join(line for line in known.splitlines(keepends=True) if name not in line),
            )
            for port, name in zip(ports[3:], ids, strict=True)
        ]

    def _server_config(self, folder: Path, port: int) -> str:
        return (
            f"port {port}\nbind 127.0.0.1\ndir {folder / f'server-{port}'}\n"
            f"requirepass {self.password}\nmasterauth {self.password}\n"
            'save ""\nappendonly no\nmaxmemory 256mb\nmaxmemory-policy noeviction\n'
            "repl-diskless-sync yes\nrepl-diskless-sync-delay 0\nrepl-diskless-load swapdb\n"
            "repl-backlog-size 16mb\nrepl-ping-replica-period 1\n"
        )

    # -- life --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        first, *others = self.servers
        first.start()
        for other in others:
            other.start("--replicaof", f"127.0.0.1 {first.port}")
        self.wait_until_whole()
        for sentinel in self.sentinels:
            sentinel.start("--sentinel")
        self.let_sentinels_talk(PUBLISH_PERIOD_MS)
        wait_for(lambda: all(self._sees_all(one) for one in self.sentinels), "the sentinels see all")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (*self.sentinels, *self.servers):
            one.end()

    def _sees_all(self, sentinel: Instance) -> bool:
        fields = self._state(sentinel)
        return (
            int(fields["num-slaves"]) == 2
            and int(fields["num-other-sentinels"]) == 2
            and str(fields["flags"]) == "master"
        )

    def wait_until_whole(self, timeout_s: float = 30.0) -> None:
        """Wait until one server is the primary, and both others follow it."""
        wait_for(self.is_whole, "a primary has two replicas", timeout_s)

    def is_whole(self) -> bool:
        """Whether both replicas have all that the primary has, or nearly."""
        primaries = [server for server in self.servers if server.role == "master"]
        if len(primaries) != 1:
            return False
        try:
            _, _, replicas = primaries[0].ask("ROLE")
            links = [one.ask("INFO", "replication") for one in self.servers if one is not primaries[0]]
        except redis.RedisError:
            return False
        return len(replicas) == 2 and all(link.get("master_link_status") == "up" for link in links)

    # -- what a user has -----------------------------------------------------------------------

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        return (
            f"redis+sentinel://:{self.password}@{places}/0?service={SERVICE}"
            f"&sentinel_password={self.sentinel_password}"
        )

    def let_sentinels_talk(self, every_ms: int) -> None:
        for sentinel in self.sentinels:
            sentinel.ask("SENTINEL", "DEBUG", "PUBLISH-PERIOD", every_ms)
            sentinel.ask("SENTINEL", "DEBUG", "INFO-PERIOD", INFO_PERIOD_MS)

    def let_primary_be_silent(self, for_ms: int) -> None:
        for sentinel in self.sentinels:
            sentinel.ask("SENTINEL", "SET", SERVICE, "down-after-milliseconds", for_ms)

    # -- failovers -----------------------------------------------------------------------------

    @property
    def primary(self) -> Instance:
        """The server that the sentinels that answer name; the newest answer counts."""
        port = self.named
        return next(server for server in self.servers if server.port == port)

    @property
    def named(self) -> int:
        """The port that the sentinels name, by the newest answer."""
        return max(self._answers())[1]

    def _answers(self) -> list[tuple[int, int]]:
        """Return the number and the port of the primary that each sentinel names."""
        found = []
        for sentinel in self.sentinels:
            with suppress(redis.ConnectionError, redis.TimeoutError):
                # The leader of a failover has the number of the new primary before it says its place
                # here. In this order a place may be newer than the number, and never older.
                epoch = int(self._state(sentinel)["config-epoch"])
                _, port = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
                found.append((epoch, int(port)))
        return found

    @staticmethod
    def _state(sentinel: Instance) -> dict[str, str]:
        flat = sentinel.ask("SENTINEL", "MASTER", SERVICE)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def ask_for_failover(self, *how: str) -> None:
        """Let a sentinel replace the primary, as before a planned stop of it; again if it gives up.

        ``COORDINATED``, which Valkey 9 knows, waits until a replica has all that the primary has.
        """

        def accepted() -> bool:
            try:
                return bool(self.sentinels[0].ask("SENTINEL", "FAILOVER", SERVICE, *how))
            except redis.ResponseError:
                return False  # One is under way, or it knows no good replica yet.

        old = self.primary
        for _ in range(10):
            wait_for(accepted, "a sentinel begins a failover")
            # The others may not let it lead one, and on a busy machine no replica may be ready in time.
            with suppress(AssertionError):
                self.wait_for_other_primary(old, 5)
                return
        raise AssertionError("no failover that was asked for was done")

    def replace(self, silent: Instance) -> Instance:
        """Let the sentinels replace the primary, which gives no answer any more, and return the new one.

        Nobody else is replaced: on a busy machine the new primary may give no answer for as long at first.
        And a sentinel that has not heard of it yet may choose the other replica, which lacks what was written
        since: nobody who asks before that can learn of this loss. So this waits until all have settled.
        """

        def is_under_way() -> bool:
            flat = [each for one in self.sentinels for each in one.ask("SENTINEL", "REPLICAS", SERVICE)]
            replicas = [dict(zip(each[::2], each[1::2], strict=True)) for each in flat]
            # Whoever led the last failover may not be done with that: there the silent one was chosen.
            chosen = {int(each["port"]) for each in replicas if "promoted" in each["flags"]}
            return bool(chosen - {silent.port}) or self.named != silent.port

        def settled() -> Instance | None:
            states = [self._state(one) for one in self.sentinels]
            (new,) = (server for server in self.servers if server.port == int(states[0]["port"]))
            agree = all(int(each["port"]) == new.port and "failover" not in each["flags"] for each in states)
            if new is silent or not agree or new.role != "master":
                return None
            others = [one for one in self.servers if one.running and one not in (silent, new)]
            try:
                links = [one.ask("INFO", "replication") for one in others]
            except redis.RedisError:
                return None
            follow = (
                link.get("master_port") == new.port and link["master_link_status"] == "up" for link in links
            )
            return new if all(follow) else None

        self.let_primary_be_silent(DOWN_AFTER_MS)
        wait_for(is_under_way, "a replica is chosen")
        self.let_primary_be_silent(QUIET_MS)
        primary = wait_for(settled, "all sentinels name a new primary, and its replica follows it")
        assert primary is not None
        return primary

    def wait_for_other_primary(self, than: Instance, timeout_s: float = PATIENCE_S) -> Instance:
        """Wait until most of the sentinels name another server, and it says that it is one."""

        def found() -> Instance | None:
            answers = self._answers()
            port = max(answers)[1]
            if port == than.port or [known for _, known in answers].count(port) < QUORUM:
                return None
            primary = next(server for server in self.servers if server.port == port)
            return primary if primary.role == "master" else None

        primary = wait_for(found, "there is a new primary", timeout_s)
        assert primary is not None
        return primary

    @contextmanager
    def replicas_cut_off(self) -> Iterator[Instance]:
        """Let no replica receive anything meanwhile: what is written now, a failover loses.

        To stop the replicas would not do: what is in their sockets they would read when they go on.
        """
        primary = self.primary
        replicas = [server for server in self.servers if server is not primary]
        for replica in replicas:
            replica.ask("CONFIG", "SET", "masterauth", "wrong")
            replica.ask("CLIENT", "KILL", "TYPE", "master")
        try:
            yield primary
        finally:
            for replica in replicas:
                replica.ask("CONFIG", "SET", "masterauth", self.password)

    def bring_back(self, server: Instance) -> None:
        """Start a killed server as a replica of the primary, as its service manager would do."""
        server.start("--replicaof", f"127.0.0.1 {self.primary.port}")
