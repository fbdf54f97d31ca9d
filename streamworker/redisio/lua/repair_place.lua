-- uses: types ids register epoch
-- Removes all that a group has in one partition, if its lock is as it was when somebody looked: the
-- group of Redis, so that the stream is trimmed without it, its lock, log, dead letters and state.
--
-- KEYS  1 lock (hash)  2 events (stream)  3 acked (stream)  4 dead (stream)  5 state (hash)
-- ARGV  1 group  2 owner  3 epoch; '' for both if there was no lock
-- reply [OK, keys removed] | [CHANGED] | [BADTYPE, key]
local wrong = wrong_type({'hash', 'stream', 'stream', 'stream', 'hash'})
if wrong then return {'BADTYPE', wrong} end
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'checkpoint')
local epoch = held[3] and seen_epoch(held[2]) or ''  -- without a checkpoint it is read as none
if (held[1] or '') ~= ARGV[2] or epoch ~= ARGV[3] then return {'CHANGED'} end
if find_group(KEYS[2], ARGV[1]) then redis.call('XGROUP', 'DESTROY', KEYS[2], ARGV[1]) end
return {'OK', redis.call('UNLINK', KEYS[1], KEYS[3], KEYS[4], KEYS[5])}
