-- uses: groups epoch
-- Removes all data of a group in one partition, if its lock has not changed since the caller read it: the
-- Redis consumer group, so that trimming no longer waits for it, its lock, log, dead letters, state and outbox.
--
-- KEYS  1 lock (hash)  2 events (stream)  3 acked (stream)  4 dead (stream)  5 state (hash)
--       6 groups (hash)  7 outbox (stream)  8 heads (hash)
-- ARGV  1 group  2 owner  3 epoch; '' for both if there was no lock
-- reply [OK, keys removed] | [CHANGED] | [BADTYPE, key]
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'checkpoint')
local epoch = held[3] and seen_epoch(held[2]) or ''  -- a lock without a checkpoint counts as none
if (held[1] or '') ~= ARGV[2] or epoch ~= ARGV[3] then return {'CHANGED'} end
if groups_at(KEYS[2])[ARGV[1]] then redis.call('XGROUP', 'DESTROY', KEYS[2], ARGV[1]) end
redis.call('HDEL', KEYS[6], ARGV[1])
return {'OK', redis.call('UNLINK', KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[7], KEYS[8])}
