-- uses: writes
-- Stores the state of a partition and its reason in the lock, for display; or attempts at records, which the
-- next owner goes on counting.
--
-- KEYS  1 lock (hash)
-- ARGV  1 owner  2 epoch  3 state: running, retrying, draining or halted  4 reason
--       5 optional, a prefix: write only if the state is not halted, and the stored reason is empty or
--       has this prefix: another writer's reason takes precedence
--       5-7 with state retrying: attempts that failed, ms since the first, ms until the next
--       or 3 tries  4 attempts: id and number, id and number... and 'alone' if nothing else was called
-- reply [OK] | [KEPT] | [FENCED, owner] | [BADTYPE, key]
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'reason', 'state')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return {'FENCED', held[1] or ''} end
if ARGV[3] == 'tries' then
  begin_writes(KEYS[1])
  redis.call('HSET', KEYS[1], 'tries', ARGV[4])
  return {'OK'}
end
local reason, ours = held[3] or '', ARGV[3] ~= 'retrying' and ARGV[5]
if ours and held[4] == 'halted' then return {'KEPT'} end
if ours and reason ~= '' and string.sub(reason, 1, #ours) ~= ours then return {'KEPT'} end
begin_writes(KEYS[1])
redis.call('HSET', KEYS[1], 'state', ARGV[3], 'reason', ARGV[4])
if ARGV[3] == 'retrying' then
  local now = server_ms()
  redis.call('HSET', KEYS[1], 'retry',
    ARGV[5] .. ' ' .. text(now - tonumber(ARGV[6])) .. ' ' .. text(now + tonumber(ARGV[7])))
end
return {'OK'}
