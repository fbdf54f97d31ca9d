-- uses: types claims
-- Writes the checkpoints of an owner's partitions, which renews its entries. Only the owner can, and only
-- with the current ETag of the entry. The reply contains the current entries.
--
-- KEYS  1 claims (hash)
-- ARGV  1 owner  then for each partition: partition, ETag, owner level, checkpoint
-- reply [OK, ETag of the renewed, partition, entry or '', ...] | [BADTYPE, key]
local wrong = wrong_type({'hash'})
if wrong then return {'BADTYPE', wrong} end
local claims, owner = KEYS[1], ARGV[1]
local etag, now = new_etag(claims)
local reply = {'OK', etag}
for i = 2, #ARGV, 4 do
  local partition = ARGV[i]
  local held_etag, held_by = holder(claims, partition)
  if held_by == owner and held_etag == ARGV[i + 1] then
    redis.call('HSET', claims, partition,
      etag .. '|' .. now .. '|' .. ARGV[i + 2] .. '|' .. ARGV[i + 3] .. '|' .. owner)
  end
  reply[#reply + 1] = partition
  reply[#reply + 1] = redis.call('HGET', claims, partition) or ''
end
return reply
