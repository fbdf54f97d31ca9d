-- uses: later
-- Cancels a record that waits to be sent later.
--
-- KEYS  later (zset)  delayed (hash)  counts (hash)
-- ARGV  id  call: its name, the same when it is repeated  window_ms (number): for how long it is known
-- reply [OK, '1' if it will never be sent, '0' if it was sent, cancelled before, or is unknown] | [SEALED, '', 0]
--       | [BADTYPE, key]
local state, calls, due, rest = later_of(delayed, id)
redis.call('HDEL', delayed, '')  -- changes nothing, and makes Redis accept the writes when memory is full
if was_made(calls, call) then
  redis.call('HSET', delayed, id, table.concat({state, calls, due, rest}, ' '))
  return {'OK', '1'}
end
if redis.call('HMGET', counts, 'sealed')[1] then return {'SEALED', '', 0} end
if state ~= 'w' then return {'OK', '0'} end
local until_ms, ends = known_until(server_ms(), window_ms)
keep_later(later, delayed, id, until_ms, 'c', with_call(call, calls), due, '', ends)
return {'OK', '1'}
