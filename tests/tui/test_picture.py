"""The picture in the README is what the code draws."""

import re
from pathlib import Path

from docs import picture

ROOT = Path(__file__).parents[2]
RECORDING = Path(__file__).parent / "recorded" / "top.json"
PICTURE = ROOT / "docs" / "images" / "top.svg"


def test_the_committed_picture_is_current() -> None:
    """Else: make docs."""
    assert PICTURE.read_text(encoding="utf-8") == picture.draw(RECORDING.read_bytes())


def test_the_picture_is_small_and_loads_nothing() -> None:
    """A README must not fetch fonts from elsewhere, nor weigh more than a photograph."""
    text = PICTURE.read_text(encoding="utf-8")
    assert len(text) < 200_000
    assert re.findall(r"url\((?!#)", text) == []
    assert [link for link in re.findall(r"https?://[^\"\s<]+", text) if "www.w3.org" not in link] == []
