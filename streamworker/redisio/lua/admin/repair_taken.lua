-- Sets where a partition stands with one source, if it has not moved since the caller looked.
--
-- KEYS  1 taken (hash)
-- ARGV  1 source  2 where it stood  3 where it is to stand
-- reply [OK] | [CHANGED] | [BADTYPE, key]
if (redis.call('HGET', KEYS[1], ARGV[1]) or '0-') ~= ARGV[2] then return {'CHANGED'} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return {'OK'}
