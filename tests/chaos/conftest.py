"""Fixtures of the rows F1-F40: where scenes are played."""

from pathlib import Path

import pytest

from tests.chaos.forked import Forge
from tests.chaos.yard import SCENES, SEED_VARIABLE, Together, Yard, seed


@pytest.fixture(scope="module")
def together(
    request: pytest.FixtureRequest, forge: Forge, tmp_path_factory: pytest.TempPathFactory
) -> Together:
    here = [item.name for item in request.session.items if item.path == request.path]
    return Together(forge, tmp_path_factory.mktemp("rows"), [name for name in here if name in SCENES])


@pytest.fixture
def yard(request: pytest.FixtureRequest, forge: Forge, tmp_path: Path) -> Yard:
    drawn = seed()
    print(f"repeat with: {SEED_VARIABLE}={drawn} pytest -m 'soak or not soak' '{request.node.nodeid}'")
    return Yard(forge, tmp_path, drawn)
