-- Sets or removes a field of a hash, if it has not changed since the caller read it.
--
-- KEYS  hash (hash)
-- ARGV  field  seen: as it was read; '' if there was none  value: '' to remove the field
-- reply [OK] | [CHANGED] | [BADTYPE, key]
if (redis.call('HGET', hash, field) or '') ~= seen then return {'CHANGED'} end
if value == '' then redis.call('HDEL', hash, field) else redis.call('HSET', hash, field, value) end
return {'OK'}
