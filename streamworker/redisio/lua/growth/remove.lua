-- uses: tables
-- Removes what a group had in an old partition, since all that follow have taken it over, and notes that. A reset
-- that has come since raises the epoch: the partition has something again then, or will have.
--
-- KEYS  lock (hash)  state (hash)  tables...: for each table its values (hash) and its expiry index (zset)
-- ARGV  epoch: of the lock, from before the caller saw that those that follow are open
-- reply [OK] | [CHANGED] | [BADTYPE, key]
local wrong = wrong_type(lock, 'hash', state, 'hash') or wrong_table(tables_at)
if wrong then return {'BADTYPE', wrong} end
local held = redis.call('HMGET', lock, 'epoch', 'done')
if held[1] ~= epoch or not held[2] then return {'CHANGED'} end
redis.call('HDEL', lock, '')  -- changes nothing, and makes Redis accept HSET when memory is full
redis.call('HSET', lock, 'moved', '1')
redis.call('UNLINK', state, unpack(KEYS, tables_at))
return {'OK'}
