"""Mistakes in how timers are committed, planted in a copy of the project: its tests find each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.planting import copied, outcome, planted

TESTS = ("tests/runtime/test_timers_fenced.py",)
PLANTS = {
    "a tick is not fenced": (
        "streamworker/redisio/lua/commit.lua",
        "if held[1] ~= owner or held[2] ~= epoch then return reply('FENCED') end",
        "if (held[1] ~= owner or held[2] ~= epoch) and previous ~= new then return reply('FENCED') end",
    ),
    "a time counts as done a step before its results are stored": (
        "streamworker/runtime/run/modes/modes.py",
        "await self.commits.submit(Work(sends=tick.sends, state={**tick.marks, **self.state.seal()}))",
        """await self.commits.submit(Work(state=tick.marks))
                again = {name: (value or b"") + b"/" for name, value in tick.marks.items()}
                await self.commits.submit(Work(sends=tick.sends, state={**again, **self.state.seal()}))""",
    ),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project that may be spoilt."""
    return copied(tmp_path_factory.mktemp("planted"))


@pytest.fixture
def spoilt(request: pytest.FixtureRequest, copy: Path) -> Iterator[Path]:
    """Plant a mistake in the copy, and take it out again."""
    with planted(copy, *PLANTS[request.param]):
        yield copy


def test_the_copy_passes_without_a_mistake(copy: Path) -> None:
    """Otherwise the next test would prove nothing."""
    assert outcome(copy, TESTS) == 0


@pytest.mark.parametrize("spoilt", PLANTS, indirect=True)
def test_a_planted_mistake_is_found(spoilt: Path) -> None:
    """One test at least fails."""
    assert outcome(spoilt, TESTS) == 1
