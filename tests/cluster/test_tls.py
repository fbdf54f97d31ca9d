"""A Cluster that speaks TLS only, to its clients and between its nodes, and asks for client certificates.

Its certificate is good for ``localhost`` alone, so nodes must be named by host in all that they say of each
other: where the slots are, and where one has gone. Debian's Redis, since Valkey's wheel has no TLS.

Spark's processes read with redis-py, which makes an address of the one name ``localhost`` before it looks at
a certificate: what it reads has one for both.
"""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import anyio
import pytest
import redis

from streamworker import App
from streamworker.errors import BackendUnavailable
from streamworker.redisio.snapshot import take_snapshot
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.topology import SLOTS, slot_of
from streamworker.spark.source import connection
from streamworker.spark.source.connection import Connection
from streamworker.spark.source.logs import AckedLogs
from streamworker.spark.source.offsets import Slice
from streamworker.spark.source.options import parse_options
from tests.certificates import make_certificates, tls_config
from tests.chaos.forked import Forge
from tests.chaos.rows_app import PROCESSOR, STREAM, Item
from tests.conftest import NO_REDIS_SERVER, REDIS_SERVER
from tests.helpers import wait_for
from tests.rebalance.scene import KEYS, Scene
from tests.sentinel.trio import free_ports

pytestmark = [pytest.mark.timeout(120), pytest.mark.full("needs a Redis: the Valkey of PyPI has no TLS")]

PASSWORD = "canary-Pa55word"
NODES = 3
PARTITIONS = 8
LOGS = {"app": KEYS.app, "stream": STREAM, "processor": PROCESSOR}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two authorities, and certificates for nodes and for clients."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@dataclass(frozen=True)
class Node:
    """One node, and the files that it takes to be let in."""

    port: int
    bus_port: int
    folder: Path

    def config(self, home: Path) -> str:
        return f"""{tls_config(self.folder, self.port, home)}
            cluster-port {self.bus_port}
            cluster-enabled yes
            tls-cluster yes
            cluster-announce-hostname localhost
            cluster-preferred-endpoint-type hostname
            requirepass {PASSWORD}
            masterauth {PASSWORD}
            maxmemory-policy noeviction
            save ""
        """

    def client(self) -> "redis.Redis":
        return redis.Redis(
            host="localhost",
            port=self.port,
            password=PASSWORD,
            protocol=2,
            ssl=True,
            ssl_ca_certs=str(self.folder / "ca.pem"),
            ssl_certfile=str(self.folder / "client.pem"),
            ssl_keyfile=str(self.folder / "client.key"),
        )

    def ask(self, *words: Any) -> Any:
        with self.client() as client:
            return client.execute_command(*words)

    @property
    def is_up(self) -> bool:
        try:
            return bool(self.ask("PING"))
        except redis.RedisError:
            return False

    @property
    def knows_all(self) -> bool:
        served = [(host, first) for first, _, (host, *_), *_ in self.ask("CLUSTER SLOTS")]
        is_named = all(host == b"localhost" for host, _ in served)
        return len(served) == NODES and is_named and b"cluster_state:ok" in self.ask("CLUSTER", "INFO")


@dataclass(frozen=True)
class TlsCluster:
    nodes: list[Node]

    def url(self, authority: str = "ca") -> str:
        """Return its URL, with the authority that its certificates are held against."""
        folder = self.nodes[0].folder
        places = ",".join(f"localhost:{node.port}" for node in self.nodes)
        files = f"ssl_certfile={folder}/client.pem&ssl_keyfile={folder}/client.key"
        return f"rediss+cluster://:{PASSWORD}@{places}/0?ssl_ca_certs={folder}/{authority}.pem&{files}"

    def certify(self, certificate: str) -> None:
        for node in self.nodes:
            node.ask("CONFIG", "SET", "tls-cert-file", f"{node.folder}/{certificate}.pem")

    def primary_of(self, key: str) -> Node:
        for first, last, (_, port, *_), *_ in self.nodes[0].ask("CLUSTER SLOTS"):
            if first <= slot_of(key) <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"nobody has {key}")

    def form(self) -> None:
        for place, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", place + 1)
            low, high = (SLOTS * each // NODES for each in (place, place + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", low, high - 1)
        first, *others = self.nodes
        for node in others:
            first.ask("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        wait_for(lambda: all(node.knows_all for node in self.nodes), "the nodes know each other")

    def move_slot(self, key: str, target: Node) -> None:
        slot, source = slot_of(key), self.primary_of(key)
        names = {node: node.ask("CLUSTER", "MYID").decode() for node in (source, target)}
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
        while found := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1):
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "AUTH", PASSWORD, "KEYS", *found)
            time.sleep(0.02)
        for node in (target, source):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", names[target])


