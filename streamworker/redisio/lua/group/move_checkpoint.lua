-- uses: writes groups epoch
-- Moves a group's checkpoint in one partition by hand, while no member works on it: none owns it, or its owner
-- has obeyed a pause. The script raises the epoch, so that an owner that was taken for dead can no longer
-- commit, nor one that has paused with a call that came late. It keeps the epoch in `reset`, so that no worker
-- takes the move for a loss of commits. An owner that has paused stays the owner, and reads the new checkpoint
-- when it acquires the lock again to resume. The acked log stays: entries that are processed again add their
-- rows again. If the partition takes nothing more, its owner notes anew when the group is done with it.
--
-- KEYS  lock (hash)  events (stream)  counts (hash)  state (hash)  cleared...: the keys of tables to clear
-- ARGV  group  checkpoint: the new one  entries: source records up to it
--       owner: the expected one: '', or one that is known to be dead
--       forgotten: a field of the state to remove; '' for none
--       parents: for `from`, if the group must be done with other partitions before; '' leaves that as it is
-- reply [OK, checkpoint before] | [HELD, owner] | [MISSING] | [BADTYPE, key]
local held = redis.call('HMGET', lock, 'owner', 'checkpoint', 'epoch', 'paused_at', 'ordered', 'obeyed')
if not held[2] then return {'MISSING'} end
local holder = held[1] or ''
local is_paused = held[4] and held[5] == held[6]
if holder ~= owner and holder ~= '' and not is_paused then return {'HELD', holder} end
if holder == owner or holder == '' then free(lock) end
redis.call('HDEL', lock, 'tries', 'deaths', 'done', 'moved')
if forgotten ~= '' then redis.call('HDEL', state, forgotten) end
if cleared_at <= #KEYS then redis.call('UNLINK', unpack(KEYS, cleared_at)) end
redis.call('HSET', lock, 'checkpoint', checkpoint, 'entries', entries, 'reset', raise_epoch(lock, held[3]))
if parents ~= '' then redis.call('HSET', lock, 'from', parents) end
show_group(events, group, groups_at(events)[group], checkpoint)
return {'OK', held[2]}
