"""A fault of a Cluster does what it says, and leaves a whole Cluster that holds what it held."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.chaos.cluster_kinds import (
    CLUSTER_KINDS,
    NOBODY_TOOK_OVER,
    MembershipPrimaryLost,
    OfPair,
    PrimaryFrozen,
    PrimaryLost,
    PrimaryLostUnfollowed,
    ReplicaFrozen,
    ReplicaKilled,
)
from tests.chaos.nemesis import Field, Names, Nemesis, is_over
from tests.helpers import wait_for
from tests.stage.nodes import ChaosCluster

NAMES = Names("chaos", "events", "handled", 6)
KEYS = [
    *(NAMES.of_group(what) for what in ("members", "beats")),
    *(NAMES.events(p) for p in range(NAMES.partitions)),
    *(NAMES.lock(p) for p in range(NAMES.partitions)),
]
SHORT = {"slot moves key by key", "failover planned", "primary killed, its replica takes over"}
"""What is tried in each run of the tests; the rest takes half a minute."""

SHOWS: dict[type[Nemesis], Callable[[Any], bool]] = {
    ReplicaKilled: lambda fault: not fault.replica.running,
    ReplicaFrozen: lambda fault: fault.replica.is_paused,
    PrimaryLost: lambda fault: not fault.primary.running,
    MembershipPrimaryLost: lambda fault: not fault.primary.running,
    PrimaryFrozen: lambda fault: fault.primary.is_paused,
    PrimaryLostUnfollowed: lambda fault: not fault.replica.follows,
}
"""How a fault can be seen while it goes on; the others are seen by what they leave."""

pytestmark = [pytest.mark.timeout(120), pytest.mark.full("faults of a Cluster take seconds each")]


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """A Cluster with what a group keeps in it."""
    with ChaosCluster(tmp_path_factory.mktemp("nodes")) as cluster:
        with cluster.client() as client:
            client.set(NAMES.members, '{"generation":1}')
            client.hset(NAMES.beats, "w0", "1")
            for partition in range(NAMES.partitions):
                client.xadd(NAMES.events(partition), {"v": "1"})
                client.hset(NAMES.lock(partition), "owner", "w0")
        cluster.wait_until_whole()
        yield Field(cluster, [], NAMES)


def cluster_of(field: Field) -> ChaosCluster:
    assert isinstance(field.server, ChaosCluster)
    return field.server


def held(cluster: ChaosCluster) -> dict[str, Any]:
    with cluster.client() as client:
        return {key: client.dump(key) for key in KEYS}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=kind.name, marks=[] if kind.name in SHORT else pytest.mark.soak)
        for kind in CLUSTER_KINDS
    ],
)
def test_a_fault_of_a_cluster_leaves_it_whole_with_what_it_held(field: Field, kind: type[Nemesis]) -> None:
    """While nobody writes, a failover loses nothing either; and each says whom it hurts."""
    cluster = cluster_of(field)
    before = held(cluster)
    assert None not in before.values()
    fault = kind()
    rng = random.Random(3)
    wait_for(lambda: fault.aim(field, rng, frozenset()), f"{kind.name} finds somebody to hurt")
    assert fault.target and fault.takes
    assert bool(fault.partitions) == kind.loses, "the partitions that may lose something"
    roles = {node.name: node.is_primary for node in cluster.nodes}
    fault.begin()
    if kind in SHOWS:
        wait_for(lambda: SHOWS[kind](fault), f"{kind.name} shows")
    wait_for(lambda: is_over(fault), f"{kind.name} is over", 40)
    assert not fault.failure
    cluster.wait_until_whole()
    wait_for(lambda: None not in held(cluster).values(), "all slots are served")
    assert held(cluster) == before
    if isinstance(fault, OfPair):
        swapped = {node.name for node in cluster.nodes if node.is_primary != roles[node.name]}
        takes_over = kind.loses or kind.name == "failover planned"
        assert swapped == ({fault.primary.name, fault.replica.name} if takes_over else set())
    else:
        moved: Any = fault
        assert cluster.ports()[moved.slot] == moved.target_node.port != moved.source.port
    for node in cluster.nodes:
        with node.client() as client:
            assert client.config_get("cluster-replica-no-failover")["cluster-replica-no-failover"] == "yes"
    with cluster.client() as client:
        for partition in range(NAMES.partitions):
            client.set(f"{NAMES.events(partition)}:written", "1")


def test_a_failover_that_does_not_come_about_says_so_and_leaves_a_whole_cluster(field: Field) -> None:
    cluster = cluster_of(field)
    cluster.wait_until_whole()
    fault = PrimaryLost()
    assert fault.aim(field, random.Random(3), frozenset())
    fault.begin()
    fault.replica.may_take_over(False)
    fault._until_s = 0.0
    wait_for(lambda: is_over(fault), "the primary is back", 40)
    assert fault.failure == NOBODY_TOOK_OVER
    assert fault.primary.is_primary and fault.replica.follows
