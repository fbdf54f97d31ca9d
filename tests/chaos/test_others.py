"""What kills its process and is no record, by real processes: the whole table, and a few of its cells.

pytest -m soak -s tests/chaos/test_others.py
"""

from pathlib import Path

import pytest

from tests.chaos.forked import Forge
from tests.chaos.killers import PROTOCOLS, assert_all_hold
from tests.chaos.others import Cell, cells, run_all

SOME = [
    Cell("membership", "timer of a partition"),
    Cell("claim", "resource of a worker"),
    Cell("lease", "resource of a partition"),
    Cell("membership", "middleware", "static"),
    Cell("claim", "middleware"),
]


@pytest.mark.full("some twenty workers die, and each is taken for dead after a second")
@pytest.mark.timeout(900)
def test_what_kills_beside_records_is_held_back_after_four_deaths_at_most(
    crew: Forge, redis_url: str, tmp_path: Path
) -> None:
    """A cell for each kind and protocol."""
    assert_all_hold(run_all(SOME, crew, redis_url, tmp_path))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_kills_beside_records_is_held_back_in_each_protocol(
    crew: Forge, redis_url: str, tmp_path: Path, protocol: str
) -> None:
    """Each kind, and with static ids."""
    its = [cell for cell in cells() if cell.protocol == protocol]
    assert_all_hold(run_all(its, crew, redis_url, tmp_path))
