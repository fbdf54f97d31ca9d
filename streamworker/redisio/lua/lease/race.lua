-- uses: writes
-- Puts a node into the grab hash for a partition unless another node is there: the first node wins. A
-- repeated call changes nothing, so a node repeats the call after a lost answer.
-- A win has a generation that is greater than all before.
--
-- KEYS  grab (hash; field 'last': the newest generation)  allocation (hash)
-- ARGV  owner  partition
-- reply [OK, winner, generation, owner in the allocation hash or ''] | [BADTYPE, key]
local won = redis.call('HGET', grab, partition)
if not won then
  won = next_version(grab) .. '|' .. owner
  redis.call('HSETNX', grab, partition, won)
end
local allocated = redis.call('HGET', allocation, partition) or ''
local generation, winner = string.match(won, '^(%d+)|(.*)$')
return {'OK', winner, generation, string.match(allocated, '|(.*)$') or ''}
