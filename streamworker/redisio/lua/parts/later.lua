-- A record that is sent later has an id, and stands in two keys of its partition. A sorted set has the id by
-- the time at which it is due, and a hash has what is known of it: its state, the names of the last calls that
-- changed it, newest first, the time, and by state
--   w  waits: the sizes of its texts, separated by commas, and after a line feed the texts: the id and the
--      key as its sender wrote them, and the fields of the entry
--   s  was sent: the id of its entry, and the time at which the window of its id ends
--   c  was cancelled: that time
-- What was sent or cancelled is known until the time in the sorted set, and is removed after that. A call that is
-- repeated, or arrives once more after others, is known by its name and changes nothing.

-- Returns state, calls, due time and the rest of what is known of an id; nil if it is unknown.
local function later_of(delayed, id)
  local known = redis.call('HGET', delayed, id)
  if not known then return nil end
  return string.match(known, '^(%a) (%S+) (%d+) (.*)$')
end

local function was_made(calls, call)
  return calls and string.find(',' .. calls .. ',', ',' .. call .. ',', 1, true)
end

-- Returns whether an id is unknown, or the window has ended of what was sent or cancelled.
local function is_free(later, id, state, rest, now)
  if state ~= 's' and state ~= 'c' then return not state end
  return tonumber(string.match(rest, ' (%d+)$') or redis.call('ZSCORE', later, id) or '0') <= now
end

-- Returns the names of the last calls with a new one.
local function with_call(call, calls)
  return calls and call .. ',' .. string.match(calls, '^[^,]*,?[^,]*') or call
end

-- Returns the time until which a record that was sent or cancelled is known, and the end of its window.
local function known_until(now, window)
  return text(now + math.max(window, REMEMBER_MS)), text(now + window)
end

local function keep_later(later, delayed, id, at, ...)
  redis.call('HSET', delayed, id, table.concat({...}, ' '))
  redis.call('ZADD', later, at, id)
end
