-- Lets a group handle the records of a partition: it is done with the partitions that came before it. Only the
-- owner at its epoch can open it, and only while the lock says what the owner has waited for.
--
-- KEYS  lock (hash)
-- ARGV  owner  epoch  parents: numbers of those partitions, as the lock had them
-- reply [OK] also if it is open | [FENCED] | [CHANGED] | [BADTYPE, key]
local held = redis.call('HMGET', lock, 'owner', 'epoch', 'from')
if held[1] ~= owner or held[2] ~= epoch then return {'FENCED'} end
if held[3] and held[3] ~= parents then return {'CHANGED'} end
redis.call('HDEL', lock, 'from')
redis.call('HSET', lock, 'epoch', epoch)  -- a repeat writes for WAIT, as in append.lua
return {'OK'}
