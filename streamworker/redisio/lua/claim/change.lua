-- uses: writes
-- Writes ownership entries whose ETags are still those that the caller saw: to claim partitions, or to renew
-- the entries of their owner with new checkpoints. After another change a caller has an old ETag, and is
-- refused. The reply contains the current entries.
--
-- An entry is 'etag|modified ms|owner level|checkpoint|owner'.
--
-- KEYS  claims (hash; field 'last': the newest ETag)
-- ARGV  owner  how: 'claim', or 'renew', which only the owner can
--       changes...: for each partition: partition, ETag or '0', owner level, checkpoint
-- reply [OK, ETag of the changed, partition, entry or '', ...] | [BADTYPE, key]
local now = text(server_ms())
local etag = next_version(claims)
local reply = {'OK', etag}
for i = changes_at, #ARGV, 4 do
  local partition, etag_seen, level, checkpoint = unpack(ARGV, i, i + 3)
  local entry = redis.call('HGET', claims, partition) or ''
  local seen, holder = string.match(entry, '^(%d+)|[^|]*|[^|]*|[^|]*|(.*)$')
  if (seen or '0') == etag_seen and (how == 'claim' or holder == owner) then
    entry = table.concat({etag, now, level, checkpoint, owner}, '|')
    redis.call('HSET', claims, partition, entry)
  end
  reply[#reply + 1] = partition
  reply[#reply + 1] = entry
end
return reply
