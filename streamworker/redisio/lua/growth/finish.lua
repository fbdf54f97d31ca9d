-- uses: groups
-- Notes in a group's lock that the group is done with a partition that takes nothing more: all its records are
-- committed, and what it has sent to other streams is there. The partitions that follow wait for that, each
-- group by itself. Only the owner at its epoch can note it.
--
-- Who sees the note handles what follows, so it must not be there before the last commit is as durable as the
-- settings ask: that commit may be of an owner before. So the owner first asks with step 'look', which writes
-- the checkpoint again for WAIT, and then with step 'done'. Both may be repeated.
--
-- KEYS  lock (hash)  events (stream)  counts (hash)  messages (stream)
-- ARGV  owner  epoch  step: 'look' or 'done'
-- reply [OK] | [FENCED] | [OPEN] the partition is not sealed | [BEHIND] records follow the checkpoint, or the
--       partition waits itself for those before it
--       | [OUTBOX] messages wait for other streams | [BADTYPE, key]
local held = redis.call('HMGET', lock, 'owner', 'epoch', 'checkpoint', 'from')
if held[1] ~= owner or held[2] ~= epoch then return {'FENCED'} end
if not is_id(held[3]) then return {'BADTYPE', lock} end
local _, _, _, _, _, is_sealed = stream_position(events)
if not is_sealed or redis.call('HEXISTS', counts, 'sealed') == 0 then return {'OPEN'} end
if held[4] or is_archived_behind(events, held[3]) then return {'BEHIND'} end
if redis.pcall('XRANGE', events, '(' .. held[3], '+', 'COUNT', 1)[1] then return {'BEHIND'} end
if redis.call('XLEN', messages) > 0 then return {'OUTBOX'} end
redis.call('HDEL', lock, '')  -- changes nothing, and makes Redis accept HSET when memory is full
if step == 'done' then
  redis.call('HSET', lock, 'done', '1')
else
  redis.call('HSET', lock, 'checkpoint', held[3])
end
return {'OK'}
