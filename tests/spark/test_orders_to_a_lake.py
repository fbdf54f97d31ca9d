"""docs/tutorials/orders-to-a-lake.md, followed word for word."""

from pathlib import Path

import pytest

from streamworker.dev.server import free_port
from tests.following import Reader

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "orders-to-a-lake.md"


@pytest.mark.soak("starts a server, workers, a web service and Spark")
@pytest.mark.timeout(900)
def test_a_shop_from_its_records_to_its_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its types and tests pass, and each command prints what the page says."""
    port = free_port()
    (tmp_path / ".curlrc").write_text(f"connect-to = localhost:8000:localhost:{port}\n", "utf-8")
    monkeypatch.setenv("CURL_HOME", str(tmp_path))
    monkeypatch.setenv("UVICORN_PORT", str(port))
    with Reader(PAGE, tmp_path) as reader:
        for _ in reader.follow():
            pass
