-- Part of other scripts; needs types.

-- Whether a field of a lock is a count that we wrote. Another program's may be text, or too large to be raised.
local function is_count(value)
  return value and #value <= 15 and string.find(value, '^%d+$') ~= nil
end

-- Raises a lock's epoch, and returns it. One that is none begins anew at the clock, as that of a new lock
-- does: an owner commits at the epoch that it was given and no other, so whoever had it is fenced. To be
-- called after HDEL, without which HSET is refused when memory is full.
local function raise_epoch(lock, epoch)
  if not is_count(epoch) then redis.call('HSET', lock, 'epoch', text(server_ms())) end
  return redis.call('HINCRBY', lock, 'epoch', 1)
end
