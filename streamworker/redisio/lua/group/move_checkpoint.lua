-- uses: writes groups epoch
-- Moves a group's checkpoint in one partition by hand, while no member owns it. The script raises the
-- epoch, so that an owner that was taken for dead can no longer commit, and keeps it in `reset`, so that no
-- worker takes the move for a loss of commits. The acked log stays: entries that are processed again add their
-- rows again.
--
-- KEYS  lock (hash)  events (stream)  counts (hash)  cleared...: the keys of tables to clear
-- ARGV  group  checkpoint: the new one  entries: source records up to it
--       owner: the expected one: '', or one that is known to be dead
-- reply [OK, checkpoint before] | [HELD, owner] | [MISSING] | [BADTYPE, key]
local held = redis.call('HMGET', lock, 'owner', 'checkpoint', 'epoch')
if not held[2] then return {'MISSING'} end
local holder = held[1] or ''
if holder ~= owner and holder ~= '' then return {'HELD', holder} end
free(lock)
redis.call('HDEL', lock, 'tries', 'deaths')
if cleared_at <= #KEYS then redis.call('UNLINK', unpack(KEYS, cleared_at)) end
redis.call('HSET', lock, 'checkpoint', checkpoint, 'entries', entries, 'reset', raise_epoch(lock, held[3]))
fold_counts(events)
show_group(events, group, groups_at(events)[group], checkpoint, entries)
return {'OK', held[2]}
