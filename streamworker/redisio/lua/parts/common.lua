-- In front of every script.

local REMEMBER_MS = 3600000  -- a producer's call is known for at least so long, since it may be repeated

-- Returns whether a key holds a type or is missing.
local function is_a(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == 'none' or found == kind
end

-- Returns the first of KEYS that holds another type than expected, or nil. Redis does not roll back a
-- script that fails half-way, so scripts call this before the first write. 'any' allows every type.
local function wrong_type(expected)
  for i, kind in ipairs(expected) do
    if kind ~= 'any' and not is_a(KEYS[i], kind) then return KEYS[i] end
  end
  return nil
end

local function server_ms()
  local now = redis.call('TIME')
  return tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
end

-- Returns a whole number up to 2^53 as text; tostring() would print 1.7e+12.
local function text(number)
  return string.format('%.0f', number)
end
