"""A Cluster that can be hurt: three primaries with a replica each, and proxies of each process before them.

A client is told where the slots are by port alone (``cluster-preferred-endpoint-type unknown-endpoint``), and
takes the host that it has asked. So a process whose URL names another address of the loopback network, where
proxies listen on the same ports, speaks to every node through its own proxies. Linux has all of 127.0.0.0/8.

No replica takes over that was not told to: a busy machine brings failovers about, and what is lost by one
that nobody asked for would be taken for a mistake.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import redis
from redis.crc import key_slot

from tests.chaos.proxy import Lines, ProxyThread
from tests.chaos.slots import OneSlot
from tests.helpers import wait_for
from tests.stage.cluster import Cluster, Node
from tests.stage.disturbed import ChaosServer
from tests.stage.server import ROLE_S

PRIMARIES = 3
MORE = """
cluster-preferred-endpoint-type unknown-endpoint
cluster-replica-no-failover yes
repl-backlog-size 32mb
"""


class ChaosNode(ChaosServer, Node):
    """One node."""

    def __init__(self, number: int, folder: Path, *arguments: Any, **options: Any) -> None:
        super().__init__(folder, *arguments, more=MORE, **options)
        self.name = f"node {number}"
        self.shard = number % PRIMARIES
        self.holds = f"shard {self.shard}"

    def may_take_over(self, yes: bool) -> None:
        self.config("cluster-replica-no-failover", "no" if yes else "yes")


class ByKey:
    """A plain client whose calls go to the node that has their first key."""

    def __init__(self, cluster: "ChaosCluster", timeout_s: float, stack: contextlib.ExitStack) -> None:
        self._cluster, self._timeout_s, self._stack = cluster, timeout_s, stack
        self._ports = cluster.ports()
        self._clients: dict[int, Any] = {}

    def at(self, key: str) -> Any:
        port = self._ports.get(key_slot(key.encode()))
        if port is None:
            raise redis.ConnectionError(f"nobody says who has {key}")
        if port not in self._clients:
            node = self._cluster.at(port)
            self._clients[port] = self._stack.enter_context(node.client(self._timeout_s))
        return self._clients[port]

    def __getattr__(self, name: str) -> Any:
        return lambda key, *rest, **options: getattr(self.at(key), name)(key, *rest, **options)


class ChaosCluster(Cluster):
    """All nodes, and the proxies before them; offers what a soak asks of a :class:`ChaosServer`."""

    nodes: list[ChaosNode]  # type: ignore[assignment]

    def __init__(self, folder: Path, *, clock: bool = False) -> None:
        self.proxies = ProxyThread()
        self.watch = OneSlot()
        """Looks at all commands that pass the proxies."""
        self._folder, self._with_clock = folder, clock
        self._hosts = 0
        super().__init__(PRIMARIES, 1)

    def make_node(self, number: int, given: tuple[Any, ...]) -> ChaosNode:
        return ChaosNode(
            number,
            self._folder / f"node-{number}",
            *given,
            clock=self._with_clock and number % PRIMARIES == 0,
            proxies=self.proxies,
        )

    def __enter__(self) -> Self:
        self.proxies.__enter__()
        try:
            return super().__enter__()
        except BaseException:
            self.proxies.__exit__(None, None, None)
            raise

    def __exit__(self, *failure: object) -> None:
        super().__exit__(*failure)
        self.proxies.__exit__(None, None, None)

    def proxy(self, host: str = "127.0.0.1") -> Lines:
        """Open a proxy before each node, at an address of its own if none is given."""
        if host == "127.0.0.1":
            self._hosts += 1
            host = f"127.0.1.{self._hosts}"
        return Lines([self.proxies.open(node.url, host, node.port, self.watch) for node in self.nodes])

    # -- who has what --------------------------------------------------------------------------

    def ports(self) -> dict[int, int]:
        """Return the port of the primary of each slot, as the first node says that answers."""
        for node in self.nodes:
            if not node.running or node.is_paused:
                continue
            with contextlib.suppress(redis.RedisError):
                said = node.slots(ROLE_S)
                return {
                    slot: port for first, last, (_, port, *_), *_ in said for slot in range(first, last + 1)
                }
        return {}

    def primary(self, shard: int) -> ChaosNode | None:
        found = [node for node in self.nodes if node.shard == shard and node.is_primary]
        return found[0] if len(found) == 1 else None

    def replica(self, shard: int) -> ChaosNode | None:
        found = [node for node in self.nodes if node.shard == shard and node.follows]
        return found[0] if len(found) == 1 else None

    def free_shards(self, taken: frozenset[str]) -> list[int]:
        return [shard for shard in range(PRIMARIES) if f"shard {shard}" not in taken]

    def any_server(
        self,
        rng: random.Random,
        taken: frozenset[str],
        fits: Callable[[ChaosServer], bool] = lambda _: True,
    ) -> ChaosNode | None:
        shards = self.free_shards(taken)
        found = self.primary(rng.choice(shards)) if shards else None
        return found if found is not None and fits(found) else None

    def server_of(self, key: str) -> ChaosNode | None:
        port = self.ports().get(key_slot(key.encode()))
        return next((node for node in self.nodes if node.port == port), None)

    def held_by(self, node: ChaosNode, keys: Sequence[str]) -> list[int]:
        ports = self.ports()
        return [n for n, key in enumerate(keys) if ports.get(key_slot(key.encode())) == node.port]

    # -- what a soak asks of one server ----------------------------------------------------------

    @property
    def clock(self) -> object | None:
        return self.nodes[0].clock

    @property
    def has_small_disk(self) -> bool:
        """Whether a disk can be filled: nodes have none of their own."""
        return False

    @contextlib.contextmanager
    def client(self, timeout_s: float = 5.0) -> Iterator[Any]:
        """Open a plain client of all primaries, past all proxies."""
        with contextlib.ExitStack() as stack:
            yield ByKey(self, timeout_s, stack)

    def connections(self) -> list[str]:
        return [each for node in self.nodes for each in node.connections()]

    def crossings(self) -> list[str]:
        """Return the commands that touched more than one slot, or were refused for it."""
        refused = [f"{self.watch.refused} answers CROSSSLOT"] * bool(self.watch.refused)
        return self.watch.crossing + refused

    def wait_until_whole(self, timeout_s: float = 30.0) -> None:
        super().wait_until_whole(timeout_s)

        def is_whole() -> bool:
            return all(self.primary(shard) and self.replica(shard) for shard in range(PRIMARIES))

        wait_for(is_whole, "each shard has a primary and a replica that follows", timeout_s)
