-- uses: writes
-- Updates the hashes of the lease protocol for one node: the partitions that it processes now, those that it
-- no longer processes, and its wins that may be challenged again. The call may be repeated.
--
-- KEYS  1 grab (hash)  2 allocation (hash)  3 control (any)
-- ARGV  1 owner
--       then  n, n x (partition, generation of the win): put into the allocation hash, unless it
--               has a later winner
--             n, n x partition: removed from it if the owner has them, and posted to the control stream
--             n, n x (partition, generation of the win): wins removed from the grab hash
-- reply [OK] | [BADTYPE, key]
local owner, at = ARGV[1], 2

begin_writes(KEYS[2])
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

if #ended > 0 then
  post(KEYS[3], 'kind', 'ended', 'partitions', table.concat(ended, ','), 'owner', owner,
    'generation', text(server_ms()))
end
return {'OK'}
