"""Fixtures of the contract: one set of cases, for Valkey, Redis 7.0, what sentinels name, and a Cluster."""

from collections.abc import AsyncIterator, Iterator

import pytest

from streamworker.redisio.wire.client import Backend
from tests.contract.support import GROUP, STREAM, Group, Raw
from tests.raw import opened


@pytest.fixture
def raw(redis_url: str) -> Iterator[Raw]:
    """A plain client: what other programs may do to our keys, and what they see of them."""
    with opened(redis_url) as client:
        yield client


@pytest.fixture
async def backend(redis_url: str) -> AsyncIterator[Backend]:
    """Our own connection to the server of this case."""
    async with Backend.open(redis_url, name="contract") as opened:
        yield opened


@pytest.fixture
def group(backend: Backend) -> Group:
    """A group on an empty server."""
    return Group(backend, STREAM, GROUP)


@pytest.fixture
def full_memory(raw: Raw) -> Iterator[Raw]:
    """A client whose ``config_set("maxmemory", 1)`` makes the server full; room comes back after the test."""
    yield raw
    raw.config_set("maxmemory", "1gb")


@pytest.fixture
def small_nodes(raw: Raw) -> Iterator[None]:
    """Make stream nodes of one entry, so that trimming by whole nodes is exact."""
    raw.config_set("stream-node-max-entries", 1)
    yield
    raw.config_set("stream-node-max-entries", 100)
