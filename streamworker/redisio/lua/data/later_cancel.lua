-- uses: later
-- Cancels a record that waits to be sent later.
--
-- KEYS  1 later (zset)  2 delayed (hash)
-- ARGV  1 id  2 name of this call, the same when it is repeated  3 for how long it is known in ms
-- reply [OK, '1' if it will never be sent, '0' if it was sent, cancelled before, or is unknown] | [BADTYPE, key]
local later, delayed, id, call = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local state, calls, due, rest = later_of(delayed, id)
redis.call('HDEL', delayed, '')  -- changes nothing, and makes Redis accept the writes when memory is full
if was_made(calls, call) then
  redis.call('HSET', delayed, id, table.concat({state, calls, due, rest}, ' '))
  return {'OK', '1'}
end
if state ~= 'w' then return {'OK', '0'} end
local until_ms, ends = known_until(server_ms(), tonumber(ARGV[3]))
keep_later(later, delayed, id, until_ms, 'c', with_call(call, calls), due, '', ends)
return {'OK', '1'}
