"""A Cluster that tests hurt: nodes by what they hold, failovers, and slots that move."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from streamworker.dev.cluster import NODE_TIMEOUT_MS, ClusterNode, EmbeddedCluster
from streamworker.redisio.wire.topology import slot_of
from tests.chaos.proxy import Lines, ProxyThread
from tests.chaos.slots import OneSlot
from tests.helpers import wait_for
from tests.raw import close_clusters, opened
from tests.stage.server import Server

PROXIES = "127.0.2.1"


class Node(Server, ClusterNode):
    """One node."""

    tls_port = 0
    """Where nodes that speak TLS to each other do so; 0 for others."""

    def slots(self, timeout_s: float = 5.0) -> list[Any]:
        """Return what it says of where the slots are."""
        with self.client(timeout_s) as client:
            return list(client.execute_command("CLUSTER SLOTS"))


class Cluster(EmbeddedCluster):
    """An embedded Cluster of such nodes."""

    nodes: list[Node]  # type: ignore[assignment]  # They are nodes that can be hurt.

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 1,
        binary: str | None = None,
        node_timeout_ms: int = NODE_TIMEOUT_MS,
    ) -> None:
        super().__init__(primaries, replicas, binary, node_timeout_ms)
        given = (self.password, binary, node_timeout_ms)
        self.nodes = [self.make_node(number, given) for number in range(len(self.nodes))]

    def make_node(self, number: int, given: tuple[Any, ...]) -> Node:
        """Make a node of what all nodes are given."""
        return Node(*given)

    # -- who has what --------------------------------------------------------------------------

    def primary_of(self, key: str) -> Node:
        """Return which node has a key, once all that run say the same: some learn of a move later."""
        slot = slot_of(key)

        def told() -> int | None:
            ports = {
                port
                for node in self.nodes
                if node.running
                for first, last, (_, port, *_), *_ in node.slots()
                if first <= slot <= last
            }
            return ports.pop() if len(ports) == 1 else None

        return self.at(wait_for(told, f"all nodes agree on who has {key}"))

    def at(self, port: int | None) -> Node:
        return next(node for node in self.nodes if node.port == port)

    def another_primary(self, than: Node) -> Node:
        return next(node for node in self.nodes if node.is_primary and node is not than)

    def replica_of(self, primary: Node) -> Node:
        for node in self.nodes:
            if node.replication().get("master_port") == primary.port:
                return node
        raise AssertionError("the primary has no replica")

    # -- roles ---------------------------------------------------------------------------------

    def make_whole(self) -> None:
        """Bring killed nodes back, and wait until all slots are served."""
        for node in self.nodes:
            node.start()
        self.wait_until_whole()

    @contextlib.contextmanager
    def may_change(self) -> Iterator[None]:
        """Empty the Cluster, for a test that ends nodes or changes their roles; all are back afterwards.

        The client that :func:`tests.raw.opened` keeps is closed on both sides, because it remembers the
        roles.
        """
        self.make_whole()
        close_clusters()
        with opened(self.url) as client:
            client.flushall()
            client.script_flush()
        try:
            yield
        finally:
            self.make_whole()
            close_clusters()

    @contextlib.contextmanager
    def quick_to_replace(self) -> Iterator[None]:
        """Let nodes be replaced that are silent for 1.5 s, and as soon again; only while this is wanted.

        Replicas that are told to take over need it as well: for two timeouts no node votes about the same
        one.
        """
        before_ms = self.nodes[0].node_timeout_ms
        self._replace_after(NODE_TIMEOUT_MS)
        try:
            yield
        finally:
            self._replace_after(before_ms)

    def _replace_after(self, timeout_ms: int) -> None:
        for node in self.nodes:
            node.node_timeout_ms = timeout_ms  # For the next time that the node starts.
            if node.running:
                node.config("cluster-node-timeout", timeout_ms)

    def fail_over(self, primary: Node) -> float:
        """Kill a primary, wait until its replica has its place, and start it again; say how long it took."""
        replica = self.replica_of(primary)
        with self.quick_to_replace():
            began = time.monotonic()
            primary.kill()
            wait_for(lambda: replica.is_primary, "the replica takes over")
            took_s = time.monotonic() - began
            primary.start()
        return took_s

    # -- slots that move -----------------------------------------------------------------------

    def move_slot(self, key: str, target: Node, pause_s: float = 0.0) -> int:
        return self.finish_move(key, self.begin_move(key, target), target, pause_s)

    def begin_move(self, key: str, target: Node) -> Node:
        """Have a slot go to another primary from now on, and return where its keys are yet."""
        slot, source = slot_of(key), self.primary_of(key)
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        return source

    def move_keys(self, source: Node, target: Node, *keys: str) -> None:
        address = ("127.0.0.1", target.tls_port or target.port, "", 0, 5_000)
        source.call("MIGRATE", *address, "AUTH", self.password, "KEYS", *keys)

    def finish_move(self, key: str, source: Node, target: Node, pause_s: float = 0.0) -> int:
        slot, moved = slot_of(key), 0
        while names := source.call("CLUSTER", "GETKEYSINSLOT", slot, 1):
            time.sleep(pause_s)
            self.move_keys(source, target, *names)
            moved += len(names)
        # The target first: should it end in between, nobody has the slot twice.
        for node in (target, source):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", target.id)
        # A node that has not heard of it would lead a client back, which asks any of them.
        wait_for(lambda: self.primary_of(key) is target, "the slot has moved")
        return moved

    def move_slot_whole(self, key: str, target: Node) -> None:
        """Move the slot of a key as Valkey 9 does: copied meanwhile, and handed over in one step."""
        slot = slot_of(key)
        self.primary_of(key).call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
        wait_for(lambda: self.primary_of(key) is target, "the slot has moved")

    @contextlib.contextmanager
    def through_proxies(self, watch: OneSlot) -> Iterator[Lines]:
        """Open a proxy before each node, at its port of another address.

        Nodes say where the slots are by ports alone meanwhile, so that whoever begins there stays there.
        """
        with ProxyThread() as proxies:
            for node in self.nodes:
                node.config("cluster-preferred-endpoint-type", "unknown-endpoint")
            try:
                yield Lines([proxies.open(node.url, PROXIES, node.port, watch) for node in self.nodes])
            finally:
                for node in self.nodes:
                    node.config("cluster-preferred-endpoint-type", "ip")
