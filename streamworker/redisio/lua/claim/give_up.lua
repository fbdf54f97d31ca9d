-- Removes an owner's entries, so that others can claim its partitions at once. The call may be repeated.
--
-- KEYS  claims (hash)
-- ARGV  owner  partitions...
-- reply [OK] | [BADTYPE, key]
for i = partitions_at, #ARGV do
  local entry = redis.call('HGET', claims, ARGV[i]) or ''
  local holder = string.match(entry, '^%d+|[^|]*|[^|]*|[^|]*|(.*)$')
  if holder == owner then redis.call('HDEL', claims, ARGV[i]) end
end
return {'OK'}
