-- uses: writes
-- Stores the state of a partition and its reason in the lock, for display.
--
-- KEYS  lock (hash)
-- ARGV  owner  epoch  state: running, retrying, draining or halted  reason
--       over: '*', or a prefix: write only if the state is not halted, and the stored reason is empty or has
--         this prefix, or is that of a timer: another writer's reason takes precedence
--       attempts: those that failed, with the state retrying  since_ms (number): since the first of them
--       next_ms (number): until the next
-- reply [OK] | [KEPT] | [FENCED, owner] | [BADTYPE, key]
local held = redis.call('HMGET', lock, 'owner', 'epoch', 'reason', 'state')
if held[1] ~= owner or held[2] ~= epoch then return {'FENCED', held[1] or ''} end
local stored = held[3] or ''
if over ~= '*' and held[4] == 'halted' then return {'KEPT'} end
local says_more = stored ~= '' and string.sub(stored, 1, #over) ~= over and string.sub(stored, 1, 6) ~= 'timer '
if over ~= '*' and says_more then return {'KEPT'} end
begin_writes(lock)
redis.call('HSET', lock, 'state', state, 'reason', reason)
if state == 'retrying' then
  local now = server_ms()
  redis.call('HSET', lock, 'retry', attempts .. ' ' .. text(now - since_ms) .. ' ' .. text(now + next_ms))
end
return {'OK'}
