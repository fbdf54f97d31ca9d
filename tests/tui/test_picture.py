"""The pictures in the documentation are what the code draws."""

import re
from pathlib import Path

import pytest

from docs import picture

RECORDED = Path(__file__).parent / "recorded"
PICTURES = Path(__file__).parents[2] / "docs" / "images"

pytestmark = pytest.mark.parametrize("name", ["top", "overview"])


def test_the_committed_picture_is_current(name: str) -> None:
    """Else: make docs."""
    drawn = picture.draw((RECORDED / f"{name}.json").read_bytes())
    assert (PICTURES / f"{name}.svg").read_text(encoding="utf-8") == drawn


def test_the_picture_is_small_and_loads_nothing(name: str) -> None:
    """A README must not fetch fonts from elsewhere, nor weigh more than a photograph."""
    text = (PICTURES / f"{name}.svg").read_text(encoding="utf-8")
    assert len(text) < 200_000
    assert re.findall(r"url\((?!#)", text) == []
    assert [link for link in re.findall(r"https?://[^\"\s<]+", text) if "www.w3.org" not in link] == []
