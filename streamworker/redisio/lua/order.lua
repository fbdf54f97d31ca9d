-- uses: writes
-- Writes an operator's order into a partition's lock, where it stands for this owner and all later ones, and
-- raises the version of the orders. An owner that sees another version than it obeys finishes what it has in
-- hand, and acquires the lock again: `acquire` returns the orders, and notes the version as obeyed.
--
-- KEYS  1 lock (hash)
-- ARGV  1 order: pause, resume or retry  2 who gives it  3 why
-- reply [OK, version, owner] | [KEPT, version, owner] if no pause stands that could end | [MISSING]
--       | [BADTYPE, key]
local lock, order = KEYS[1], ARGV[1]
local held = redis.call('HMGET', lock, 'checkpoint', 'owner', 'ordered', 'paused_at')
if not held[1] then return {'MISSING'} end
local now, last = server_ms(), tonumber(held[3] or '') or 0
if order == 'resume' and not held[4] then return {'KEPT', held[3] or '0', held[2] or ''} end
begin_writes(lock)
if order == 'pause' then
  redis.call('HSET', lock, 'paused_at', text(now), 'paused_by', ARGV[2], 'paused_why', ARGV[3])
elseif order == 'resume' then
  redis.call('HDEL', lock, 'paused_at', 'paused_by', 'paused_why')
end
local version = text(math.max(now, last + 1))
redis.call('HSET', lock, 'ordered', version)
return {'OK', version, held[2] or ''}
