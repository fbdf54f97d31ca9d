-- uses: writes
-- Challenges the leases of some partitions, and posts that to the control stream atomically.
--
-- KEYS  1 grab (hash)  2 allocation (hash)  3 control (any)
-- ARGV  1 owner  then pairs of partition and 'free', 'due' or 'overdue':
--         free     only if it is in neither hash
--         due      only if it is not in the grab hash
--         overdue  remove it from both first
-- reply [OK, partitions that were challenged ...] | [BADTYPE, key]
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
  begin_writes(KEYS[1])
  post(KEYS[3], 'kind', 'challenged', 'partitions', table.concat(challenged, ',', 2), 'owner', ARGV[1],
    'generation', text(server_ms()))
end
return challenged
