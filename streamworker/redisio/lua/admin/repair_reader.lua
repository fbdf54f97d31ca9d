-- Removes a reader's position, if it has not changed since the caller read it; trimming then no longer waits
-- for that reader.
--
-- KEYS  1 readers (hash)
-- ARGV  1 name  2 its position as it was read
-- reply [OK] | [CHANGED] | [BADTYPE, key]
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return {'CHANGED'} end
redis.call('HDEL', KEYS[1], ARGV[1])
return {'OK'}
