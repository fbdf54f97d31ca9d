-- uses: writes epoch
-- Releases a lock whose owner is gone, if that owner still holds it at that epoch. The script raises the
-- epoch: if the owner is alive after all, its next commit is fenced. Checkpoint, rows and all other fields
-- stay.
--
-- KEYS  lock (hash)
-- ARGV  owner  epoch
-- reply [OK] | [CHANGED] | [BADTYPE, key]
local held = redis.call('HMGET', lock, 'owner', 'epoch')
if owner == '' or held[1] ~= owner or seen_epoch(held[2]) ~= epoch then return {'CHANGED'} end
free(lock)
raise_epoch(lock, held[2])
return {'OK'}
