"""What users' tests do, on the server in memory and on a real one."""

from collections.abc import Iterator

import pytest

from streamworker.testing import MemoryServer


@pytest.fixture(params=["memory", "valkey"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a server that holds nothing."""
    if request.param == "valkey":
        yield request.getfixturevalue("emptied")
    else:
        with MemoryServer() as server:
            yield server.url
