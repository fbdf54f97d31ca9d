-- Removes a reader's position, if it has not changed since the caller read it; trimming then no longer waits
-- for that reader.
--
-- KEYS  readers (hash)
-- ARGV  name  position: as it was read
-- reply [OK] | [CHANGED] | [BADTYPE, key]
if redis.call('HGET', readers, name) ~= position then return {'CHANGED'} end
redis.call('HDEL', readers, name)
return {'OK'}
