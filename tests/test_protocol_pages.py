"""The pages about the other protocols name tests that are there, for each sentence of their sources."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "protocols").glob("*.md"))
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_test_that_a_page_names_is_there(page: Path) -> None:
    """A test that is renamed must not leave its sentence without proof."""
    named = set(re.findall(r"`(test_\w+)`", page.read_text("utf-8")))
    assert named, "the page names no test"
    assert named <= TESTS, sorted(named - TESTS)
