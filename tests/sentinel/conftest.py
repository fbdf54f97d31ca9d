"""Fixtures: three servers and three sentinels."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sentinel.trio import Trio


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Servers and sentinels that no test disturbs."""
    with Trio(tmp_path_factory.mktemp("calm"), down_after_ms=30_000) as trio:
        yield trio


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    """Servers and sentinels of this test alone."""
    with Trio(tmp_path / "trio") as trio:
        yield trio
