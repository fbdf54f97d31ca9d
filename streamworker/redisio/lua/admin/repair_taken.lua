-- Sets where a partition stands with one source, if it has not moved since the caller looked.
--
-- KEYS  taken (hash)
-- ARGV  source  stood: where it stood  stands: where it is to stand
-- reply [OK] | [CHANGED] | [BADTYPE, key]
if (redis.call('HGET', taken, source) or '0-') ~= stood then return {'CHANGED'} end
redis.call('HSET', taken, source, stands)
return {'OK'}
