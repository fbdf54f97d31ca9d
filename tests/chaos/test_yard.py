"""Scenes that are played together: what becomes of one is told by its own test, and by no other."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from tests.chaos.yard import SCENES, Together, Yard


async def skips(yard: Yard) -> None:
    pytest.skip("its reason")


async def fails(yard: Yard) -> None:
    pytest.fail("its failure")


async def breaks(yard: Yard) -> None:
    raise RuntimeError("its own")


async def passes(yard: Yard) -> None:
    await asyncio.sleep(0.05)


def test_a_scene_that_skips_or_fails_is_its_own_tests_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order, though all were played when the first was asked for."""
    for scene in (skips, fails, breaks, passes):
        monkeypatch.setitem(SCENES, scene.__name__, scene)
    together = Together(cast(Any, None), tmp_path, ["skips", "fails", "breaks", "passes"])
    together.outcome("passes")
    with pytest.raises(pytest.skip.Exception, match="its reason"):
        together.outcome("skips")
    with pytest.raises(pytest.fail.Exception, match="its failure"):
        together.outcome("fails")
    with pytest.raises(RuntimeError, match="its own"):
        together.outcome("breaks")
    together.outcome("passes")
