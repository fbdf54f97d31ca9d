-- uses: writes
-- Updates the hashes of the lease protocol for one node: the partitions that it processes now, those that it
-- no longer processes, and its wins that may be challenged again. The call may be repeated.
--
-- KEYS  grab (hash)  allocation (hash)  control (any)
-- ARGV  owner
--       processed (list): for each partition: partition, generation of the win; put into the allocation hash,
--         unless it has a later winner
--       ended (list): partitions; removed from it if the owner has them, and posted to the control stream
--       cleared (list): for each partition: partition, generation of the win; wins removed from the grab hash
-- reply [OK] | [BADTYPE, key]
begin_writes(allocation)
for i = processed_at, processed_end, 2 do
  local partition, generation = ARGV[i], ARGV[i + 1]
  local there = string.match(redis.call('HGET', allocation, partition) or '', '^(%d+)|') or '0'
  if tonumber(there) <= tonumber(generation) then
    redis.call('HSET', allocation, partition, generation .. '|' .. owner)
  end
end
for i = ended_at, ended_end do
  local there = string.match(redis.call('HGET', allocation, ARGV[i]) or '', '|(.*)$')
  if there == owner then redis.call('HDEL', allocation, ARGV[i]) end
end
for i = cleared_at, cleared_end, 2 do
  local partition, win = ARGV[i], ARGV[i + 1] .. '|' .. owner
  if redis.call('HGET', grab, partition) == win then redis.call('HDEL', grab, partition) end
end
if ended_at <= ended_end then
  local ended = table.concat(ARGV, ',', ended_at, ended_end)
  post(control, 'kind', 'ended', 'partitions', ended, 'owner', owner, 'generation', text(server_ms()))
end
return {'OK'}
