-- Removes an owner's entries, so that others can claim its partitions at once. The call may be repeated.
--
-- KEYS  1 claims (hash)
-- ARGV  1 owner  then partitions
-- reply [OK] | [BADTYPE, key]
for i = 2, #ARGV do
  local entry = redis.call('HGET', KEYS[1], ARGV[i]) or ''
  local holder = string.match(entry, '^%d+|[^|]*|[^|]*|[^|]*|(.*)$')
  if holder == ARGV[1] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
return {'OK'}
