-- Part of other scripts; needs types.

-- Whether a field of a lock is a count that we wrote. Another program's may be text, too large to be raised,
-- or with zeros before it, which the server raises as little.
local function is_count(value)
  return value and #value <= 15 and (value == '0' or string.find(value, '^[1-9]%d*$') ~= nil)
end

-- A lock's epoch as who looks at the lock reads it (`whole` of redisio/keys.py).
local function seen_epoch(value)
  if not value or #value > 19 or not string.find(value, '^%d+$') then return '0' end
  return (string.gsub(value, '^0+(%d)', '%1'))
end

-- Raises a lock's epoch, and returns it. One that is none begins anew at the clock, as that of a new lock
-- does: an owner commits at the epoch that it was given and no other, so whoever had it is fenced. To be
-- called after HDEL, without which HSET is refused when memory is full.
local function raise_epoch(lock, epoch)
  if not is_count(epoch) then redis.call('HSET', lock, 'epoch', text(server_ms())) end
  return redis.call('HINCRBY', lock, 'epoch', 1)
end
