"""The demo's data set, which takes half a second to read."""

import pyarrow as pa
import pytest

from streamworker.dev.flights import load_flights


@pytest.fixture(scope="session")
def flights() -> pa.Table:
    """All flights."""
    return load_flights()
