"""Fixtures for what is special about a Cluster; the contract is tried on one as well."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamworker.dev.cluster import EmbeddedCluster
from tests.chaos.forked import Forge
from tests.cluster.support import ClusterScene
from tests.raw import RawCluster, opened


@pytest.fixture
def redis_url(nodes: EmbeddedCluster) -> str:
    return nodes.url


@pytest.fixture
def raw(nodes: EmbeddedCluster) -> Iterator[RawCluster]:
    with opened(nodes.url) as client:
        yield client


@pytest.fixture
def scene(nodes: EmbeddedCluster, tmp_path: Path, crew: Forge) -> ClusterScene:
    return ClusterScene(nodes, crew, tmp_path, partitions=8)
