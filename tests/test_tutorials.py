"""Tutorials without Spark, followed word for word on a machine that has no server of Redis."""

import shutil
from pathlib import Path

import pytest

from streamworker.dev.server import free_port
from tests.following import Reader

DOCS = Path(__file__).parents[1] / "docs"
TOOLS = ("awk", "bash", "date", "env", "grep", "mkdir", "sh", "sleep")
"""All that a reader needs beside Python."""
FRAGMENTS_FROM = "\n## Event time\n"
"""Where the program of windows.md ends: tests/test_blocks.py runs what comes then."""


@pytest.mark.slow
@pytest.mark.full("starts a server, workers and each command as a process")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", ["getting-started.md", "tutorials/on-call.md", "windows.md"])
def test_a_reader_gets_what_the_tutorial_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command succeeds, and prints what stands below it."""
    path = tmp_path / "path"
    path.mkdir()
    for tool in TOOLS:
        (path / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(path))
    followed = tmp_path / Path(page).name
    text, _, _ = (DOCS / page).read_text("utf-8").partition(FRAGMENTS_FROM)
    followed.write_text(text.replace("8321", str(free_port())), "utf-8")
    with Reader(followed, tmp_path) as reader:
        assert list(reader.follow())
