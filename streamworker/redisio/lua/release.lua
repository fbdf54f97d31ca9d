-- uses: types
-- Releases a lock; only its owner at that epoch can. Epoch and checkpoint stay. A repeated call changes
-- nothing: a free lock at the caller's epoch was released by the caller.
--
-- KEYS  1 lock (hash)
-- ARGV  1 owner  2 epoch
-- reply [OK] | [NOTOWNER, owner] | [BADTYPE, key]
local wrong = wrong_type({'hash'})
if wrong then return {'BADTYPE', wrong} end
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch')
local holder = held[1] or ''
if held[2] ~= ARGV[2] or (holder ~= ARGV[1] and holder ~= '') then return {'NOTOWNER', holder} end
-- HDEL comes first: unlike HSET, Redis allows it when memory is full, and all writes after it.
redis.call('HDEL', KEYS[1], 'wanted_since', 'wanted_at', 'wanted_in')
redis.call('HSET', KEYS[1], 'owner', '', 'state', '', 'reason', '')
return {'OK'}
