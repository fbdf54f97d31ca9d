"""Mistakes in how tables are read and written, planted in a copy of the project: its tests find each."""

import pytest

from tests.planting import PlantedMistakes

pytestmark = pytest.mark.full("runs the tests of tables for each mistake")

TESTS = (
    "tests/runtime/test_statetables.py",
    "tests/contract/test_statetables.py",
    "tests/fundamentals/test_12_tables.py",
)
RUN, LUA = "streamworker/runtime/run", "streamworker/redisio/lua"
PLANTS = {
    "a read misses the writes of a commit that is under way": (
        f"{RUN}/statetables.py",
        "self._unconfirmed.append(self._group)",
        "self._unconfirmed.append({})",
    ),
    "a read misses the writes of calls that no commit has yet": (
        f"{RUN}/statetables.py",
        "for layer in (changes, self._group, *reversed(self._unconfirmed))",
        "for layer in (changes, *reversed(self._unconfirmed))",
    ),
    "a value is written outside of the commit, though its call fails": (
        f"{RUN}/state.py",
        "self.changes.update(changes)",
        "self.changes.update(changes); self._below.keep(changes)",
    ),
    "the cache outlives its owner": (
        f"{RUN}/statetables.py",
        "self._number = next(_numbers)",
        "self._number = 0",
    ),
    "a read that comes late replaces a newer value": (
        f"{RUN}/statetables.py",
        "if value is not None and commits == self._commits:",
        "if value is not None:",
    ),
    "whoever was the owner may expire": (
        f"{LUA}/data/expire.lua",
        "if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return {'FENCED'} end",
        "",
    ),
    "values expire at the time of the write before": (
        f"{LUA}/parts/tables.lua",
        "redis.call('ZADD', index, unpack(scores))",
        "redis.call('ZADD', index, 'NX', unpack(scores))",
    ),
    "a value that lives for ever from now on is removed": (
        f"{LUA}/parts/tables.lua",
        "if expired_before then",
        "if false then",
    ),
    "what nobody touches stays": (
        "streamworker/runtime/partitions.py",
        "            if tables:\n",
        "            if False:\n",
    ),
    "a key of another partition is written": (
        "streamworker/declaring/table.py",
        "(partition := partition_of(key, field)) != here:",
        "(partition := partition_of(key, field)) is None:",
    ),
}


class TestPlanted(PlantedMistakes):
    """The tests pass without a mistake, and find each."""

    tests = TESTS
    plants = PLANTS
