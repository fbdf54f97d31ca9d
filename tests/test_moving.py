"""The pages of docs/moving, followed word for word: what one had, and streamworker beside it."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from streamworker.dev.server import EmbeddedServer
from tests.following import Reader
from tests.helpers import wait_for
from tests.spark.processes import START_S

PAGES = Path(__file__).parent.parent / "docs" / "moving"

pytestmark = pytest.mark.full("starts programs of other libraries, and workers")


@pytest.mark.parametrize(
    ("page", "needs", "billed"),
    [
        ("celery", "celery", {"shop": range(100)}),
        ("xreadgroup", "redis", {"before": range(100), "trial": range(100), "shop": range(100, 150)}),
        ("faststream", "faststream", {"before": range(100), "shop": range(100)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_one_had_runs_beside_ours(
    page: str,
    needs: str,
    billed: Mapping[str, Iterable[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each program has billed its orders, each once, when the page ends."""
    pytest.importorskip(needs)

    def numbers(program: str) -> list[int]:
        lines = re.findall(r"billed .* (\d+)", (tmp_path / "logs" / program).read_text("utf-8"))
        return sorted(map(int, lines))

    with EmbeddedServer(port=0) as server:
        monkeypatch.setenv("STREAMWORKER_REDIS_URL", server.url)
        with Reader(PAGES / f"{page}.md", tmp_path) as reader:
            for _ in reader.follow():
                pass
            wait_for(
                lambda: all(numbers(program) == list(orders) for program, orders in billed.items()),
                f"the programs of {page} have billed their orders",
                timeout_s=START_S,
            )
