-- uses: groups epoch
-- Removes all data of a group in one partition, if its lock has not changed since the caller read it: the
-- Redis consumer group, so that trimming no longer waits for it, its lock, log, dead letters, state and outbox.
--
-- KEYS  lock (hash)  events (stream)  acked (stream)  dead (stream)  state (hash)
--       groups (hash)  messages (stream)  heads (hash)
-- ARGV  group  owner  epoch: '' for both if there was no lock
-- reply [OK, keys removed] | [CHANGED] | [BADTYPE, key]
local held = redis.call('HMGET', lock, 'owner', 'epoch', 'checkpoint')
local seen = held[3] and seen_epoch(held[2]) or ''  -- a lock without a checkpoint counts as none
if (held[1] or '') ~= owner or seen ~= epoch then return {'CHANGED'} end
if groups_at(events)[group] then redis.call('XGROUP', 'DESTROY', events, group) end
redis.call('HDEL', groups, group)
return {'OK', redis.call('UNLINK', lock, acked, dead, state, messages, heads)}
