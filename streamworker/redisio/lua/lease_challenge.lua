-- uses: types
-- Challenges the leases of some partitions, and says so on the control stream in the same step. Where
-- something else stands there that is left out: each message may be missed.
--
-- KEYS  1 grab (hash)  2 allocation (hash)  3 control (any)
-- ARGV  1 owner  then pairs of partition and 'free', 'due' or 'overdue':
--         free     only if it is in neither hash
--         due      only if it is not in the grab hash
--         overdue  clear it from both first
-- reply [OK, partitions that were challenged ...] | [BADTYPE, key]
local MESSAGES = 10000

local wrong = wrong_type({'hash', 'hash', 'any'})
if wrong then return {'BADTYPE', wrong} end
local challenged = {'OK'}
for i = 2, #ARGV, 2 do
  local partition, how = ARGV[i], ARGV[i + 1]
  if how == 'overdue' then
    redis.call('HDEL', KEYS[1], partition)
    redis.call('HDEL', KEYS[2], partition)
  end
  local is_free = not redis.call('HGET', KEYS[1], partition)
  if how == 'free' and redis.call('HGET', KEYS[2], partition) then is_free = false end
  if is_free then challenged[#challenged + 1] = partition end
end
if #challenged > 1 then
  -- HDEL is allowed when memory is full, and so is all that follows it: ownership must move then.
  redis.call('HDEL', KEYS[1], '')
  if is_a(KEYS[3], 'stream') then
    redis.call('XADD', KEYS[3], 'MAXLEN', '~', MESSAGES, '*', 'kind', 'challenged',
      'partitions', table.concat(challenged, ',', 2), 'owner', ARGV[1], 'generation', text(server_ms()))
  end
end
return challenged
