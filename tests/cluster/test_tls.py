"""A Cluster that speaks TLS to its clients and between its nodes, and asks for client certificates.

Its certificate is good for ``localhost`` alone, so nodes must be named by host in all that they say of each
other: where the slots are, and where one has gone. Debian's Redis, since Valkey's wheel has no TLS.

Spark's processes read with redis-py, which makes an address of the one name ``localhost`` before it looks at
a certificate: what it reads has one for both.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from streamworker.dev.server import free_port
from streamworker.errors import BackendUnavailable
from streamworker.redisio.keys import GroupKeys
from streamworker.redisio.wire import topology
from streamworker.redisio.wire.client import Backend
from streamworker.spark.source import connection
from streamworker.spark.source.connection import Connection
from streamworker.spark.source.logs import AckedLogs
from streamworker.spark.source.offsets import Slice
from streamworker.spark.source.options import parse_options
from tests.certificates import make_certificates, tls_config
from tests.chaos.forked import Forge
from tests.chaos.rows_app import PROCESSOR, STREAM
from tests.chaos.team import Team
from tests.conftest import NO_REDIS_SERVER, REDIS_SERVER
from tests.stage.cluster import Cluster, Node

pytestmark = [pytest.mark.timeout(120), pytest.mark.full("needs a Redis: the Valkey of PyPI has no TLS")]

NODES = 3
PARTITIONS = 8
KEYS = GroupKeys("ledger", STREAM, PROCESSOR)
LOGS = {"app": KEYS.app, "stream": STREAM, "processor": PROCESSOR}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two authorities, and certificates for nodes and for clients."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


class TlsNode(Node):
    """One node. Its port without TLS is for whoever forms the Cluster: no client with TLS is told it."""

    def __init__(self, folder: Path, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.folder, self.tls_port = folder, free_port()

    def _config(self) -> str:
        return f"""{super()._config()}
            {tls_config(self.folder, self.tls_port, self._home)}
            tls-cluster yes
            cluster-announce-hostname localhost
            cluster-preferred-endpoint-type hostname
        """


class TlsCluster(Cluster):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(NODES, 0, REDIS_SERVER)

    def make_node(self, number: int, given: tuple[Any, ...]) -> TlsNode:
        return TlsNode(self.folder, *given)

    def url_by(self, authority: str = "ca") -> str:
        """Return its URL, with the authority that its certificates are held against."""
        places = ",".join(f"localhost:{node.tls_port}" for node in self.nodes)
        files = f"ssl_certfile={self.folder}/client.pem&ssl_keyfile={self.folder}/client.key"
        return (
            f"rediss+cluster://:{self.password}@{places}/0?ssl_ca_certs={self.folder}/{authority}.pem&{files}"
        )

    def certify(self, certificate: str) -> None:
        for node in self.nodes:
            node.ask("CONFIG", "SET", "tls-cert-file", f"{self.folder}/{certificate}.pem")


# The parameter leaves these tests out where there is no redis-server.
@pytest.fixture(scope="module", params=["redis7"])
def tls(certificates: Path) -> Iterator[TlsCluster]:
    if REDIS_SERVER is None:
        pytest.fail(NO_REDIS_SERVER)
    with TlsCluster(certificates) as cluster:
        yield cluster


@pytest.fixture
def redis_url(tls: TlsCluster) -> Iterator[str]:
    tls.certify("server")
    for node in tls.nodes:
        node.ask("FLUSHALL")
    yield tls.url_by()
    while connection._clients:
        connection._clients.popitem()[1].close()


def read_all() -> list[int]:
    logs = AckedLogs(parse_options({**LOGS, "reader": "q", "retryTimeout": "10s"}))
    tails = logs.tails()
    slices = [Slice(p, tail.log, 0, tail.rows) for p, tail in tails.items() if tail.rows]
    return [n for part in slices for entry in logs.read(part) for n in entry.batch["n"].to_pylist()]


@pytest.mark.anyio
async def test_workers_producers_and_readers_go_through_tls_to_every_node(
    tls: TlsCluster, redis_url: str, crew: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a slot goes to another node, which is followed to its name."""
    async with Team(redis_url, crew, tmp_path, name=KEYS.app, partitions=PARTITIONS) as team:
        assert {tls.primary_of(KEYS.events(p)) for p in range(PARTITIONS)} == set(tls.nodes)
        await team.hired("w1")
        async with team.load(per_second=400):
            confirmed = team.sends.confirmed
            await team.until("records flow", lambda: len(confirmed) > 50)
            target = tls.another_primary(tls.primary_of(KEYS.events(0)))
            assert await asyncio.to_thread(tls.move_slot, KEYS.events(0), target, pause_s=0.02) >= 3
            goal = len(confirmed) + 50
            await team.until("records flow on", lambda: len(confirmed) > goal)
        await team.finished()
        tls.certify("both")
        monkeypatch.setenv("STREAMWORKER_CONNECTION_DEFAULT", redis_url)
        there = await asyncio.to_thread(read_all)
        assert sorted(there) == list(range(team.sender.issued)) and not team.sends.unknown
        leaving = team.ask_to_leave("w1")
        assert await team.ended(leaving) == 0
        assert tls.password not in leaving.log()


@pytest.mark.usefixtures("redis_url")
def test_a_cluster_that_cannot_be_verified_is_sent_nothing(
    tls: TlsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By workers and producers, and by what Spark runs; no message holds the password."""
    # A handshake may take more than a second on a busy machine.
    monkeypatch.setattr(topology, "ASK_TIMEOUT_S", 30.0)

    async def ping() -> None:
        async with Backend.open(tls.url_by("other"), name="t", call_timeout_ms=6_000) as backend:
            await backend.execute("GET", "a")

    with pytest.raises(BackendUnavailable, match="certificate verify failed") as caught:
        anyio.run(ping)
    # With a certificate that is good for the address too, so that the authority alone is what is wrong.
    tls.certify("both")
    asks = Connection("far", 0)
    monkeypatch.setenv("STREAMWORKER_CONNECTION_FAR", tls.url_by())
    assert asks.call(lambda client: client.get("a")) is None
    monkeypatch.setenv("STREAMWORKER_CONNECTION_FAR", tls.url_by("other"))
    with pytest.raises(BackendUnavailable, match="certificate verify failed") as in_spark:
        asks.call(lambda client: client.get("a"))
    assert tls.password not in f"{caught.value}{caught.value.remedy}{in_spark.value}{in_spark.value.remedy}"
