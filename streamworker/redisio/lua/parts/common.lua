-- In front of every script.

local REMEMBER_MS = 3600000  -- a producer's call is known for at least so long, since it may be repeated

-- Returns whether a key holds a type or is missing.
local function is_a(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == 'none' or found == kind
end

-- Returns the first of some keys that holds another type than the one behind it, or nil. Redis does not roll
-- back a script that fails half-way, so scripts call this before the first write.
local function wrong_type(...)
  local pairs = {...}
  for i = 1, #pairs, 2 do
    if not is_a(pairs[i], pairs[i + 1]) then return pairs[i] end
  end
end

local function server_ms()
  local now = redis.call('TIME')
  return tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
end

-- Returns a whole number up to 2^53 as text; tostring() would print 1.7e+12.
local function text(number)
  return string.format('%.0f', number)
end
