-- uses: types claims
-- Claims partitions whose entries still have the ETags that the claimer saw. A second claimer has an old
-- ETag, so its claim is refused. The reply contains the current entries.
--
-- KEYS  1 claims (hash)
-- ARGV  1 owner  then for each partition: partition, ETag or '0', owner level, checkpoint
-- reply [OK, ETag of the claimed, partition, entry or '', ...] | [BADTYPE, key]
local wrong = wrong_type({'hash'})
if wrong then return {'BADTYPE', wrong} end
local claims, owner = KEYS[1], ARGV[1]
local etag, now = new_etag(claims)
local reply = {'OK', etag}
for i = 2, #ARGV, 4 do
  local partition = ARGV[i]
  if holder(claims, partition) == ARGV[i + 1] then
    redis.call('HSET', claims, partition,
      etag .. '|' .. now .. '|' .. ARGV[i + 2] .. '|' .. ARGV[i + 3] .. '|' .. owner)
  end
  reply[#reply + 1] = partition
  reply[#reply + 1] = redis.call('HGET', claims, partition) or ''
end
return reply
