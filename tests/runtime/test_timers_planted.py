"""Mistakes in how timers are committed, planted in a copy of the project: its tests find each."""

import pytest

from tests.planting import PlantedMistakes

pytestmark = pytest.mark.full("runs a storm of timers for each mistake")

TESTS = ("tests/runtime/test_timers_fenced.py",)
PLANTS = {
    "a tick is neither fenced nor compared with the time before": (
        "streamworker/redisio/lua/data/commit.lua",
        "if held[1] ~= owner or held[2] ~= epoch then return reply('FENCED') end",
        """if previous == new then ARGV[12] = redis.call('HGET', state, ARGV[14]) or ''
elseif held[1] ~= owner or held[2] ~= epoch then return reply('FENCED') end""",
    ),
    "a time counts as done a step before its results are stored": (
        "streamworker/runtime/run/modes/modes.py",
        "await self.commits.submit(Work(sends=tick.sends, before=tick.before, state=state))",
        """name, done = next(iter(tick.fields.items()))
                early = (done or b"") + b"/"
                await self.commits.submit(Work(before=tick.before, state={name: early}))
                await self.commits.submit(Work(sends=tick.sends, before=early, state=state))""",
    ),
}


class TestPlanted(PlantedMistakes):
    """The tests pass without a mistake, and find each."""

    tests = TESTS
    plants = PLANTS
