"""Servers that keep what they have, each in its way."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamworker.dev.server import EmbeddedServer
from tests.conftest import NO_REDIS_SERVER, REDIS_SERVER
from tests.durability.pair import AlwaysOnDisk, Pair, raw


@pytest.fixture(scope="module", params=["valkey", pytest.param("redis7", marks=pytest.mark.soak)])
def shared_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A primary and its replica; the replica runs and follows again after each test."""
    is_redis = request.param == "redis7"
    if is_redis and REDIS_SERVER is None:
        pytest.fail(NO_REDIS_SERVER)  # Without a name it would be a Valkey under Redis' name.
    pair = Pair(REDIS_SERVER if is_redis else None)
    pair.start()
    yield pair
    pair.stop()


@pytest.fixture
def pair(shared_pair: Pair) -> Iterator[Pair]:
    """The pair, empty."""
    with raw(shared_pair.primary) as client:
        client.flushall()
        client.script_flush()
    yield shared_pair
    shared_pair.resume_replica()


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with AlwaysOnDisk(data_dir=tmp_path / "data", appendonly=True, port=0) as server:
        yield server
