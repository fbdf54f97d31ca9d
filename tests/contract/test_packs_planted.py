"""Mistakes in how entries hold many records, planted in a copy of the project: its tests find each."""

import pytest

from tests.planting import PlantedMistakes

pytestmark = pytest.mark.full("runs the tests of entries of many records for each mistake")

TESTS = ("tests/records/test_packs.py", "tests/contract/test_packs.py")

LUA = "streamworker/redisio/lua"
PLANTS = {
    "an entry has the id of its first record": (
        f"{LUA}/parts/adding.lua",
        "next_id = id_ms .. '-' .. text(final)",
        "next_id = id_ms .. '-' .. text(first)",
    ),
    "a checkpoint within an entry skips its rest": (
        "streamworker/records/entries.py",
        "return self[position.seq - self.id_at(0).seq + 1 :]",
        "return self[len(self) :]",
    ),
    "a checkpoint within an entry gives all of it again": (
        "streamworker/records/entries.py",
        "return self[position.seq - self.id_at(0).seq + 1 :]",
        "return self",
    ),
    "trimming takes an entry with unread records": (
        f"{LUA}/parts/trim.lua",
        "needs(successor(held[1]), held[2])",
        "needs(string.match(held[1], '^%d+') + 1 .. '-0', held[2])",
    ),
    "a bad record takes its neighbours along": (
        "streamworker/records/packs.py",
        "raw = self.raws[index]",
        "raw = self.payload",
    ),
    "the lag of XINFO counts entries": (
        f"{LUA}/parts/groups.lua",
        "local added = info['entries-added'] + extra - folded",
        "local added = info['entries-added']",
    ),
    "the lag that is shown counts entries": (
        "streamworker/redisio/snapshot.py",
        "return min(records, lag + packed.extra - packed.folded), told",
        "return min(records, lag), told",
    ),
    "the limit counts entries": (
        f"{LUA}/parts/adding.lua",
        "local present = entries == 0 and 0 or entries + extra - before",
        "local present = entries",
    ),
    "what was dropped is not counted": (
        f"{LUA}/parts/trim.lua",
        "  count_dropped(events)\n  return dropped",
        "  return dropped",
    ),
    "an entry counts whole behind a position within it": (
        f"{LUA}/parts/counts.lua",
        "return math.min(n, tonumber(seq) - tonumber(id_seq))",
        "return n",
    ),
    "ids that overlap are taken": (
        "streamworker/records/packs.py",
        "if self.first.ms != self.last.ms or self.last.seq - self.first.seq + 1 != self.count:",
        "if self.first.ms != self.last.ms:",
    ),
    "ids made again with other contents are committed": (
        f"{LUA}/data/commit.lua",
        "if fields[1] == FIRST then return tag == '' or tag == fields[CRC] end",
        "if fields[1] == FIRST then return true end",
    ),
    "the same, of entries of one record": (
        f"{LUA}/data/commit.lua",
        "return tag == '' or not redis.sha1hex or tag",
        "return true or tag",
    ),
    "damage is not noticed": (
        "streamworker/records/packs.py",
        'if b"%d" % zlib.crc32(self._data) != crc:',
        "if False:",
    ),
    "a count that lies is believed": (
        "streamworker/records/packs.py",
        "if len(found) != self.count:",
        "if False:",
    ),
    "headers go to the next record": (
        "streamworker/records/packs.py",
        "(headers[index] or {})",
        "(headers[index - 1] or {})",
    ),
    "headers do not count for the bytes of an entry": (
        "streamworker/redisio/data/streams.py",
        "sizes[index] += len(packed)",
        "sizes[index] += 0",
    ),
    "headers of another number of records are taken": (
        "streamworker/records/packs.py",
        'self.checked(headers, "headers of ")',
        "headers",
    ),
    "an entry that cannot be read is never committed": (
        "streamworker/records/entries.py",
        'crc.decode() if crc.isdigit() else ""',
        'crc.decode("utf-8", "replace") + ("x" if getattr(origin, "_fault", "") else "")',
    ),
    "a copy of an entry counts for all its records": (
        f"{LUA}/parts/counts.lua",
        "then return 1 end  -- a copy",
        "then return n end",
    ),
}


class TestPlanted(PlantedMistakes):
    """The tests pass without a mistake, and find each."""

    tests = TESTS
    plants = PLANTS
