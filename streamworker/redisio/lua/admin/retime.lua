-- uses: epoch
-- Keeps the ends of a table's values in the other index, since a deploy has given the table a function that is called
-- at their end, or has taken it away. Then the values themselves tell their end (see parts/tables.lua), or do not.
-- Only the owner at its epoch may, before it writes; it calls again until nothing is left.
--
-- KEYS  lock (hash)  values (hash)  before (zset)  index (zset): the one that this release uses
-- ARGV  owner  epoch  is_called: '1' if a function is called  most (number): ends to move
-- reply [OK, ends moved] | [FENCED] | [BADTYPE, key]
local wrong = wrong_type(lock, 'hash', values, 'hash', before, 'zset', index, 'zset')
if wrong then return {'BADTYPE', wrong} end
local held = redis.call('HMGET', lock, 'owner', 'epoch')
if held[1] ~= owner or held[2] ~= epoch then return {'FENCED'} end
redis.call('HDEL', lock, '')  -- changes nothing, and makes Redis accept HSET when memory is full
local found = redis.call('ZRANGE', before, 0, most - 1, 'WITHSCORES')
for i = 1, #found, 2 do
  local key, ends = found[i], found[i + 1]
  local value = redis.call('HGET', values, key)
  local blank = value and string.find(value, ' ', 1, true)
  if blank then
    -- Another program may have written any score; one that a value tells has digits alone.
    if not is_count(ends) then ends = text(math.min(math.max(tonumber(ends), 0), 253402300799999)) end
    redis.call('HSET', values, key, (is_called == '1' and '' or ends) .. string.sub(value, blank))
    redis.call('ZADD', index, ends, key)
  end
  redis.call('ZREM', before, key)
end
return {'OK', #found / 2}
