"""Each of these tests runs on a real server, and on the server in memory that users' tests run on."""

from collections.abc import Iterator

import pytest

from streamworker.testing import MemoryServer


@pytest.fixture(params=["valkey", "memory"])
def redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a server that holds nothing."""
    if request.param == "valkey":
        yield request.getfixturevalue("emptied")
    else:
        with MemoryServer() as server:
            yield server.url
