-- uses: writes
-- Releases a lock; only its owner at that epoch can. Epoch and checkpoint stay. A repeated call changes
-- nothing: a free lock at the caller's epoch was released by the caller.
--
-- KEYS  1 lock (hash)
-- ARGV  1 owner  2 epoch
-- reply [OK] | [NOTOWNER, owner] | [BADTYPE, key]
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch')
local holder = held[1] or ''
if held[2] ~= ARGV[2] or (holder ~= ARGV[1] and holder ~= '') then return {'NOTOWNER', holder} end
free(KEYS[1])
return {'OK'}
