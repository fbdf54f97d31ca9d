-- uses: writes
-- Challenges the leases of some partitions, and posts that to the control stream atomically.
--
-- KEYS  grab (hash)  allocation (hash)  control (any)
-- ARGV  owner  challenges...: for each partition: partition, and 'free', 'due' or 'overdue':
--         free     only if it is in neither hash
--         due      only if it is not in the grab hash
--         overdue  remove it from both first
-- reply [OK, partitions that were challenged ...] | [BADTYPE, key]
local challenged = {'OK'}
for i = challenges_at, #ARGV, 2 do
  local partition, how = ARGV[i], ARGV[i + 1]
  if how == 'overdue' then
    redis.call('HDEL', grab, partition)
    redis.call('HDEL', allocation, partition)
  end
  local is_free = not redis.call('HGET', grab, partition)
  if how == 'free' and redis.call('HGET', allocation, partition) then is_free = false end
  if is_free then challenged[#challenged + 1] = partition end
end
if #challenged > 1 then
  begin_writes(grab)
  post(control, 'kind', 'challenged', 'partitions', table.concat(challenged, ',', 2), 'owner', owner,
    'generation', text(server_ms()))
end
return challenged
