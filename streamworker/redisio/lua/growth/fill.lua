-- Copies values of the partitions that came before into one that follows: of a table, or of the keyed state. Those
-- change no more. Only the owner at its epoch can copy, and only while the lock says what it has waited for: once the
-- partition is open, a copy that comes late would undo what was committed since. A call may be repeated.
--
-- KEYS  lock (hash)  values (hash)  index...: of when values end (zset), for a table
-- ARGV  owner  epoch  parents: numbers of those partitions, as the lock had them
--       is_called: '1' if a function is called at the end of values, which do not tell it where they are stored
--       pairs...: keys and values; a value of a table is behind its end
-- reply [OK] | [FENCED] | [CHANGED] | [BADTYPE, key]
local index = KEYS[index_at]
if index and not is_a(index, 'zset') then return {'BADTYPE', index} end
local held = redis.call('HMGET', lock, 'owner', 'epoch', 'from')
if held[1] ~= owner or held[2] ~= epoch then return {'FENCED'} end
if held[3] ~= parents then return {'CHANGED'} end
local CHUNK = 4000  -- unpack() fails at 8,000 values
for i = pairs_at, index and #ARGV or 0, 2 do
  local ends = string.match(ARGV[i + 1], '^(%-?%d+) ')
  if ends then
    redis.call('ZADD', index, ends, ARGV[i])
    if is_called == '1' then ARGV[i + 1] = string.sub(ARGV[i + 1], #ends + 1) end
  end
end
for from = pairs_at, #ARGV, CHUNK do
  redis.call('HSET', values, unpack(ARGV, from, math.min(from + CHUNK - 1, #ARGV)))
end
return {'OK'}
