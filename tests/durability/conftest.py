"""Servers that keep what they have, each in its way."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamworker.dev.server import EmbeddedServer
from tests.durability.pair import AlwaysOnDisk, Pair


@pytest.fixture(scope="module")
def shared_pair() -> Iterator[Pair]:
    """A primary and its replica; the replica runs and follows again after each test."""
    pair = Pair()
    pair.start()
    yield pair
    pair.stop()


@pytest.fixture
def pair(shared_pair: Pair) -> Iterator[Pair]:
    """The pair, empty."""
    from tests.durability.pair import raw

    with raw(shared_pair.primary) as client:
        client.flushall()
        client.script_flush()
    yield shared_pair
    shared_pair.resume_replica()


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server with an append-only file, and ``appendfsync always``, at a port."""
    with AlwaysOnDisk(data_dir=tmp_path / "data", appendonly=True, port=0) as server:
        yield server
