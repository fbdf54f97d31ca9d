"""A real server whose scripts are told the time by the test: what takes seconds takes none.

The ids of entries follow this time, too, with a millisecond for each entry.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from streamworker.redisio.scripts import Call, Script
from streamworker.redisio.wire.client import Backend
from streamworker.redisio.wire.durability import MEMORY, Durability
from streamworker.redisio.wire.link import Argument

CLOCK = "test:clock"
CLOCKED = f"""
local real_redis = redis
local function now_ms() return tonumber(real_redis.call('GET', '{CLOCK}')) end
local function id_after(stream)
  local last = '0'
  if real_redis.call('EXISTS', stream) == 1 then
    local info = real_redis.call('XINFO', 'STREAM', stream)
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then last = string.match(info[i + 1], '^%d+') end
    end
  end
  return string.format('%.0f-0', math.max(tonumber(last) + 1, now_ms()))
end
local redis = setmetatable({{call = function(command, ...)
  local stream, id = ...
  if command == 'XADD' and id == '*' then
    return real_redis.call('XADD', stream, id_after(stream), select(3, ...))
  end
  if command ~= 'TIME' then return real_redis.call(command, ...) end
  local ms = now_ms()
  return {{string.format('%.0f', math.floor(ms / 1000)), string.format('%.0f', ms % 1000 * 1000)}}
end}}, {{__index = real_redis}})
"""


class ClockedBackend(Backend):
    """A real connection to a real server, whose scripts are told the time by the test."""

    now_ms = 0
    _clocked: dict[str, Script] = {}  # noqa: RUF012 - one for all, as the scripts are

    async def run_many(
        self, script: Script, calls: Sequence[Call], *, durability: Durability = MEMORY
    ) -> list[Any]:
        if script.sha not in self._clocked:
            text = CLOCKED + script.text
            sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            self._clocked[script.sha] = replace(script, text=text, sha=sha)
        return await super().run_many(self._clocked[script.sha], calls, durability=durability)

    async def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        replies = await super().pipeline(commands)
        now = [self.now_ms // 1000, self.now_ms % 1000 * 1000]
        return [
            now if command[0] == "TIME" else reply for command, reply in zip(commands, replies, strict=True)
        ]

    async def time_ms(self, near: str = "") -> int:
        del near
        return self.now_ms

    async def set_clock(self, now_ms: int) -> None:
        self.now_ms = now_ms
        await self.execute("SET", CLOCK, now_ms)
