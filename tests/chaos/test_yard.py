"""Scenes that are played together: what becomes of one is told by its own test, and by no other."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.chaos.servers import NEEDS_ROOT
from tests.chaos.yard import SCENES, Together, Yard


async def skips(yard: Yard) -> None:
    pytest.skip(NEEDS_ROOT)


async def fails(yard: Yard) -> None:
    with pytest.raises(ValueError, match="never"):
        await asyncio.sleep(0)


async def breaks(yard: Yard) -> None:
    raise RuntimeError("its own")


async def passes(yard: Yard) -> None:
    await asyncio.sleep(0.05)


@pytest.fixture
def together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Together]:
    """Return what plays some scenes, none of which needs a worker."""

    def make(*scenes: Any) -> Together:
        for scene in scenes:
            monkeypatch.setitem(SCENES, scene.__name__, scene)
        return Together(cast(Any, None), tmp_path, [scene.__name__ for scene in scenes])

    return make


def test_a_scene_that_skips_or_fails_is_its_own_tests_matter(together: Callable[..., Together]) -> None:
    """In any order, though all were played when the first was asked for."""
    played = together(skips, fails, breaks, passes)
    played.outcome("passes")
    with pytest.raises(pytest.skip.Exception, match="small disk"):
        played.outcome("skips")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        played.outcome("fails")
    with pytest.raises(RuntimeError, match="its own"):
        played.outcome("breaks")
    played.outcome("passes")
