-- Returns whether a field of a lock is a count that streamworker wrote. Another program may write text, a
-- number too large for HINCRBY, or one with leading zeros, which HINCRBY refuses, too.
local function is_count(value)
  return value and #value <= 15 and (value == '0' or string.find(value, '^[1-9]%d*$') ~= nil)
end

-- Returns a lock's epoch as the Python code reads it (`whole` of redisio/keys.py).
local function seen_epoch(value)
  if not value or #value > 19 or not string.find(value, '^%d+$') then return '0' end
  return (string.gsub(value, '^0+(%d)', '%1'))
end

-- Raises a lock's epoch, and returns it. An invalid epoch restarts at the server's time, as in a new lock: an
-- owner can only commit at the epoch that it was given, so the last owner is fenced. An epoch below the time
-- at which the lock was made restarts, too, or readers would see the epoch fall along the log.
local function raise_epoch(lock, epoch)
  local made = tonumber(string.match(redis.call('HGET', lock, 'log') or '', '%.(%d+)$')) or 0
  if not is_count(epoch) or tonumber(epoch) < made then redis.call('HSET', lock, 'epoch', text(server_ms())) end
  return redis.call('HINCRBY', lock, 'epoch', 1)
end
