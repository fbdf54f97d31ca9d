"""Mistakes in how timers are committed, planted in a copy of the project: its tests find each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.planting import copied, outcome, planted

TESTS = ("tests/runtime/test_timers_fenced.py",)
PLANTS = {
    "a tick is neither fenced nor compared with the time before": (
        "streamworker/redisio/lua/commit.lua",
        "if held[1] ~= owner or held[2] ~= epoch then return reply('FENCED') end",
        """if previous == new then ARGV[12] = redis.call('HGET', state, ARGV[14]) or ''
elseif held[1] ~= owner or held[2] ~= epoch then return reply('FENCED') end""",
    ),
    "a time counts as done a step before its results are stored": (
        "streamworker/runtime/run/modes/modes.py",
        "await self.commits.submit(Work(sends=tick.sends, before=tick.before, state=state))",
        """name, mark = next(iter(tick.marks.items()))
                early = (mark or b"") + b"/"
                await self.commits.submit(Work(before=tick.before, state={name: early}))
                await self.commits.submit(Work(sends=tick.sends, before=early, state=state))""",
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
