-- uses: types
-- Gives a lock back; only its owner at that epoch can. Epoch and checkpoint stay. Asking again
-- changes nothing: a free lock with my epoch was released by me.
--
-- KEYS  1 lock (hash)
-- ARGV  1 owner  2 epoch
-- reply [OK] | [NOTOWNER, owner] | [BADTYPE, key]
local wrong = wrong_type({'hash'})
if wrong then return {'BADTYPE', wrong} end
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch')
local holder = held[1] or ''
if held[2] ~= ARGV[2] or (holder ~= ARGV[1] and holder ~= '') then return {'NOTOWNER', holder} end
-- HDEL first: unlike HSET it is allowed when memory is full, and so is all that follows it.
redis.call('HDEL', KEYS[1], 'wanted_since', 'wanted_at', 'wanted_in')
redis.call('HSET', KEYS[1], 'owner', '', 'state', '', 'reason', '')
return {'OK'}
