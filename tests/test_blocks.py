"""Each Python block of a page is run; tests/blocks.py says how."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.blocks import ALL, FRAGMENTS, ROOT, Block, run

PROGRAMS = {
    "docs/getting-started.md": "tests/test_tutorials.py",
    "docs/moving": "tests/test_moving.py",
    "docs/outbox.md": "tests/test_outbox.py",
    "docs/recipes": "tests/test_recipes.py",
    "docs/sending.md": "tests/test_web.py",
    "docs/spark.md": "tests/spark/test_tutorial.py",
    "docs/tutorials/on-call.md": "tests/test_tutorials.py",
    "docs/tutorials/orders-to-a-lake.md": "tests/spark/test_orders_to_a_lake.py",
    "docs/tutorials/production.md": "tests/deploy/test_production.py",
    "docs/windows.md": "tests/test_tutorials.py",
}
"""Pages with the files of programs, and the test that saves and runs them."""


def runs(block: Block) -> str:
    """Return what runs a block; nothing if nobody does, and for no reason."""
    if block.mark in ("", "given"):
        return "as a fragment" + (", with Spark" if block.needs_spark else "")
    if block.mark == "runnable":
        return "as a program"
    if block.mark in ("run by", "not run", "skip"):
        return f"{block.mark}: {block.what}"
    if block.mark not in ("save", "append"):
        return ""
    return PROGRAMS.get(block.page) or PROGRAMS.get(Path(block.page).parent.as_posix(), "")


def test_each_block_is_run_or_says_why_not() -> None:
    """The count of both is printed."""
    for what, count in Counter(map(runs, ALL)).most_common():
        print(f"{count:4} {what}")
    assert [str(block) for block in ALL if not runs(block)] == []
    others = {block.page: block.what for block in ALL if block.mark == "run by"}
    for page, test in (others | PROGRAMS).items():
        assert Path(page).stem in (ROOT / test).read_text("utf-8"), f"{test} does not run {page}"


@pytest.mark.anyio
@pytest.mark.parametrize("block", [each for each in FRAGMENTS if not each.needs_spark], ids=str)
async def test_a_fragment_runs_with_what_its_page_gives_it(
    block: Block, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And does what the page says, where the page lets it be called."""
    monkeypatch.chdir(tmp_path)
    await run(block, monkeypatch)


@pytest.mark.full("starts servers and workers")
@pytest.mark.parametrize("block", [each for each in ALL if each.mark == "runnable"], ids=str)
def test_a_program_that_a_reader_is_told_to_run_runs(block: Block, tmp_path: Path) -> None:
    """Saved under the name that the page gives it: a program of its own, or a test for pytest."""
    (tmp_path / block.what).write_text(block.code, "utf-8")
    runner = ["-m", "pytest"] if block.what.startswith("test_") else []
    command = [sys.executable, *runner, block.what]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_worker_in_the_readme_has_twenty_lines_and_is_an_app() -> None:
    """As its heading says; blank ones and comments of their own do not count."""
    block = next(each for each in ALL if each.page == "README.md")
    assert block.what == "shop.py"
    assert len([line for line in block.code.splitlines() if line.strip()]) <= 20
