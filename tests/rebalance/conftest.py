"""The stage of most tests of rebalances."""

from pathlib import Path

import pytest

from tests.conftest import SpawnWorker
from tests.rebalance.scene import Scene


@pytest.fixture
def scene(redis_url: str, spawn: SpawnWorker, tmp_path: Path) -> Scene:
    """Eight partitions, and nobody there yet."""
    return Scene(redis_url, spawn, tmp_path, partitions=8)
