"""Spark's reads on a Cluster: a pipeline over all slots, primaries alone, and on after a failover."""

from collections.abc import Iterator
from typing import Any

import pytest

from streamworker.errors import AuthenticationFailed, BackendUnavailable, ConfigurationError
from streamworker.redisio.admin.rights import acl_rules
from streamworker.spark.source import connection
from streamworker.spark.source.connection import Connection
from streamworker.spark.source.logs import AckedLogs
from streamworker.spark.source.offsets import Slice
from streamworker.spark.source.options import SourceOptions
from tests.spark.acked import AckedLog
from tests.stage.cluster import Cluster

pytestmark = pytest.mark.full("a query of Spark takes seconds")

PARTITIONS = 12
OPTIONS = SourceOptions(app="shop", stream="orders", processor="price", reader="r", retry_timeout_ms=20_000)


@pytest.fixture
def acked(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[AckedLog]:
    monkeypatch.setenv("STREAMWORKER_CONNECTION_DEFAULT", nodes.url)
    with AckedLog(nodes.url, partitions=PARTITIONS) as log:
        yield log
    while connection._clients:
        connection._clients.popitem()[1].close()


def read_all(logs: AckedLogs) -> list[int]:
    tails = logs.tails()
    slices = [Slice(p, tail.log, 0, tail.rows) for p, tail in tails.items() if tail.rows]
    return sorted(n for part in slices for entry in logs.read(part) for n in entry.batch["n"].to_pylist())


def calls_of(node: Any, command: str) -> int:
    with node.client() as client:
        return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def test_a_node_on_another_machine_is_sent_no_password_as_plain_text(
    acked: AckedLog, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL speaks of this machine alone: whoever wrote it has not said that it may leave it."""
    node = next(node for node in cluster.nodes if node.is_primary)
    monkeypatch.setenv("STREAMWORKER_CONNECTION_DEFAULT", node.url.replace("redis://", "redis+cluster://"))
    with node.client() as client:
        client.config_set("cluster-announce-ip", "192.0.2.7")
        try:
            with pytest.raises(ConfigurationError, match=r"node of the Cluster.*plain text to 192\.0\.2\.7"):
                AckedLogs(OPTIONS).tails()
        finally:
            client.config_set("cluster-announce-ip", "")


def test_logs_of_all_slots_are_read_from_their_primaries(acked: AckedLog, cluster: Cluster) -> None:
    """One pipeline asks all locks; no replica is asked for anything."""
    replicas = [node for node in cluster.nodes if not node.is_primary]
    before = [(calls_of(node, "hmget"), calls_of(node, "xrange")) for node in replicas]
    for partition in range(PARTITIONS):
        acked.fill(partition, [2, 3])
    assert len({cluster.primary_of(acked.keys.lock(p)).port for p in range(PARTITIONS)}) == 3
    logs = AckedLogs(OPTIONS)
    tails, at_ms = logs.tails_and_time()
    assert [tails[p].rows for p in range(PARTITIONS)] == [5] * PARTITIONS
    assert at_ms > 0
    assert read_all(logs) == acked.numbers()
    assert logs.schema().names == ["n", "user", "amount"]
    logs.register(tails, at_ms, retry=False)
    assert acked.redis.hexists(acked.keys.readers, "r")
    assert [(calls_of(node, "hmget"), calls_of(node, "xrange")) for node in replicas] == before
    source = cluster.primary_of(acked.keys.acked(3))
    cluster.move_slot(acked.keys.acked(3), cluster.another_primary(source))
    assert read_all(logs) == acked.numbers(), "one log is elsewhere since it was planned"


def test_what_is_wrong_with_a_cluster_is_said_without_a_password(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMWORKER_CONNECTION_AWAY", "redis+cluster://:canary@127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(BackendUnavailable, match=r"127\.0\.0\.1:1, 127\.0\.0\.1:2") as caught:
        Connection("away", 200).call(lambda client: client.ping())
    assert "canary" not in str(caught.value)
    password = cluster.nodes[0].password
    monkeypatch.setenv("STREAMWORKER_CONNECTION_WRONG", cluster.url.replace(password, "canary"))
    with pytest.raises(AuthenticationFailed) as refused:
        Connection("wrong", 60_000).call(lambda client: client.hget("x", "y"))
    assert "canary" not in str(refused.value)


def test_reading_goes_on_after_a_failover(acked: AckedLog, cluster: Cluster) -> None:
    for partition in range(PARTITIONS):
        acked.fill(partition, [4])
    logs = AckedLogs(OPTIONS)
    assert read_all(logs) == acked.numbers()
    cluster.fail_over(cluster.primary_of(acked.keys.lock(0)))
    assert read_all(logs) == acked.numbers()


def test_the_rights_of_a_reader_are_enough(
    acked: AckedLog, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    acked.fill(3, [4])
    for node in cluster.nodes:
        with node.client() as client:
            client.execute_command(
                "ACL", "SETUSER", "spark", "reset", "on", ">pw", *acl_rules("shop", "reader")
            )
    url = cluster.url.replace(f":{cluster.nodes[0].password}@", "spark:pw@")
    assert url != cluster.url
    monkeypatch.setenv("STREAMWORKER_CONNECTION_DEFAULT", url)
    logs = AckedLogs(OPTIONS)
    assert read_all(logs) == acked.numbers()
    logs.register(logs.tails(), 1, retry=False)
