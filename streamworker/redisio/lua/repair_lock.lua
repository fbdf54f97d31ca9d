-- uses: types epoch
-- Releases a lock whose owner is gone, if that owner still holds it at that epoch. The script raises the
-- epoch: if the owner is alive after all, its next commit is fenced. Checkpoint, rows and all other fields
-- stay.
--
-- KEYS  1 lock (hash)
-- ARGV  1 owner  2 epoch
-- reply [OK] | [CHANGED] | [BADTYPE, key]
local wrong = wrong_type({'hash'})
if wrong then return {'BADTYPE', wrong} end
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch')
if ARGV[1] == '' or held[1] ~= ARGV[1] or seen_epoch(held[2]) ~= ARGV[2] then return {'CHANGED'} end
-- HDEL comes first: unlike HSET, Redis allows it when memory is full, and all writes after it.
redis.call('HDEL', KEYS[1], 'wanted_since', 'wanted_at', 'wanted_in')
raise_epoch(KEYS[1], held[2])
redis.call('HSET', KEYS[1], 'owner', '', 'state', '', 'reason', '')
return {'OK'}