# The parameter leaves these tests out where there is no redis-server.
@pytest.fixture(scope="module", params=["redis7"])
def tls(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    if REDIS_SERVER is None:
        pytest.fail(NO_REDIS_SERVER)
    ports = iter(free_ports(2 * NODES))
    nodes = [Node(next(ports), next(ports), certificates) for _ in range(NODES)]
    with ExitStack() as stack:
        for node in nodes:
            home = tmp_path_factory.mktemp("node")
            process = stack.enter_context(
                subprocess.Popen(
                    [REDIS_SERVER, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
                )
            )
            stack.callback(process.kill)
            assert process.stdin is not None
            process.stdin.write(node.config(home))
            process.stdin.close()
        wait_for(lambda: all(node.is_up for node in nodes), "the nodes answer")
        cluster = TlsCluster(nodes)
        cluster.form()
        yield cluster


@pytest.fixture
def redis_url(tls: TlsCluster) -> Iterator[str]:
    tls.certify("server")
    for node in tls.nodes:
        node.ask("FLUSHALL")
    yield tls.url()
    while connection._clients:
        connection._clients.popitem()[1].client.close()


@pytest.fixture
def scene(redis_url: str, tmp_path: Path, crew: Forge) -> Scene:
    return Scene(redis_url, crew, tmp_path, PARTITIONS)


class Sender:
    """Sends numbered records, and sees whether they are committed; its connections stay open."""

    def __init__(self, url: str) -> None:
        self._app = App(KEYS.app, redis_url=url)
        self._items = self._app.stream(STREAM, Item, key="key", partitions=PARTITIONS)
        self._backend = Backend.open(url, name="observer", call_timeout_ms=10_000)
        self.sent = 0

    async def __aenter__(self) -> Self:
        await self._app.__aenter__()
        await self._backend.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._backend.aclose()
        await self._app.__aexit__(None, None, None)

    async def send(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        await asyncio.gather(*(self._items.send(Item(f"k{n % 97}", n)) for n in numbers))
        self.sent += count

    async def drained(self) -> None:
        with anyio.fail_after(60):
            while (await take_snapshot(self._backend, KEYS.app, STREAM, PROCESSOR)).lag:
                await anyio.sleep(0.05)


def read_all() -> list[int]:
    logs = AckedLogs(parse_options({**LOGS, "reader": "q", "retryTimeout": "10s"}))
    tails = logs.tails()
    slices = [Slice(p, tail.log, 0, tail.rows) for p, tail in tails.items() if tail.rows]
    return [n for part in slices for entry in logs.read(part) for n in entry.batch["n"].to_pylist()]


@pytest.mark.anyio
async def test_workers_producers_and_readers_go_through_tls_to_every_node(
    tls: TlsCluster, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a slot goes to another node, which is followed to its name."""
    assert len({tls.primary_of(KEYS.events(p)).port for p in range(PARTITIONS)}) == NODES
    source = tls.primary_of(KEYS.events(0))
    target = next(node for node in tls.nodes if node is not source)
    worker = scene.worker("w1")
    async with Sender(scene.url) as sender:
        await sender.send(50)
        await sender.drained()
        moving = asyncio.create_task(asyncio.to_thread(tls.move_slot, KEYS.events(0), target))
        while not moving.done():
            await sender.send(10)
        await moving
        await sender.send(50)
        await sender.drained()
    wait_for(lambda: tls.primary_of(KEYS.events(0)) is target, "the first node knows it, too")
    tls.certify("both")
    monkeypatch.setenv("STREAMWORKER_CONNECTION_DEFAULT", scene.url)
    assert sorted(read_all()) == list(range(sender.sent))
    worker.terminate()
    assert worker.wait() == 0
    assert PASSWORD not in worker.log()


@pytest.mark.usefixtures("redis_url")
def test_a_cluster_that_cannot_be_verified_is_sent_nothing(
    tls: TlsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By workers and producers, and by what Spark runs; no message holds the password."""

    async def ping() -> None:
        async with Backend.open(tls.url("other"), name="t", call_timeout_ms=3_000) as backend:
            await backend.execute("GET", "a")

    with pytest.raises(BackendUnavailable, match="certificate verify failed") as caught:
        anyio.run(ping)
    # With a certificate that is good for the address too, so that the authority alone is what is wrong.
    tls.certify("both")
    asks = Connection("far", 0)
    monkeypatch.setenv("STREAMWORKER_CONNECTION_FAR", tls.url())
    assert asks.call(lambda client: client.get("a")) is None
    monkeypatch.setenv("STREAMWORKER_CONNECTION_FAR", tls.url("other"))
    with pytest.raises(BackendUnavailable, match="certificate verify failed") as in_spark:
        asks.call(lambda client: client.get("a"))
    assert PASSWORD not in f"{caught.value}{caught.value.remedy}{in_spark.value}{in_spark.value.remedy}"
