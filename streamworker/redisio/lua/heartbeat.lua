-- uses: types
-- Renews a membership, and answers with all that a member must know to judge its peers. A member
-- that was removed is not brought back: it learns that it is lost.
--
-- What was measured of the member's partitions goes to a hash of its own: only the balancer reads it.
--
-- KEYS  1 members (string)  2 beats (hash)  3 loads (hash)
-- ARGV  1 member id  2 'client id|run id|load'  3 'partition:load,...'; '' if there is nothing new
-- reply [OK, generation or '', server ms, [member id, beat, ...]] | [LOST, generation or '', server ms]
--       | [BADTYPE, key]
local wrong = wrong_type({'string', 'hash', 'hash'})
if wrong then return {'BADTYPE', wrong} end
local generation = string.match(redis.call('GETRANGE', KEYS[1], 0, 63), '^{"generation":(%d+)') or ''
local now = server_ms()
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then return {'LOST', generation, now} end
-- HDEL first: unlike HSET it is allowed when memory is full, and so is all that follows it.
redis.call('HDEL', KEYS[2], '')
redis.call('HSET', KEYS[2], ARGV[1], text(now) .. '|' .. ARGV[2])
if ARGV[3] ~= '' then redis.call('HSET', KEYS[3], ARGV[1], ARGV[3]) end
-- As it comes: to copy the beats of a thousand members would take longer than all that is done here.
return {'OK', generation, now, redis.call('HGETALL', KEYS[2])}
