-- uses: types
-- Says what the owner does with a partition, for people who look.
--
-- KEYS  1 lock (hash)
-- ARGV  1 owner  2 epoch  3 state: running, draining or halted  4 reason
-- reply [OK] | [FENCED, owner] | [BADTYPE, key]
local wrong = wrong_type({'hash'})
if wrong then return {'BADTYPE', wrong} end
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return {'FENCED', held[1] or ''} end
-- HDEL first: unlike HSET it is allowed when memory is full, and so is all that follows it.
redis.call('HDEL', KEYS[1], 'reason')
redis.call('HSET', KEYS[1], 'state', ARGV[3], 'reason', ARGV[4])
return {'OK'}
