-- uses: writes epoch
-- Releases a lock whose owner is gone, if that owner still holds it at that epoch. The script raises the
-- epoch: if the owner is alive after all, its next commit is fenced. Checkpoint, rows and all other fields
-- stay.
--
-- KEYS  1 lock (hash)
-- ARGV  1 owner  2 epoch
-- reply [OK] | [CHANGED] | [BADTYPE, key]
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch')
if ARGV[1] == '' or held[1] ~= ARGV[1] or seen_epoch(held[2]) ~= ARGV[2] then return {'CHANGED'} end
free(KEYS[1])
raise_epoch(KEYS[1], held[2])
return {'OK'}
