-- uses: writes epoch
-- Releases a lock; only its owner can, at an epoch that it has had since it acquired the lock. Epoch and
-- checkpoint stay. A repeated call changes nothing: a free lock at such an epoch was released by the caller.
--
-- KEYS  1 lock (hash)
-- ARGV  1 owner  2 epoch
-- reply [OK] | [NOTOWNER, owner] | [BADTYPE, key]
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'from_epoch')
local holder, epoch = held[1] or '', tonumber(ARGV[2])
local is_known = held[2] == ARGV[2] or is_count(held[2]) and is_count(held[3])
  and tonumber(held[3]) <= epoch and epoch <= tonumber(held[2])
if not is_known or (holder ~= ARGV[1] and holder ~= '') then return {'NOTOWNER', holder} end
free(KEYS[1])
return {'OK'}
