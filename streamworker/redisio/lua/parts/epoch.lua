-- Returns whether a field of a lock is a count that streamworker wrote. Another program may write text, a
-- number too large for Lua, or one with leading zeros.
local function is_count(value)
  return value and #value <= 15 and (value == '0' or string.find(value, '^[1-9]%d*$') ~= nil)
end

-- Returns a lock's epoch as the Python code reads it (`whole` of redisio/keys.py).
local function seen_epoch(value)
  if not value or #value > 19 or not string.find(value, '^%d+$') then return '0' end
  return (string.gsub(value, '^0+(%d)', '%1'))
end

-- Raises a lock's epoch, and returns it: the server's time, or the last epoch plus one if that is greater. So
-- an epoch that a failover lost is not given again, unless the clock has gone back. If another
-- program overwrote the epoch, it is not known, and may be the time of this millisecond or a few more. So the
-- next one is a second ahead of the time. An owner can only commit at the epoch that it was given, so the last
-- owner is fenced.
local function raise_epoch(lock, epoch)
  local now = server_ms()
  local last = 0
  if epoch then last = is_count(epoch) and tonumber(epoch) or now + 1000 end
  local raised = text(math.max(now, last + 1))
  redis.call('HSET', lock, 'epoch', raised)
  return raised
end

-- Returns whether a failover has lost the last call of a timer that this owner committed.
--
-- The call moves no checkpoint, so the checkpoint does not show that it is lost, and the owner goes on with the
-- state that the call left. What Redis lost is always the end of what was written: if the last call is there,
-- the ones before it are there, too.
local function is_tick_lost(state, timer, ticked)
  return timer ~= '' and redis.call('HGET', state, timer) ~= ticked
end
