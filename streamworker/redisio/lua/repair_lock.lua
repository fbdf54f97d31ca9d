-- uses: types epoch
-- Releases a lock whose owner is gone, if it is still that owner's at that epoch. The epoch is raised:
-- should the owner be alive after all, it commits nothing any more, and learns so. Checkpoint, rows
-- and everything else stay.
--
-- KEYS  1 lock (hash)
-- ARGV  1 owner  2 epoch
-- reply [OK] | [CHANGED] | [BADTYPE, key]
local wrong = wrong_type({'hash'})
if wrong then return {'BADTYPE', wrong} end
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch')
if ARGV[1] == '' or held[1] ~= ARGV[1] or seen_epoch(held[2]) ~= ARGV[2] then return {'CHANGED'} end
-- HDEL first: unlike HSET it is allowed when memory is full, and so is all that follows it.
redis.call('HDEL', KEYS[1], 'wanted_since', 'wanted_at', 'wanted_in')
raise_epoch(KEYS[1], held[2])
redis.call('HSET', KEYS[1], 'owner', '', 'state', '', 'reason', '')
return {'OK'}
