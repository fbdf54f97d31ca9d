-- uses: writes groups epoch
-- Moves a group's checkpoint in one partition by hand, while no member owns it. The script raises the
-- epoch, so that an owner that was taken for dead can no longer commit, and keeps it in `reset`, so that no
-- worker takes the move for a loss of commits. The acked log stays: entries that are processed again add their
-- rows again.
--
-- KEYS  1 lock (hash)  2 events (stream)  3 counts (hash)  then keys of tables to clear, if any
-- ARGV  1 group  2 new checkpoint  3 source records up to it  4 the expected owner: '', or
--       one that is known to be dead
-- reply [OK, checkpoint before] | [HELD, owner] | [MISSING] | [BADTYPE, key]
local held = redis.call('HMGET', KEYS[1], 'owner', 'checkpoint', 'epoch')
if not held[2] then return {'MISSING'} end
local holder = held[1] or ''
if holder ~= ARGV[4] and holder ~= '' then return {'HELD', holder} end
free(KEYS[1])
redis.call('HDEL', KEYS[1], 'tries', 'deaths')
if #KEYS > 3 then redis.call('UNLINK', unpack(KEYS, 4)) end
redis.call('HSET', KEYS[1], 'checkpoint', ARGV[2], 'entries', ARGV[3], 'reset', raise_epoch(KEYS[1], held[3]))
fold_counts(KEYS[2])
show_group(KEYS[2], ARGV[1], groups_at(KEYS[2])[ARGV[1]], ARGV[2], ARGV[3])
return {'OK', held[2]}
