-- uses: writes
-- Writes ownership entries whose ETags are still those that the caller saw: to claim partitions, or to renew
-- the entries of their owner with new checkpoints. After another change a caller has an old ETag, and is
-- refused. The reply contains the current entries.
--
-- An entry is 'etag|modified ms|owner level|checkpoint|owner'.
--
-- KEYS  1 claims (hash; field 'last': the newest ETag)
-- ARGV  1 owner  2 'claim', or 'renew', which only the owner can
--       then for each partition: partition, ETag or '0', owner level, checkpoint
-- reply [OK, ETag of the changed, partition, entry or '', ...] | [BADTYPE, key]
local claims, owner, now = KEYS[1], ARGV[1], text(server_ms())
local etag = next_version(claims)
local reply = {'OK', etag}
for i = 3, #ARGV, 4 do
  local partition = ARGV[i]
  local entry = redis.call('HGET', claims, partition) or ''
  local seen, holder = string.match(entry, '^(%d+)|[^|]*|[^|]*|[^|]*|(.*)$')
  if (seen or '0') == ARGV[i + 1] and (ARGV[2] == 'claim' or holder == owner) then
    entry = table.concat({etag, now, ARGV[i + 2], ARGV[i + 3], owner}, '|')
    redis.call('HSET', claims, partition, entry)
  end
  reply[#reply + 1] = partition
  reply[#reply + 1] = entry
end
return reply
