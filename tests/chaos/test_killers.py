"""Records that kill their process, by real processes: the whole table, and a few of its cells.

pytest -m soak -s tests/chaos/test_killers.py
"""

from pathlib import Path

import pytest

from tests.chaos.forked import Forge
from tests.chaos.killers import PROTOCOLS, Cell, assert_all_hold, cells, run_all
from tests.chaos.killers_app import MODES

KINDS = [
    Cell("membership", "record", 2),
    Cell("claim", "keyed", 2, "halt"),
    Cell("lease", "decode", 2),
    Cell("membership", "decode-columns", 1, "halt", "static"),
    Cell("membership", "stream", 2, "halt", "retry"),
]


@pytest.mark.full("some thirty workers die, and each is taken for dead after a second")
@pytest.mark.timeout(900)
def test_of_records_that_kill_each_ends_four_workers_at_most(
    crew: Forge, redis_url: str, tmp_path: Path
) -> None:
    """A cell for each kind of protocol, of mode, of policy, and of what an operator does."""
    assert_all_hold(run_all(KINDS, crew, redis_url, tmp_path))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_of_records_that_kill_each_ends_four_workers_at_most_in_each_protocol_and_mode(
    crew: Forge, redis_url: str, tmp_path: Path, protocol: str, mode: str
) -> None:
    """One to four in a row; set aside or halting; static ids; called again by an operator."""
    assert_all_hold(run_all(cells(protocol, mode), crew, redis_url, tmp_path))
