"""A primary, two replicas and three sentinels on loopback, with passwords; all end with the test."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Self

import redis

from streamworker.dev.children import Child
from tests.helpers import PATIENCE_S, wait_for
from tests.stage.server import QUIET_MS, Server, cut_off, free_ports

SERVICE = "orders"
QUORUM = 2
DOWN_AFTER_MS = 600
"""How long a server is silent before a sentinel thinks it down. 30 s in Redis' own example file."""
FAILOVER_TIMEOUT_MS = 3_000
"""A failover that failed is begun again after twice this."""
PUBLISH_PERIOD_MS = 500
"""How often sentinels tell each other what they know, for which Redis has 2 s. A primary that comes back
after it was replaced, or was replaced by plan, stays one for four of these: 8 s in the field."""
INFO_PERIOD_MS = 500
"""How often they ask servers what they are, for which Redis has 10 s."""
MORE = """
repl-diskless-sync yes
repl-diskless-sync-delay 0
repl-diskless-load swapdb
repl-backlog-size 16mb
repl-ping-replica-period 1
"""


class Sentinel(Server):
    """A sentinel, which writes down what it learns in its configuration."""

    def _config(self) -> str:
        listen = f"port {self.port}\nbind 127.0.0.1\ndir {self._home}\nrequirepass {self.password}\n"
        return listen + self._more

    def _spawn(self) -> None:
        path = self._home / "sentinel.conf"
        path.write_text(self._config(), "utf-8")
        path.chmod(0o600)
        command = [str(self._binary), str(path), "--sentinel"]
        self._process = Child(command, log_path=self.log_path, temporary=self._home)


class Trio:
    """Three servers, one of which is the primary, and three sentinels."""

    def __init__(self, binary: str | None = None, *, down_after_ms: int = DOWN_AFTER_MS) -> None:
        self.password, self.sentinel_password = secrets.token_hex(16), secrets.token_hex(16)
        ports = free_ports(6)
        self.servers = [
            Server(binary=binary, port=port, maxmemory="256mb", password=self.password, more=MORE)
            for port in ports[:3]
        ]
        replicas = "".join(f"sentinel known-replica {SERVICE} 127.0.0.1 {port}\n" for port in ports[1:3])
        ids = {port: secrets.token_hex(20) for port in ports[3:]}

        def sentinel(port: int) -> Sentinel:
            return Sentinel(
                binary=binary,
                port=port,
                password=self.sentinel_password,
                more=f"sentinel sentinel-pass {self.sentinel_password}\n"
                f"sentinel myid {ids[port]}\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {ports[0]} {QUORUM}\n"
                f"sentinel auth-pass {SERVICE} {self.password}\n"
                f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}\n"
                f"sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT_MS}\n"
                f"sentinel parallel-syncs {SERVICE} 2\n"
                + replicas
                + "".join(
                    f"sentinel known-sentinel {SERVICE} 127.0.0.1 {other} {name}\n"
                    for other, name in ids.items()
                    if other != port
                ),
            )

        self.sentinels = [sentinel(port) for port in ids]

    # -- life --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as begun:
            begun.callback(self._stop)
            first, *others = self.servers
            first.start()
            for other in others:
                other.follow(first)
                other.start()
            self.wait_until_whole()
            for sentinel in self.sentinels:
                sentinel.start()
            self.let_sentinels_talk(PUBLISH_PERIOD_MS)
            wait_for(lambda: all(self._sees_all(one) for one in self.sentinels), "the sentinels see all")
            begun.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop()

    def _stop(self) -> None:
        for one in (*self.sentinels, *self.servers):
            one.kill()  # A primary would wait for its replicas.
            one.stop()

    def _sees_all(self, sentinel: Sentinel) -> bool:
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
        primaries = [server for server in self.servers if server.is_primary]
        if len(primaries) != 1:
            return False
        others = (server for server in self.servers if server is not primaries[0])
        return primaries[0].replication().get("connected_slaves") == 2 and all(o.follows for o in others)

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
            sentinel.call("SENTINEL", "DEBUG", "PUBLISH-PERIOD", every_ms)
            sentinel.call("SENTINEL", "DEBUG", "INFO-PERIOD", INFO_PERIOD_MS)

    def let_primary_be_silent(self, for_ms: int) -> None:
        for sentinel in self.sentinels:
            sentinel.call("SENTINEL", "SET", SERVICE, "down-after-milliseconds", for_ms)

    # -- failovers -----------------------------------------------------------------------------

    @property
    def primary(self) -> Server:
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
                _, port = sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
                found.append((epoch, int(port)))
        return found

    @staticmethod
    def _state(sentinel: Sentinel) -> dict[str, str]:
        flat = sentinel.call("SENTINEL", "MASTER", SERVICE)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def ask_for_failover(self, *how: str) -> None:
        """Let a sentinel replace the primary, as before a planned stop of it; again if it gives up.

        ``COORDINATED``, which Valkey 9 knows, waits until a replica has all that the primary has.
        """

        def accepted() -> bool:
            try:
                return bool(self.sentinels[0].call("SENTINEL", "FAILOVER", SERVICE, *how))
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

    def replace(self, silent: Server) -> Server:
        """Let the sentinels replace the primary, which gives no answer any more, and return the new one.

        Nobody else is replaced: on a busy machine the new primary may give no answer for as long at first.
        And a sentinel that has not heard of it yet may choose the other replica, which lacks what was written
        since: nobody who asks before that can learn of this loss. So this waits until all have settled.
        """

        def is_under_way() -> bool:
            flat = [each for one in self.sentinels for each in one.call("SENTINEL", "REPLICAS", SERVICE)]
            replicas = [dict(zip(each[::2], each[1::2], strict=True)) for each in flat]
            # Whoever led the last failover may not be done with that: there the silent one was chosen.
            chosen = {int(each["port"]) for each in replicas if "promoted" in each["flags"]}
            return bool(chosen - {silent.port}) or self.named != silent.port

        def settled() -> Server | None:
            states = [self._state(one) for one in self.sentinels]
            (new,) = (server for server in self.servers if server.port == int(states[0]["port"]))
            agree = all(int(each["port"]) == new.port and "failover" not in each["flags"] for each in states)
            if new is silent or not agree or not new.is_primary:
                return None
            others = [one for one in self.servers if one.running and one not in (silent, new)]
            return new if all(other.follows == new.port for other in others) else None

        self.let_primary_be_silent(DOWN_AFTER_MS)
        wait_for(is_under_way, "a replica is chosen")
        self.let_primary_be_silent(QUIET_MS)
        primary = wait_for(settled, "all sentinels name a new primary, and its replica follows it")
        assert primary is not None
        return primary

    def wait_for_other_primary(self, than: Server, timeout_s: float = PATIENCE_S) -> Server:
        """Wait until most of the sentinels name another server, and it says that it is one."""

        def found() -> Server | None:
            answers = self._answers()
            port = max(answers)[1]
            if port == than.port or [known for _, known in answers].count(port) < QUORUM:
                return None
            primary = next(server for server in self.servers if server.port == port)
            return primary if primary.is_primary else None

        primary = wait_for(found, "there is a new primary", timeout_s)
        assert primary is not None
        return primary

    @contextmanager
    def replicas_cut_off(self) -> Iterator[Server]:
        """Let no replica receive anything meanwhile: what is written now, a failover loses."""
        primary = self.primary
        with cut_off(primary, *(server for server in self.servers if server is not primary)):
            yield primary

    def bring_back(self, server: Server) -> None:
        """Start a killed server as a replica of the primary, as its service manager would do."""
        server.follow(self.primary)
        server.start()
