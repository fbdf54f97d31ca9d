"""A Redis Cluster on this machine, for tests and the demo: some primaries with replicas.

Its nodes are embedded servers on loopback ports, with one random password for all. They end with the
process that started them. :meth:`EmbeddedCluster.stop` removes all their files.
"""

import os
import secrets
import time
from typing import Self

from streamworker.dev.server import EmbeddedServer, free_port
from streamworker.errors import BackendUnavailable

SLOTS = 16_384
FORM_TIMEOUT_S = 30.0
"""On a busy machine six nodes take a few seconds to form a Cluster."""
NODE_TIMEOUT_MS = 1_500
"""Time without an answer after which the others consider a node failed. Redis' default is 15 s."""


class ClusterNode(EmbeddedServer):
    """One node; see :class:`EmbeddedServer`."""

    def __init__(self, password: str, binary: str | os.PathLike[str] | None, node_timeout_ms: int) -> None:
        super().__init__(binary=binary, port=0)
        self.password = self._password = password
        self.node_timeout_ms = node_timeout_ms
        """What the node starts with as its ``cluster-node-timeout``."""
        self.bus_port = 0
        """Its port for the other nodes."""
        self.id = ""
        """Its id in the Cluster; empty before the Cluster is formed."""

    @property
    def port(self) -> int:
        """Its port for clients."""
        assert self._port is not None
        return self._port

    def _config(self) -> str:
        if not self.id:
            self.bus_port = free_port()
        lines = [
            "cluster-enabled yes",
            "cluster-config-file nodes.conf",
            f"cluster-node-timeout {self.node_timeout_ms}",
            f"cluster-port {self.bus_port}",
            "cluster-allow-replica-migration no",
            "cluster-replica-validity-factor 0",
            "repl-diskless-sync-delay 0",
            f"masterauth {self._password}",
        ]
        return super()._config() + "\n".join(lines) + "\n"

    def ask(self, *words: str | int) -> str:
        """Run a command whose reply is one line or one text; raise BackendUnavailable for an error."""
        return self._ask(*words)

    def facts(self, *words: str) -> dict[str, str]:
        """Return the fields of the reply to a command such as ``INFO``."""
        pairs = (line.partition(":") for line in self.ask(*words).splitlines())
        return {name: value for name, colon, value in pairs if colon}


class EmbeddedCluster:
    """A Redis Cluster of embedded servers: primaries that share the slots evenly, each with its replicas.

    >>> with EmbeddedCluster(primaries=3, replicas=0) as cluster:
    ...     cluster.url.partition("://")[0]
    'redis+cluster'
    """

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 1,
        binary: str | os.PathLike[str] | None = None,
        node_timeout_ms: int = NODE_TIMEOUT_MS,
    ) -> None:
        self.password = secrets.token_hex(24)
        count = primaries * (1 + replicas)
        self.nodes = [ClusterNode(self.password, binary, node_timeout_ms) for _ in range(count)]
        """The nodes; the first ones start as primaries."""
        self._primaries = primaries

    @property
    def url(self) -> str:
        """The URL to connect with; holds the password, so never log it."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis+cluster://:{self.password}@{hosts}"

    def describe(self) -> str:
        """Return one line about the servers and their addresses."""
        kinds = f"{self._primaries} primaries, {len(self.nodes) - self._primaries} replicas"
        return f"a Cluster of {self.nodes[0].version} on loopback ports: {kinds}; data is lost on exit"

    def start(self) -> Self:
        """Start all nodes, form the Cluster, and wait until it serves every slot."""
        try:
            for node in self.nodes:
                node.start()
            self._form()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all nodes, and remove their files."""
        for node in self.nodes:
            node.kill()
            node.stop()

    def wait_until_whole(self, timeout_s: float = FORM_TIMEOUT_S) -> None:
        """Wait until each node sees all slots served, and each replica follows its primary.

        Raise BackendUnavailable if this takes longer than ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while not all(self._is_settled(node) for node in self.nodes):
            if time.monotonic() > deadline:
                raise BackendUnavailable(f"The embedded Cluster is not complete after {timeout_s:.0f} s.")
            time.sleep(0.05)

    def _is_settled(self, node: ClusterNode) -> bool:
        try:
            facts = node.facts("CLUSTER", "INFO") | node.facts("INFO", "replication")
        except BackendUnavailable:
            return False
        return (
            facts["cluster_state"] == "ok"
            and int(facts["cluster_known_nodes"]) == len(self.nodes)
            and (facts["role"] == "master" or facts["master_link_status"] == "up")
        )

    def _form(self) -> None:
        primaries, replicas = self.nodes[: self._primaries], self.nodes[self._primaries :]
        for index, node in enumerate(self.nodes):
            node.id = node.ask("CLUSTER", "MYID")
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        for index, node in enumerate(primaries):
            first, last = (SLOTS * each // len(primaries) for each in (index, index + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
        # To introduce each node to each other is faster than to wait for the gossip.
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    node.ask("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus_port)
        deadline = time.monotonic() + FORM_TIMEOUT_S
        for index, node in enumerate(replicas):
            while True:
                try:
                    node.ask("CLUSTER", "REPLICATE", primaries[index % len(primaries)].id)
                    break
                except BackendUnavailable:  # The replica does not know its primary yet.
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
        self.wait_until_whole()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
