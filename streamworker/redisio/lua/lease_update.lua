-- uses: types
-- Brings the hashes of the lease protocol up to date with one node: what it processes now, what it
-- does not process any more, and which of its wins may be challenged again. May be repeated. Where something
-- else stands in place of the control stream nothing is said: each message may be missed.
--
-- KEYS  1 grab (hash)  2 allocation (hash)  3 control (any)
-- ARGV  1 owner
--       then  n, n x (partition, generation of the win): put into the allocation hash, unless a
--               later winner is there
--             n, n x partition: taken out of it, if it is ours, and said on the control stream
--             n, n x (partition, generation of the win): wins taken out of the grab hash
-- reply [OK] | [BADTYPE, key]
local MESSAGES = 10000

local wrong = wrong_type({'hash', 'hash', 'any'})
if wrong then return {'BADTYPE', wrong} end
local owner, at = ARGV[1], 2

-- HDEL first: unlike HSET it is allowed when memory is full, and so is all that follows it.
redis.call('HDEL', KEYS[2], '')
local n = tonumber(ARGV[at])
for i = at + 1, at + 2 * n, 2 do
  local partition, generation = ARGV[i], ARGV[i + 1]
  local there = string.match(redis.call('HGET', KEYS[2], partition) or '', '^(%d+)|') or '0'
  if tonumber(there) <= tonumber(generation) then
    redis.call('HSET', KEYS[2], partition, generation .. '|' .. owner)
  end
end
at = at + 1 + 2 * n

n = tonumber(ARGV[at])
local ended = {}
for i = at + 1, at + n do
  local partition = ARGV[i]
  local there = string.match(redis.call('HGET', KEYS[2], partition) or '', '|(.*)$')
  if there == owner then redis.call('HDEL', KEYS[2], partition) end
  ended[#ended + 1] = partition
end
at = at + 1 + n

n = tonumber(ARGV[at])
for i = at + 1, at + 2 * n, 2 do
  local partition, win = ARGV[i], ARGV[i + 1] .. '|' .. owner
  if redis.call('HGET', KEYS[1], partition) == win then redis.call('HDEL', KEYS[1], partition) end
end

if #ended > 0 and is_a(KEYS[3], 'stream') then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', MESSAGES, '*', 'kind', 'ended',
    'partitions', table.concat(ended, ','), 'owner', owner, 'generation', text(server_ms()))
end
return {'OK'}
