-- uses: writes
-- Puts a node into the grab hash for a partition unless another node is there: the first node wins. A
-- repeated call changes nothing, so a node repeats the call after a lost answer.
-- A win has a generation that is greater than all before.
--
-- KEYS  1 grab (hash; field 'last': the newest generation)  2 allocation (hash)
-- ARGV  1 owner  2 partition
-- reply [OK, winner, generation, owner in the allocation hash or ''] | [BADTYPE, key]
local owner, partition = ARGV[1], ARGV[2]
local won = redis.call('HGET', KEYS[1], partition)
if not won then
  won = next_version(KEYS[1]) .. '|' .. owner
  redis.call('HSETNX', KEYS[1], partition, won)
end
local allocated = redis.call('HGET', KEYS[2], partition) or ''
local generation, winner = string.match(won, '^(%d+)|(.*)$')
return {'OK', winner, generation, string.match(allocated, '|(.*)$') or ''}
