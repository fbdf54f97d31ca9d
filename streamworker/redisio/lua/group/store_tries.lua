-- uses: writes
-- Stores attempts at records in the lock, which the next owner goes on counting.
--
-- KEYS  lock (hash)
-- ARGV  owner  epoch  tries: id and number, id and number... and 'alone' if nothing else was called
-- reply [OK] | [FENCED, owner] | [BADTYPE, key]
local held = redis.call('HMGET', lock, 'owner', 'epoch')
if held[1] ~= owner or held[2] ~= epoch then return {'FENCED', held[1] or ''} end
begin_writes(lock)
redis.call('HSET', lock, 'tries', tries)
return {'OK'}
