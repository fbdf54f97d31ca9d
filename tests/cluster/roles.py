"""The shared Cluster, for tests that end nodes or change their roles."""

import contextlib
from collections.abc import Iterator

from streamworker.dev.cluster import NODE_TIMEOUT_MS, EmbeddedCluster
from tests.raw import close_clusters, opened

QUIET_MS = 30_000
"""``cluster-node-timeout`` of the Cluster while no test ends nodes: a busy machine must not change roles."""


def make_whole(cluster: EmbeddedCluster) -> None:
    """Bring killed nodes back, and wait until all slots are served."""
    for node in cluster.nodes:
        node.start()
    cluster.wait_until_whole()


@contextlib.contextmanager
def may_change(cluster: EmbeddedCluster) -> Iterator[None]:
    """Empty the Cluster, for a test that ends nodes or changes their roles; all nodes are back afterwards.

    The client that :func:`tests.raw.opened` keeps is closed on both sides, because it remembers the roles.
    """
    make_whole(cluster)
    close_clusters()
    with opened(cluster.url) as client:
        client.flushall()
        client.script_flush()
    try:
        yield
    finally:
        make_whole(cluster)
        close_clusters()


@contextlib.contextmanager
def quick_to_replace(cluster: EmbeddedCluster) -> Iterator[None]:
    """Let nodes be replaced that are silent for 1.5 s, and as soon again; only while this is wanted.

    Replicas that are told to take over need it as well: for two timeouts no node votes about the same one.
    """
    before_ms = cluster.nodes[0].node_timeout_ms
    _replace_after(cluster, NODE_TIMEOUT_MS)
    try:
        yield
    finally:
        _replace_after(cluster, before_ms)


def _replace_after(cluster: EmbeddedCluster, timeout_ms: int) -> None:
    for node in cluster.nodes:
        node.node_timeout_ms = timeout_ms  # For the next time that the node starts.
        if node.running:
            node.ask("CONFIG", "SET", "cluster-node-timeout", timeout_ms)
