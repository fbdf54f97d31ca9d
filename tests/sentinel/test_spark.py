"""Spark behind sentinels: the primary alone is read, and what a failover lost is said."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from streamworker.errors import BackendUnavailable, DataLoss
from streamworker.redisio.wire.primaries import Answer
from streamworker.spark.source import connection
from streamworker.spark.source.connection import Connection
from tests.helpers import wait_for
from tests.spark.acked import AckedLog
from tests.spark.reading import Query
from tests.stage.server import Server
from tests.stage.trio import Trio

pytestmark = [
    pytest.mark.full("sentinels, replicas and failovers, which take seconds each"),
    pytest.mark.spark("reads as Spark's executors do"),
]


@pytest.fixture
def here(calm: Trio, monkeypatch: pytest.MonkeyPatch) -> Connection:
    monkeypatch.setenv("STREAMWORKER_CONNECTION_CALM", calm.url)
    return Connection("calm", 20_000)


def port_of(client: redis.Redis) -> int:
    return int(dict(client.config_get("port"))["port"] or 0)


def test_a_replica_is_never_read(calm: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentinels may be late; the server says what it is when it is connected to, each time."""
    replica = next(server for server in calm.servers if server is not calm.primary)
    monkeypatch.setenv("STREAMWORKER_CONNECTION_LATE", calm.url)
    late = Answer(("127.0.0.1", replica.port), 9)
    monkeypatch.setattr(connection, "_find_primary", lambda sentinels, epoch: late)
    with pytest.raises(BackendUnavailable, match="is a replica"):
        Connection("late", 100).call(port_of)


def test_a_connection_that_was_cut_by_a_failover_does_not_come_back_to_the_replica(
    steady: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py connects anew without a word to where it was connected before."""
    monkeypatch.setenv("STREAMWORKER_CONNECTION_TRIO", steady.url)
    patient = Connection("trio", 20_000)
    old = steady.primary
    assert patient.call(port_of) == old.port
    monkeypatch.setattr(connection, "LOOK_EVERY_S", 3_600.0)
    steady.let_sentinels_talk(100)
    steady.ask_for_failover()
    wait_for(lambda: old.role == "slave", "the old primary is a replica")
    assert patient.call(port_of) != old.port


def test_a_primary_that_was_cut_off_is_left_once_the_sentinels_name_another(
    steady: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, and does not know that it was replaced."""
    monkeypatch.setenv("STREAMWORKER_CONNECTION_TRIO", steady.url)
    steady.let_sentinels_talk(5_000)  # It is not to be told soon.
    monkeypatch.setattr(connection, "LOOK_EVERY_S", 0.5)
    patient = Connection("trio", 20_000)
    old = steady.primary
    assert patient.call(port_of) == old.port
    old.pause()
    steady.replace(old)
    old.resume()
    time.sleep(0.5)
    assert patient.call(port_of) != old.port
    assert old.is_primary, "it has noticed, so this shows nothing"


def test_sentinels_that_have_not_heard_of_a_failover_lead_nobody_back(
    here: Connection, calm: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither who is connected nor who comes back; but what all of them say is so."""
    primary, former = ("127.0.0.1", calm.primary.port), ("127.0.0.1", 1)
    deaf = BackendUnavailable("nobody there")
    said: list[Answer | BackendUnavailable] = [Answer(primary, 5)] * 3
    asked: list[str] = []

    def ask(url: str, service: str) -> Answer | BackendUnavailable:
        if url not in asked:
            asked.append(url)
        return said[asked.index(url)]

    monkeypatch.setattr(connection, "_ask_sentinel", ask)
    monkeypatch.setattr(connection, "LOOK_EVERY_S", 0.0)
    impatient = Connection("calm", 100)
    assert impatient.call(port_of) == primary[1]
    said[:] = [Answer(former, 4), Answer(former, 4), deaf]
    assert impatient.call(port_of) == primary[1]
    connection._clients[os.getpid(), calm.url].close()
    with pytest.raises(BackendUnavailable, match="have not heard of the last failover"):
        impatient.call(port_of)
    said[:] = [Answer(primary, 4)] * 3
    assert impatient.call(port_of) == primary[1]


# -- what a failover loses -------------------------------------------------------------------


@contextmanager
def log_at(server: Server) -> Iterator[AckedLog]:
    with AckedLog(f"redis://:{server.password}@127.0.0.1:{server.port}/0", partitions=1) as log:
        yield log


def everywhere(log: AckedLog) -> None:
    log.redis.set("mark", "")
    assert log.redis.wait(2, 10_000) == 2


@contextmanager
def failover_that_loses(steady: Trio) -> Iterator[None]:
    """Let the primary die, and with it what is written to it in this block."""
    with steady.replicas_cut_off() as old:
        yield
        old.kill()
    steady.replace(old)


def test_rows_that_were_read_and_are_lost_end_a_query(steady: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is shorter than what was read; the message says by how much."""
    monkeypatch.setenv("STREAMWORKER_CONNECTION_TRIO", steady.url)
    with log_at(steady.primary) as log:
        log.fill(0, [3])
        options = log.options(connection="trio")
        query, tolerant = Query(options), Query({**options, "failOnDataLoss": "false"})
        assert len(query.batch()) == 3
        tolerant.batch()
        everywhere(log)
        with failover_that_loses(steady):
            log.fill(0, [5])
            assert len(query.batch()) == 5
            tolerant.batch()
    with pytest.raises(DataLoss, match=r"read up to row 8, and it is shorter.*"):
        query.batch()
    tolerant.batch()
    with log_at(steady.primary) as log:
        log.fill(0, [2])
        assert len(tolerant.batch()) == 2, "it goes on behind what is left"
