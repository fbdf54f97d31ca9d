-- uses: writes epoch
-- Releases a lock; only its owner can, at an epoch that it has had since it acquired the lock. Epoch and
-- checkpoint stay. A repeated call changes nothing: a free lock at such an epoch was released by the caller.
--
-- KEYS  lock (hash)
-- ARGV  owner  epoch
-- reply [OK] | [NOTOWNER, owner] | [BADTYPE, key]
local held = redis.call('HMGET', lock, 'owner', 'epoch', 'from_epoch')
local holder, at = held[1] or '', tonumber(epoch)
local is_known = held[2] == epoch or is_count(held[2]) and is_count(held[3])
  and tonumber(held[3]) <= at and at <= tonumber(held[2])
if not is_known or (holder ~= owner and holder ~= '') then return {'NOTOWNER', holder} end
free(lock)
return {'OK'}
