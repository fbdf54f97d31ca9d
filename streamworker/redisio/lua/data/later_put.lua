-- uses: later counts
-- Schedules a record that is sent when it is due, unless one of its id waits, or was sent within the window.
--
-- KEYS  later (zset)  delayed (hash)  counts (hash)
-- ARGV  id  call: its name, the same when it is repeated  how: 'after' or 'at'  time_ms (number)
--       replace: '1' to replace one that waits, or was sent
--       limit (number): records that may be known; 0 for no limit
--       record: sizes and texts, see parts/later.lua
-- reply [OK | OTHER, time at which it is due, or that of the one before it] | [SEALED, '', 0] | [FULL, '', number]
--       | [BADTYPE, key]
local now = server_ms()
local state, calls, due, rest = later_of(delayed, id)
local function known_already(code)
  -- WAIT covers the writes of this connection only, so this writes, too.
  redis.call('HSET', delayed, id, table.concat({state, calls, due, rest}, ' '))
  return {code, due}
end
if was_made(calls, call) then return known_already('OK') end
if is_free(later, id, state, rest, now) then state = nil end
if (state == 'w' or state == 's') and replace ~= '1' then return known_already('OTHER') end
if redis.call('HMGET', counts, 'sealed')[1] then return {'SEALED', '', 0} end
if limit > 0 and not state and redis.call('HLEN', delayed) >= limit then
  return {'FULL', '', redis.call('HLEN', delayed)}
end
due = text(time_ms + (how == 'after' and now or 0))
keep_later(later, delayed, id, due, 'w', with_call(call, calls), due, record)
return {'OK', due}
