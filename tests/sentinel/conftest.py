"""Fixtures: three servers and three sentinels."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamworker.spark.source import connection
from tests.sentinel.trio import QUIET_MS, Trio


@pytest.fixture(scope="session")
def calm(sentinel: Trio) -> Trio:
    return sentinel


@pytest.fixture
def steady(tmp_path: Path) -> Iterator[Trio]:
    """Servers and sentinels of this test alone, with no failovers but those that it causes."""
    with Trio(tmp_path / "trio", down_after_ms=QUIET_MS) as trio:
        yield trio


@pytest.fixture(autouse=True)
def no_client_stays() -> Iterator[None]:
    yield
    while connection._clients:
        connection._clients.popitem()[1].close()
