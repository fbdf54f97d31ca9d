"""The trace of one order: a web service, three processors and a timer, as docs/tracing.md shows it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import PATIENCE_S

DOCS = Path(__file__).parents[2] / "docs" / "tracing.md"


@pytest.mark.full("a program that imports OpenTelemetry's exporter takes six seconds of a core")
def test_an_otlp_receiver_gets_the_trace_of_an_order_as_one_tree(redis_url: str) -> None:
    """Each commit and message, and the timer with the trace that it goes on with.

    Which spans FastAPI makes above the send is its own affair.
    """
    command = [sys.executable, "-m", "tests.tracetree", redis_url]
    ran = subprocess.run(
        command, cwd=DOCS.parents[1], capture_output=True, text=True, check=True, timeout=4 * PATIENCE_S
    )
    tree = ran.stdout.splitlines()
    start = next(index for index, line in enumerate(tree) if line.endswith("send orders"))
    page = DOCS.read_text("utf-8").split("```text\n")[1].split("```")[0].splitlines()
    assert [line.lstrip(" │") for line in page if "fastapi" not in line and "POST" not in line] == [
        line.lstrip(" │") for line in tree[start:] if "fastapi" not in line
    ]
    assert "timer remind  (by a link)" in ran.stdout
