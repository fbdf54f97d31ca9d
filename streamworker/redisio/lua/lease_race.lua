-- uses: types
-- Puts a node into the grab hash for a partition, unless somebody is there: whoever is first has
-- won. Asking again changes nothing, so a lost answer is asked for again.
--
-- A win has a generation, which is the server's time or one more than the last one: it grows even
-- if the hash is lost.
--
-- KEYS  1 grab (hash; field 'last': the newest generation)  2 allocation (hash)
-- ARGV  1 owner  2 partition
-- reply [OK, winner, generation, who is in the allocation hash or ''] | [BADTYPE, key]
local wrong = wrong_type({'hash', 'hash'})
if wrong then return {'BADTYPE', wrong} end
local owner, partition = ARGV[1], ARGV[2]
local won = redis.call('HGET', KEYS[1], partition)
if not won then
  local last = tonumber(redis.call('HGET', KEYS[1], 'last') or '0')
  local generation = text(math.max(server_ms(), last + 1))
  won = generation .. '|' .. owner
  -- HDEL first: unlike HSET it is allowed when memory is full, and so is all that follows it.
  redis.call('HDEL', KEYS[1], '')
  redis.call('HSET', KEYS[1], 'last', generation)
  redis.call('HSETNX', KEYS[1], partition, won)
end
local allocated = redis.call('HGET', KEYS[2], partition) or ''
local generation, winner = string.match(won, '^(%d+)|(.*)$')
return {'OK', winner, generation, string.match(allocated, '|(.*)$') or ''}
