"""Fixtures for what is special about a Cluster; the contract is tried on one as well."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from streamworker.dev.cluster import EmbeddedCluster
from tests.chaos.forked import Forge
from tests.chaos.team import Team
from tests.raw import RawCluster, opened


@pytest.fixture
def redis_url(nodes: EmbeddedCluster) -> str:
    return nodes.url


@pytest.fixture
def raw(nodes: EmbeddedCluster) -> Iterator[RawCluster]:
    with opened(nodes.url) as client:
        yield client


@pytest.fixture
async def team(nodes: EmbeddedCluster, tmp_path: Path, crew: Forge) -> AsyncIterator[Team]:
    async with Team(nodes.url, crew, tmp_path, name="ledger", partitions=8, ledger=True) as team:
        yield team
