"""What the tests on a Cluster share: nodes by what they hold, and slots that move."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import redis

from streamworker.dev.cluster import ClusterNode, EmbeddedCluster
from streamworker.redisio.wire.topology import slot_of
from tests.chaos.proxy import Lines, ProxyThread
from tests.chaos.slots import OneSlot
from tests.cluster.roles import quick_to_replace
from tests.helpers import wait_for

PROXIES = "127.0.2.1"


def client_of(node: ClusterNode) -> "redis.Redis":
    return redis.Redis(port=node.port, password=node.password, protocol=2)


def is_primary(node: ClusterNode) -> bool:
    return node.running and node.facts("INFO", "replication")["role"] == "master"


def primary_of(cluster: EmbeddedCluster, key: str) -> ClusterNode:
    """Return which node has a key, once all that run say the same: some learn of a move later."""
    slot = slot_of(key)

    def told() -> int | None:
        ports = {
            port
            for node in cluster.nodes
            if node.running
            for first, last, (_, port, *_), *_ in slots_of(node)
            if first <= slot <= last
        }
        return ports.pop() if len(ports) == 1 else None

    port = wait_for(told, f"all nodes agree on who has {key}")
    return next(node for node in cluster.nodes if node.port == port)


def slots_of(node: ClusterNode) -> list[Any]:
    """Return what a node says of where the slots are."""
    with client_of(node) as client:
        return list(client.execute_command("CLUSTER SLOTS"))


def another_primary(cluster: EmbeddedCluster, than: ClusterNode) -> ClusterNode:
    return next(node for node in cluster.nodes if is_primary(node) and node is not than)


def replica_of(cluster: EmbeddedCluster, primary: ClusterNode) -> ClusterNode:
    for node in cluster.nodes:
        facts = node.facts("INFO", "replication") if node.running else {}
        if facts.get("master_port") == str(primary.port):
            return node
    raise AssertionError("the primary has no replica")


def fail_over(cluster: EmbeddedCluster, primary: ClusterNode) -> float:
    """Kill a primary, wait until its replica has its place, and start it again; return how long it took."""
    replica = replica_of(cluster, primary)
    with quick_to_replace(cluster):
        began = time.monotonic()
        primary.kill()
        wait_for(lambda: is_primary(replica), "the replica takes over")
        took_s = time.monotonic() - began
        primary.start()
    return took_s


@contextlib.contextmanager
def cut_off(primary: ClusterNode, replica: ClusterNode) -> Iterator[None]:
    """Keep a replica from following its primary, though both are in the Cluster; it is not let in again."""
    with client_of(primary) as one, client_of(replica) as other:
        other.config_set("masterauth", "wrong")
        one.execute_command("CLIENT", "KILL", "TYPE", "replica")
        wait_for(lambda: other.info("replication")["master_link_status"] == "down", "it is cut off")
        yield
    with client_of(replica) as other:
        other.config_set("masterauth", primary.password)


def move_slot(cluster: EmbeddedCluster, key: str, target: ClusterNode, pause_s: float = 0.0) -> int:
    return finish_move(cluster, key, begin_move(cluster, key, target), target, pause_s)


def begin_move(cluster: EmbeddedCluster, key: str, target: ClusterNode) -> ClusterNode:
    """Have a slot go to another primary from now on, and return where its keys are yet."""
    slot, source = slot_of(key), primary_of(cluster, key)
    with client_of(source) as here, client_of(target) as there:
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
    return source


def move_keys(cluster: EmbeddedCluster, source: ClusterNode, target: ClusterNode, *keys: str) -> None:
    with client_of(source) as here:
        # Nodes that speak TLS to each other do so here as well.
        address = ("127.0.0.1", getattr(target, "tls_port", target.port), "", 0, 5_000)
        here.execute_command("MIGRATE", *address, "AUTH", cluster.password, "KEYS", *keys)


def finish_move(
    cluster: EmbeddedCluster, key: str, source: ClusterNode, target: ClusterNode, pause_s: float = 0.0
) -> int:
    slot, moved = slot_of(key), 0
    with client_of(source) as here, client_of(target) as there:
        while names := here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
            time.sleep(pause_s)
            move_keys(cluster, source, target, *names)
            moved += len(names)
        # The target first: should it end in between, nobody has the slot twice.
        for client in (there, here):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target.id)
    # A node that has not heard of it would lead a client back, which asks any of them.
    wait_for(lambda: primary_of(cluster, key) is target, "the slot has moved")
    return moved


def move_slot_whole(cluster: EmbeddedCluster, key: str, target: ClusterNode) -> None:
    """Move the slot of a key as Valkey 9 does: copied meanwhile, and handed over in one step."""
    slot, source = slot_of(key), primary_of(cluster, key)
    with client_of(source) as here:
        here.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
    wait_for(lambda: primary_of(cluster, key) is target, "the slot has moved")


@contextlib.contextmanager
def through_proxies(cluster: EmbeddedCluster, watch: OneSlot) -> Iterator[Lines]:
    """Open a proxy before each node, at its port of another address.

    Nodes say where the slots are by ports alone meanwhile, so that whoever begins there stays there.
    """

    def name_hosts(yes: bool) -> None:
        for node in cluster.nodes:
            with client_of(node) as client:
                kind = "ip" if yes else "unknown-endpoint"
                client.config_set("cluster-preferred-endpoint-type", kind)

    with ProxyThread() as proxies:
        name_hosts(False)
        try:
            yield Lines([proxies.open(node.url, PROXIES, node.port, watch) for node in cluster.nodes])
        finally:
            name_hosts(True)
