"""Fixtures: three servers and three sentinels."""

from collections.abc import Iterator

import pytest

from streamworker.spark.source import connection
from tests.stage.server import QUIET_MS
from tests.stage.trio import Trio


@pytest.fixture(scope="session")
def calm(sentinel: Trio) -> Trio:
    return sentinel


@pytest.fixture
def steady() -> Iterator[Trio]:
    """Servers and sentinels of this test alone, with no failovers but those that it causes."""
    with Trio(down_after_ms=QUIET_MS) as trio:
        yield trio


@pytest.fixture(autouse=True)
def no_client_stays() -> Iterator[None]:
    yield
    while connection._clients:
        connection._clients.popitem()[1].close()
